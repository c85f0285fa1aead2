//! Times as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-11-22T02:40:04.123456Z`
pub(crate) fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    // Years are counted from March, so that a leap day is the last day of its year. An era has 400 years.
    let day = days + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    format!(
        "{:04}-{month:02}-{of_month:02}T{:02}:{:02}:{:02}.{:06}Z",
        era * 400 + year,
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_micros()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Against `date -u -d @SECONDS`.
    #[test]
    fn times_are_formatted_as_iso_8601() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}

//! Dates in HTTP headers, in the three formats that recipients must accept (RFC 9110, section 5.6.7).

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Days before each month in a common year.
const DAYS_BEFORE_MONTH: [u64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
const SECONDS_OF_A_YEAR: u64 = 31_556_952;

/// Seconds since 1970, as is `now`. A two-digit year is the latest one that is at most fifty years after `now`.
pub(crate) fn seconds(text: &str, now: u64) -> Option<u64> {
    let words: Vec<&str> = text.split([' ', ',', '-']).filter(|word| !word.is_empty()).collect();
    let (day, month, year, time) = match words[..] {
        // `Sun, 06 Nov 1994 08:49:37 GMT` and `Sunday, 06-Nov-94 08:49:37 GMT`
        [_, day, month, year, time, "GMT"] => (day, month, year, time),
        // `Sun Nov  6 08:49:37 1994`
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))?;
    let year = match (year.len(), number(year)?) {
        (4, year @ 1970..) => year,
        (2, short) => {
            let latest = 1970 + now / SECONDS_OF_A_YEAR + 50;
            latest - (latest - short) % 100
        }
        _ => return None,
    };
    let leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let long = u64::from(leap && month == 1);
    let day = number(day)
        .filter(|day| (1..=DAYS_BEFORE_MONTH[month + 1] - DAYS_BEFORE_MONTH[month] + long).contains(day))?;

    let times: Vec<u64> = time.split(':').map(number).collect::<Option<_>>()?;
    let [hour @ 0..24, minute @ 0..60, second @ 0..=60] = times[..] else { return None };
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let days = 365 * (year - 1970) + leap_days(year - 1) - leap_days(1969)
        + DAYS_BEFORE_MONTH[month]
        + u64::from(leap && month > 1)
        + day
        - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn number(text: &str) -> Option<u64> {
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-21.
    const NOW: u64 = 1_795_219_200;

    #[test]
    fn the_three_formats_give_the_same_date() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(seconds(text, NOW), Some(784_111_777), "{text}");
        }
    }

    /// The expected seconds come from GNU date.
    #[test]
    fn dates_match_gnu_date() {
        for (text, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Mon, 28 Feb 2000 23:59:59 GMT", 951_782_399),
            ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_800),
            ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199),
            ("Tue, 31 Dec 2024 23:59:59 GMT", 1_735_689_599),
            ("Wed, 01 Jan 2025 00:00:00 GMT", 1_735_689_600),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
            ("Sun, 28 Feb 2100 00:00:00 GMT", 4_107_456_000),
            ("Sat, 31 Dec 2039 23:59:59 GMT", 2_208_988_799),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ] {
            assert_eq!(seconds(text, NOW), Some(expected), "{text}");
        }
    }

    #[test]
    fn two_digit_years_are_at_most_fifty_years_ahead() {
        for (short, year) in [("26", "2026"), ("76", "2076"), ("77", "1977"), ("00", "2000"), ("99", "1999")]
        {
            let of_short = seconds(&format!("Monday, 01-Mar-{short} 00:00:00 GMT"), NOW);
            assert!(of_short.is_some());
            assert_eq!(of_short, seconds(&format!("Mon, 01 Mar {year} 00:00:00 GMT"), NOW), "{short}");
        }
    }

    #[test]
    fn invalid_dates_are_none() {
        for text in [
            "",
            "120",
            "soon",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 2100 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sun, 06 Nov 994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(seconds(text, NOW), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn dates_never_panic(text in "[A-Za-z0-9 ,:-]{0,40}|Sun, [0-9]{1,3} (Feb|Dec) [0-9]{1,5} [0-9:]{1,9} GMT", now: u64) {
            let _ = seconds(&text, now);
        }
    }
}

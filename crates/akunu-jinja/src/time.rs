//! Date and time for templates (`strftime_now`).

/// A local date and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    year: i64,
    month: usize,
    day: i64,
    /// Days since 1970-01-01.
    days: i64,
    second_of_day: i64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

impl LocalTime {
    /// Seconds since 1970-01-01 00:00 in local time.
    pub fn from_seconds(seconds: i64) -> LocalTime {
        let days = seconds.div_euclid(86_400);
        // Howard Hinnant's civil_from_days: years begin in March, so that leap days come last.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        LocalTime { year, month: month as usize, day, days, second_of_day: seconds.rem_euclid(86_400) }
    }

    fn day_of_year(&self) -> i64 {
        let leap = (self.year % 4 == 0 && self.year % 100 != 0) || self.year % 400 == 0;
        const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        BEFORE[self.month - 1] + self.day + i64::from(leap && self.month > 2)
    }

    /// `strftime` in the C locale. An unknown directive is kept unchanged.
    pub(crate) fn format(&self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() + 16);
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let Some(mut directive) = chars.next() else {
                out.push('%');
                break;
            };
            let mut padded = true;
            if directive == '-' {
                padded = false;
                directive = chars.next().unwrap_or('-');
            }
            match self.directive(directive) {
                Some(text) if padded || text.parse::<i64>().is_err() => out.push_str(&text),
                Some(text) => {
                    let short = text.trim_start_matches('0');
                    out.push_str(if short.is_empty() { "0" } else { short });
                }
                None => out.extend(['%', directive]),
            }
        }
        out
    }

    fn directive(&self, directive: char) -> Option<String> {
        let (hour, minute, second) =
            (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let month = MONTHS[self.month - 1];
        let weekday = WEEKDAYS[(self.days + 3).rem_euclid(7) as usize];
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'B' => month.to_string(),
            'b' | 'h' => month[..3].to_string(),
            'A' => weekday.to_string(),
            'a' => weekday[..3].to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'f' => "000000".to_string(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_string(),
            'j' => format!("{:03}", self.day_of_year()),
            'w' => (self.days + 4).rem_euclid(7).to_string(),
            'u' => ((self.days + 3).rem_euclid(7) + 1).to_string(),
            'F' => self.format("%Y-%m-%d"),
            'T' => self.format("%H:%M:%S"),
            'R' => self.format("%H:%M"),
            'D' | 'x' => self.format("%m/%d/%y"),
            'X' => self.format("%H:%M:%S"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            'n' => "\n".to_string(),
            't' => "\t".to_string(),
            // A naive time has no zone.
            'z' | 'Z' => String::new(),
            '%' => "%".to_string(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::LocalTime;

    #[test]
    fn dates_match_the_calendar() {
        let moment = LocalTime::from_seconds(1_709_210_096); // 2024-02-29 12:34:56, a Thursday
        assert_eq!(
            moment.format("%Y-%m-%d %H:%M:%S %A %d %b %y day %j"),
            "2024-02-29 12:34:56 Thursday 29 Feb 24 day 060"
        );
        assert_eq!(moment.format("%-m/%-d %I %p %% %Q %"), "2/29 12 PM % %Q %");
        assert_eq!(LocalTime::from_seconds(-1).format("%F %T %a"), "1969-12-31 23:59:59 Wed");
        assert_eq!(LocalTime::from_seconds(951_868_800).format("%F"), "2000-03-01");
    }
}

//! How long a model stays loaded without requests, as its clients ask for it.

use std::time::Duration;

/// Longer than any server runs, so that no time overflows.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    For(Duration),
    Forever,
}

impl KeepAlive {
    pub(crate) const UNLOAD: KeepAlive = KeepAlive::For(Duration::ZERO);

    /// Seconds; below 0: for ever.
    pub(crate) fn seconds(seconds: f64) -> Option<KeepAlive> {
        match seconds {
            seconds if seconds.is_nan() => None,
            seconds if seconds < 0.0 => Some(KeepAlive::Forever),
            seconds if seconds >= LONGEST.as_secs_f64() => Some(KeepAlive::Forever),
            seconds => Some(KeepAlive::For(Duration::from_secs_f64(seconds))),
        }
    }

    /// A duration as Go writes it: `5m`, `1h30m`, `-1s`, `1.5h`; or a number of seconds.
    pub(crate) fn parse(text: &str) -> Option<KeepAlive> {
        const UNITS: [(&str, f64); 8] = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
            ("d", 86_400.0),
        ];
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text.strip_prefix('+').unwrap_or(text)),
        };
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        if rest.is_empty() || rest.len() > 64 {
            return None;
        }
        if rest.chars().all(is_number) {
            return KeepAlive::seconds(sign * rest.parse::<f64>().ok()?);
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let end = rest.find(|c| !is_number(c))?;
            let number: f64 = rest[..end].parse().ok()?;
            rest = &rest[end..];
            let end = rest.find(is_number).unwrap_or(rest.len());
            let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..end])?;
            seconds += number * unit;
            rest = &rest[end..];
        }
        KeepAlive::seconds(sign * seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_ollamas_clients() {
        let seconds = |text| match KeepAlive::parse(text) {
            Some(KeepAlive::For(time)) => Some(time.as_secs_f64()),
            Some(KeepAlive::Forever) => Some(-1.0),
            None => None,
        };
        for (text, expected) in [
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("1.5h", Some(5400.0)),
            ("250ms", Some(0.25)),
            ("0", Some(0.0)),
            ("0s", Some(0.0)),
            ("10", Some(10.0)),
            ("-1", Some(-1.0)),
            ("-1m", Some(-1.0)),
            ("99999999999h", Some(-1.0)),
            ("", None),
            ("-", None),
            ("m", None),
            ("5 m", None),
            ("5x", None),
            ("1.2.3s", None),
            ("5m3", None),
            ("soon", None),
            ("é", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
        assert_eq!(KeepAlive::seconds(f64::INFINITY), Some(KeepAlive::Forever));
        assert_eq!(KeepAlive::seconds(f64::NAN), None);
    }
}

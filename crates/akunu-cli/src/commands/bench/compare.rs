//! Compares two ways of running the same tests.

/// Tokens per second over the runs of a test: median, minimum and maximum.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Indirect command buffers compared with tables that are encoded for every pass. A way is faster if it was so in every
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Faster,
    Slower,
    Alike,
}

impl Verdict {
    pub fn of(direct: Speed, indirect: Speed) -> Verdict {
        match () {
            () if indirect.min > direct.max => Verdict::Faster,
            () if indirect.max < direct.min => Verdict::Slower,
            () => Verdict::Alike,
        }
    }
}

/// One line per test, and a recommendation.
pub fn report(tests: &[(&str, Speed, Speed)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (test, direct, indirect) in tests {
        let what = match Verdict::of(*direct, *indirect) {
            Verdict::Faster => "faster in every run",
            Verdict::Slower => "slower in every run",
            Verdict::Alike => "no difference beyond the variation between runs",
        };
        let part = indirect.median / direct.median;
        lines.push(format!("{test}: indirect command buffers run at {part:.3} times the speed: {what}"));
    }
    let verdicts = || tests.iter().map(|(_, direct, indirect)| Verdict::of(*direct, *indirect));
    let [faster, slower] =
        [Verdict::Faster, Verdict::Slower].map(|verdict| verdicts().any(|found| found == verdict));
    lines.push(match (faster, slower) {
        (true, false) => "set AKUNU_METAL=icb to use them for every command".into(),
        (true, true) => {
            "set AKUNU_METAL=icb to use them for every command if the faster tests matter more".into()
        }
        (false, _) => "keep the default".into(),
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_faster_only_if_it_was_so_in_every_run() {
        let around = |median: f64| Speed { median, min: median - 2.0, max: median + 2.0 };
        assert_eq!(Verdict::of(around(100.0), around(104.5)), Verdict::Faster);
        assert_eq!(Verdict::of(around(100.0), around(103.5)), Verdict::Alike);
        assert_eq!(Verdict::of(around(100.0), around(95.0)), Verdict::Slower);

        let [alike, faster, slower] =
            [101.0, 110.0, 90.0].map(|speed| ("tg128", around(100.0), around(speed)));
        assert_eq!(
            report(&[faster, alike]),
            [
                "tg128: indirect command buffers run at 1.100 times the speed: faster in every run",
                "tg128: indirect command buffers run at 1.010 times the speed: no difference beyond the variation between runs",
                "set AKUNU_METAL=icb to use them for every command",
            ]
        );
        let last = |tests: &[(&str, Speed, Speed)]| report(tests).pop().unwrap();
        assert_eq!(last(&[alike, slower]), "keep the default");
        assert!(last(&[faster, slower]).contains("if the faster tests matter more"));
    }
}

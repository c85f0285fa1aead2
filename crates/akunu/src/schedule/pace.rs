//! The number of prompt rows in a pass, chosen from the durations of earlier passes so that streams are not delayed.

use std::time::Duration;

/// Prompt rows of a pass before any measurement.
const INITIAL_ROWS: usize = 64;
/// Minimum prompt rows of a pass, so that prompts make progress.
const MIN_ROWS: usize = 8;
/// How much longer a pass may take without running streams. It delays cancelling and new requests.
const IDLE_FACTOR: f64 = 4.0;

#[derive(Clone, Copy, Debug)]
struct Measurement {
    rows: f64,
    seconds: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Seconds by which prompts may prolong a pass.
    bound: f64,
    /// The latest passes of 1, of 2 to 3, of 4 to 7 rows, and so on. Durations increase with rows.
    measured: [Option<Measurement>; 16],
}

impl Pace {
    pub(super) fn new(bound: Duration) -> Pace {
        Pace { bound: bound.as_secs_f64(), measured: [None; 16] }
    }

    /// For a single request, with passes of maximum size.
    pub(super) fn unlimited() -> Pace {
        Pace { bound: f64::INFINITY, measured: [None; 16] }
    }

    /// Prompt rows of a pass that also has a row for each of `running` streams.
    pub(super) fn chunk(&self, running: usize) -> usize {
        if self.bound.is_infinite() {
            return usize::MAX;
        }
        let bound = match running {
            0 => self.bound * IDLE_FACTOR,
            _ => {
                // Prompts get as much time as streams, if that is more.
                let streams = self.seconds(running as f64).unwrap_or(0.0);
                streams + self.bound.max(streams)
            }
        };
        let rows = self.rows(bound).map_or(INITIAL_ROWS, |rows| rows as usize);
        rows.saturating_sub(running).max(MIN_ROWS)
    }

    /// Records the duration of a pass. Removes earlier measurements that contradict it.
    pub(super) fn record(&mut self, rows: usize, took: Duration) {
        let now = Measurement { rows: rows as f64, seconds: took.as_secs_f64().max(1e-9) };
        for place in &mut self.measured {
            let rising =
                |measured: &Measurement| (measured.rows < now.rows) == (measured.seconds < now.seconds);
            *place = place.filter(|measured| {
                measured.rows != now.rows && measured.seconds != now.seconds && rising(measured)
            });
        }
        if let Some(place) = self.measured.get_mut(rows.max(1).ilog2() as usize) {
            *place = Some(now);
        }
    }

    fn measured(&self) -> impl Iterator<Item = Measurement> {
        self.measured.iter().flatten().copied()
    }

    /// The estimated duration of a pass; zero before any measurement.
    pub(super) fn expected(&self, rows: usize) -> Duration {
        Duration::try_from_secs_f64(self.seconds(rows as f64).unwrap_or(0.0)).unwrap_or_default()
    }

    /// The estimated duration of a pass. A pass of r rows takes about w + c · r; with a single measurement, durations are assumed to be
    /// proportional to rows.
    fn seconds(&self, rows: f64) -> Option<f64> {
        let line = |a: Measurement, b: Measurement| {
            a.seconds + (b.seconds - a.seconds) * (rows - a.rows) / (b.rows - a.rows)
        };
        let proportion = |measured: Measurement| measured.seconds * rows / measured.rows;
        let below = self.measured().filter(|measured| measured.rows <= rows).last();
        let mut above = self.measured().filter(|measured| measured.rows > rows);
        match (below, above.next(), above.next()) {
            (Some(a), Some(b), _) => Some(line(a, b)),
            (None, Some(a), Some(b)) => Some(line(a, b).max(proportion(a))),
            (a, b, _) => a.or(b).map(proportion),
        }
    }

    /// The estimated rows of a pass of this duration. Extrapolates proportionally, so that the number grows gradually.
    fn rows(&self, seconds: f64) -> Option<f64> {
        let (below, above) = (
            self.measured().filter(|measured| measured.seconds <= seconds).last(),
            self.measured().find(|measured| measured.seconds > seconds),
        );
        match (below, above) {
            (Some(a), Some(b)) => {
                Some(a.rows + (b.rows - a.rows) * (seconds - a.seconds) / (b.seconds - a.seconds))
            }
            (a, b) => a.or(b).map(|measured| measured.rows * seconds / measured.seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The duration of a pass on a simulated machine.
    fn took((fixed, per_row): (f64, f64), rows: usize) -> Duration {
        Duration::from_secs_f64(fixed + per_row * rows as f64)
    }

    /// Processes prompts beside this many streams, and returns the rows of the last pass.
    fn read(pace: &mut Pace, machine: (f64, f64), running: usize, most: Duration) -> usize {
        let mut rows = 0;
        for _ in 0..100 {
            rows = pace.chunk(running) + running;
            assert!(took(machine, rows) <= most, "{machine:?}: {rows} rows take {:?}", took(machine, rows));
            pace.record(rows, took(machine, rows));
        }
        rows
    }

    #[test]
    fn chunks_approach_the_bound_without_exceeding_it() {
        let bound = Duration::from_millis(200);
        for machine in [(0.05, 0.002), (0.12, 0.0001), (0.001, 0.01)] {
            let mut pace = Pace::new(bound);
            // A prompt of one token, alone; then prompts beside four streams.
            pace.record(1, took(machine, 1));
            let streams = took(machine, 4);
            let most = streams + bound.max(streams) + Duration::from_millis(1);
            let rows = read(&mut pace, machine, 4, most);
            assert!(took(machine, rows) > (streams + bound) * 9 / 10, "{machine:?}: {rows} rows");
        }
    }

    #[test]
    fn prompts_get_half_of_the_time_if_streams_exceed_the_bound() {
        let (bound, machine) = (Duration::from_millis(50), (0.4, 0.005));
        let mut pace = Pace::new(bound);
        pace.record(64, took(machine, 64));
        let twice = 2 * took(machine, 16);
        let rows = read(&mut pace, machine, 16, twice + Duration::from_millis(1));
        assert!(took(machine, rows) > twice * 9 / 10, "{rows} rows");
    }

    #[test]
    fn outdated_measurements_are_removed() {
        let mut pace = Pace::new(Duration::from_millis(100));
        pace.record(1, Duration::from_millis(1));
        pace.record(300, Duration::from_millis(90));
        assert_eq!(pace.chunk(1), 335);
        pace.record(20, Duration::from_millis(200));
        assert_eq!(pace.chunk(1), 9, "between 1 row and 20");
    }

    #[test]
    fn prompts_always_make_progress() {
        let mut pace = Pace::new(Duration::ZERO);
        assert_eq!(pace.chunk(3) + 3, INITIAL_ROWS);
        pace.record(9, Duration::from_secs(1));
        assert_eq!((pace.chunk(1), pace.chunk(0)), (8, 8));
    }
}

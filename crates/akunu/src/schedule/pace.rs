//! How much of a prompt a pass may have, so that nobody waits longer than wanted: by how long the last one took.

use std::time::Duration;

/// Rows of a first pass, before anything is measured.
const FIRST: usize = 64;
/// Rows of prompts that a pass has room for whatever it takes, so that prompts are read at all.
const LEAST: usize = 8;
/// How much longer a pass may take that no stream waits for. It makes cancelling and newcomers wait.
const ALONE: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Pace {
    bound: Duration,
    /// Of the last pass that had rows of a prompt.
    rows_per_second: Option<f64>,
}

impl Pace {
    pub(super) fn new(bound: Duration) -> Pace {
        Pace { bound, rows_per_second: None }
    }

    /// Rows of prompts in a pass beside a row each of `running` streams.
    ///
    /// A pass of r rows takes w + c · r, so one that was shorter than the bound promises fewer rows than there is time for, never more: step by
    /// step this comes up to the bound from below.
    pub(super) fn chunk(&self, running: usize) -> usize {
        let Some(rows_per_second) = self.rows_per_second else { return FIRST };
        let bound = if running == 0 { self.bound * ALONE } else { self.bound };
        let rows = (bound.as_secs_f64() * rows_per_second) as usize;
        rows.saturating_sub(running).max(LEAST).max(running)
    }

    /// A pass of `rows`, some of them of a prompt, took so long.
    pub(super) fn note(&mut self, rows: usize, took: Duration) {
        self.rows_per_second = Some(rows as f64 / took.as_secs_f64().max(1e-9));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(rows: usize, (fixed, per_row): (f64, f64)) -> Duration {
        Duration::from_secs_f64(fixed + per_row * rows as f64)
    }

    #[test]
    fn chunks_come_up_to_the_bound_and_not_beyond() {
        let bound = Duration::from_millis(200);
        for machine in [(0.05, 0.002), (0.19, 0.0001), (0.001, 0.01)] {
            let mut pace = Pace::new(bound);
            // A prompt of one token, alone; then prompts beside four streams.
            pace.note(1, took(1, machine));
            for _ in 0..200 {
                let rows = pace.chunk(4) + 4;
                assert!(took(rows, machine) <= bound, "{machine:?}: {rows} rows");
                pace.note(rows, took(rows, machine));
            }
            let last = took(pace.chunk(4) + 4, machine);
            assert!(last > bound * 9 / 10, "{machine:?}: {last:?}");
        }
    }

    #[test]
    fn a_pass_that_was_too_long_is_followed_by_a_shorter_one() {
        let mut pace = Pace::new(Duration::from_millis(100));
        pace.note(512, Duration::from_secs(2));
        assert_eq!(pace.chunk(5), 20);
        assert_eq!(pace.chunk(0), 102);
    }

    #[test]
    fn prompts_are_read_where_streams_alone_take_longer_than_the_bound() {
        let mut pace = Pace::new(Duration::from_millis(10));
        pace.note(17, Duration::from_secs(1));
        assert_eq!((pace.chunk(16), pace.chunk(2)), (16, 8));
    }
}

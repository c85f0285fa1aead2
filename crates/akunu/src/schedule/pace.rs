//! How much of prompts a pass may read, so that streams go on meanwhile: by how long passes have taken.

use std::time::Duration;

/// Rows of prompts in a pass before anything is known.
const FIRST: usize = 64;
/// Rows of prompts that a pass has room for whatever it takes, so that prompts are read at all.
const LEAST: usize = 8;
/// How much longer a pass may take that no stream waits for. It makes cancelling and newcomers wait.
const ALONE: f64 = 4.0;
/// A pass may take so many times as long with prompts as without, where that is more than the bound.
const SLOWER: f64 = 2.0;

#[derive(Clone, Copy, Debug)]
struct Seen {
    rows: f64,
    seconds: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Seconds.
    bound: f64,
    /// The last passes of 1, of 2 and 3, of 4 to 7 rows, and so on: more rows take longer.
    seen: [Option<Seen>; 16],
}

impl Pace {
    pub(super) fn new(bound: Duration) -> Pace {
        Pace { bound: bound.as_secs_f64(), seen: [None; 16] }
    }

    /// For a single request whose passes may be as large as the engine's.
    pub(super) fn unlimited() -> Pace {
        Pace { bound: f64::INFINITY, seen: [None; 16] }
    }

    /// Rows of prompts in a pass beside a row each of `running` streams.
    pub(super) fn chunk(&self, running: usize) -> usize {
        if self.bound.is_infinite() {
            return usize::MAX;
        }
        let bound = match running {
            0 => self.bound * ALONE,
            _ => self.bound.max(SLOWER * self.seconds(running as f64).unwrap_or(0.0)),
        };
        let rows = self.rows(bound).map_or(FIRST, |rows| rows as usize);
        rows.saturating_sub(running).max(LEAST)
    }

    /// A pass of so many rows took so long. What was seen before and cannot be, with that, is forgotten.
    pub(super) fn note(&mut self, rows: usize, took: Duration) {
        let now = Seen { rows: rows as f64, seconds: took.as_secs_f64().max(1e-9) };
        for place in &mut self.seen {
            let rising = |seen: &Seen| (seen.rows < now.rows) == (seen.seconds < now.seconds);
            *place =
                place.filter(|seen| seen.rows != now.rows && seen.seconds != now.seconds && rising(seen));
        }
        if let Some(place) = self.seen.get_mut(rows.max(1).ilog2() as usize) {
            *place = Some(now);
        }
    }

    fn seen(&self) -> impl Iterator<Item = Seen> {
        self.seen.iter().flatten().copied()
    }

    /// What a pass takes. One of r rows takes about w + c · r; where a single one has been seen, in proportion, which is less than that for
    /// fewer rows and more for more.
    fn seconds(&self, rows: f64) -> Option<f64> {
        let line =
            |a: Seen, b: Seen| a.seconds + (b.seconds - a.seconds) * (rows - a.rows) / (b.rows - a.rows);
        let proportion = |seen: Seen| seen.seconds * rows / seen.rows;
        let below = self.seen().filter(|seen| seen.rows <= rows).last();
        let mut above = self.seen().filter(|seen| seen.rows > rows);
        match (below, above.next(), above.next()) {
            (Some(a), Some(b), _) => Some(line(a, b)),
            (None, Some(a), Some(b)) => Some(line(a, b).max(proportion(a))),
            (a, b, _) => a.or(b).map(proportion),
        }
    }

    /// The rows that a pass has time for: the other way round, so that more come step by step and not at once.
    fn rows(&self, seconds: f64) -> Option<f64> {
        let (below, above) = (
            self.seen().filter(|seen| seen.seconds <= seconds).last(),
            self.seen().find(|seen| seen.seconds > seconds),
        );
        match (below, above) {
            (Some(a), Some(b)) => {
                Some(a.rows + (b.rows - a.rows) * (seconds - a.seconds) / (b.seconds - a.seconds))
            }
            (a, b) => a.or(b).map(|seen| seen.rows * seconds / seen.seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of a pass on a machine.
    fn took((fixed, per_row): (f64, f64), rows: usize) -> Duration {
        Duration::from_secs_f64(fixed + per_row * rows as f64)
    }

    /// Chunks of prompts beside so many streams, one after the other; the rows of the last pass.
    fn read(pace: &mut Pace, machine: (f64, f64), running: usize, most: Duration) -> usize {
        let mut rows = 0;
        for _ in 0..100 {
            rows = pace.chunk(running) + running;
            assert!(took(machine, rows) <= most, "{machine:?}: {rows} rows take {:?}", took(machine, rows));
            pace.note(rows, took(machine, rows));
        }
        rows
    }

    #[test]
    fn chunks_come_up_to_the_bound_and_not_beyond() {
        let bound = Duration::from_millis(200);
        for machine in [(0.05, 0.002), (0.12, 0.0001), (0.001, 0.01)] {
            let mut pace = Pace::new(bound);
            // A prompt of one token, alone; then prompts beside four streams.
            pace.note(1, took(machine, 1));
            let most = bound.max(2 * took(machine, 4)) + Duration::from_millis(1);
            let rows = read(&mut pace, machine, 4, most);
            assert!(took(machine, rows) > bound * 9 / 10, "{machine:?}: {rows} rows");
        }
    }

    #[test]
    fn where_streams_alone_take_longer_than_the_bound_prompts_get_half_of_the_time() {
        let (bound, machine) = (Duration::from_millis(50), (0.4, 0.005));
        let mut pace = Pace::new(bound);
        pace.note(64, took(machine, 64));
        let twice = 2 * took(machine, 16);
        let rows = read(&mut pace, machine, 16, twice + Duration::from_millis(1));
        assert!(took(machine, rows) > twice * 9 / 10, "{rows} rows");
    }

    #[test]
    fn what_was_seen_in_better_times_is_forgotten() {
        let mut pace = Pace::new(Duration::from_millis(100));
        pace.note(1, Duration::from_millis(1));
        pace.note(300, Duration::from_millis(90));
        assert_eq!(pace.chunk(1), 332);
        pace.note(20, Duration::from_millis(200));
        assert_eq!(pace.chunk(1), 9, "between 1 row and 20");
    }

    #[test]
    fn prompts_are_read_whatever_it_takes() {
        let mut pace = Pace::new(Duration::ZERO);
        assert_eq!(pace.chunk(3) + 3, FIRST);
        pace.note(9, Duration::from_secs(1));
        assert_eq!((pace.chunk(1), pace.chunk(0)), (8, 8));
    }
}

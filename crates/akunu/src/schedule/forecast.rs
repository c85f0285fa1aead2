//! When a new request would get its first token, by how fast slots became free lately.

use std::time::{Duration, Instant};

use super::Stats;

/// Observations lose half of their weight in this time, in seconds.
const HALF_LIFE: f64 = 20.0;

#[derive(Clone, Debug, Default)]
pub(super) struct Forecast {
    /// How long requests could not be admitted until the last one ended, in seconds, and how many ended meanwhile; both decay.
    seconds: f64,
    ended: f64,
    /// How long requests could not be admitted since then, in seconds.
    since: f64,
    last: Option<Observation>,
}

#[derive(Clone, Copy, Debug)]
struct Observation {
    at: Instant,
    /// Requests that have left their slots.
    ended: u64,
    is_full: bool,
}

impl Forecast {
    /// Observes a scheduler after a step. `waits`: whether a request waits for memory, or for a slot.
    pub(super) fn observe(&mut self, stats: &Stats, waits: bool, at: Instant) {
        let is_full = waits || stats.reading + stats.running >= stats.slots;
        let ended = stats.started.saturating_sub((stats.reading + stats.running) as u64);
        if let Some(last) = self.last.filter(|last| last.is_full) {
            self.since += (at - last.at).as_secs_f64();
            if ended > last.ended {
                let decay = (-self.since / HALF_LIFE).exp2();
                self.seconds = self.seconds * decay + self.since;
                self.ended = self.ended * decay + (ended - last.ended) as f64;
                self.since = 0.0;
            }
        }
        self.last = Some(Observation { at, ended, is_full });
    }

    /// Whether a request could not be admitted at the last step.
    pub(super) fn is_full(&self) -> bool {
        self.last.is_some_and(|last| last.is_full)
    }

    /// How long until so many requests have ended. `None`: no request has ended yet. If none has ended for longer than usual,
    /// the next ones are expected to take as long.
    pub(super) fn until_ended(&self, requests: usize) -> Option<Duration> {
        let each = (self.seconds / self.ended).max(self.since);
        Duration::try_from_secs_f64(requests as f64 * each).ok().filter(|_| self.ended > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(running: usize, ended: u64) -> Stats {
        Stats { slots: 4, running, started: ended + running as u64, ..Stats::default() }
    }

    #[test]
    fn slots_become_free_as_fast_as_before() {
        let (start, mut forecast) = (Instant::now(), Forecast::default());
        assert!(!forecast.is_full());
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        forecast.observe(&stats(4, 0), false, at(0));
        assert_eq!(forecast.until_ended(3), None, "nothing is known");
        // Two requests a second.
        for tenths in 1..=600 {
            forecast.observe(&stats(4, tenths / 5), false, at(tenths));
        }
        let six = forecast.until_ended(6).unwrap_or_default().as_secs_f64();
        assert!((six - 3.0).abs() < 0.1, "{six}");
        // Twice as fast for as long as observations take to be outweighed.
        for tenths in 601..=1600 {
            forecast.observe(&stats(4, 120 + (tenths - 600) * 2 / 5), true, at(tenths));
        }
        let six = forecast.until_ended(6).unwrap_or_default().as_secs_f64();
        assert!((six - 1.5).abs() < 0.1, "{six}");
        // A slot is free: a request need not wait, and the time does not count.
        forecast.observe(&stats(3, 520), false, at(1601));
        assert!(!forecast.is_full());
        // There is a slot, but no memory for what waits.
        forecast.observe(&stats(3, 520), true, at(99_999));
        assert!(forecast.is_full());
        let six = forecast.until_ended(6).unwrap_or_default().as_secs_f64();
        assert!((six - 1.5).abs() < 0.1, "{six}");
    }

    #[test]
    fn long_requests_are_expected_to_take_as_long_as_before_at_any_time() {
        let (start, mut forecast) = (Instant::now(), Forecast::default());
        for second in 0..=1199 {
            let at = start + Duration::from_secs(second);
            forecast.observe(&stats(4, second / 120), false, at);
            if second >= 120 {
                let one = forecast.until_ended(1).unwrap_or_default().as_secs_f64();
                assert!((one - 120.0).abs() < 5.0, "{one} after {second}");
            }
        }
        // The last one has taken five minutes.
        forecast.observe(&stats(4, 9), false, start + Duration::from_secs(1080 + 300));
        let one = forecast.until_ended(1).unwrap_or_default().as_secs_f64();
        assert!((one - 300.0).abs() < 5.0, "{one}");
    }
}

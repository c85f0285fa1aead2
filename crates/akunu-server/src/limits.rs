//! What one client may take up.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Bytes of a request's head.
    pub head: usize,
    /// Until a request's head, and then each further part of its body, has arrived.
    pub read: Duration,
    /// Until a client takes some of what it is sent.
    pub write: Duration,
    /// From a request's beginning to the end of its answer; `None`: as long as it takes.
    pub request: Option<Duration>,
    /// Connections at once.
    pub connections: usize,
    /// Texts of one request for vectors, or documents of one that ranks.
    pub texts: usize,
    /// Requests a minute of each caller; `None`: any number.
    pub rate: Option<u32>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body: 32 << 20,
            head: 64 << 10,
            read: Duration::from_secs(30),
            write: Duration::from_secs(60),
            request: None,
            connections: 1024,
            texts: 2048,
            rate: None,
        }
    }
}

/// Callers that are remembered before those that have been quiet are forgotten.
const REMEMBERED: usize = 4096;

const MINUTE: Duration = Duration::from_secs(60);

/// Lets each caller begin so many requests a minute. Nobody saves up more than a minute's.
#[derive(Debug)]
pub struct Rate {
    /// What a request costs.
    cost: Duration,
    /// The time that each caller has saved up, as of an instant.
    saved: Mutex<HashMap<u64, (Duration, Instant)>>,
}

impl Rate {
    pub fn new(a_minute: u32) -> Rate {
        Rate { cost: MINUTE / a_minute.max(1), saved: Mutex::new(HashMap::new()) }
    }

    /// Counts a request, or says how many seconds it has to wait.
    pub fn take(&self, owner: u64, now: Instant) -> Result<(), u64> {
        let mut all = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let by_now = |(saved, since): &(Duration, Instant)| {
            saved.saturating_add(now.saturating_duration_since(*since)).min(MINUTE)
        };
        if all.len() >= REMEMBERED {
            all.retain(|_, entry| by_now(entry) < MINUTE);
        }
        let saved = all.get(&owner).map_or(MINUTE, by_now);
        let (saved, outcome) = match saved.checked_sub(self.cost) {
            Some(left) => (left, Ok(())),
            None => (saved, Err((self.cost - saved).as_millis().div_ceil(1000) as u64)),
        };
        all.insert(owner, (saved, now));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_a_minutes_worth_and_gets_it_back_with_time() {
        let rate = Rate::new(2);
        let start = Instant::now();
        assert_eq!(
            [0, 0, 0].map(|at| rate.take(7, start + Duration::from_secs(at))),
            [Ok(()), Ok(()), Err(30)]
        );
        assert_eq!(rate.take(8, start), Ok(()));
        assert_eq!(rate.take(7, start + Duration::from_secs(10)), Err(20));
        assert_eq!(rate.take(7, start + Duration::from_secs(31)), Ok(()));
        let later = start + Duration::from_secs(3600);
        assert_eq!([0, 0, 0].map(|_| rate.take(7, later)), [Ok(()), Ok(()), Err(30)]);
    }

    #[test]
    fn those_who_have_been_quiet_are_forgotten() {
        let rate = Rate::new(60);
        let start = Instant::now();
        for owner in 0..REMEMBERED as u64 {
            rate.take(owner, start).unwrap();
        }
        rate.take(u64::MAX, start + Duration::from_secs(60)).unwrap();
        assert_eq!(rate.saved.lock().unwrap().len(), 1);
    }
}

//! Limits on clients and requests.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum bytes of a request's body.
    pub body: usize,
    /// Maximum bytes of a request's body that is a form with audio.
    pub audio: usize,
    /// Maximum bytes of a request's head.
    pub head: usize,
    /// Memory of all requests in flight while they are read and tokenized, in bytes. One may take half.
    pub memory: usize,
    /// Timeout for a request's head, and for its body besides the time that [`Limits::body_rate`] allows.
    pub read: Duration,
    /// Minimum bytes per second of a request's body.
    pub body_rate: u64,
    /// Timeout for a client that does not read its response.
    pub write: Duration,
    /// Timeout from the start of a request to the end of its answer; `None`: no limit.
    pub request: Option<Duration>,
    /// Maximum concurrent connections.
    pub connections: usize,
    /// Maximum concurrent connections of one address.
    pub client_connections: usize,
    /// Maximum stop strings of a request, and their bytes together.
    pub stops: usize,
    pub stop_bytes: usize,
    /// Maximum tokens with a `logit_bias`.
    pub biases: usize,
    /// Maximum texts of an embedding request, or documents of a reranking request.
    pub texts: usize,
    /// Maximum responses of `/v1/responses` that are stored, and their bytes together.
    pub responses: usize,
    pub response_bytes: usize,
    /// Maximum requests per minute of each caller; `None`: no limit.
    pub rate: Option<u32>,
    /// Maximum requests per minute with a wrong API key from one address.
    pub wrong_keys: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body: 32 << 20,
            audio: 128 << 20,
            head: 64 << 10,
            memory: 1 << 30,
            read: Duration::from_secs(30),
            body_rate: 16 << 10,
            write: Duration::from_secs(60),
            request: None,
            connections: 1024,
            client_connections: 256,
            stops: 4,
            stop_bytes: 4096,
            biases: 1024,
            texts: 2048,
            responses: 1000,
            response_bytes: 64 << 20,
            rate: None,
            wrong_keys: 60,
        }
    }
}

/// When this many callers are tracked, those whose allowance is full are removed.
const MAX_TRACKED: usize = 4096;

const MINUTE: Duration = Duration::from_secs(60);

/// A token bucket per caller, which holds at most the requests of one minute.
#[derive(Debug)]
pub struct Rate {
    /// The cost of a request, as time.
    cost: Duration,
    /// The unspent time of each caller at an instant.
    saved: Mutex<HashMap<u64, (Duration, Instant)>>,
}

impl Rate {
    pub fn new(per_minute: u32) -> Rate {
        Rate { cost: MINUTE / per_minute.max(1), saved: Mutex::new(HashMap::new()) }
    }

    /// Admits a request, or returns the number of seconds to wait.
    pub fn take(&self, owner: u64, now: Instant) -> Result<(), u64> {
        let mut all = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_TRACKED {
            all.retain(|_, entry| by(now, entry) < MINUTE);
        }
        let saved = all.get(&owner).map_or(MINUTE, |entry| by(now, entry));
        let (saved, outcome) = match self.without_one(saved) {
            Ok(left) => (left, Ok(())),
            Err(seconds) => (saved, Err(seconds)),
        };
        all.insert(owner, (saved, now));
        outcome
    }

    /// Whether a request would be admitted, or the number of seconds to wait.
    pub fn can_take(&self, owner: u64, now: Instant) -> Result<(), u64> {
        let all = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        self.without_one(all.get(&owner).map_or(MINUTE, |entry| by(now, entry))).map(drop)
    }

    fn without_one(&self, saved: Duration) -> Result<Duration, u64> {
        saved.checked_sub(self.cost).ok_or_else(|| (self.cost - saved).as_millis().div_ceil(1000) as u64)
    }
}

/// The unspent time at an instant.
fn by(now: Instant, (saved, since): &(Duration, Instant)) -> Duration {
    saved.saturating_add(now.saturating_duration_since(*since)).min(MINUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_of_a_caller_refills() {
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
    fn callers_with_a_full_allowance_are_removed() {
        let rate = Rate::new(60);
        let start = Instant::now();
        for owner in 0..MAX_TRACKED as u64 {
            rate.take(owner, start).unwrap();
        }
        rate.take(u64::MAX, start + Duration::from_secs(60)).unwrap();
        assert_eq!(rate.saved.lock().unwrap().len(), 1);
    }
}

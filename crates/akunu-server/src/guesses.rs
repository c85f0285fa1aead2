//! Limits how fast API keys can be guessed.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::limits::Rate;

/// Maximum number of remembered pairs of a client and its key. If there are more, all are forgotten.
const MAX_KNOWN: usize = 65_536;

/// Requests with wrong keys, and the keys that clients have used.
///
/// A client that has exhausted its wrong keys must not learn that the next one is right, so a key that it has not used
/// before is refused then, like a wrong one. Keys that it has used are accepted, so that nobody who shares an address
/// with others, such as that of a proxy, can keep these out.
#[derive(Debug)]
pub(crate) struct Guesses {
    wrong: Rate,
    known: Mutex<HashSet<(u64, u64)>>,
}

impl Guesses {
    /// `per_minute`: wrong keys of one client.
    pub(crate) fn new(per_minute: u32) -> Guesses {
        Guesses { wrong: Rate::new(per_minute), known: Mutex::default() }
    }

    /// Whether a client's key may be told to be right, or wrong (`None`); otherwise the number of seconds to wait.
    pub(crate) fn check(&self, client: u64, key: Option<u64>, now: Instant) -> Result<(), u64> {
        let Some(key) = key else { return self.wrong.take(client, now) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&(client, key)) {
            return Ok(());
        }
        self.wrong.can_take(client, now)?;
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert((client, key));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_right_key_is_refused_like_a_wrong_one_unless_the_client_has_used_it() {
        let guesses = Guesses::new(2);
        let start = Instant::now();
        guesses.check(7, Some(0), start).unwrap();
        guesses.check(7, None, start).unwrap();
        guesses.check(7, None, start).unwrap();
        assert_eq!(guesses.check(7, None, start), Err(30));
        assert_eq!(guesses.check(7, Some(1), start), Err(30));
        guesses.check(7, Some(0), start).unwrap();
        guesses.check(8, Some(1), start).unwrap();
        // A right key costs nothing.
        let later = start + Duration::from_secs(31);
        guesses.check(7, Some(1), later).unwrap();
        guesses.check(7, None, later).unwrap();
        guesses.check(7, Some(1), later).unwrap();
    }
}

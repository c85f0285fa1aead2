//! A condition variable that wakes the thread that waits for the GPU, with a timeout in case it never finishes.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// To be called after something was completed.
    pub(crate) fn ring(&self) {
        // A waiting thread holds the lock between its check and its sleep, so it cannot miss this.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.rung.notify_all();
    }

    /// Waits until it is done, at most `limit`; returns whether it is.
    pub(crate) fn wait(&self, limit: Duration, is_done: impl Fn() -> bool) -> bool {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(lock, limit, |()| !is_done());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        is_done()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn who_waits_is_woken_when_it_is_done_and_not_before() {
        let (bell, done) = (Bell::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            let waiting: Vec<_> = (1..=3)
                .map(|number| {
                    let (bell, done) = (&bell, &done);
                    scope.spawn(move || bell.wait(LONG, || done.load(Ordering::SeqCst) >= number))
                })
                .collect();
            for _ in 0..3 {
                done.fetch_add(1, Ordering::SeqCst);
                bell.ring();
            }
            assert!(waiting.into_iter().all(|waiting| waiting.join().unwrap()));
        });
    }

    #[test]
    fn what_is_never_done_is_not_waited_for_for_ever() {
        let bell = Bell::default();
        assert!(!bell.wait(Duration::ZERO, || false));
        assert!(!bell.wait(Duration::from_millis(1), || false));
        assert!(bell.wait(Duration::ZERO, || true));
    }
}

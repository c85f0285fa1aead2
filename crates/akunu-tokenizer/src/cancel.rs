//! Ends the encoding of a text that nobody waits for any more.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::TokenizerError;

/// Steps between two looks at the flag. A step is a position, a word or a part of a text, and takes at most some
/// microseconds with any vocabulary.
const STEPS: u32 = 4096;

thread_local! {
    static CANCEL: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs `work` on this thread. Texts that it encodes end with [`TokenizerError::Cancelled`] soon after the flag is set.
pub fn cancellable<T>(cancel: &Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<AtomicBool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CANCEL.set(self.0.take());
        }
    }
    let _restore = Restore(CANCEL.replace(Some(cancel.clone())));
    work()
}

/// Counts the steps of an encoding.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    cancel: Option<Arc<AtomicBool>>,
    steps: u32,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch { cancel: CANCEL.with_borrow(Clone::clone), steps: 0 }
    }

    #[inline]
    pub(crate) fn step(&mut self) -> Result<(), TokenizerError> {
        self.steps += 1;
        if self.steps < STEPS {
            return Ok(());
        }
        self.steps = 0;
        match &self.cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => Err(TokenizerError::Cancelled),
            _ => Ok(()),
        }
    }
}

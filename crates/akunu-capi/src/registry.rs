//! Which handles are alive. A handle is a number that is never given twice, and never an address: one that was freed, or that
//! came from elsewhere, is not found here, and nothing is read through it.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::boundary::{Failure, Status};

/// Odd, so that it is no address of anything aligned; and on 64 bits none that a program can have.
const FIRST: usize = 0x616b_756e_7500_0001_u64 as usize;

static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

/// A new handle's number.
pub(crate) fn number() -> usize {
    NEXT.fetch_add(2, Ordering::Relaxed)
}

/// The live handles of a kind.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    kind: &'static str,
    live: Mutex<BTreeMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new(kind: &'static str) -> Registry<T> {
        Registry { kind, live: Mutex::new(BTreeMap::new()) }
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<T>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of `what`.
    pub(crate) fn add<H>(&self, number: usize, what: Arc<T>) -> *mut H {
        self.live().insert(number, what);
        ptr::without_provenance_mut(number)
    }

    pub(crate) fn get<H>(&self, handle: *const H) -> Result<Arc<T>, Failure> {
        self.live().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    pub(crate) fn remove<H>(&self, handle: *const H) -> Result<Arc<T>, Failure> {
        let removed = self.live().remove(&handle.addr());
        removed.ok_or_else(|| self.unknown(handle))
    }

    /// Removes all that `keep` is false for.
    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.live().retain(|_, what| keep(what));
    }

    fn unknown<H>(&self, handle: *const H) -> Failure {
        let kind = self.kind;
        let message = match handle.is_null() {
            true => format!("the {kind} is null"),
            false => format!("this is no live {kind}: it was freed, or it is something else"),
        };
        Failure::new(Status::Handle, message)
    }
}

//! The live handles. A handle is a number that is never reused, not an address. Invalid handles are not found here, so nothing
//! is dereferenced through them.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::boundary::{Failure, Status};

/// Odd, so that it cannot be an aligned address; on 64-bit targets also outside of the user's address space.
const FIRST: usize = 0x616b_756e_7500_0001_u64 as usize;

static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

/// The number of a new handle.
pub(crate) fn number() -> usize {
    NEXT.fetch_add(2, Ordering::Relaxed)
}

/// The live handles of one kind.
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

    /// Adds an object, and returns its handle.
    pub(crate) fn add<H>(&self, number: usize, object: Arc<T>) -> *mut H {
        self.live().insert(number, object);
        ptr::without_provenance_mut(number)
    }

    pub(crate) fn get<H>(&self, handle: *const H) -> Result<Arc<T>, Failure> {
        self.live().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    pub(crate) fn remove<H>(&self, handle: *const H) -> Result<Arc<T>, Failure> {
        let removed = self.live().remove(&handle.addr());
        removed.ok_or_else(|| self.unknown(handle))
    }

    /// Removes all objects for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.live().retain(|_, object| keep(object));
    }

    fn unknown<H>(&self, handle: *const H) -> Failure {
        let kind = self.kind;
        let message = match handle.is_null() {
            true => format!("the {kind} handle is null"),
            false => {
                format!("this is not a live {kind} handle: it was freed, or is a handle of another kind")
            }
        };
        Failure::new(Status::Handle, message)
    }
}

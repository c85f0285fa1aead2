//! An allocator that fails one large allocation of the process, chosen by its number.
#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The system's allocator, except that allocations fail as [`fail_allocations`] says. A test installs it as its
/// `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailingAllocator;

/// Size from which allocations are counted, in bytes.
static LARGE: AtomicUsize = AtomicUsize::new(usize::MAX);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
static ALL: AtomicBool = AtomicBool::new(false);

/// From now on, counts allocations of at least `large` bytes from 0, and fails number `first`; with `all`, also all of
/// them after it.
pub fn fail_allocations(large: usize, first: usize, all: bool) {
    LARGE.store(usize::MAX, Relaxed);
    COUNT.store(0, Relaxed);
    FIRST.store(first, Relaxed);
    ALL.store(all, Relaxed);
    LARGE.store(large, Relaxed);
}

/// Ends what [`fail_allocations`] began, and returns the number of large allocations since.
pub fn allow_allocations() -> usize {
    LARGE.store(usize::MAX, Relaxed);
    COUNT.load(Relaxed)
}

/// Counts an allocation of this size, and says whether it has to fail. For what does not come from the allocator, such as
/// mappings.
pub fn allocation_fails(bytes: usize) -> bool {
    if bytes < LARGE.load(Relaxed) {
        return false;
    }
    let number = COUNT.fetch_add(1, Relaxed);
    let first = FIRST.load(Relaxed);
    number == first || number > first && ALL.load(Relaxed)
}

// SAFETY: every call fails, as any allocation may, or is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if allocation_fails(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller guarantees a layout of non-zero size, which is all that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if allocation_fails(layout.size()) {
            return null_mut();
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` comes from one of the functions here, and so from the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes > layout.size() && allocation_fails(bytes) {
            return null_mut();
        }
        // SAFETY: as in `dealloc`; the caller guarantees that `bytes` is a valid new size.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

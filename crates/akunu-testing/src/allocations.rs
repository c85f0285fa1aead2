//! An allocator that counts the allocations of the whole process. A test that uses it has to be a program of its own
//! (`harness = false`), because the test harness allocates, too, when a test takes long.
#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with a counter. A test installs it as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The number of allocations and reallocations so far, if [`CountingAllocator`] is installed.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

// SAFETY: every call is passed to the system's allocator unchanged, and the counter does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller guarantees a layout of non-zero size, which is all that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` comes from `alloc` or `realloc` above, and so from the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `dealloc`; the caller guarantees that `bytes` is a valid new size.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

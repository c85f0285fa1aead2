//! A replay allocates nothing on the heap, on any thread, whatever it runs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use akunu_cpu::Isa;
use akunu_plan::{Device, Submission};
use common::{cpu, specs};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
#[allow(unsafe_code, reason = "a global allocator is unsafe to implement")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: allocated by `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A program of its own, since a test harness allocates when a test takes long.
fn main() {
    let mut device = cpu(*Isa::available().last().unwrap(), 2);
    let specs = [specs::matrices(), specs::along_rows(), specs::rope(), specs::attention()];
    let cases = specs.iter().flatten().map(|spec| spec.whole());
    for case in cases.chain(specs::asking()).chain(specs::cache_moves()) {
        let mut ids = vec![];
        for bytes in &case.buffers {
            let id = device.allocate("test", bytes.len() as u64).unwrap();
            device.upload(id, 0, bytes).unwrap();
            ids.push(id);
        }
        let replay = device.prepare(&case.table, &ids).unwrap();
        let submission =
            Submission { rows: &case.rows, logit_rows: &case.asked, steps: 1, stop: &[], cancel: None };
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        device.replay(replay, submission).unwrap();
        device.wait().unwrap();
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(count, 0, "{} allocates", case.kernel.name());
    }
}

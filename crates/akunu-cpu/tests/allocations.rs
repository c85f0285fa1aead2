//! A replay does not allocate on the heap, on any thread, for any kernel.

#![allow(clippy::unwrap_used, reason = "tests")]

use akunu_cpu::{CpuDevice, CpuOptions, Isa};
use akunu_device_testing::{cases, specs};
use akunu_plan::{Device, Submission};
use akunu_testing::{CountingAllocator, allocations, fewest_or};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A separate program, because a test harness allocates when a test takes long.
fn main() {
    let isa = *Isa::available().last().unwrap();
    let options = CpuOptions { threads: Some(2), isa: Some(isa), ..CpuOptions::default() };
    let mut device = CpuDevice::new(options).unwrap();
    // With the fewest cases every third shape.
    let step = fewest_or(3, 1, 1);
    for case in specs().iter().step_by(step).map(|spec| spec.whole()).chain(cases().into_iter().step_by(step))
    {
        let mut ids = vec![];
        for bytes in &case.buffers {
            let id = device.allocate("test", bytes.len() as u64).unwrap();
            device.upload(id, 0, bytes).unwrap();
            ids.push(id);
        }
        let replay = device.prepare(&case.table, &ids).unwrap();
        let submission = Submission {
            entries: case.work.entries(),
            logit_rows: &case.asked,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        let before = allocations();
        device.replay(replay, submission).unwrap();
        device.wait().unwrap();
        let count = allocations() - before;
        assert_eq!(count, 0, "{} allocates", case.kernel.name());
    }
}

//! Every kernel against the reference, over the shapes that the CPU's are tested with; and in two orders of threads, which must
//! give the same bits.

#![cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../akunu-cpu/tests/common/mod.rs"]
mod common;

use akunu_emulated::{EmulatedDevice, skipped};
use akunu_plan::Access;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::verify::compare;
use common::{Case, specs};

fn check(name: &str, case: &Case) {
    let expected = case.run(&mut ReferenceDevice::new());
    let found = case.run(&mut EmulatedDevice::new().unwrap());
    let command = &case.table.commands[0];
    let written: Vec<_> = case.kernel.bindings().into_iter().filter(|s| s.access != Access::Read).collect();
    for ((slot, e), f) in written.iter().zip(&expected).zip(&found) {
        let (error, tolerance) = compare(command, *slot, e, f);
        assert!(error <= tolerance, "{name}: {} is off by {error:e}, more than {tolerance:e}", slot.name);
    }
    let backwards = case.run(&mut EmulatedDevice::new().unwrap().backwards());
    assert!(backwards == found, "{name} depends on the order of threads");
}

#[test]
fn kernels_along_rows_are_near_the_reference() {
    if skipped() {
        return;
    }
    for spec in specs::along_rows() {
        check(&spec.name, &spec.whole());
    }
}

/// A quarter of the specs, each with two tests' worth of types, so that they share the machine's cores.
fn matrices(part: usize) {
    if skipped() {
        return;
    }
    for spec in specs::matrices().iter().skip(part).step_by(4) {
        check(&spec.name, &spec.whole());
    }
}

#[test]
fn matrices_are_near_the_reference_0() {
    matrices(0);
}

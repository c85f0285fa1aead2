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

/// Half of the specs; the halves have other types, so that they compile other kernels.
fn matrices(half: usize) {
    if skipped() {
        return;
    }
    let specs = specs::matrices();
    let (first, second) = specs.split_at(specs.len() / 2);
    for spec in [first, second][half] {
        check(&spec.name, &spec.whole());
    }
}

#[test]
fn matrices_are_near_the_reference_in_the_first_half_of_the_types() {
    matrices(0);
}

#[test]
fn matrices_are_near_the_reference_in_the_second_half_of_the_types() {
    matrices(1);
}

#[test]
fn rope_and_the_cache_are_near_the_reference() {
    if skipped() {
        return;
    }
    for spec in specs::rope() {
        check(&spec.name, &spec.whole());
    }
    for case in specs::cache_moves() {
        check(&case.kernel.name(), &case);
    }
}

#[test]
fn attention_is_near_the_reference() {
    if skipped() {
        return;
    }
    for spec in specs::attention() {
        check(&spec.name, &spec.whole());
    }
}

#[test]
fn what_asking_rows_run_is_near_the_reference() {
    if skipped() {
        return;
    }
    for case in specs::asking() {
        check(&case.kernel.name(), &case);
    }
}

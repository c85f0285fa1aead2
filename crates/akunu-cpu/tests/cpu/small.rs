//! Scalar kernels in small shapes, which Miri runs.

use akunu_cpu::{CpuDevice, Isa};
use akunu_device_testing::{Case, Spec, small};

use crate::common::cpu;
use crate::reference::check;

fn scalar() -> CpuDevice {
    cpu(Isa::Scalar, 2)
}

fn check_specs(specs: Vec<Spec>) {
    let mut device = scalar();
    specs.iter().for_each(|spec| check(&spec.name, &spec.whole(), &mut device));
}

fn check_cases(cases: Vec<Case>) {
    let mut device = scalar();
    cases.iter().for_each(|case| check(&case.kernel.name(), case, &mut device));
}

#[test]
fn products_and_embeddings() {
    check_specs(small::with_weights());
}

#[test]
fn experts() {
    check_cases(small::of_experts());
}

#[test]
fn attention_and_its_cache() {
    check_specs(small::of_the_cache());
}

#[test]
fn rows() {
    check_specs(small::along_rows());
    check_cases(small::other_cases());
}

//! Scalar kernels in small shapes, which Miri runs.

use std::collections::BTreeSet;

use akunu_cpu::{CpuDevice, Isa};
use akunu_device_testing::{Case, Spec, cases, small, specs};

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
fn latent_attention() {
    check_cases(small::of_latents());
}

#[test]
fn rows() {
    check_specs(small::along_rows());
    check_cases(small::other_cases());
}

/// What Miri is to run: an op without a small shape would be left out.
#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn every_op_has_a_small_shape() {
    let ops = |specs: Vec<Spec>, cases: Vec<Case>| -> BTreeSet<String> {
        // One row of each: which op it is does not depend on how many there are.
        let cases = specs.iter().map(|spec| (spec.build)(0..1)).chain(cases);
        let op = |case: Case| format!("{:?}", case.kernel).split('(').next().unwrap().to_string();
        cases.map(op).collect()
    };
    let small_specs = [small::with_weights(), small::of_the_cache(), small::along_rows()];
    let small_cases = [small::of_experts(), small::of_latents(), small::other_cases()].concat();
    assert_eq!(ops(small_specs.into_iter().flatten().collect(), small_cases), ops(specs(), cases()));
}

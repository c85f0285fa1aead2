//! Products in bfloat16, which are not canonical: close to the reference, and the same for a row whatever the other
//! rows are.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use crate::common::cpu;
use akunu_cpu::Isa;
use akunu_device_testing::{Spec, matrices, to_f32s};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Content, q8};

/// Fewer rows use canonical arithmetic.
const LEAST_ROWS: usize = 6;

fn each(test: impl Fn(Isa)) {
    for isa in [Isa::Avx512Bf16, Isa::AmxBf16] {
        if isa.is_available() {
            test(isa);
        } else {
            eprintln!("skipped: this processor has no {}", isa.name());
        }
    }
}

fn products() -> Vec<Spec> {
    let mut all = matrices::matrices();
    all.extend(matrices::large_matrices());
    all
}

fn values(content: Content, bytes: &[u8], rows: usize) -> Vec<f32> {
    if content == Content::F32 {
        return to_f32s(bytes);
    }
    let row = bytes.len() / rows;
    bytes.chunks(row).flat_map(|r| q8::dequantise_row(r, row / 40 * 32)).collect()
}

#[test]
fn products_are_near_the_reference() {
    each(|isa| {
        let mut device = cpu(isa, 2);
        for spec in products() {
            let case = spec.whole();
            let expected = case.run(&mut ReferenceDevice::new());
            let found = case.run(&mut device);
            for ((e, f), (_, content)) in expected.iter().zip(&found).zip(&case.written) {
                let (e, f) = (values(*content, e, spec.rows), values(*content, f, spec.rows));
                let largest = e.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                let worst = e.iter().zip(&f).fold(0.0_f32, |m, (e, f)| m.max((e - f).abs()));
                // Rounding changes both factors by at most 2⁻⁹ of their value.
                assert!(worst <= largest * 0.01, "{}: off by {worst} of {largest}", spec.name);
            }
        }
    });
}

#[test]
fn a_row_is_the_same_whatever_rows_are_beside_it() {
    each(|isa| {
        let (mut one, mut two) = (cpu(isa, 1), cpu(isa, 2));
        for spec in products().into_iter().filter(|spec| spec.rows >= 2 * LEAST_ROWS) {
            let whole = spec.whole();
            let together = whole.run(&mut two);
            for rows in [0..LEAST_ROWS, LEAST_ROWS..spec.rows] {
                let apart = (spec.build)(rows.clone()).run(&mut one);
                for (all, part) in together.iter().zip(&apart) {
                    let stride = all.len() / spec.rows;
                    assert!(all[rows.start * stride..rows.end * stride] == **part, "{} {rows:?}", spec.name);
                }
            }
        }
    });
}

#[test]
fn few_rows_are_canonical() {
    each(|isa| {
        let mut device = cpu(isa, 1);
        for spec in products().into_iter().filter(|spec| spec.rows < LEAST_ROWS) {
            let case = spec.whole();
            assert!(case.run(&mut device) == case.run(&mut cpu(Isa::Avx512, 1)), "{}", spec.name);
        }
    });
}

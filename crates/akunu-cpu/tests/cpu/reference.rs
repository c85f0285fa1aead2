//! Every kernel compared with the reference device, which computes in f64.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::cpu;
use akunu_cpu::Isa;
use akunu_device_testing::{Case, Shape, cases, folded, specs, to_f32s};
use akunu_plan::ops::{self, AttentionParams};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Access, Content, Device, DeviceError, Kernel, KvType, OutputForms, Row, q8};
use akunu_testing::fewest_or;

/// The largest difference relative to the largest magnitude.
fn relative(expected: &[f32], found: &[f32]) -> f64 {
    let most = expected.iter().filter(|v| v.is_finite()).fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
    let mut worst = 0.0_f64;
    for (e, f) in expected.iter().zip(found) {
        let difference = if e.is_nan() && f.is_nan() { 0.0 } else { f64::from((e - f).abs()) };
        worst = worst.max(if difference.is_nan() { f64::INFINITY } else { difference });
    }
    if worst == 0.0 { 0.0 } else { worst / most.max(1e-30) }
}

/// Miri runs the kernel only: it looks at accesses, and the same shapes are compared outside of it.
pub(crate) fn check(name: &str, case: &Case, device: &mut akunu_cpu::CpuDevice) {
    let found = case.run(device);
    if cfg!(miri) {
        return;
    }
    let expected = case.run(&mut ReferenceDevice::new());
    for ((e, f), (_, content)) in expected.iter().zip(&found).zip(&case.written) {
        let (error, tolerance) = match content {
            Content::F32 => (relative(&to_f32s(e), &to_f32s(f)), 1e-5),
            Content::Q8 => (q8_error(case, e, f), 1.02 / 127.0),
            Content::Keys(KvType::F32) | Content::Values(KvType::F32) => {
                (relative(&to_f32s(e), &to_f32s(f)), 1e-5)
            }
            Content::Keys(kv) | Content::Values(kv) => {
                (relative(&kv_values(*kv, e), &kv_values(*kv, f)), 1.02 / 127.0)
            }
            _ => (if e == f { 0.0 } else { 1.0 }, 0.0),
        };
        assert!(error <= tolerance, "{name}: {content:?} is off by {error}");
    }
}

/// A code may differ by one if the values differ by an ulp.
fn q8_error(case: &Case, expected: &[u8], found: &[u8]) -> f64 {
    let command = &case.table.commands[0];
    let extents = command.extents(&case.table.counts()).unwrap();
    let mut slots = case.kernel.bindings().into_iter().zip(extents);
    let written = slots.find(|(slot, _)| slot.access != Access::Read && slot.content == Content::Q8);
    let cols = written.unwrap().1.cols as usize;
    let row = q8::row_bytes(cols);
    let value =
        |bytes: &[u8]| -> Vec<f32> { bytes.chunks(row).flat_map(|r| q8::dequantise_row(r, cols)).collect() };
    relative(&value(expected), &value(found))
}

fn kv_values(kv: KvType, bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.len() / kv.dtype().block_bytes() * kv.dtype().block_len();
    let mut values = vec![0.0; elements];
    akunu_format::blocks::dequantize_row(kv.dtype(), bytes, &mut values).unwrap();
    values
}

#[test]
#[cfg_attr(miri, ignore = "takes hours; `small` has shapes for it")]
fn every_kernel_is_near_the_reference() {
    let mut device = cpu(*Isa::available().last().unwrap(), 2);
    // With the fewest cases every third shape.
    let step = fewest_or(3, 1, 1);
    for spec in specs().into_iter().step_by(step) {
        check(&spec.name, &spec.whole(), &mut device);
    }
    for case in cases().into_iter().step_by(step) {
        check(&case.kernel.name(), &case, &mut device);
    }
}

/// The keys of 16 positions are interleaved.
#[test]
fn caches_and_sequences_that_share_a_group_of_keys_are_refused() {
    for (positions, alignment, expected) in [
        (40, 16, "a cache of 40 positions; multiples of 16 are supported"),
        (48, 8, "sequences that begin at multiples of 8; 16 is supported"),
    ] {
        let mut device = cpu(Isa::Scalar, 1);
        let params =
            AttentionParams { heads: 1, kv_heads: 1, head_dim: 32, positions, ..AttentionParams::default() };
        let shape = Shape::sequences(vec![Row::causal(0, 3, 0)], 16, positions, alignment);
        let kernel = Kernel::Attention(ops::Attention::plain(KvType::F16, OutputForms::F32));
        let cache = vec![0; positions as usize * 64];
        let data = vec![vec![0; 128], cache.clone(), cache, vec![0; 128]];
        let case = Case::new(kernel, params, shape, data);
        let ids = case.load(&mut device);
        let error = device.prepare(&case.table, &ids).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// A tile of 32 positions is in one block, unless a sequence is.
#[test]
fn blocks_that_tiles_cross_are_refused() {
    for (context, alignment, expected) in [
        (32, 16, Err("blocks of 16 positions; multiples of 32 are supported")),
        (16, 16, Ok(())),
        (16, 8, Err("sequences that begin at multiples of 8, in blocks of 16")),
    ] {
        let mut device = cpu(Isa::Scalar, 1);
        let params = AttentionParams {
            heads: 1,
            kv_heads: 1,
            head_dim: 32,
            positions: 64,
            block: 16,
            ..AttentionParams::default()
        };
        let shape = Shape::sequences(vec![Row::causal(0, 3, 0)], context, 64, alignment);
        let op = ops::Attention { paged: true, ..ops::Attention::plain(KvType::F16, OutputForms::F32) };
        let data = vec![vec![0; 128], vec![0; 64 * 64], vec![0; 64 * 64], vec![0; 128], vec![0; 16]];
        let case = Case::new(op.into(), params, shape, data);
        let ids = case.load(&mut device);
        let prepared = device.prepare(&case.table, &ids).map(|_| ()).map_err(|error| error.to_string());
        match expected {
            Ok(()) => prepared.unwrap(),
            Err(expected) => {
                let error = prepared.unwrap_err();
                assert!(error.contains(expected), "{error}");
            }
        }
    }
}

/// Deferred norms and rotation in attention are only for devices that request them.
#[test]
#[cfg_attr(miri, ignore = "takes hours to make the weights, and runs no kernel")]
fn what_is_folded_for_other_devices_is_refused_by_name() {
    let mut device = cpu(*Isa::available().last().unwrap(), 1);
    for spec in folded::matrices().into_iter().take(6).chain(folded::attention().into_iter().take(1)) {
        let case = spec.whole();
        let ids = case.load(&mut device);
        let error = device.prepare(&case.table, &ids).unwrap_err();
        let DeviceError::MissingKernel { kernel, .. } = error else { panic!("{error}") };
        assert_eq!(kernel, case.kernel.name());
    }
}

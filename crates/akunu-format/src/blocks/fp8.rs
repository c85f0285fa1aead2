//! FP8, whose rows are stored in two planes.

use super::{RowError, check_planes};
use crate::fp8::{e4m3_to_f32, f32_to_e4m3};
use crate::{DType, Fp8};

/// The largest magnitude of a code.
const MAX: f32 = 448.0;

/// Dequantises a row from its planes: codes and scales. `scale · code`, in f32.
pub fn dequantize_fp8(fp8: Fp8, planes: [&[u8]; 2], out: &mut [f32]) -> Result<(), RowError> {
    check_planes(DType::Fp8(fp8), out.len(), [planes[0].len(), planes[1].len(), 0])?;
    let group = fp8.group(out.len()).max(1);
    let scales = planes[1].as_chunks::<4>().0.iter().map(|scale| f32::from_le_bytes(*scale));
    for ((codes, out), scale) in planes[0].chunks(group).zip(out.chunks_mut(group)).zip(scales) {
        for (code, out) in codes.iter().zip(out) {
            *out = scale * e4m3_to_f32(*code);
        }
    }
    Ok(())
}

/// Splits a row in contiguous form into its planes. The length was checked.
pub(super) fn split(row: &[u8], cols: usize) -> [&[u8]; 2] {
    let (codes, scales) = row.split_at(cols);
    [codes, scales]
}

/// Quantises a row to contiguous form: the largest magnitude of each group becomes the largest code.
pub(super) fn quantize(fp8: Fp8, values: &[f32], out: &mut [u8]) {
    let group = fp8.group(values.len()).max(1);
    let (codes, scales) = out.split_at_mut(values.len());
    let groups = codes.chunks_mut(group).zip(values.chunks(group)).zip(scales.as_chunks_mut::<4>().0);
    for ((codes, values), to) in groups {
        let scale = values.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / MAX;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        for (code, value) in codes.iter_mut().zip(values) {
            *code = f32_to_e4m3(value * inverse);
        }
        *to = scale.to_le_bytes();
    }
}

/// The elements of a row of so many bytes.
pub(super) fn elements(fp8: Fp8, bytes: usize) -> usize {
    match fp8 {
        Fp8::Row => bytes.saturating_sub(4),
        Fp8::G128 => bytes - 4 * bytes.div_ceil(128 + 4),
    }
}

/// Sets scales in a row of random codes, so that values have mean 0 and standard deviation `std`, and removes codes that
/// are no numbers.
pub(super) fn set_scales(cols: usize, stds: &mut dyn FnMut() -> f32, row: &mut [u8]) {
    let (codes, scales) = row.split_at_mut(cols);
    codes.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code -= 1);
    // The root mean square of codes, of which the largest occurs twice as often.
    let squares: f32 = (0..0x7f).chain([0x7e]).map(|code| e4m3_to_f32(code).powi(2)).sum();
    let deviation = (squares / 128.0).sqrt();
    for to in scales.as_chunks_mut::<4>().0 {
        *to = (stds() / deviation).to_le_bytes();
    }
}

//! Block layouts: what the bytes of every dtype mean, and scalar conversion both ways.
//!
//! These loops are the definition that kernels are tested against, so they are written to be read.
//! All numbers are little-endian; `d` and `m` are half-precision scales and offsets.
//!
//! | dtype | elements | bytes of a block, in order |
//! |---|---|---|
//! | Q4_0 | 32 | `d` 2, nibbles 16 |
//! | Q4_1 | 32 | `d` 2, `m` 2, nibbles 16 |
//! | Q5_0 | 32 | `d` 2, fifth bits 4, nibbles 16 |
//! | Q5_1 | 32 | `d` 2, `m` 2, fifth bits 4, nibbles 16 |
//! | Q8_0 | 32 | `d` 2, signed bytes 32 |
//! | Q2_K | 256 | scales and offsets 16 (4 + 4 bits), 2-bit codes 64, `d` 2, `m` 2 |
//! | Q3_K | 256 | third bits 32, 2-bit codes 64, scales 12 (16 × 6 bits), `d` 2 |
//! | Q4_K | 256 | `d` 2, `m` 2, scales and offsets 12 (8 × 6 + 6 bits), nibbles 128 |
//! | Q5_K | 256 | `d` 2, `m` 2, scales and offsets 12, fifth bits 32, nibbles 128 |
//! | Q6_K | 256 | low nibbles 128, upper 2 bits 64, signed scales 16, `d` 2 |
//! | IQ1_S | 256 | `d` 2, points 32, their upper 3 bits, scales and offsets 16 |
//! | IQ1_M | 256 | points 32, their upper 3 bits and offsets 16, scales and `d` 8 |
//! | IQ2_XXS | 256 | `d` 2, 8 × (points 4, signs and a scale 4) |
//! | IQ2_XS | 256 | `d` 2, points and signs 64 (9 + 7 bits), scales 8 |
//! | IQ2_S | 256 | `d` 2, points 32, signs 32, upper 2 bits of the points 8, scales 8 |
//! | IQ3_XXS | 256 | `d` 2, points 64, signs and scales 32 |
//! | IQ3_S | 256 | `d` 2, points 64, their ninth bits 8, signs 32, scales 4 |
//! | IQ4_NL | 32 | `d` 2, nibbles 16 |
//! | IQ4_XS | 256 | `d` 2, upper 2 bits of the scales 2, their lower 4 bits 4, nibbles 128 |
//! | MXFP4 | 32 | exponent 1, nibbles 16 |
//!
//! MLX's affine types have no blocks: a row's quants, scales and offsets lie in planes of their own (`affine.rs`), and so
//! do the codes and scales of FP8 (`fp8.rs`). Where such a row is handed over in one piece, the planes follow each other.
//!
//! In the 32-element types, byte i of the nibbles holds element i (low) and element i + 16 (high).

mod affine;
mod fp8;
mod k;
pub mod lattices;
mod random;
mod simple;
mod tables;

pub use affine::{dequantize_planes, widen_scales};
pub(crate) use affine::{quant, scale};
pub use fp8::dequantize_fp8;
pub use k::{unpack_scales_offsets, unpack_scales_q3};
pub(crate) use random::pack_scales_offsets;
pub use random::{Rng, random_row};
pub use tables::{FP4, IQ4, exponent_scale};

use half::{bf16, f16};

use crate::DType;
use crate::quantise::{k as to_k, lattices::to_lattice, tables as to_tables};

/// The reason why a row could not be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    #[error("{elements} elements in {bytes} bytes are not whole {dtype} blocks")]
    Length { dtype: DType, elements: usize, bytes: usize },
    #[error("a row of {elements} elements has {weights} weights")]
    Weights { elements: usize, weights: usize },
}

fn check(dtype: DType, elements: usize, bytes: usize) -> Result<(), RowError> {
    if dtype.row_bytes(elements) == Some(bytes) {
        return Ok(());
    }
    Err(RowError::Length { dtype, elements, bytes })
}

fn check_planes(dtype: DType, elements: usize, bytes: [usize; 3]) -> Result<(), RowError> {
    if dtype.plane_bytes(elements) == Some(bytes) {
        return Ok(());
    }
    Err(RowError::Length { dtype, elements, bytes: bytes.iter().sum() })
}

/// Dequantises a row, each operation in f32 and in the order of the format's definition.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), RowError> {
    check(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F32 => {
            for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        DType::F16 => {
            for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                *out = f16::from_le_bytes(*bytes).to_f32();
            }
        }
        DType::BF16 => {
            for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                *out = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        DType::Q4_0 => each_block(bytes, out, simple::q4_0),
        DType::Q4_1 => each_block(bytes, out, simple::q4_1),
        DType::Q5_0 => each_block(bytes, out, simple::q5_0),
        DType::Q5_1 => each_block(bytes, out, simple::q5_1),
        DType::Q8_0 => each_block(bytes, out, simple::q8_0),
        DType::Q2K => each_block(bytes, out, k::q2_k),
        DType::Q3K => each_block(bytes, out, k::q3_k),
        DType::Q4K => each_block(bytes, out, k::q4_k),
        DType::Q5K => each_block(bytes, out, k::q5_k),
        DType::Q6K => each_block(bytes, out, k::q6_k),
        DType::IQ1S
        | DType::IQ1M
        | DType::IQ2XXS
        | DType::IQ2XS
        | DType::IQ2S
        | DType::IQ3XXS
        | DType::IQ3S => {
            for (block, out) in bytes.chunks_exact(dtype.block_bytes()).zip(out.as_chunks_mut().0) {
                lattices::decode(dtype, block, out);
            }
        }
        DType::IQ4NL => each_block(bytes, out, tables::iq4_nl),
        DType::IQ4XS => each_block(bytes, out, tables::iq4_xs),
        DType::MXFP4 => each_block(bytes, out, tables::mxfp4),
        DType::Affine(affine) => dequantize_planes(affine, affine::split(affine, bytes), out)?,
        DType::Fp8(fp8) => dequantize_fp8(fp8, fp8::split(bytes, out.len()), out)?,
    }
    Ok(())
}

/// The planes of row `row` of a tensor, which has rows of `cols`.
pub fn nth_row(dtype: DType, planes: [&[u8]; 3], row: usize, cols: usize) -> Result<[&[u8]; 3], RowError> {
    let wrong = || RowError::Length { dtype, elements: cols, bytes: planes.iter().map(|p| p.len()).sum() };
    let sizes = dtype.plane_bytes(cols).ok_or_else(wrong)?;
    let mut rows: [&[u8]; 3] = [&[]; 3];
    for i in 0..dtype.planes() {
        let from = row.checked_mul(sizes[i]).ok_or_else(wrong)?;
        rows[i] = planes[i].get(from..).and_then(|rest| rest.get(..sizes[i])).ok_or_else(wrong)?;
    }
    Ok(rows)
}

/// Dequantises row `row` of a tensor, from its planes.
pub fn dequantize_nth(dtype: DType, planes: [&[u8]; 3], row: usize, out: &mut [f32]) -> Result<(), RowError> {
    let rows = nth_row(dtype, planes, row, out.len())?;
    match dtype {
        DType::Affine(affine) => dequantize_planes(affine, rows, out),
        DType::Fp8(fp8) => dequantize_fp8(fp8, [rows[0], rows[1]], out),
        _ => dequantize_row(dtype, rows[0], out),
    }
}

/// Quantises a row: rounded to nearest, for k-quants with the best scales found by a search. Infinite or NaN input
/// gives an unspecified block, never a panic.
///
/// `importance` is the weight of each element in the squared error that the search minimises: the mean square of the
/// inputs that the element's column is multiplied by. Types without a search ignore it.
pub fn quantize_row(
    dtype: DType,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), RowError> {
    check(dtype, values.len(), out.len())?;
    if let Some(weights) = importance.filter(|weights| weights.len() != values.len()) {
        return Err(RowError::Weights { elements: values.len(), weights: weights.len() });
    }
    match dtype {
        DType::F32 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                *out = value.to_le_bytes();
            }
        }
        DType::F16 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = f16::from_f32(*value).to_le_bytes();
            }
        }
        DType::BF16 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = bf16::from_f32(*value).to_le_bytes();
            }
        }
        DType::Q4_0 => each_row(values, importance, out, simple::to_q4_0),
        DType::Q4_1 => each_row(values, importance, out, simple::to_q4_1),
        DType::Q5_0 => each_row(values, importance, out, simple::to_q5_0),
        DType::Q5_1 => each_row(values, importance, out, simple::to_q5_1),
        DType::Q8_0 => each_row(values, importance, out, simple::to_q8_0),
        DType::Q2K => each_row(values, importance, out, to_k::to_q2_k),
        DType::Q3K => each_row(values, importance, out, to_k::to_q3_k),
        DType::Q4K => each_row(values, importance, out, to_k::to_q4_k),
        DType::Q5K => each_row(values, importance, out, to_k::to_q5_k),
        DType::Q6K => each_row(values, importance, out, to_k::to_q6_k),
        DType::IQ1S
        | DType::IQ1M
        | DType::IQ2XXS
        | DType::IQ2XS
        | DType::IQ2S
        | DType::IQ3XXS
        | DType::IQ3S => {
            let blocks = values.as_chunks().0.iter().zip(out.chunks_exact_mut(dtype.block_bytes()));
            for (index, (values, block)) in blocks.enumerate() {
                let weights = importance.and_then(|weights| weights.as_chunks().0.get(index));
                to_lattice(dtype, values, weights, block);
            }
        }
        DType::IQ4NL => each_row(values, importance, out, to_tables::to_iq4_nl),
        DType::IQ4XS => each_row(values, importance, out, to_tables::to_iq4_xs),
        DType::MXFP4 => each_row(values, importance, out, to_tables::to_mxfp4),
        DType::Affine(affine) => affine::quantize(affine, values, out),
        DType::Fp8(fp8) => fp8::quantize(fp8, values, out),
    }
    Ok(())
}

fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    convert: fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (block, out) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
        convert(block, out);
    }
}

fn each_row<const BYTES: usize, const LEN: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    convert: fn(&[f32; LEN], Option<&[f32; LEN]>, &mut [u8; BYTES]),
) {
    let blocks = values.as_chunks::<LEN>().0.iter().zip(out.as_chunks_mut::<BYTES>().0);
    for (index, (values, block)) in blocks.enumerate() {
        let weights = importance.and_then(|weights| weights.as_chunks::<LEN>().0.get(index));
        convert(values, weights, block);
    }
}

/// The half-precision number at `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

pub(crate) fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_are_not_whole_blocks_are_refused() {
        let mut out = [0.0; 32];
        let error = dequantize_row(DType::Q4_0, &[0; 17], &mut out).unwrap_err();
        assert_eq!(error.to_string(), "32 elements in 17 bytes are not whole Q4_0 blocks");
        assert!(dequantize_row(DType::Q4K, &[0; 144], &mut out).is_err());
        assert!(quantize_row(DType::Q8_0, &out[..31], None, &mut [0; 34]).is_err());
    }

    #[test]
    fn every_type_reads_any_bytes() {
        for dtype in DType::ALL {
            let mut rng = Rng::new(3);
            for _ in 0..if cfg!(miri) { 1 } else { 50 } {
                let bytes: Vec<u8> = (0..dtype.block_bytes() * 2).map(|_| rng.next_u64() as u8).collect();
                let mut out = vec![0.0; dtype.block_len() * 2];
                dequantize_row(dtype, &bytes, &mut out).unwrap();
            }
        }
    }
}

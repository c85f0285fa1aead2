//! Contents of buffers.

use std::ops::Range;

use akunu_format::blocks::{Rng, random_row};
use akunu_format::{Affine, Fp8, ScaleType};
use akunu_plan::{DType, OutputForms, q8};

use crate::case::POISON;

pub fn f32s(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

pub fn to_f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn poison(bytes: usize) -> Vec<u8> {
    vec![POISON; bytes]
}

/// In Miri values repeat after this many, and all rows of weights are the same: it looks at accesses, and making values
/// takes it longer than the kernels.
const MIRI_PERIOD: usize = 41;

/// Roughly normal values.
pub fn values(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    let mut value = || (0..4).map(|_| rng.uniform() - 0.5).sum::<f32>() * 1.7;
    let made = if cfg!(miri) { n.min(MIRI_PERIOD) } else { n };
    let mut values: Vec<f32> = (0..made).map(|_| value()).collect();
    while values.len() < n {
        values.extend_from_within(..made.min(n - values.len()));
    }
    values
}

/// q8 rows of random values.
pub fn q8_rows(seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![];
    for row in values(seed, rows * cols).chunks(cols) {
        bytes.extend(q8_row(row));
    }
    bytes
}

pub fn q8_row(x: &[f32]) -> Vec<u8> {
    let (mut quants, mut scales, mut sums) = (vec![], vec![], vec![]);
    for block in x.chunks(32) {
        let mut q = [0_i8; 32];
        let (scale, sum) = q8::quantise_block(block, &mut q);
        quants.extend(q);
        scales.push(scale);
        sums.push(sum);
    }
    [bytemuck::cast_slice(&quants), bytemuck::cast_slice(&scales), bytemuck::cast_slice::<i32, u8>(&sums)]
        .concat()
}

/// GGUF's types, FP8, and MLX's: every number of bits with every group size, cycling through the types of scales.
pub fn dtypes() -> Vec<DType> {
    let affine = Affine::all().filter(|a| {
        let place = |all: &[usize], n| all.iter().position(|m| *m == n).unwrap();
        let turn = place(&Affine::BITS, a.bits()) + place(&Affine::GROUPS, a.group());
        ScaleType::ALL[turn % 3] == a.scales()
    });
    DType::ALL.into_iter().chain(affine.map(DType::Affine)).chain(Fp8::ALL.map(DType::Fp8)).collect()
}

/// A tensor's planes, as a kernel binds them.
pub fn weights(dtype: DType, seed: u64, rows: usize, cols: usize) -> Vec<Vec<u8>> {
    let mut planes = vec![vec![]; dtype.planes()];
    for row in weight_rows(dtype, seed, rows, cols).chunks(dtype.row_bytes(cols).unwrap()) {
        let mut rest = row;
        for (plane, size) in planes.iter_mut().zip(dtype.plane_bytes(cols).unwrap()) {
            let (part, more) = rest.split_at(size);
            plane.extend(part);
            rest = more;
        }
    }
    planes
}

/// The same tensor's rows, each contiguous.
pub fn weight_rows(dtype: DType, seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    let made = if cfg!(miri) { rows.min(1) } else { rows };
    let mut bytes = vec![0; made * dtype.row_bytes(cols).unwrap()];
    let mut rng = Rng::new(seed);
    for row in bytes.chunks_mut(dtype.row_bytes(cols).unwrap()) {
        random_row(dtype, &mut rng, 0.1, row).unwrap();
    }
    bytes.repeat(rows / made.max(1))
}

/// Rows `part` of bytes that hold `rows` rows of equal size.
pub fn pick(bytes: &[u8], rows: usize, part: &Range<usize>) -> Vec<u8> {
    let row = bytes.len() / rows;
    bytes[part.start * row..part.end * row].to_vec()
}

/// Poisoned outputs in the requested forms.
pub(crate) fn outputs(out: OutputForms, rows: usize, cols: usize) -> Vec<Vec<u8>> {
    let mut data = vec![];
    if out.f32() {
        data.push(poison(rows * cols * 4));
    }
    if out.q8() {
        data.push(poison(rows * q8::row_bytes(cols)));
    }
    if out.f16() {
        let number = if out.eights() { 1 } else { 2 };
        data.extend([poison(rows * cols * number), poison(rows * 4)]);
    }
    data
}

pub(crate) fn input(dtype: DType, seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    if dtype.is_quantised() { q8_rows(seed, rows, cols) } else { f32s(&values(seed, rows * cols)) }
}

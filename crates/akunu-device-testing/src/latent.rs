//! Latent attention, and what goes before and after it.

use akunu_plan::ops::{
    self, HeadsApartParams, HeadsTogetherParams, KvMoveParams, LatentAttentionParams, LatentKvParams,
    LatentQueriesParams,
};
use akunu_plan::{Kernel, KvType, Move, MoveKind, OutputForms, RopeStyle};

use crate::attention::{cache, in_blocks, kv_types, mixed_rows};
use crate::case::{Case, Shape, Spec, spec};
use crate::data::{f32s, outputs, pick, poison, values};

/// Elements of a latent vector and of the key beside it.
const SIZES: [[u32; 2]; 4] = [[20, 8], [64, 32], [512, 64], [7, 2]];

fn angles(rows: usize, dims: u32) -> Vec<f32> {
    let angles = values(131, rows * dims as usize / 2);
    angles.iter().flat_map(|angle| [(angle * 9.0).cos(), (angle * 9.0).sin()]).collect()
}

/// Rows of the cache.
pub fn writes() -> Vec<Spec> {
    let mut specs = vec![];
    for (i, [latent, rope_dims]) in SIZES.into_iter().enumerate() {
        for kv in kv_types(latent + rope_dims) {
            for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
                let (rows, paged) = ([1, 5][i % 2], i % 3 > 0);
                let name = format!("latent rows {latent} and {rope_dims} {kv:?} {style:?}");
                specs.push(spec(name, rows, move |part| {
                    let (context, dim) = (16, (latent + rope_dims) as usize);
                    let (positions, table) =
                        if paged { in_blocks(2 * context, 16) } else { (2 * context, vec![]) };
                    let block = if paged { 16 } else { 0 };
                    let params = LatentKvParams { latent, rope_dims, positions, block, epsilon: 1e-6 };
                    let mut data = vec![
                        pick(&f32s(&values(130, rows * dim)), rows, &part),
                        f32s(&values(132, latent as usize)),
                        pick(&f32s(&angles(rows, rope_dims)), rows, &part),
                        poison(positions as usize * kv.row_bytes(dim).unwrap()),
                    ];
                    data.extend(paged.then_some(table));
                    let rows = mixed_rows(rows, 7, context)[part].to_vec();
                    let shape = Shape::sequences(rows, context, 2 * context, 16);
                    Case::new(Kernel::LatentKv(ops::LatentKv { style, kv, paged }), params, shape, data)
                }));
            }
        }
    }
    specs
}

/// What depends on all rows of a pass, and moves of rows in the cache.
pub fn latent() -> Vec<Case> {
    let mut cases = vec![];
    for (i, [latent, rope_dims]) in SIZES.into_iter().enumerate() {
        for kv in kv_types(latent + rope_dims) {
            let paged = i % 2 == 0;
            for (rows, heads, first) in [(1, 3, 0), (1, 16, 300), (7, 5, 13), (6, 2, 255), (70, 1, 0)] {
                for out in [OutputForms::F32, OutputForms::Q8, OutputForms::Both] {
                    if latent.is_multiple_of(32) || out == OutputForms::F32 {
                        cases.push(attention((kv, out, paged), [rows, heads], first, [latent, rope_dims]));
                    }
                }
            }
            cases.extend(moves(kv, latent + rope_dims, rope_dims));
        }
        for (rows, heads) in [(1, 3), (5, 4), (40, 16)] {
            cases.push(queries([rows, heads], [latent, 10, rope_dims]));
            for out in [OutputForms::F32, OutputForms::Q8, OutputForms::Both] {
                if latent.is_multiple_of(32) || out == OutputForms::F32 {
                    cases.push(apart(out, [rows, heads], [latent, latent + rope_dims]));
                }
                // Blocks may have parts of several heads.
                let dim = [latent, 24][i % 2];
                if (heads as u32 * dim).is_multiple_of(32) || out == OutputForms::F32 {
                    cases.push(together(out, [rows, heads], dim));
                }
            }
        }
    }
    cases
}

pub(crate) fn attention(
    (kv, out, paged): (KvType, OutputForms, bool),
    [rows, heads]: [usize; 2],
    first: u32,
    [latent, rope_dims]: [u32; 2],
) -> Case {
    let (context, dim) = (400, latent + rope_dims);
    let (positions, table) = if paged { in_blocks(2 * context, 16) } else { (2 * context, vec![]) };
    let block = if paged { 16 } else { 0 };
    let scale = 1.0 / (dim as f32).sqrt();
    let params = LatentAttentionParams { heads: heads as u32, latent, rope_dims, positions, block, scale };
    let mut data = vec![f32s(&values(133, rows * heads * dim as usize)), cache(kv, 134, 1, positions, dim)];
    data.extend(outputs(out, rows * heads, latent as usize));
    data.extend(paged.then_some(table));
    let shape = Shape::sequences(mixed_rows(rows, first, context), context, 2 * context, 16);
    Case::new(Kernel::LatentAttention(ops::LatentAttention { kv, out, paged }), params, shape, data)
}

pub(crate) fn queries([rows, heads]: [usize; 2], [latent, plain, rope_dims]: [u32; 3]) -> Case {
    let params = LatentQueriesParams { heads: heads as u32, latent, plain, rope_dims };
    let all = |seed, dim: u32| f32s(&values(seed, rows * heads * dim as usize));
    let data = vec![
        all(135, latent),
        all(136, plain + rope_dims),
        f32s(&angles(rows, rope_dims)),
        poison(rows * heads * (latent + rope_dims) as usize * 4),
    ];
    let style = [RopeStyle::Interleaved, RopeStyle::HalfSplit][rows % 2];
    Case::new(Kernel::LatentQueries(ops::LatentQueries { style }), params, Shape::rows(rows), data)
}

pub(crate) fn apart(out: OutputForms, [rows, heads]: [usize; 2], [dim, stride]: [u32; 2]) -> Case {
    let params = HeadsApartParams { heads: heads as u32, stride, dim };
    let mut data = vec![f32s(&values(137, rows * heads * stride as usize))];
    data.extend(outputs(out, rows * heads, dim as usize));
    data.push(poison((heads + 1) * 4));
    Case::new(Kernel::HeadsApart(ops::HeadsApart { out }), params, Shape::rows(rows), data)
}

pub(crate) fn together(out: OutputForms, [rows, heads]: [usize; 2], dim: u32) -> Case {
    let params = HeadsTogetherParams { heads: heads as u32, dim };
    let cols = heads * dim as usize;
    let mut data = vec![f32s(&values(138, rows * cols))];
    data.extend(outputs(out, rows, cols));
    Case::new(Kernel::HeadsTogether(ops::HeadsTogether { out }), params, Shape::rows(rows), data)
}

pub(crate) fn moves(kv: KvType, dim: u32, rope_dims: u32) -> Vec<Case> {
    let positions = 96;
    let plain = KvMoveParams { kv_heads: 1, head_dim: dim, rope_dims, positions, block: 0 };
    let mut cases = vec![];
    for (style, paged) in [(RopeStyle::HalfSplit, true), (RopeStyle::Interleaved, false)] {
        let (all, table) = if paged { in_blocks(positions, 16) } else { (positions, vec![]) };
        let params = KvMoveParams { positions: all, block: if paged { 16 } else { 0 }, ..plain };
        let frequencies: Vec<f32> = (0..rope_dims / 2).map(|i| 0.7_f32.powi(i as i32)).collect();
        let mut data = vec![cache(kv, 139, 1, all, dim), f32s(&frequencies)];
        data.extend(paged.then_some(table));
        let kernel = Kernel::KvShift(ops::KvShift { style, kv, paged, latent: true });
        let moved = Move { from: 40, to: 35, len: 19 };
        cases.push(Case::new(kernel, params, Shape::moves(moved, MoveKind::Shift, positions), data));
    }
    let moved = Move { from: 3, to: 40, len: 34 };
    let (kernel, data) =
        (Kernel::KvCopy(ops::KvCopy { kv, latent: true }), vec![cache(kv, 139, 1, positions, dim)]);
    cases.push(Case::new(kernel, plain, Shape::moves(moved, MoveKind::Copy, positions), data));
    cases
}

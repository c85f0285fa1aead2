//! What writes the cache: rotated heads, and moves.

use akunu_plan::ops::{self, InputForm, KvMoveParams, RopeKvParams};
use akunu_plan::{Kernel, KvType, Move, MoveKind, RopeStyle};

use crate::attention::{HEADS, cache, in_blocks, kv_types, mixed_rows};
use crate::case::{Case, Shape, Spec, spec};
use crate::data::{f32s, pick, poison, values};
use crate::halves::half_rows;

/// With norms before RoPE.
pub fn rope() -> Vec<Spec> {
    rotated(false)
}

/// With norms after RoPE.
pub fn rope_before_norms() -> Vec<Spec> {
    rotated(true)
}

fn rotated(norm_last: bool) -> Vec<Spec> {
    let mut specs = vec![];
    for (i, (heads, kv_heads, dim)) in HEADS.into_iter().enumerate() {
        for kv in kv_types(dim) {
            for (style, qk_norm, queries) in [
                (Some(RopeStyle::HalfSplit), i % 2 == 0, true),
                (Some(RopeStyle::Interleaved), i % 2 == 1, true),
                (None, i % 2 == 0, true),
                (None, i % 2 == 1, true),
                (None, i % 2 == 0, false),
                (None, i % 2 == 1, false),
            ] {
                let heads = if queries { heads } else { 0 };
                let rows = [1, 5][i % 2];
                if norm_last && !qk_norm {
                    continue;
                }
                specs.push(spec(
                    format!("rope {heads}/{kv_heads}x{dim} {kv:?} {style:?} norm {qk_norm} last {norm_last}"),
                    rows,
                    move |part| {
                        let dims = match style {
                            Some(_) if dim >= 80 => dim / 2,
                            Some(_) => dim,
                            None => 0,
                        };
                        let (context, paged) = (16, i % 3 > 0);
                        let (positions, table) =
                            if paged { in_blocks(2 * context, 16) } else { (2 * context, vec![]) };
                        let params = RopeKvParams {
                            heads,
                            kv_heads,
                            head_dim: dim,
                            rope_dims: dims,
                            positions,
                            block: if paged { 16 } else { 0 },
                            epsilon: 1e-6,
                        };
                        let cols = ((heads + 2 * kv_heads) * dim) as usize;
                        let angles: Vec<f32> = values(41, rows * dims as usize / 2)
                            .iter()
                            .flat_map(|a| [(a * 9.0).cos(), (a * 9.0).sin()])
                            .collect();
                        let bytes = (kv_heads * positions) as usize * kv.row_bytes(dim as usize).unwrap();
                        let mut data = vec![pick(&f32s(&values(40, rows * cols)), rows, &part)];
                        data.extend(style.map(|_| pick(&f32s(&angles), rows, &part)));
                        if queries {
                            data.push(poison(part.len() * (heads * dim) as usize * 4));
                        }
                        data.extend([poison(bytes), poison(bytes)]);
                        if qk_norm {
                            data.extend([f32s(&values(42, dim as usize)), f32s(&values(43, dim as usize))]);
                        }
                        data.extend(paged.then_some(table));
                        let rows = mixed_rows(rows, 7, context)[part].to_vec();
                        let shape = Shape::sequences(rows, context, 2 * context, 16);
                        Case::new(
                            Kernel::RopeKv(ops::RopeKv {
                                style,
                                qk_norm,
                                norm_last,
                                kv,
                                input: InputForm::F32,
                                queries,
                                paged,
                            }),
                            params,
                            shape,
                            data,
                        )
                    },
                ));
            }
        }
    }
    specs
}

/// K and V as their products leave them in f16, whose rows have scales.
pub(crate) fn unfinished(kv: KvType, bias: bool, (rows, kv_heads, dim): (usize, u32, u32)) -> Spec {
    spec(format!("{kv:?} cache from f16 of {kv_heads} heads of {dim}, bias {bias}"), rows, move |part| {
        let (context, positions) = (16, 32);
        let params = RopeKvParams { kv_heads, head_dim: dim, positions, ..RopeKvParams::default() };
        let size = (kv_heads * dim) as usize;
        let [numbers, scales] = half_rows(44, rows, 2 * size);
        let mut data = vec![pick(&numbers, rows, &part), pick(&scales, rows, &part)];
        if bias {
            data.extend([45, 46].map(|seed| f32s(&values(seed, size))));
        }
        let bytes = kv_heads as usize * positions as usize * kv.row_bytes(dim as usize).unwrap();
        data.extend([poison(bytes), poison(bytes)]);
        let shape = Shape::sequences(mixed_rows(rows, 7, context)[part].to_vec(), context, positions, 16);
        let input = InputForm::F16 { bias };
        let op = ops::RopeKv {
            style: None,
            qk_norm: false,
            norm_last: false,
            kv,
            input,
            queries: false,
            paged: false,
        };
        Case::new(Kernel::RopeKv(op), params, shape, data)
    })
}

pub fn moves() -> Vec<Case> {
    HEADS.into_iter().flat_map(moves_of).collect()
}

pub(crate) fn moves_of((_, kv_heads, dim): (u32, u32, u32)) -> Vec<Case> {
    let mut cases = vec![];
    for kv in kv_types(dim) {
        let positions = 96;
        let params = KvMoveParams { kv_heads, head_dim: dim, rope_dims: dim, positions, block: 0 };
        let caches = |positions: u32| [47, 48].map(|seed| cache(kv, seed, kv_heads, positions, dim)).to_vec();
        for (style, paged) in [(RopeStyle::HalfSplit, true), (RopeStyle::Interleaved, false)] {
            let (all, table) = if paged { in_blocks(positions, 16) } else { (positions, vec![]) };
            let params = KvMoveParams { positions: all, block: if paged { 16 } else { 0 }, ..params };
            let mut data = caches(all);
            let frequencies: Vec<f32> = (0..dim / 2).map(|i| 0.7_f32.powi(i as i32)).collect();
            data.push(f32s(&frequencies));
            data.extend(paged.then_some(table));
            // In a sequence that begins at 32, the first 3 positions stay and the next 5 are removed.
            let moved = Move { from: 40, to: 35, len: 19 };
            let kernel = Kernel::KvShift(ops::KvShift { style, kv, paged, latent: false });
            cases.push(Case::new(kernel, params, Shape::moves(moved, MoveKind::Shift, positions), data));
        }
        // Whole groups of keys, and from the middle of one group to the middle of another.
        for moved in [Move { from: 64, to: 0, len: 29 }, Move { from: 3, to: 40, len: 34 }] {
            let shape = Shape::moves(moved, MoveKind::Copy, positions);
            cases.push(Case::new(
                Kernel::KvCopy(ops::KvCopy { kv, latent: false }),
                params,
                shape,
                caches(positions),
            ));
        }
    }
    cases
}

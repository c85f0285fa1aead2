//! What writes the cache: rotated heads, and moves.

use akunu_plan::ops::{self, KvMoveParams, RopeKvParams};
use akunu_plan::{Kernel, Move, MoveKind, RopeStyle};

use crate::attention::{HEADS, cache, kv_types, mixed_rows};
use crate::case::{Case, Shape, Spec, spec};
use crate::data::{f32s, pick, poison, values};

pub fn rope() -> Vec<Spec> {
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
                specs.push(spec(
                    format!("rope {heads}/{kv_heads}x{dim} {kv:?} {style:?} norm {qk_norm}"),
                    rows,
                    move |part| {
                        let dims = match style {
                            Some(_) if dim >= 80 => dim / 2,
                            Some(_) => dim,
                            None => 0,
                        };
                        let (context, positions) = (16, 32);
                        let params = RopeKvParams {
                            heads,
                            kv_heads,
                            head_dim: dim,
                            rope_dims: dims,
                            positions,
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
                        let shape = Shape::sequences(
                            mixed_rows(rows, 7, context)[part].to_vec(),
                            context,
                            positions,
                            16,
                        );
                        Case::new(
                            Kernel::RopeKv(ops::RopeKv { style, qk_norm, kv, queries }),
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

pub fn moves() -> Vec<Case> {
    let mut cases = vec![];
    for (_, kv_heads, dim) in HEADS {
        for kv in kv_types(dim) {
            let positions = 96;
            let params = KvMoveParams { kv_heads, head_dim: dim, rope_dims: dim, positions };
            let caches =
                || vec![cache(kv, 47, kv_heads, positions, dim), cache(kv, 48, kv_heads, positions, dim)];
            for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
                let mut data = caches();
                let frequencies: Vec<f32> = (0..dim / 2).map(|i| 0.7_f32.powi(i as i32)).collect();
                data.push(f32s(&frequencies));
                // In a sequence that begins at 32, the first 3 positions stay and the next 5 are removed.
                let moved = Move { from: 40, to: 35, len: 19 };
                let kernel = Kernel::KvShift(ops::KvShift { style, kv });
                cases.push(Case::new(kernel, params, Shape::moves(moved, MoveKind::Shift, positions), data));
            }
            // Whole groups of keys, and from the middle of one group to the middle of another.
            for moved in [Move { from: 64, to: 0, len: 29 }, Move { from: 3, to: 40, len: 34 }] {
                let shape = Shape::moves(moved, MoveKind::Copy, positions);
                cases.push(Case::new(Kernel::KvCopy(ops::KvCopy { kv }), params, shape, caches()));
            }
        }
    }
    cases
}

//! Moves positions of a sequence down to close a gap, and rotates their keys back accordingly.

use super::extent::{Counts, Extent, check_head, f32s};
use super::{F32, Keys, Moves, Op, Values, operands, params};
use crate::reference::{Bound, Cache, kv_load, kv_store, rotate};
use crate::{Cost, KvType, Move, MoveKind, RopeStyle, position_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShift {
    pub style: RopeStyle,
    pub kv: KvType,
}

params! {
    /// Sizes of a layer's cache.
    KvMoveParams { kv_heads: u32, head_dim: u32, rope_dims: u32, positions: u32 }
}

operands! {
    KvShiftOperands of KvShift as op {
        k_cache: update Keys(op.kv),
        v_cache: update Values(op.kv),
        frequencies: read F32,
        moves: read Moves(MoveKind::Shift),
    }
}

impl Op for KvShift {
    type Params = KvMoveParams;
    type Operands<T: Copy> = KvShiftOperands<T>;

    fn name(self) -> String {
        format!("kv_shift_{}_{}", self.style.name(), self.kv.name())
    }

    fn extents(self, p: &KvMoveParams, counts: &Counts) -> Result<KvShiftOperands<Extent>, String> {
        check_head(p.head_dim, p.rope_dims)?;
        let (k_cache, v_cache) = counts.cache(self.kv, p.kv_heads, p.head_dim, p.positions)?;
        Ok(KvShiftOperands { k_cache, v_cache, frequencies: f32s(1, p.rope_dims / 2), moves: counts.moves() })
    }

    fn move_cost(self, p: &KvMoveParams, moves: &[Move]) -> Cost {
        let moved: u64 = moves.iter().map(|moved| u64::from(moved.len)).sum();
        Cost { kv_bytes: moved * position_bytes(self.kv, p.kv_heads, p.head_dim), ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<KvMoveParams>(), bound.operands(self));
        let cache = Cache::new(self.kv, p.kv_heads, p.positions, p.head_dim);
        let dims = p.rope_dims as usize;
        let Move { from, to, len } = bound.moved(o.moves);
        let back = f64::from(from - to);
        bound.write(o.k_cache.0, |bound, k| {
            for head in 0..cache.kv_heads {
                for position in 0..len as usize {
                    let mut key = kv_load(self.kv, &k[cache.row(from, head, position)]);
                    rotate(&mut key, self.style, dims, |i| {
                        let angle = -back * f64::from(bound.f32s(o.frequencies)[i]);
                        (angle.cos(), angle.sin())
                    });
                    kv_store(self.kv, &key, &mut k[cache.row(to, head, position)]);
                }
            }
        });
        bound.write(o.v_cache.0, |_, v| {
            for head in 0..cache.kv_heads {
                for position in 0..len as usize {
                    let source = cache.row(from, head, position);
                    v.copy_within(source, cache.row(to, head, position).start);
                }
            }
        });
    }
}

//! Drops `row.token` positions from `row.position` on, and moves the rest of `row.kv_len` down, turning the keys back by as
//! many positions.

use super::extent::{Counts, Extent, check_head, f32s};
use super::{F32, Keys, Op, RowField, Rows, Values, operands, params};
use crate::reference::{Bound, Cache, kv_load, kv_store, rotate};
use crate::{Cost, KvType, RopeStyle, Row, position_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShift {
    pub style: RopeStyle,
    pub kv: KvType,
}

params! {
    /// Of a layer's cache; what to move stands in the row.
    KvMoveParams { kv_heads: u32, head_dim: u32, rope_dims: u32, capacity: u32 }
}

/// All of a row says what to move.
pub(super) const MOVE: &[RowField] = &[RowField::Token, RowField::Position, RowField::KvLen, RowField::Slot];

operands! {
    KvShiftOperands of KvShift as op {
        k_cache: update Keys(op.kv),
        v_cache: update Values(op.kv),
        frequencies: read F32,
        rows: read Rows(MOVE),
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
        let (k_cache, v_cache) = counts.cache(self.kv, p.kv_heads, p.head_dim, p.capacity)?;
        Ok(KvShiftOperands { k_cache, v_cache, frequencies: f32s(1, p.rope_dims / 2), rows: counts.rows() })
    }

    fn cost(self, p: &KvMoveParams, rows: &[Row], _: usize) -> Cost {
        let moved: u64 =
            rows.iter().map(|row| u64::from(row.kv_len.saturating_sub(row.position + row.token))).sum();
        Cost { kv_bytes: moved * position_bytes(self.kv, p.kv_heads, p.head_dim), ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<KvMoveParams>(), bound.operands(self));
        let cache = Cache::new(self.kv, p.kv_heads, p.capacity, p.head_dim);
        let dims = p.rope_dims as usize;
        let row = bound.rows(o.rows)[0];
        let (slot, keep, drop, len) =
            (row.slot as usize, row.position as usize, row.token as usize, row.kv_len as usize);
        bound.write(o.k_cache.0, |bound, k| {
            for head in 0..cache.kv_heads {
                for position in keep + drop..len {
                    let mut key = kv_load(self.kv, &k[cache.row(slot, head, position)]);
                    rotate(&mut key, self.style, dims, |i| {
                        let angle = -(drop as f64) * f64::from(bound.f32s(o.frequencies)[i]);
                        (angle.cos(), angle.sin())
                    });
                    kv_store(self.kv, &key, &mut k[cache.row(slot, head, position - drop)]);
                }
            }
        });
        bound.write(o.v_cache.0, |_, v| {
            for head in 0..cache.kv_heads {
                for position in keep + drop..len {
                    let to = cache.row(slot, head, position - drop).start;
                    v.copy_within(cache.row(slot, head, position), to);
                }
            }
        });
    }
}

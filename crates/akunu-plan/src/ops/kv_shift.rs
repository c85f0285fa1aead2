//! Moves positions of a sequence down to close a gap, and rotates their keys back accordingly.

use super::extent::{Counts, Extent, check_head, check_paged, f32s};
use super::{Blocks, F32, Keys, Moves, Op, Values, operands, params};
use crate::reference::{Bound, Cache, kv_load, kv_store, rotate};
use crate::{Cost, KvType, Move, MoveKind, RopeStyle, position_bytes, row_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShift {
    pub style: RopeStyle,
    pub kv: KvType,
    /// Whether the cache is in blocks ([`crate::blocks`]).
    pub paged: bool,
    /// Whether the cache is latent: rows that are keys and values at once, of which RoPE rotates the end
    /// ([`super::LatentKv`]).
    pub latent: bool,
}

params! {
    /// Sizes of a layer's cache, and of one of its blocks; 0 if the moved positions are those of the cache.
    KvMoveParams { kv_heads: u32, head_dim: u32, rope_dims: u32, positions: u32, block: u32 }
}

operands! {
    KvShiftOperands of KvShift as op {
        k_cache: update Keys(op.kv) if !op.latent,
        v_cache: update Values(op.kv),
        frequencies: read F32,
        moves: read Moves(MoveKind::Shift),
        blocks: read Blocks if op.paged,
    }
}

impl Op for KvShift {
    type Params = KvMoveParams;
    type Operands<T: Copy> = KvShiftOperands<T>;

    fn name(self) -> String {
        let paged = if self.paged { "_paged" } else { "" };
        format!("{}_shift_{}_{}{paged}", cache_name(self.latent), self.style.name(), self.kv.name())
    }

    fn extents(self, p: &KvMoveParams, counts: &Counts) -> Result<KvShiftOperands<Extent>, String> {
        check_head(p.head_dim, p.rope_dims)?;
        check_paged(self.paged, p.block)?;
        let cache = counts.cache(self.kv, p.kv_heads, p.head_dim, [p.positions, p.block])?;
        Ok(KvShiftOperands {
            k_cache: (!self.latent).then_some(cache.keys),
            v_cache: cache.values,
            frequencies: f32s(1, p.rope_dims / 2),
            moves: counts.moves(),
            blocks: cache.blocks,
        })
    }

    fn move_cost(self, p: &KvMoveParams, moves: &[Move]) -> Cost {
        let moved: u64 = moves.iter().map(|moved| u64::from(moved.len)).sum();
        Cost { kv_bytes: moved * moved_bytes(self.kv, p, self.latent), ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<KvMoveParams>(), bound.operands(self));
        let cache = Cache::new(self.kv, [p.kv_heads, p.head_dim], p.positions).paged(&bound, o.blocks, p.block);
        let dims = p.rope_dims as usize;
        let Move { from, to, len } = bound.moved(o.moves);
        let back = f64::from(from - to);
        let first = if self.latent { p.head_dim as usize - dims } else { 0 };
        let rotated = |bound: &Bound<'_>, bytes: &mut [u8]| {
            for head in 0..cache.kv_heads {
                for position in 0..len as usize {
                    let mut key = kv_load(self.kv, &bytes[cache.row(from, head, position)]);
                    let end = if self.latent { first + dims } else { key.len() };
                    rotate(&mut key[first..end], self.style, dims, |i| {
                        let angle = -back * f64::from(bound.f32s(o.frequencies)[i]);
                        (angle.cos(), angle.sin())
                    });
                    kv_store(self.kv, &key, &mut bytes[cache.row(to, head, position)]);
                }
            }
        };
        let Some(keys) = o.k_cache else { return bound.write(o.v_cache.0, rotated) };
        bound.write(keys.0, rotated);
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

/// What names of ops begin with that move positions of a cache.
pub(super) fn cache_name(latent: bool) -> &'static str {
    if latent { "latent_kv" } else { "kv" }
}

/// Bytes of a position of a layer.
pub(super) fn moved_bytes(kv: KvType, p: &KvMoveParams, latent: bool) -> u64 {
    match latent {
        true => row_bytes(kv.dtype(), p.head_dim),
        false => position_bytes(kv, p.kv_heads, p.head_dim),
    }
}

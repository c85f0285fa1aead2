//! Copies positions of the KV cache to others. They are places in the cache, not found through a table of blocks.

use super::extent::{Counts, Extent, check_paged};
use super::kv_shift::{cache_name, moved_bytes};
use super::{Keys, KvMoveParams, Moves, Op, Values, operands};
use crate::reference::{Bound, Cache};
use crate::{Cost, KvType, Move, MoveKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCopy {
    pub kv: KvType,
    /// Whether the cache is latent: rows that are keys and values at once ([`super::LatentKv`]).
    pub latent: bool,
}

operands! {
    KvCopyOperands of KvCopy as op {
        k_cache: update Keys(op.kv) if !op.latent,
        v_cache: update Values(op.kv),
        moves: read Moves(MoveKind::Copy),
    }
}

impl Op for KvCopy {
    type Params = KvMoveParams;
    type Operands<T: Copy> = KvCopyOperands<T>;

    fn name(self) -> String {
        format!("{}_copy_{}", cache_name(self.latent), self.kv.name())
    }

    fn extents(self, p: &KvMoveParams, counts: &Counts) -> Result<KvCopyOperands<Extent>, String> {
        check_paged(false, p.block)?;
        let cache = counts.cache(self.kv, p.kv_heads, p.head_dim, [p.positions, 0])?;
        Ok(KvCopyOperands {
            k_cache: (!self.latent).then_some(cache.keys),
            v_cache: cache.values,
            moves: counts.moves(),
        })
    }

    fn move_cost(self, p: &KvMoveParams, moves: &[Move]) -> Cost {
        let copied: u64 = moves.iter().map(|moved| u64::from(moved.len)).sum();
        Cost { kv_bytes: copied * moved_bytes(self.kv, p, self.latent), ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<KvMoveParams>(), bound.operands(self));
        let cache = Cache::new(self.kv, [p.kv_heads, p.head_dim], p.positions);
        let Move { from, to, len } = bound.moved(o.moves);
        for binding in o.k_cache.map(|keys| keys.0).into_iter().chain([o.v_cache.0]) {
            bound.write(binding, |_, bytes| {
                for head in 0..cache.kv_heads {
                    for position in 0..len as usize {
                        let source = cache.row(from, head, position);
                        bytes.copy_within(source, cache.row(to, head, position).start);
                    }
                }
            });
        }
    }
}

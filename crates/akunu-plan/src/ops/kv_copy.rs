//! Copies positions of the KV cache to others. They are places in the cache, not found through a table of blocks.

use super::extent::{Counts, Extent, check_paged};
use super::{Keys, KvMoveParams, Moves, Op, Values, operands};
use crate::reference::{Bound, Cache};
use crate::{Cost, KvType, Move, MoveKind, position_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCopy {
    pub kv: KvType,
}

operands! {
    KvCopyOperands of KvCopy as op {
        k_cache: update Keys(op.kv),
        v_cache: update Values(op.kv),
        moves: read Moves(MoveKind::Copy),
    }
}

impl Op for KvCopy {
    type Params = KvMoveParams;
    type Operands<T: Copy> = KvCopyOperands<T>;

    fn name(self) -> String {
        format!("kv_copy_{}", self.kv.name())
    }

    fn extents(self, p: &KvMoveParams, counts: &Counts) -> Result<KvCopyOperands<Extent>, String> {
        check_paged(false, p.block)?;
        let cache = counts.cache(self.kv, p.kv_heads, p.head_dim, [p.positions, 0])?;
        Ok(KvCopyOperands { k_cache: cache.keys, v_cache: cache.values, moves: counts.moves() })
    }

    fn move_cost(self, p: &KvMoveParams, moves: &[Move]) -> Cost {
        let copied: u64 = moves.iter().map(|moved| u64::from(moved.len)).sum();
        Cost { kv_bytes: copied * position_bytes(self.kv, p.kv_heads, p.head_dim), ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<KvMoveParams>(), bound.operands(self));
        let cache = Cache::new(self.kv, [p.kv_heads, p.head_dim], p.positions);
        let Move { from, to, len } = bound.moved(o.moves);
        for binding in [o.k_cache.0, o.v_cache.0] {
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

//! Copies the first `row.kv_len` positions of slot `row.token` to `row.slot`.

use super::extent::{Counts, Extent};
use super::kv_shift::MOVE;
use super::{Keys, KvMoveParams, Op, Rows, Values, operands};
use crate::reference::{Bound, Cache};
use crate::{Cost, KvType, Row, position_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCopy {
    pub kv: KvType,
}

operands! {
    KvCopyOperands of KvCopy as op {
        k_cache: update Keys(op.kv),
        v_cache: update Values(op.kv),
        rows: read Rows(MOVE),
    }
}

impl Op for KvCopy {
    type Params = KvMoveParams;
    type Operands<T: Copy> = KvCopyOperands<T>;

    fn name(self) -> String {
        format!("kv_copy_{}", self.kv.name())
    }

    fn extents(self, p: &KvMoveParams, counts: &Counts) -> Result<KvCopyOperands<Extent>, String> {
        let (k_cache, v_cache) = counts.cache(self.kv, p.kv_heads, p.head_dim, p.capacity)?;
        Ok(KvCopyOperands { k_cache, v_cache, rows: counts.rows() })
    }

    fn cost(self, p: &KvMoveParams, rows: &[Row], _: usize) -> Cost {
        let copied: u64 = rows.iter().map(|row| u64::from(row.kv_len)).sum();
        Cost { kv_bytes: copied * position_bytes(self.kv, p.kv_heads, p.head_dim), ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<KvMoveParams>(), bound.operands(self));
        let cache = Cache::new(self.kv, p.kv_heads, p.capacity, p.head_dim);
        let row = bound.rows(o.rows)[0];
        for binding in [o.k_cache.0, o.v_cache.0] {
            bound.write(binding, |_, bytes| {
                for head in 0..cache.kv_heads {
                    for position in 0..row.kv_len as usize {
                        let from = cache.row(row.token as usize, head, position);
                        bytes.copy_within(from, cache.row(row.slot as usize, head, position).start);
                    }
                }
            });
        }
    }
}

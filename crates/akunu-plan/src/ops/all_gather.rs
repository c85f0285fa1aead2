//! Rows whose columns the ranks have computed, one rank after the other.

use super::extent::{Counts, Extent, f32s};
use super::{F32, Op, RowSet, operands, params};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllGather;

params! {
    AllGatherParams {
        /// Columns of each rank.
        cols: u32,
        /// Columns of the result: what the last ranks have beyond these is left out.
        total: u32,
    }
}

operands! {
    AllGatherOperands of AllGather as op {
        x: read F32,
        out: write F32,
    }
}

impl Op for AllGather {
    type Params = AllGatherParams;
    type Operands<T: Copy> = AllGatherOperands<T>;

    fn name(self) -> String {
        "all_gather".into()
    }

    fn row_set(self) -> Option<RowSet> {
        Some(RowSet::Logits)
    }

    fn extents(self, p: &AllGatherParams, counts: &Counts) -> Result<AllGatherOperands<Extent>, String> {
        if p.cols == 0 || p.total == 0 {
            return Err(format!("{} columns of each rank make {} in all", p.cols, p.total));
        }
        Ok(AllGatherOperands { x: f32s(counts.logit_rows, p.cols), out: f32s(counts.logit_rows, p.total) })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<AllGatherParams>(), bound.operands(self));
        let (cols, total, rows) = (p.cols as usize, p.total as usize, bound.live.logit_rows);
        let parts = bound.exchange(o.x, rows * cols);
        bound.write_f32s(o.out, |_, out| {
            for (row, out) in out.chunks_exact_mut(total).take(rows).enumerate() {
                for (out, part) in out.chunks_mut(cols).zip(&parts) {
                    out.copy_from_slice(&part[row * cols..][..out.len()]);
                }
            }
        });
    }
}

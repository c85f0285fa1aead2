//! One vector for each requested row: that row, or the mean of its text.

use super::extent::{Counts, Extent, f32s, u32s};
use super::{ElementParams, F32, Op, RowField, RowSet, Rows, U32, operands};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// The requested row.
    Row,
    /// The mean of the rows of its text up to the requested one. The rows of a text are consecutive, and their
    /// positions count from 0.
    Mean,
}

/// Number of rows that are summed before the sum is added to those of other parts: long texts lose no precision, and
/// the order of the sum does not depend on the device's lanes.
pub const POOL_PART: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    pub kind: PoolKind,
}

operands! {
    PoolOperands of Pool as op {
        x: read F32,
        logit_rows: read U32,
        rows: read Rows(&[RowField::Position]) if op.kind == PoolKind::Mean,
        out: write F32,
    }
}

impl Op for Pool {
    type Params = ElementParams;
    type Operands<T: Copy> = PoolOperands<T>;

    fn name(self) -> String {
        if self.kind == PoolKind::Mean { "pool_mean".into() } else { "pool_row".into() }
    }

    fn row_set(self) -> Option<RowSet> {
        Some(RowSet::Logits)
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<PoolOperands<Extent>, String> {
        Ok(PoolOperands {
            x: f32s(counts.rows, p.cols),
            logit_rows: u32s(counts.logit_rows),
            rows: (self.kind == PoolKind::Mean).then(|| counts.rows()),
            out: f32s(counts.logit_rows, p.cols),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let (cols, asking) = (p.cols as usize, bound.live_rows());
        bound.write_f32s(o.out, |bound, out| {
            for (index, out) in out.chunks_exact_mut(cols).take(asking).enumerate() {
                let last = bound.u32s(o.logit_rows)[index] as usize;
                let first = match o.rows {
                    Some(rows) => last.saturating_sub(bound.rows(rows)[last].position as usize),
                    None => last,
                };
                let rows = (last - first + 1) as f64;
                for (i, out) in out.iter_mut().enumerate() {
                    let column = (first..=last).map(|row| f64::from(bound.f32s(o.x)[row * cols + i]));
                    *out = (column.sum::<f64>() / rows) as f32;
                }
            }
        });
    }
}

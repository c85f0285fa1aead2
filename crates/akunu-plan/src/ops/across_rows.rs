//! The rows of a pass as the attention to an encoder's states reads them: of their sequence's window, all positions.

use super::extent::{Counts, Extent};
use super::{Op, RowField, Rows, operands, params};
use crate::Row;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcrossRows;

params! {
    AcrossRowsParams {
        /// Cache positions of the sequences that share a window.
        own: u32,
        /// Positions of a window's slot in the cache of the encoder's keys and values.
        slot: u32,
        /// States of a window.
        count: u32,
        /// All positions of that cache.
        positions: u32,
    }
}

operands! {
    AcrossRowsOperands of AcrossRows as op {
        rows: read Rows(&[RowField::Start]),
        out: write Rows(&[]),
    }
}

impl AcrossRowsParams {
    #[inline(always)]
    pub fn row(&self, row: &Row) -> Row {
        Row { token: 0, position: self.count - 1, kv_len: self.count, start: row.start / self.own * self.slot }
    }
}

impl Op for AcrossRows {
    type Params = AcrossRowsParams;
    type Operands<T: Copy> = AcrossRowsOperands<T>;

    fn name(self) -> String {
        "across_rows".into()
    }

    fn extents(self, p: &AcrossRowsParams, counts: &Counts) -> Result<AcrossRowsOperands<Extent>, String> {
        if p.own == 0 || p.count == 0 || p.slot < p.count {
            return Err(format!("{} states in a slot of {}, for {} positions", p.count, p.slot, p.own));
        }
        let windows = u64::from(counts.bounds.positions().div_ceil(p.own));
        if windows * u64::from(p.slot) > u64::from(p.positions) {
            return Err(format!("{windows} windows of {} positions in a cache of {}", p.slot, p.positions));
        }
        Ok(AcrossRowsOperands { rows: counts.rows(), out: counts.rows() })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<AcrossRowsParams>(), bound.operands(self));
        let rows: Vec<Row> = bound.rows(o.rows).iter().map(|row| p.row(row)).collect();
        bound.write(o.out.0, |_, bytes| {
            bytes[..rows.len() * Row::BYTES].copy_from_slice(bytemuck::cast_slice(&rows));
        });
    }
}

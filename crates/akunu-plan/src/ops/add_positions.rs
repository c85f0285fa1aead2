//! Adds a learned embedding of each row's position, and one of its token type, as far as the model has them.

use super::extent::{Counts, Extent, f32s, u32s};
use super::{F32, Op, RowField, Rows, U32, operands, params};
use crate::reference::Bound;

/// Which token type embedding is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenTypes {
    None,
    /// The first one for all rows.
    First,
    /// The one given by the row's entry in `segments`.
    PerRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddPositions {
    pub positions: bool,
    pub types: TokenTypes,
}

params! {
    /// `positions` has `count` rows and `types` has `kinds` rows, of `cols` elements each.
    AddPositionsParams { cols: u32, count: u32, kinds: u32 }
}

operands! {
    AddPositionsOperands of AddPositions as op {
        x: read F32,
        rows: read Rows(&[RowField::Position]),
        positions: read F32 if op.positions,
        types: read F32 if op.types != TokenTypes::None,
        segments: read U32 if op.types == TokenTypes::PerRow,
        out: write F32,
    }
}

impl Op for AddPositions {
    type Params = AddPositionsParams;
    type Operands<T: Copy> = AddPositionsOperands<T>;

    fn name(self) -> String {
        let positions = if self.positions { "_positions" } else { "" };
        let types = match self.types {
            TokenTypes::None => "",
            TokenTypes::First => "_type",
            TokenTypes::PerRow => "_types",
        };
        format!("add{positions}{types}")
    }

    fn extents(self, p: &AddPositionsParams, counts: &Counts) -> Result<AddPositionsOperands<Extent>, String> {
        if self.positions && p.count < counts.bounds.context() {
            return Err(format!("{} positions for texts of up to {}", p.count, counts.bounds.context()));
        }
        if self.types != TokenTypes::None && p.kinds == 0 {
            return Err("token types without any".into());
        }
        let rows = f32s(counts.rows, p.cols);
        Ok(AddPositionsOperands {
            x: rows,
            rows: counts.rows(),
            positions: self.positions.then(|| f32s(p.count as usize, p.cols)),
            types: (self.types != TokenTypes::None).then(|| f32s(p.kinds as usize, p.cols)),
            segments: (self.types == TokenTypes::PerRow).then(|| u32s(counts.rows)),
            out: rows,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<AddPositionsParams>(), bound.operands(self));
        let cols = p.cols as usize;
        bound.write_f32s(o.out, |bound, out| {
            let row_of = |table: F32<_>, row: usize| bound.f32s(table)[row * cols..][..cols].to_vec();
            for (index, row) in bound.rows(o.rows).iter().enumerate() {
                let segment = match o.segments {
                    Some(segments) => bound.u32s(segments)[index].min(p.kinds - 1) as usize,
                    None => 0,
                };
                let position = o.positions.map(|positions| row_of(positions, row.position as usize));
                let kind = o.types.map(|types| row_of(types, segment));
                for (i, out) in out[index * cols..][..cols].iter_mut().enumerate() {
                    let added = [&position, &kind].into_iter().flatten().map(|table| f64::from(table[i]));
                    *out = (f64::from(bound.f32s(o.x)[index * cols + i]) + added.sum::<f64>()) as f32;
                }
            }
        });
    }
}

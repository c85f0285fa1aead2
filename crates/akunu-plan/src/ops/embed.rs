//! The embeddings of tokens, scaled.

use super::extent::{Counts, Extent, f32s, weight};
use super::{F32, Op, PlaneNames, RowField, Rows, Weight, operands, params};
use crate::reference::Bound;
use crate::{Cost, DType, Row, lower_name, row_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Embed {
    pub weight: DType,
}

params! {
    EmbedParams { cols: u32, vocab: u32, scale: f32 }
}

const EMBEDDING: PlaneNames = ["embedding", "embedding_scales", "embedding_offsets"];

operands! {
    EmbedOperands of Embed as op {
        embedding: read Weight(EMBEDDING, op.weight),
        rows: read Rows(&[RowField::Token]),
        out: write F32,
    }
}

impl Op for Embed {
    type Params = EmbedParams;
    type Operands<T: Copy> = EmbedOperands<T>;

    fn name(self) -> String {
        format!("embed_{}", lower_name(self.weight))
    }

    fn extents(self, p: &EmbedParams, counts: &Counts) -> Result<EmbedOperands<Extent>, String> {
        if p.vocab < counts.bounds.vocab() {
            return Err(format!("{} embeddings for {} tokens", p.vocab, counts.bounds.vocab()));
        }
        Ok(EmbedOperands {
            embedding: weight(self.weight, p.cols, p.vocab)?,
            rows: counts.rows(),
            out: f32s(counts.rows, p.cols),
        })
    }

    fn cost(self, p: &EmbedParams, rows: &[Row], _: usize) -> Cost {
        Cost { weight_bytes: row_bytes(self.weight, p.cols) * rows.len() as u64, ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<EmbedParams>(), bound.operands(self));
        let cols = p.cols as usize;
        bound.write_f32s(o.out, |bound, out| {
            for (row, out) in bound.rows(o.rows).iter().zip(out.chunks_exact_mut(cols)) {
                let values = bound.weight_row(o.embedding, self.weight, row.token as usize, cols);
                out.iter_mut().zip(&values).for_each(|(o, v)| *o = v * p.scale);
            }
        });
    }
}

//! The embeddings of tokens, scaled.

use super::extent::{Counts, Extent, f32s, weight};
use super::{F32, Op, PlaneNames, RowField, Rows, Weight, operands, params};
use crate::reference::Bound;
use crate::{Cost, DType, Row, lower_name, row_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Embed {
    pub weight: DType,
    /// Each rank has a part of the vocabulary, of `vocab` tokens, the first rank the first ones. Tokens of other ranks are zeros.
    pub part: bool,
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
        format!("embed_{}{}", if self.part { "part_" } else { "" }, lower_name(self.weight))
    }

    fn extents(self, p: &EmbedParams, counts: &Counts) -> Result<EmbedOperands<Extent>, String> {
        if !self.part && p.vocab < counts.bounds.vocab() {
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
        let (cols, first) = (p.cols as usize, bound.rank() as u32 * p.vocab);
        bound.write_f32s(o.out, |bound, out| {
            for (row, out) in bound.rows(o.rows).iter().zip(out.chunks_exact_mut(cols)) {
                let Some(token) = row.token.checked_sub(first).filter(|token| *token < p.vocab) else {
                    out.fill(0.0);
                    continue;
                };
                let values = bound.weight_row(o.embedding, self.weight, token as usize, cols);
                out.iter_mut().zip(&values).for_each(|(o, v)| *o = v * p.scale);
            }
        });
    }
}

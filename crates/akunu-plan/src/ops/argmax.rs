//! The token with the largest logit for each logit row; ties go to the lowest id, and `u32::MAX` reports a NaN.

use super::extent::{Counts, Extent, f32s, u32s};
use super::{F32, Op, RowField, RowSet, Rows, U32, operands, params};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argmax;

params! {
    ArgmaxParams {
        vocab: u32,
        /// 1: advance the rows to the token found, so that the next step decodes it.
        advance: u32,
    }
}

/// The fields of a row that a step advances.
pub(super) const ADVANCES: &[RowField] = &[RowField::Token, RowField::Position, RowField::KvLen];

operands! {
    ArgmaxOperands of Argmax as op {
        logits: read F32,
        tokens: write U32,
        rows: update Rows(ADVANCES),
        logit_rows: read U32,
    }
}

impl Op for Argmax {
    type Params = ArgmaxParams;
    type Operands<T: Copy> = ArgmaxOperands<T>;

    fn name(self) -> String {
        "argmax".into()
    }

    fn row_set(self) -> Option<RowSet> {
        Some(RowSet::Logits)
    }

    fn extents(self, p: &ArgmaxParams, counts: &Counts) -> Result<ArgmaxOperands<Extent>, String> {
        check_vocab(p.vocab, p.advance, counts)?;
        Ok(ArgmaxOperands {
            logits: f32s(counts.logit_rows, p.vocab),
            tokens: counts.tokens(),
            rows: counts.rows(),
            logit_rows: u32s(counts.logit_rows),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ArgmaxParams>(), bound.operands(self));
        let vocab = p.vocab as usize;
        let best: Vec<u32> = (0..bound.live.logit_rows)
            .map(|row| best_token(&bound.f32s(o.logits)[row * vocab..][..vocab]))
            .collect();
        bound.write_found((o.tokens, o.rows, o.logit_rows), &best, p.advance == 1);
    }
}

/// The token found must be one that the next step can embed.
pub(super) fn check_vocab(vocab: u32, advance: u32, counts: &Counts) -> Result<(), String> {
    if vocab == 0 || (advance > 0 && vocab > counts.bounds.vocab()) {
        return Err(format!("{vocab} logits, but the vocabulary has {}", counts.bounds.vocab()));
    }
    Ok(())
}

fn best_token(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, value) in logits.iter().enumerate() {
        if value.is_nan() {
            return u32::MAX;
        }
        if *value > logits[best] {
            best = id;
        }
    }
    best as u32
}

//! Samples a token for each logit row with its settings ([`crate::sample`]); `u32::MAX` reports logits that are NaN, or
//! that all tokens are excluded.

use super::argmax::{ADVANCES, check_vocab};
use super::extent::{Counts, Extent, f32s, u32s};
use super::{F32, Op, RowSet, Rows, Sampling, U32, operands, params};
use crate::reference::{Bound, sample::Record};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample;

params! {
    SampleParams {
        vocab: u32,
        /// 1: advance the rows to the token found, so that the next step decodes it. 2: another table decodes it, and the
        /// step stays the same.
        advance: u32,
    }
}

operands! {
    SampleOperands of Sample as op {
        logits: read F32,
        tokens: write U32,
        rows: update Rows(ADVANCES),
        logit_rows: read U32,
        sampling: update Sampling,
    }
}

impl Op for Sample {
    type Params = SampleParams;
    type Operands<T: Copy> = SampleOperands<T>;

    fn name(self) -> String {
        "sample".into()
    }

    fn row_set(self) -> Option<RowSet> {
        Some(RowSet::Logits)
    }

    fn extents(self, p: &SampleParams, counts: &Counts) -> Result<SampleOperands<Extent>, String> {
        check_vocab(p.vocab, p.advance, counts)?;
        let record = crate::sample::record_words(p.vocab as usize, counts.steps);
        let records = u32s(counts.logit_rows.saturating_mul(record));
        Ok(SampleOperands {
            logits: f32s(counts.logit_rows, p.vocab),
            tokens: counts.tokens(),
            rows: counts.rows(),
            logit_rows: u32s(counts.logit_rows),
            sampling: Sampling(records.0),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<SampleParams>(), bound.operands(self));
        let (vocab, step) = (p.vocab as usize, bound.live.step);
        let pick = |row: usize| {
            let records: &[u32] = bytemuck::cast_slice(bound.bytes(o.sampling.0));
            let logits = &bound.f32s(o.logits)[row * vocab..][..vocab];
            Record::read(records, row, vocab, step).pick(logits, step).unwrap_or(u32::MAX)
        };
        let picked: Vec<u32> = (0..bound.live.logit_rows).map(pick).collect();
        bound.write(o.sampling.0, |_, bytes| {
            let records: &mut [u32] = bytemuck::cast_slice_mut(bytes);
            for (row, &token) in picked.iter().enumerate() {
                let end = Record::read(records, row, vocab, step).end;
                records[end] = token;
            }
        });
        bound.write_found((o.tokens, o.rows, o.logit_rows), &picked, p.advance > 0);
    }
}

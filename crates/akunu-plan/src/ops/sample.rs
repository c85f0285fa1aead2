//! Samples a token for each logit row with its settings ([`crate::sample`]); `u32::MAX` reports logits that are NaN, or
//! that all tokens are excluded.

use super::argmax::{ADVANCES, check_vocab};
use super::extent::{Counts, Extent, f32s, u32s};
use super::{F32, Op, RowSet, Rows, Sampling, U32, operands, params};
use crate::reference::{Bound, sample};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample;

params! {
    SampleParams {
        vocab: u32,
        /// 1: advance the rows to the token found, so that the next step decodes it.
        advance: u32,
        /// Size of one row's record in 32-bit words.
        stride: u32,
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
        let least = crate::sample::record_words(counts.steps);
        if (p.stride as usize) < least {
            return Err(format!("records of {} words, which want {least}", p.stride));
        }
        check_vocab(p.vocab, p.advance, counts)?;
        let records = u32s(counts.logit_rows.saturating_mul(p.stride as usize));
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
        let (vocab, stride, step) = (p.vocab as usize, p.stride as usize, bound.live.step);
        let pick = |row: usize| {
            let records: &[u32] = bytemuck::cast_slice(bound.bytes(o.sampling.0));
            let logits = &bound.f32s(o.logits)[row * vocab..][..vocab];
            sample::pick(&records[row * stride..][..stride], logits, step).unwrap_or(u32::MAX)
        };
        let picked: Vec<u32> = (0..bound.live.logit_rows).map(pick).collect();
        bound.write(o.sampling.0, |_, bytes| {
            let records: &mut [u32] = bytemuck::cast_slice_mut(bytes);
            for (record, &token) in records.chunks_mut(stride).zip(&picked) {
                sample::push(record, token, step);
            }
        });
        bound.write_found((o.tokens, o.rows, o.logit_rows), &picked, p.advance == 1);
    }
}

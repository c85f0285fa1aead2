//! Tables that sample tokens on the device ([`crate::sample`]): existing tables with another last command.

use super::{Buffers, size};
use crate::ops::{F32, Op, Rows, Sample, SampleOperands, SampleParams, Sampling, U32};
use crate::plan::PlanError;
use crate::{BufferKind, DispatchTable, PassKind, sample};

/// Maximum number of rows sampled at once: their records take memory even if unused.
const MAX_SAMPLED_ROWS: usize = 64;

pub(super) fn decode(
    decode: &DispatchTable,
    vocab: usize,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let mut table = DispatchTable { name: PassKind::SampledDecode.name(), ..decode.clone() };
    table.commands.pop();
    table.labels.pop();
    with_sample(table, vocab, buffers)
}

pub(super) fn pick(
    prefill: &DispatchTable,
    vocab: usize,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let (name, logit_rows) = (PassKind::Pick.name(), prefill.logit_rows.min(MAX_SAMPLED_ROWS));
    let nothing = DispatchTable { name, commands: vec![], labels: vec![], logit_rows, ..prefill.clone() };
    with_sample(nothing, vocab, buffers)
}

/// A table with `sample` as its last command.
fn with_sample(
    mut table: DispatchTable,
    vocab: usize,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let bytes = size(&[table.logit_rows, sample::record_words(vocab, table.steps), 4])?;
    let records = buffers.add(format!("{}.records", table.name), bytes, BufferKind::Io);
    let operands = SampleOperands {
        logits: F32(table.io.logits.into()),
        tokens: U32(table.io.tokens.into()),
        rows: Rows(table.io.rows.into()),
        logit_rows: U32(table.io.logit_rows.into()),
        sampling: Sampling(records.into()),
    };
    let (vocab, advance) = (vocab as u32, u32::from(table.steps > 1));
    table.commands.push(Sample.command(operands, SampleParams { vocab, advance }));
    table.labels.push("sample".into());
    table.io.records = Some(records);
    Ok(table)
}

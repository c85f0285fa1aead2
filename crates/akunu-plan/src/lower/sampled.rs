//! Tables that sample tokens on the device ([`crate::sample`]): existing tables with another last command, or parts of
//! them.

use super::{Buffers, size};
use crate::ops::{F32, Op, Rows, Sample, SampleOperands, SampleParams, Sampling, U32};
use crate::plan::PlanError;
use crate::{BufferKind, DispatchTable, PassKind, sample};

pub(super) fn decode(
    decode: &DispatchTable,
    vocab: usize,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let table = without_choice(decode, PassKind::SampledDecode);
    let advance = u32::from(table.steps > 1);
    with_sample(table, vocab, advance, buffers)
}

/// The tables of a pass and of the choice after it, which are submitted apart: the choice needs a mask that is computed
/// during the pass.
pub(super) fn held(
    decode: &DispatchTable,
    vocab: usize,
    buffers: &mut Buffers,
) -> Result<[DispatchTable; 2], PlanError> {
    let pass = DispatchTable { steps: 1, ..without_choice(decode, PassKind::HeldDecode) };
    let name = PassKind::HeldPick.name();
    let nothing = DispatchTable { name, commands: vec![], labels: vec![], ..pass.clone() };
    Ok([pass, with_sample(nothing, vocab, 2, buffers)?])
}

fn without_choice(decode: &DispatchTable, kind: PassKind) -> DispatchTable {
    let mut table = DispatchTable { name: kind.name(), ..decode.clone() };
    table.commands.pop();
    table.labels.pop();
    table
}

pub(super) fn pick(
    prefill: &DispatchTable,
    vocab: usize,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let name = PassKind::Pick.name();
    let nothing = DispatchTable { name, commands: vec![], labels: vec![], ..prefill.clone() };
    with_sample(nothing, vocab, 0, buffers)
}

/// A table with `sample` as its last command.
fn with_sample(
    mut table: DispatchTable,
    vocab: usize,
    advance: u32,
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
    let vocab = vocab as u32;
    table.commands.push(Sample.command(operands, SampleParams { vocab, advance }));
    table.labels.push("sample".into());
    table.io.records = Some(records);
    Ok(table)
}

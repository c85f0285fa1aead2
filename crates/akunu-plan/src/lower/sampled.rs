//! Tables that pick their tokens by [`crate::sample`]: those that are there, with another last command.

use std::sync::Arc;

use super::{Buffers, size};
use crate::ops::{F32, Op, Rows, Sample, SampleOperands, SampleParams, Sampling, U32};
use crate::plan::{PlanError, SampledTables};
use crate::{BufferId, BufferKind, DispatchCommand, DispatchTable, sample};

/// Rows that may be picked for at once: their records take memory, whether they are used or not.
const MOST_PICKED: usize = 64;

pub(super) fn build(
    decode: &DispatchTable,
    prefill: &DispatchTable,
    vocab: usize,
    buffers: &mut Buffers,
) -> Result<SampledTables, PlanError> {
    let mut ended = |table: &DispatchTable, name, kept: usize, logit_rows: usize| {
        let stride = sample::record_words(table.steps);
        let bytes = size(&[logit_rows, stride, 4])?;
        let records = buffers.add(format!("{name}.records"), bytes, BufferKind::Io);
        let mut ended = DispatchTable {
            name,
            commands: table.commands[..kept].to_vec(),
            labels: table.labels[..kept].to_vec(),
            logit_rows,
            ..table.clone()
        };
        let (vocab, advance, stride) = (vocab as u32, u32::from(table.steps > 1), stride as u32);
        let command = command(&ended, records, SampleParams { vocab, advance, stride });
        ended.commands.push(command);
        ended.labels.push("sample".into());
        Ok::<_, PlanError>((Arc::new(ended), records))
    };
    let (decode, decode_records) = ended(decode, "sampled", decode.commands.len() - 1, decode.logit_rows)?;
    let (pick, pick_records) = ended(prefill, "pick", 0, prefill.logit_rows.min(MOST_PICKED))?;
    Ok(SampledTables { decode, decode_records, pick, pick_records })
}

fn command(table: &DispatchTable, records: BufferId, params: SampleParams) -> DispatchCommand {
    let operands = SampleOperands {
        logits: F32(table.io.logits.into()),
        tokens: U32(table.io.tokens.into()),
        rows: Rows(table.io.rows.into()),
        logit_rows: U32(table.io.logit_rows.into()),
        sampling: Sampling(records.into()),
    };
    Sample.command(operands, params)
}

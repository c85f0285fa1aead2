//! The table for the times of words: a prefill that also writes how much its rows attend to each position of the audio,
//! in the heads that follow what is said.

use std::collections::HashMap;

use akunu_arch::ModelConfig;

use super::graph::{Action, Columns, Graph, Value};
use super::pass::{Model, Products, Spec, build_with};
use super::{Buffers, Context, size};
use crate::ops::RowSet;
use crate::plan::PlanError;
use crate::{BufferKind, DispatchTable, PassKind};

/// Maximum rows of a pass: each row's scores may be megabytes, and a window has at most a few hundred tokens.
const MAX_ROWS: usize = 64;

/// The heads whose scores are written, as (layer, head), in order: those of the file, or all in the last half of the
/// layers.
pub(super) fn heads(config: &ModelConfig) -> Result<Vec<[usize; 2]>, PlanError> {
    let (layers, heads) = (config.layer_count, config.head_count);
    let stated = &config.alignment_heads;
    if let Some([layer, head]) = stated.iter().find(|[layer, head]| *layer >= layers || *head >= heads) {
        let reason = format!(
            "the file names head {head} of layer {layer} for alignment, of {layers} layers with {heads} heads each"
        );
        return Err(PlanError::Unsupported(reason));
    }
    let mut chosen = match stated.is_empty() {
        false => stated.clone(),
        true => (layers / 2..layers).flat_map(|layer| (0..heads).map(move |head| [layer, head])).collect(),
    };
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

/// Shares the inputs and outputs of the prefill table, and has scores in addition.
pub(super) fn table(
    context: &Context<'_>,
    (mut graph, output): (Graph, Value),
    model: &Model,
    prefill: &DispatchTable,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let (heads, positions) = (heads(context.config)?, context.config.encoder.map_or(0, |e| e.positions));
    let name = PassKind::Align.name();
    let rows = prefill.rows.min(MAX_ROWS);
    let bytes = size(&[rows, heads.len(), positions, 4])?;
    let scores = graph.value("scores", heads.len() * positions, RowSet::All);
    let buffer = buffers.add(format!("{name}.scores"), bytes, BufferKind::Io);
    write_scores(&mut graph, &heads, scores, positions);
    let logit_rows = prefill.logit_rows.min(rows);
    let spec =
        Spec { name, rows, logit_rows, steps: 1, io: Some(prefill.io), products: Some(Products::Plain) };
    let given = HashMap::from([(scores, buffer)]);
    let mut table = build_with(context, (graph, output), given, &model.ropes, &spec, buffers)?;
    table.io.scores = Some(buffer);
    Ok(table)
}

/// After the attention of each layer to the audio, the scores of its chosen heads.
fn write_scores(graph: &mut Graph, heads: &[[usize; 2]], scores: Value, positions: usize) {
    for step in std::mem::take(&mut graph.steps) {
        let attend = match &step.action {
            Action::Attend(attend) if attend.across => Some(attend.clone()),
            _ => None,
        };
        graph.steps.push(step);
        let Some(attend) = attend else { continue };
        for (index, [layer, head]) in
            heads.iter().enumerate().filter(|(_, [layer, _])| *layer == attend.layer)
        {
            let out = Columns { of: scores, first: index * positions };
            let action = Action::HeadScores { layer: *layer, head: *head, q: attend.q, out };
            graph.push(format!("layer.{layer}.scores.{head}"), action);
        }
    }
}

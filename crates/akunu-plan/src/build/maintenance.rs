//! Tables that move the KV cache about: one row says what to move, one command a layer does it.

use super::weights::ModelWeights;
use super::{Buffers, Context, bind, table_io};
use crate::ops::{KvCopy, KvCopyOperands, KvMoveParams, KvShift, KvShiftOperands, Op};
use crate::plan::PlanError;
use crate::{DispatchCommand, DispatchTable, RowMeaning, TableIo};

pub(super) fn kv_shift(
    context: &Context<'_>,
    weights: &ModelWeights,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let op = KvShift { style: context.arch.rope_style(context.config), kv: context.options.kv };
    build(context, "kv_shift", RowMeaning::Shift, buffers, |layer, io| {
        let (k_cache, v_cache) = context.kv.layer(layer);
        let frequencies = bind::f32s(weights.ropes[weights.layers[layer].rope].buffer);
        let rows = bind::rows(io.rows);
        op.command(KvShiftOperands { k_cache, v_cache, frequencies, rows }, params(context))
    })
}

pub(super) fn kv_copy(context: &Context<'_>, buffers: &mut Buffers) -> Result<DispatchTable, PlanError> {
    let op = KvCopy { kv: context.options.kv };
    build(context, "kv_copy", RowMeaning::Copy, buffers, |layer, io| {
        let (k_cache, v_cache) = context.kv.layer(layer);
        op.command(KvCopyOperands { k_cache, v_cache, rows: bind::rows(io.rows) }, params(context))
    })
}

fn params(context: &Context<'_>) -> KvMoveParams {
    let config = context.config;
    KvMoveParams {
        kv_heads: config.kv_head_count as u32,
        head_dim: config.head_dim as u32,
        rope_dims: config.rope.dims as u32,
        capacity: context.kv.positions,
    }
}

fn build(
    context: &Context<'_>,
    name: &'static str,
    meaning: RowMeaning,
    buffers: &mut Buffers,
    command: impl Fn(usize, TableIo) -> DispatchCommand,
) -> Result<DispatchTable, PlanError> {
    let io = table_io(buffers, name, [1, 1, 1, 1])?;
    let layers = 0..context.config.layer_count;
    Ok(DispatchTable {
        name,
        commands: layers.clone().map(|layer| command(layer, io)).collect(),
        labels: layers.map(|layer| format!("layer.{layer}.{name}")).collect(),
        rows: 1,
        logit_rows: 1,
        steps: 1,
        io,
        bounds: context.bounds(meaning),
    })
}

//! Tables that move positions of the KV cache: one command per layer, for one [`crate::Move`].

use super::pass::Model;
use super::{Buffers, Context, table_io};
use crate::ops::{F32, KvCopy, KvCopyOperands, KvMoveParams, KvShift, KvShiftOperands, Moves, Op};
use crate::plan::PlanError;
use crate::{DispatchCommand, DispatchTable, MoveBounds, MoveKind, PassKind, TableIo};

pub(super) fn kv_shift(
    context: &Context<'_>,
    model: &Model,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let op = KvShift { style: context.arch.rope_style(context.config), kv: context.options.kv };
    build(context, PassKind::KvShift, MoveKind::Shift, buffers, |layer, io| {
        let (k_cache, v_cache) = context.kv.layer(layer);
        // If a layer has no RoPE, its command reads no frequencies, so any buffer will do.
        let frequencies = model.layer_frequencies(layer).or(model.ropes.first().map(|rope| rope.buffer));
        let rotates = model.layer_frequencies(layer).is_some();
        let frequencies = F32(frequencies.unwrap_or(context.kv.k).into());
        let moves = Moves(io.rows.into());
        let rope_dims = if rotates { context.config.rope.dims as u32 } else { 0 };
        let params = KvMoveParams { rope_dims, ..params(context) };
        op.command(KvShiftOperands { k_cache, v_cache, frequencies, moves }, params)
    })
}

pub(super) fn kv_copy(context: &Context<'_>, buffers: &mut Buffers) -> Result<DispatchTable, PlanError> {
    let op = KvCopy { kv: context.options.kv };
    build(context, PassKind::KvCopy, MoveKind::Copy, buffers, |layer, io| {
        let (k_cache, v_cache) = context.kv.layer(layer);
        op.command(KvCopyOperands { k_cache, v_cache, moves: Moves(io.rows.into()) }, params(context))
    })
}

fn params(context: &Context<'_>) -> KvMoveParams {
    let config = context.config;
    KvMoveParams {
        kv_heads: config.kv_head_count as u32,
        head_dim: config.head_dim as u32,
        rope_dims: config.rope.dims as u32,
        positions: context.kv.positions,
    }
}

fn build(
    context: &Context<'_>,
    pass: PassKind,
    kind: MoveKind,
    buffers: &mut Buffers,
    command: impl Fn(usize, TableIo) -> DispatchCommand,
) -> Result<DispatchTable, PlanError> {
    let name = pass.name();
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
        bounds: MoveBounds { kind, positions: context.kv.positions }.into(),
    })
}

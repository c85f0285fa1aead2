//! Tables that move positions of the KV cache: one command per layer, for one [`crate::Move`].

use super::pass::Model;
use super::{Buffers, Context, KvLayout, table_io};
use crate::ops::{F32, KvCopy, KvCopyOperands, KvMoveParams, KvShift, KvShiftOperands, Moves, Op};
use crate::plan::PlanError;
use crate::{DispatchCommand, DispatchTable, MoveBounds, MoveKind, PassKind, Streams, TableIo};

pub(super) fn kv_shift(
    context: &Context<'_>,
    model: &Model,
    kind: PassKind,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let (paged, latent) = (context.kv.blocks.is_some(), context.config.latent.is_some());
    let op =
        KvShift { style: context.arch.rope_style(context.config), kv: context.options.kv, paged, latent };
    let bounds = MoveBounds { kind: MoveKind::Shift, positions: context.kv.logical };
    build(context, kind, bounds, buffers, |layer, io| {
        let (kv, k_cache, v_cache) = context.cache(layer);
        // If a layer has no RoPE, its command reads no frequencies, so any buffer will do.
        let frequencies = model.layer_frequencies(layer).or(model.ropes.first().map(|rope| rope.buffer));
        let rotates = model.layer_frequencies(layer).is_some();
        let frequencies = F32(frequencies.unwrap_or(v_cache.0.buffer).into());
        let moves = Moves(io.rows.into());
        let rope_dims = if rotates { context.config.rope.dims as u32 } else { 0 };
        let params = KvMoveParams { rope_dims, block: kv.block, ..params(context, kv) };
        let (blocks, k_cache) = (kv.table(), (!latent).then_some(k_cache));
        op.command(KvShiftOperands { k_cache, v_cache, frequencies, moves, blocks }, params)
    })
}

pub(super) fn kv_copy(
    context: &Context<'_>,
    kind: PassKind,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let latent = context.config.latent.is_some();
    let op = KvCopy { kv: context.options.kv, latent };
    let kv = context.windows.as_ref().filter(|_| slides(context, kind)).unwrap_or(&context.kv);
    let bounds = MoveBounds { kind: MoveKind::Copy, positions: kv.positions };
    build(context, kind, bounds, buffers, |layer, io| {
        let (kv, k_cache, v_cache) = context.cache(layer);
        let k_cache = (!latent).then_some(k_cache);
        op.command(KvCopyOperands { k_cache, v_cache, moves: Moves(io.rows.into()) }, params(context, kv))
    })
}

/// Whether a pass of this kind moves positions of the cache of sliding-window layers: also if there is no other cache.
fn slides(context: &Context<'_>, kind: PassKind) -> bool {
    matches!(kind, PassKind::WindowShift | PassKind::WindowCopy) || context.layers(false).next().is_none()
}

fn params(context: &Context<'_>, kv: &KvLayout) -> KvMoveParams {
    let config = context.config;
    KvMoveParams {
        kv_heads: config.kv_head_count as u32,
        head_dim: config.head_dim as u32,
        rope_dims: config.rope.dims as u32,
        positions: kv.positions,
        block: 0,
    }
}

fn build(
    context: &Context<'_>,
    pass: PassKind,
    bounds: MoveBounds,
    buffers: &mut Buffers,
    command: impl Fn(usize, TableIo) -> DispatchCommand,
) -> Result<DispatchTable, PlanError> {
    let name = pass.name();
    let io = table_io(buffers, name, [1, 1, 1, 1])?;
    let on_side = |command, layer| DispatchCommand { side: context.options.side_of(layer), ..command };
    let layers: Vec<usize> = context.layers(slides(context, pass)).collect();
    Ok(DispatchTable {
        name,
        commands: layers.iter().map(|layer| on_side(command(*layer, io), *layer)).collect(),
        labels: layers.iter().map(|layer| format!("layer.{layer}.{name}")).collect(),
        rows: 1,
        logit_rows: 1,
        steps: 1,
        io,
        bounds: bounds.into(),
        streams: Streams::default(),
    })
}

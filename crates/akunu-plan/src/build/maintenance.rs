//! Tables that move the KV cache about: one row says what to move, one command a layer does it.

use super::weights::ModelWeights;
use super::{Buffers, Context, table_io};
use crate::params::KvMoveParams;
use crate::plan::PlanError;
use crate::{BufferId, CommandBuilder, DispatchTable, Kernel, Patch, RowMeaning};

pub(super) fn kv_shift(
    context: &Context<'_>,
    weights: &ModelWeights,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let style = context.arch.rope_style(context.config);
    let kernel = Kernel::KvShift { style, kv: context.options.kv };
    let frequencies = |layer: usize| Some(weights.ropes[weights.layers[layer].rope].buffer);
    build(context, "kv_shift", (kernel, RowMeaning::Shift), frequencies, buffers)
}

pub(super) fn kv_copy(context: &Context<'_>, buffers: &mut Buffers) -> Result<DispatchTable, PlanError> {
    let kernel = Kernel::KvCopy { kv: context.options.kv };
    build(context, "kv_copy", (kernel, RowMeaning::Copy), |_| None, buffers)
}

fn build(
    context: &Context<'_>,
    name: &'static str,
    (kernel, meaning): (Kernel, RowMeaning),
    frequencies: impl Fn(usize) -> Option<BufferId>,
    buffers: &mut Buffers,
) -> Result<DispatchTable, PlanError> {
    let config = context.config;
    let io = table_io(buffers, name, [1, 1, 1, 1])?;
    let params = KvMoveParams {
        kv_heads: config.kv_head_count as u32,
        head_dim: config.head_dim as u32,
        rope_dims: config.rope.dims as u32,
        capacity: context.kv.positions,
    };
    let command = |layer: usize| {
        let offset = context.kv.layer_offset(layer);
        CommandBuilder::new(kernel)
            .bind_at(context.kv.k, offset)
            .bind_at(context.kv.v, offset)
            .bind_if(frequencies(layer))
            .bind(io.rows)
            .params(params)
            .grid(config.kv_head_count, 1)
            .patch(Patch::PositionAndKvLen)
            .build()
    };
    Ok(DispatchTable {
        name,
        commands: (0..config.layer_count).map(command).collect(),
        labels: (0..config.layer_count).map(|layer| format!("layer.{layer}.{name}")).collect(),
        rows: 1,
        logit_rows: 1,
        steps: 1,
        io,
        bounds: context.bounds(meaning),
    })
}

//! The context of an engine and the size of its KV cache, as far as the options do not state them.

use akunu_arch::{ModelConfig, RopeScaling};
use akunu_plan::{
    BufferKind, CacheSizes, Capabilities, Home, InPlace, MemoryPlan, ModelPlan, PlanOptions, Side,
};

use crate::{EngineOptions, Error, Model, memory};

/// The context of each slot that a cache of default size has room for, unless memory is short.
pub const DEFAULT_CONTEXT: usize = 4096;

/// The longest default context, so that no file can claim any amount of memory for the lists of blocks.
const LONGEST: usize = 1 << 20;

/// Plans the context that the model was trained for, as far as the cache has room for it beside [`DEFAULT_CONTEXT`]
/// positions of each other slot. By default the cache takes a part of the free memory, at most the contexts of all slots,
/// which it has in any case if the options state the context and there is memory for it.
pub(crate) fn planned(
    model: &Model,
    capabilities: &Capabilities,
    options: &EngineOptions,
    plan_options: impl Fn(usize, Option<u64>) -> PlanOptions,
) -> Result<ModelPlan, Error> {
    let plan =
        |context, bytes| akunu_plan::plan(model.weights(), capabilities, &plan_options(context, bytes));
    let sizes =
        |context, side| CacheSizes::of(model.config(), &plan_options(context, None), capabilities, side);
    let most = options.context.unwrap_or(longest(model.config()));
    let least = options.context.unwrap_or(most.min(DEFAULT_CONTEXT));
    let bytes = match (options.kv_memory, capabilities.available_bytes) {
        (Some(bytes), _) => bytes,
        (None, None) => return Ok(plan(least, None)?),
        (None, Some(available)) => {
            let first = plan(least, None)?;
            let free = free_beside(model, &first.memory, available.min(options.memory.unwrap_or(u64::MAX)));
            let (part, of) = if capabilities.in_place == InPlace::Nothing { (9, 10) } else { (1, 2) };
            let part = free / of * part / options.models as u64;
            let on_host = OnHost::beside(model, &first, capabilities, memory::available_memory());
            let host_part = on_host.free / 2 / options.models as u64;
            let most_bytes = if options.context.is_some() { [free, on_host.free] } else { [part, host_part] };
            if least == most && first.memory.kv <= most_bytes[0] && on_host.kv <= most_bytes[1] {
                return Ok(first);
            }
            // The sides have the blocks of the same positions.
            let of_device = sizes(least, Some(Side::Device))?.positions(part);
            let of_host = sizes(least, Some(Side::Host))?.positions(host_part);
            sizes(least, None)?.bytes(of_device.min(of_host).max(least as u64))
        }
    };
    let others = (options.slots as u64 - 1).saturating_mul(least.min(DEFAULT_CONTEXT) as u64);
    let room = sizes(most, None)?.positions(bytes).saturating_sub(others);
    Ok(plan(room.clamp(least as u64, most as u64) as usize, Some(bytes))?)
}

/// The KV cache of the host's layers in a plan, and the memory that the host has for it.
struct OnHost {
    kv: u64,
    free: u64,
}

impl OnHost {
    fn beside(
        model: &Model,
        plan: &ModelPlan,
        capabilities: &Capabilities,
        available: Option<u64>,
    ) -> OnHost {
        let of_host = |kind: &BufferKind, home| *kind == BufferKind::Kv && home == Home::Host;
        let kv = plan.buffers.iter().filter(|buffer| of_host(&buffer.kind, buffer.home));
        let kv = kv.map(|buffer| buffer.bytes).sum();
        let MemoryPlan { host_work, host_weights, .. } = plan.memory;
        let weights = if model.read_bytes() == 0 { host_weights } else { 0 };
        let shared = if capabilities.in_place == InPlace::Nothing { 0 } else { plan.memory.allocated() };
        // Without layers on the host, it has room for any number of their positions.
        let free = available.map_or(u64::MAX, |all| all.saturating_sub(host_work - kv + weights + shared));
        OnHost { kv, free }
    }
}

/// The context that a model was trained for, without changing what it computes for short texts.
fn longest(config: &ModelConfig) -> usize {
    let trained = match config.rope.scaling {
        // Other factors are used for a longer context.
        RopeScaling::LongRope { original_context, .. } => {
            original_context.max(DEFAULT_CONTEXT).min(config.context_length)
        }
        _ => config.context_length,
    };
    trained.clamp(1, LONGEST)
}

/// What a model leaves of the available memory for its cache.
fn free_beside(model: &Model, memory: &MemoryPlan, available: u64) -> u64 {
    // What was read is not available any more.
    let in_place = if model.read_bytes() == 0 { memory.weights_in_place } else { 0 };
    available.saturating_sub(memory.peak() - memory.kv - memory.workspace + in_place)
}

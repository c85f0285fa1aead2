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
            let mut places = on_devices(model, &first, capabilities, options, available);
            places.push(on_host(model, &first, capabilities, options, memory::available_memory()));
            let most_bytes = |place: &Place| if options.context.is_some() { place.free } else { place.part };
            if least == most && places.iter().all(|place| place.kv <= most_bytes(place)) {
                return Ok(first);
            }
            // All sides have the blocks of the same positions.
            let mut positions = u64::MAX;
            for place in &places {
                positions = positions.min(sizes(least, place.side)?.positions(place.part));
            }
            sizes(least, None)?.bytes(positions.max(least as u64))
        }
    };
    let others = (options.slots as u64 - 1).saturating_mul(least.min(DEFAULT_CONTEXT) as u64);
    let room = sizes(most, None)?.positions(bytes).saturating_sub(others);
    Ok(plan(room.clamp(least as u64, most as u64) as usize, Some(bytes))?)
}

/// The KV cache of a side's layers in a plan, and the memory that the side has for it.
struct Place {
    /// `None`: all layers.
    side: Option<Side>,
    kv: u64,
    free: u64,
    /// What a cache of default size takes of it.
    part: u64,
}

/// The device of a plan, and those before it that have some of the layers.
fn on_devices(
    model: &Model,
    plan: &ModelPlan,
    capabilities: &Capabilities,
    options: &EngineOptions,
    available: u64,
) -> Vec<Place> {
    let is_own = capabilities.in_place == InPlace::Nothing;
    let (part, of) = if is_own { (9, 10) } else { (1, 2) };
    // Each of several devices has the part of a stated limit that it has of what cannot be chosen.
    let fixed = |memory: &MemoryPlan| u128::from((memory.peak() - memory.kv).max(1));
    let all = plan.memory_of_devices().map(fixed).sum::<u128>();
    let limit = |memory: &MemoryPlan| match options.memory {
        Some(limit) if is_own => (u128::from(limit) * fixed(memory) / all) as u64,
        limit => limit.unwrap_or(u64::MAX),
    };
    let place = |side, memory: &MemoryPlan, available: u64| {
        let free = free_beside(model, memory, available.min(limit(memory)));
        Place { side, kv: memory.kv, free, part: free / of * part / options.models as u64 }
    };
    if !is_own && !plan.stages.is_empty() {
        // They share the host's memory.
        return vec![place(None, &plan.whole_memory(), available)];
    }
    let stages = (0..).zip(plan.stages.iter().zip(&capabilities.stages));
    let stages = stages.map(|(stage, (memory, of))| {
        place(Some(Side::Stage(stage)), memory, of.available_bytes.unwrap_or(available))
    });
    stages.chain([place(Some(Side::Device), &plan.memory, available)]).collect()
}

/// Without layers on the host, it has room for any number of their positions.
fn on_host(
    model: &Model,
    plan: &ModelPlan,
    capabilities: &Capabilities,
    options: &EngineOptions,
    available: Option<u64>,
) -> Place {
    let of_host = |kind: &BufferKind, home| *kind == BufferKind::Kv && home == Home::HOST;
    let kv = plan.buffers.iter().filter(|buffer| of_host(&buffer.kind, buffer.home));
    let kv = kv.map(|buffer| buffer.bytes).sum();
    let MemoryPlan { host_work, host_weights, .. } = plan.memory;
    let weights = if model.read_bytes() == 0 { host_weights } else { 0 };
    let shared = if capabilities.in_place == InPlace::Nothing { 0 } else { plan.memory.allocated() };
    let free = available.map_or(u64::MAX, |all| all.saturating_sub(host_work - kv + weights + shared));
    Place { side: Some(Side::Host), kv, free, part: free / 2 / options.models as u64 }
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
    let in_place = if model.read_bytes() == 0 { memory.weights_in_place } else { memory.weights_made };
    available.saturating_sub(memory.peak() - memory.kv - memory.workspace + in_place)
}

//! The context of an engine and the size of its KV cache, as far as the options do not state them.

use akunu_arch::{ModelConfig, RopeScaling};
use akunu_plan::{
    BufferKind, BufferSpec, CacheSizes, Capabilities, Home, InPlace, MemoryPlan, ModelPlan, PlanOptions, Side,
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
            places.extend(options.memory.map(|limit| within(model, &first, capabilities, options, limit)));
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
    let place = |side, memory: &MemoryPlan, (of, available): (&Capabilities, u64)| {
        let free = free_beside(model, memory, of, available);
        Place { side, kv: memory.kv, free, part: part_of(free, capabilities, options) }
    };
    if !is_own && !plan.stages.is_empty() {
        // They share the host's memory.
        return vec![place(None, &plan.whole_memory(), (capabilities, available))];
    }
    let stages = (0..).zip(plan.stages.iter().zip(&capabilities.stages));
    let stages = stages.map(|(stage, (memory, of))| {
        place(Some(Side::Stage(stage)), memory, (of, of.available_bytes.unwrap_or(available)))
    });
    stages.chain([place(Some(Side::Device), &plan.memory, (capabilities, available))]).collect()
}

/// The cache of all layers within a stated limit, which counts everything that a model takes on its devices and on the host.
fn within(
    model: &Model,
    plan: &ModelPlan,
    capabilities: &Capabilities,
    options: &EngineOptions,
    limit: u64,
) -> Place {
    let memory = plan.whole_memory();
    let kv = memory.kv + host_kv(plan);
    let weights =
        (memory.weights_in_place + memory.host_weights).max(model.read_bytes() + memory.weights_made);
    let free = limit.saturating_sub(memory.peak() + memory.host_work - kv + weights);
    Place { side: None, kv, free, part: part_of(free, capabilities, options) }
}

/// What a cache of default size takes of the memory that is free for it.
fn part_of(free: u64, capabilities: &Capabilities, options: &EngineOptions) -> u64 {
    let (part, of) = if capabilities.in_place == InPlace::Nothing { (9, 10) } else { (1, 2) };
    free / of * part / options.models as u64
}

/// Bytes of the KV cache of the host's layers.
fn host_kv(plan: &ModelPlan) -> u64 {
    let of_host = |buffer: &&BufferSpec| buffer.kind == BufferKind::Kv && buffer.home == Home::HOST;
    plan.buffers.iter().filter(of_host).map(|buffer| buffer.bytes).sum()
}

/// Without layers on the host, it has room for any number of their positions.
fn on_host(
    model: &Model,
    plan: &ModelPlan,
    capabilities: &Capabilities,
    options: &EngineOptions,
    available: Option<u64>,
) -> Place {
    let kv = host_kv(plan);
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
fn free_beside(model: &Model, memory: &MemoryPlan, of: &Capabilities, available: u64) -> u64 {
    // What was read is not available any more, nor is what the device has allocated for any model.
    let in_place = if model.read_bytes() == 0 { memory.weights_in_place } else { memory.weights_made };
    let work = memory.workspace.saturating_sub(of.workspace_bytes);
    available.saturating_sub(memory.peak() - memory.kv - memory.workspace + work + in_place)
}

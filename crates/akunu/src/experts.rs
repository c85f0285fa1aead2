//! Experts that are paged: whether, and how much memory they get.

use akunu_format::Region;
use akunu_plan::{Capabilities, ModelPlan, Paging};

use crate::{EngineOptions, Error, Model, memory};

/// The part of the memory that is left to the system's cache of files, through which experts are read, and to changes of
/// what is free; at most [`MOST_SPARED`].
const SPARED: u64 = 8;
const MOST_SPARED: u64 = 1 << 30;

/// Pages the experts that the CPU computes in a mapped file: in the stated memory, or, if the model is larger than what is
/// available, in what everything else leaves. A model that fits is used in the mapped file.
pub(crate) fn page(
    model: &Model,
    capabilities: &Capabilities,
    options: &EngineOptions,
    plan: &mut ModelPlan,
) -> Result<(), Error> {
    if options.expert_memory == Some(0) {
        return Ok(());
    }
    let is_host = !plan.options.host.is_nothing();
    let is_one = capabilities.ranks == 1 && capabilities.stages.is_empty();
    let is_cpu = is_host || (capabilities.name == "cpu" && is_one);
    let possible = if is_cpu { Paging::possible(plan, model.weights()) } else { None };
    let Some(possible) = possible else {
        return if options.expert_memory.is_some() { Err(Error::NoPagedExperts) } else { Ok(()) };
    };
    let bytes = match options.expert_memory {
        Some(bytes) => bytes,
        None => match left(capabilities, options, plan, possible.expert_bytes()) {
            Some(bytes) => bytes,
            None => return Ok(()),
        },
    };
    if bytes >= possible.expert_bytes() {
        return Ok(());
    }
    let least = possible.least_memory();
    match possible.within(bytes) {
        Some(paging) => plan.page(paging),
        None if options.expert_memory.is_some() => return Err(Error::ExpertMemory { bytes, least }),
        // There is not even memory for what passes through: a note says that the weights exceed the memory.
        None => {}
    }
    Ok(())
}

/// The memory that everything but the experts leaves; `None`: all fits, or it is not known what is available.
fn left(capabilities: &Capabilities, options: &EngineOptions, plan: &ModelPlan, experts: u64) -> Option<u64> {
    let of_host = memory::available_memory();
    let m = &plan.memory;
    let of_device = m.peak() - m.workspace;
    // A limit includes what is beside: the workspace, which the device has allocated already, or all of a GPU's memory.
    let (available, in_place, work, beside) = match plan.options.host.is_nothing() {
        true => (crate::engine::available(capabilities), m.weights_in_place, of_device, m.workspace),
        false => (of_host, m.host_weights, m.host_work, m.allocated() + m.weights_in_place),
    };
    let limit = options.memory.map_or(u64::MAX, |limit| limit.saturating_sub(beside));
    let available = available?.min(of_host.unwrap_or(u64::MAX)).min(limit);
    let used = work + m.host_cache;
    (in_place + used > available).then(|| {
        let spared = (available / SPARED).min(MOST_SPARED);
        available.saturating_sub(used + (in_place - experts) + spared)
    })
}

/// Bytes to read for a measurement.
const MEASURED: usize = 256 << 20;

/// Bytes per second at which experts are read from their file: as many as there are, up to 256 MiB, from all over it. What the
/// system has cached of the file counts as it will when experts are paged.
pub fn expert_read_rate(model: &Model, paging: &Paging) -> Result<f64, Error> {
    let weights = model.weights();
    let of_tensor = |name: &str| {
        let tensor = weights.tensor(name)?;
        let place = tensor.place();
        let region = &weights.regions()[place.region];
        region.is_mapped().then(|| (region.clone(), place.offset, place.bytes))
    };
    // Not their biases: the smallest of these places limits what is read at once.
    let names = weights.tensors().iter().map(|tensor| &tensor.name);
    let names = names.filter(|name| name.ends_with("_exps.weight"));
    let places: Vec<(Region, usize, usize)> = names.filter_map(|name| of_tensor(name)).collect();
    let bytes = MEASURED.min(paging.expert_bytes() as usize);
    Ok(akunu_cpu::read_rate(&places, bytes)?)
}

//! Models that are larger than a GPU's memory: the CPU computes some of the layers, or the experts of some.

use akunu_arch::ModelConfig;
use akunu_cpu::physical_cores;
use akunu_fleet::Hybrid;
use akunu_plan::{Capabilities, Device, InPlace, ModelPlan, OnHost};

use crate::devices::cpu;
use crate::tiers::TIERS;
use crate::{BackendOptions, DeviceChoice, EngineOptions, Error, Model};

/// The CPU multiplies so many rows by a matrix in the time in which the matrix is copied, with a margin for buses that are
/// slower, compared with the CPU, than the one this was measured with (docs/measurements/cpu-and-gpu.md): less than 16 rows
/// there.
const FEWEST_ROWS: usize = 32;
/// Experts are multiplied by the rows that are routed to them; measured were 3 to 6 rows for each on the average.
const ROWS_OF_EXPERT: usize = 8;

/// What the options leave to the CPU of a model on a device.
pub(crate) fn on_host(
    config: &ModelConfig,
    capabilities: &Capabilities,
    options: &EngineOptions,
) -> Result<OnHost, Error> {
    let host = stated(config, options);
    let devices = capabilities.ranks.max(capabilities.stages.len() + 1);
    if devices > 1 {
        akunu_plan::check_host(config, devices, host)?;
    }
    if !host.is_nothing() && capabilities.name == "cpu" && capabilities.host.is_none() {
        return Err(Error::NoGpuBesideCpu);
    }
    Ok(host)
}

fn stated(config: &ModelConfig, options: &EngineOptions) -> OnHost {
    let layers = config.layer_count;
    OnHost {
        layers: options.gpu_layers.map_or(0, |on_device| layers.saturating_sub(on_device)),
        experts: options.cpu_experts.unwrap_or(0).min(layers),
    }
}

/// Why a model cannot be divided as the options state, as far as that shows without opening the device. Models for texts
/// are not divided.
pub fn check_split(model: &Model, options: &EngineOptions) -> Result<(), Error> {
    let config = model.config();
    let host = stated(config, options);
    if host.is_nothing() || config.bidirectional {
        return Ok(());
    }
    if options.device.resolve(&options.backends) == DeviceChoice::Cpu
        && options.backends.ranks.or(options.backends.stages).is_none_or(|n| n == 1)
    {
        return Err(Error::NoGpuBesideCpu);
    }
    let BackendOptions { ranks, stages, .. } = options.backends;
    akunu_plan::check_host(config, ranks.or(stages).unwrap_or(1), host)?;
    match host.layers > 0 && (options.kv_host.is_some() || options.kv_disk.is_some()) {
        true => Err(Error::LayersOnHost { what: TIERS }),
        false => Ok(()),
    }
}

/// Whether the part of the CPU is chosen here: if the options do not state it, and the device has memory of its own.
pub(crate) fn may_choose(config: &ModelConfig, capabilities: &Capabilities, options: &EngineOptions) -> bool {
    let stated = options.gpu_layers.is_some() || options.cpu_experts.is_some();
    let is_one = capabilities.ranks == 1 && capabilities.stages.is_empty();
    let can = is_one && config.encoder.is_none();
    can && !stated && capabilities.in_place == InPlace::Nothing
}

/// The layers at which devices begin that share out the layers: as many bytes of weights for each as its memory allows.
pub(crate) fn stages(model: &Model, capabilities: &Capabilities) -> Result<Vec<usize>, Error> {
    let own = capabilities.devices().map(|device| match device.in_place {
        InPlace::Nothing => device.available_bytes,
        // They share the host's memory.
        _ => None,
    });
    let memory: Option<Vec<u64>> = own.collect();
    let memory = memory.unwrap_or_else(|| capabilities.devices().map(|_| 1).collect());
    Ok(akunu_plan::even_stages(model.weights(), &memory)?)
}

/// The rows from which a pass is computed sooner with the host's weights copied to the device than on the host.
fn fewest_streamed(config: &ModelConfig) -> usize {
    let of_experts = config.experts.map_or(0, |experts| ROWS_OF_EXPERT * experts.count / experts.used.max(1));
    of_experts.max(FEWEST_ROWS)
}

/// From how many rows on a pass copies the host's weights to a device that has memory of its own.
pub(crate) fn stream_rows(
    config: &ModelConfig,
    host: OnHost,
    capabilities: &Capabilities,
    options: &EngineOptions,
) -> Option<usize> {
    let copies = options.stream_rows.is_some() || capabilities.in_place == InPlace::Nothing;
    let rows = options.stream_rows.unwrap_or_else(|| fewest_streamed(config));
    (!host.is_nothing() && copies && rows > 0).then_some(rows)
}

/// The plan with the smallest part on the host that `plan` returns one for: experts first, because the weights of most of
/// them are not read for a token, and then whole layers.
pub(crate) fn choose<P>(
    config: &ModelConfig,
    options: &EngineOptions,
    plan: impl FnMut(OnHost) -> Result<Option<P>, Error>,
) -> Result<Option<P>, Error> {
    let experts = if config.experts.is_some() { config.layer_count } else { 0 };
    // The cache outside of the device has blocks of all layers.
    let tiers = options.kv_host.is_some() || options.kv_disk.is_some();
    smallest(experts, if tiers { 0 } else { config.layer_count }, plan)
}

/// As [`choose`], of at most so many layers' experts and so many layers.
fn smallest<P>(
    experts: usize,
    layers: usize,
    mut plan: impl FnMut(OnHost) -> Result<Option<P>, Error>,
) -> Result<Option<P>, Error> {
    let with = |step: usize| OnHost { experts: step.min(experts), layers: step.saturating_sub(experts) };
    // The first step that fits is in `below + 1..=found`.
    let (mut below, mut step) = (0, experts + layers);
    let mut found = if step > 0 { plan(with(step))? } else { None };
    while found.is_some() && step > below + 1 {
        let middle = below + (step - below) / 2;
        match plan(with(middle))? {
            Some(fits) => (found, step) = (Some(fits), middle),
            None => below = middle,
        }
    }
    Ok(found)
}

/// `the experts of 12 of 48 layers`.
pub fn describe_split(host: OnHost, layers: usize) -> String {
    let whole = format!("{} of {layers} layers", host.layers);
    match (host.layers, host.experts > host.layers) {
        (_, false) => whole,
        (0, true) => format!("the experts of {} of {layers} layers", host.experts),
        (_, true) => format!("{whole}, and the experts of {}", host.experts),
    }
}

/// The capabilities of the device with the CPU beside it.
pub(crate) fn capabilities(
    device: &Capabilities,
    host: OnHost,
    options: &EngineOptions,
) -> Result<Option<Capabilities>, Error> {
    if host.is_nothing() || device.host.is_some() {
        return Ok(None);
    }
    let isa = options.backends.cpu_isa().map_err(akunu_plan::DeviceError::from)?;
    let cpu = akunu_cpu::capabilities(isa, options.threads.unwrap_or_else(physical_cores));
    Ok(Some(Hybrid::capabilities(device.clone(), cpu)))
}

/// The device for a plan: with the CPU beside it, if that has a part of the model.
pub fn device_for_plan(
    plan: &ModelPlan,
    device: Box<dyn Device>,
    options: &EngineOptions,
) -> Result<Box<dyn Device>, Error> {
    if plan.options.host.is_nothing() || device.capabilities().host.is_some() {
        return Ok(device);
    }
    let cpu = cpu(options.threads, &options.backends)?;
    Ok(Box::new(Hybrid::new(device, Box::new(cpu))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(experts: usize, layers: usize, fits: OnHost) -> Option<OnHost> {
        let enough = |host: OnHost| host.experts >= fits.experts && host.layers >= fits.layers;
        smallest(experts, layers, |host| Ok(enough(host).then_some(host))).unwrap()
    }

    #[test]
    fn the_smallest_part_that_fits_is_chosen() {
        for layers in 1..=9 {
            let dense = OnHost { layers, experts: 0 };
            assert_eq!(chosen(0, 9, dense), Some(dense));
            let experts = OnHost { layers: 0, experts: layers };
            assert_eq!(chosen(9, 9, experts), Some(experts));
            assert_eq!(chosen(9, 0, experts), Some(experts));
            let both = OnHost { layers, experts: 9 };
            assert_eq!(chosen(9, 9, both), Some(both));
        }
        assert_eq!(chosen(9, 9, OnHost { layers: 10, experts: 0 }), None);
        assert_eq!(chosen(0, 0, OnHost { layers: 1, experts: 0 }), None);
    }

    #[test]
    fn parts_are_described_in_words() {
        let of = |layers, experts| describe_split(OnHost { layers, experts }, 48);
        assert_eq!(of(0, 12), "the experts of 12 of 48 layers");
        assert_eq!(of(3, 0), "3 of 48 layers");
        assert_eq!(of(3, 48), "3 of 48 layers, and the experts of 48");
    }
}

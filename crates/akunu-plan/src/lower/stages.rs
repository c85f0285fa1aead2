//! A model whose layers several devices share out: where each begins.

use akunu_arch::{ModelConfig, WeightProvider};

use crate::plan::{PlanError, PlanOptions};
use crate::{Capabilities, Side};

/// The most devices that share out the layers of a model.
pub const MOST_STAGES: usize = 16;

/// Which device computes what, as the options say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides<'a> {
    /// `None`: one device computes all.
    options: Option<&'a PlanOptions>,
}

impl Sides<'_> {
    pub const ONE: Sides<'static> = Sides { options: None };

    pub fn of_layer(self, layer: usize) -> Side {
        self.options.map_or(Side::Device, |options| options.side_of(layer))
    }

    /// The side of a layer's routed experts.
    pub fn of_experts(self, layer: usize) -> Side {
        match self.options {
            Some(options) if layer < options.host.experts => Side::Host,
            _ => self.of_layer(layer),
        }
    }
}

impl<'a> From<&'a PlanOptions> for Sides<'a> {
    fn from(options: &'a PlanOptions) -> Sides<'a> {
        Sides { options: Some(options) }
    }
}

/// Rejects stages that the devices or the model do not have.
pub(super) fn check(
    config: &ModelConfig,
    capabilities: &Capabilities,
    options: &PlanOptions,
) -> Result<(), PlanError> {
    let unsupported = |reason: String| Err(PlanError::Unsupported(reason));
    let (stages, others) = (&options.stages, capabilities.stages.len());
    if others > 0 && config.encoder.is_some() {
        return unsupported("models that transcribe are run by one device".into());
    }
    if stages.len() != others {
        return unsupported(format!(
            "layers for {} devices were planned, and there are {}",
            stages.len() + 1,
            others + 1
        ));
    }
    if stages.is_empty() {
        return Ok(());
    }
    if others >= MOST_STAGES {
        return unsupported(format!(
            "layers for {} devices; at most {MOST_STAGES} can share them out",
            others + 1
        ));
    }
    if capabilities.ranks > 1 {
        return unsupported("layers and parts of layers cannot be shared out at the same time".into());
    }
    let layers = config.layer_count;
    let rises = stages.windows(2).all(|pair| pair[0] < pair[1]);
    match rises && stages[0] > 0 && stages[others - 1] < layers {
        true => Ok(()),
        false => unsupported(format!(
            "each of {} devices needs a layer; the model has {layers}, and they were to begin at {stages:?}",
            others + 1
        )),
    }
}

/// The layer that a tensor belongs to, if it belongs to one.
pub fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Shares out the layers of a model in proportion to the memory of each device, in any unit: the layers at which all devices
/// but the first begin ([`PlanOptions::stages`]). The largest part of a device's memory that weights take is as small as can be.
pub fn even_stages(weights: &dyn WeightProvider, memory: &[u64]) -> Result<Vec<usize>, PlanError> {
    let layers = weights.config().layer_count;
    if memory.len() > layers {
        let reason = format!("{} devices cannot share out the {layers} layers of the model", memory.len());
        return Err(PlanError::Unsupported(reason));
    }
    // The bytes of all layers before each.
    let (mut before, mut embedding, mut output) = (vec![0u64; layers + 1], 0, 0);
    for tensor in weights.tensors() {
        let bytes: u64 = tensor.places().map(|place| place.bytes as u64).sum();
        match (layer_of(&tensor.name), &tensor.name[..]) {
            (Some(layer), _) if layer < layers => before[layer + 1] += bytes,
            (Some(_), _) => {}
            (None, "token_embd.weight") => embedding += bytes,
            (None, _) => output += bytes,
        }
    }
    // The embedding is also the output if there is no other matrix.
    if weights.tensor("output.weight").is_none() {
        output += embedding;
    }
    for layer in 0..layers {
        before[layer + 1] += before[layer];
    }
    let devices = memory.len();
    let part_used = |device: usize, from: usize, to: usize| {
        let first = if device == 0 { embedding } else { 0 };
        let last = if device + 1 == devices { output } else { 0 };
        (before[to] - before[from] + first + last) as f64 / memory[device].max(1) as f64
    };
    // For each number of layers, the least that the fullest of the devices so far has, and where the last of them begins.
    let mut best: Vec<Vec<(f64, usize)>> = Vec::with_capacity(devices);
    for device in 0..devices {
        let of = |to: usize| {
            let froms = if device == 0 { 0..1 } else { device..to.max(device) };
            let cut = |from: usize| {
                let others = if device == 0 { 0.0 } else { best[device - 1][from].0 };
                (others.max(part_used(device, from, to)), from)
            };
            let cuts = froms.filter(|from| *from < to).map(cut);
            cuts.fold((f64::INFINITY, 0), |least, cut| if cut.0 < least.0 { cut } else { least })
        };
        let row = (0..=layers).map(of).collect();
        best.push(row);
    }
    let (mut begins, mut to) = (Vec::with_capacity(devices), layers);
    for device in (1..devices).rev() {
        to = best[device][to].1;
        begins.push(to);
    }
    begins.reverse();
    Ok(begins)
}

//! Devices that have some of the layers each: what each of them needs.

use akunu::human;
use akunu_plan::{Capabilities, InPlace, ModelPlan};
use serde::Serialize;

use super::Parts;
use crate::grid::{Grid, grouped};

/// A device with some of the layers.
#[derive(Debug, Serialize)]
pub(super) struct Stage {
    /// From 0.
    device: usize,
    first_layer: usize,
    layers: usize,
    memory: Parts,
    allocated: u64,
    /// Of a device with memory of its own.
    available: Option<u64>,
    pub(super) fits: Option<bool>,
    #[serde(skip)]
    needed: u64,
}

/// The devices of a plan, in the order of their layers; none, if one device has all layers.
pub(super) fn of(plan: &ModelPlan, capabilities: &Capabilities, is_of_chip: bool) -> Vec<Stage> {
    let begins = &plan.options.stages;
    if begins.is_empty() {
        return Vec::new();
    }
    let begins: Vec<usize> = [0].into_iter().chain(begins.iter().copied()).collect();
    let ends = begins.iter().skip(1).copied().chain([plan.config.layer_count]);
    let devices: Vec<_> = plan.memory_of_devices().zip(capabilities.devices()).collect();
    let stage = |(device, end): (usize, usize)| {
        let (memory, of) = devices[device];
        let is_known = !is_of_chip && of.in_place == InPlace::Nothing;
        let available = of.available_bytes.filter(|_| is_known);
        let needed = super::needed(memory, of);
        Stage {
            device,
            first_layer: begins[device],
            layers: end - begins[device],
            memory: (*memory).into(),
            allocated: memory.allocated(),
            available,
            fits: available.map(|available| needed <= available),
            needed,
        }
    };
    ends.enumerate().map(stage).collect()
}

impl Stage {
    /// Why it does not fit, if it does not.
    pub(super) fn problem(&self) -> Option<String> {
        let available = self.available.filter(|_| self.fits == Some(false))?;
        let (needed, available) = (human(self.needed), human(available));
        Some(format!(
            "Does not fit: device {} has {needed} to allocate, and {available} available. A smaller context (-c) needs \
             less.",
            self.device
        ))
    }
}

pub(super) fn grid(stages: &[Stage]) -> Grid {
    let mut grid = Grid::new()
        .number("device")
        .text("layers")
        .number("weights")
        .number("KV cache")
        .number("activations")
        .number("allocated")
        .number("");
    for stage in stages {
        let m = &stage.memory;
        grid.row([
            stage.device.to_string(),
            format!("{} to {}", stage.first_layer, stage.first_layer + stage.layers - 1),
            grouped(m.weights_in_place + m.weights_copied),
            grouped(m.kv),
            grouped(m.scratch + m.io),
            grouped(stage.allocated),
            human(stage.allocated),
        ]);
    }
    grid
}

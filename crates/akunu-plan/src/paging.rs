//! Experts that are paged: they stay in the model's file, and slots in memory hold those that are used most.
//!
//! A layer keeps a number of its experts. The others pass through slots that all layers of the same shapes share: two
//! groups, of which one is filled while the other one is computed.

use akunu_arch::WeightProvider;

use crate::ops::MAX_EXPERTS;
use crate::table::{DispatchCommand, Side};
use crate::{BufferId, BufferKind, ModelPlan};

/// Groups of slots that experts pass through.
pub const GROUPS: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paging {
    pub layers: Vec<PagedLayer>,
    pub pools: Vec<SlotPool>,
}

/// The experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedLayer {
    /// Of gate and up, and then of the products after them.
    pub weights: Vec<PagedWeight>,
    /// How many of these are of gate and up.
    pub glu: usize,
    pub experts: usize,
    /// Experts of a row.
    pub top: usize,
    /// The index of its pool, and the first of its slots there.
    pub pool: usize,
    pub first: usize,
    /// How many experts it keeps.
    pub kept: usize,
}

/// A plane of a weight, in which the experts follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedWeight {
    pub buffer: BufferId,
    /// Where the first expert is in the buffer.
    pub offset: u64,
    /// Of one expert.
    pub bytes: u64,
}

/// Slots for experts whose weights have the same sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPool {
    /// Bytes of an expert in each of its weights.
    pub bytes: Vec<u64>,
    /// Slots of experts that layers keep, and after these the ones that others pass through.
    pub kept: usize,
    pub passing: usize,
}

impl SlotPool {
    pub fn slots(&self) -> usize {
        self.kept + self.passing
    }

    fn expert(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

impl PagedLayer {
    /// Bytes of one expert.
    pub fn expert(&self) -> u64 {
        self.weights.iter().map(|weight| weight.bytes).sum()
    }
}

impl Paging {
    /// The experts that the CPU computes, if these are in a mapped file. None are kept yet.
    pub fn possible(plan: &ModelPlan, weights: &dyn WeightProvider) -> Option<Paging> {
        let table = plan.tables.decode();
        let side = if plan.options.host.is_nothing() { Side::Device } else { Side::Host };
        let mut paging = Paging { layers: Vec::new(), pools: Vec::new() };
        for routed in table.routed() {
            let commands = [routed.glu, routed.down].map(|index| &table.commands[index]);
            let Some((_, experts, top)) = routed.picks(table) else { continue };
            if commands.iter().any(|command| command.side != side) {
                continue;
            }
            let [glu, down] = commands.map(|command| weights_of(plan, command, experts));
            let (glu, weights_of_all) = (glu.len(), [glu, down].concat());
            if !weights_of_all.iter().all(|weight| is_mapped(plan, weights, weight)) {
                continue;
            }
            let bytes: Vec<u64> = weights_of_all.iter().map(|weight| weight.bytes).collect();
            let pool = paging.pools.iter().position(|pool| pool.bytes == bytes).unwrap_or_else(|| {
                paging.pools.push(SlotPool { bytes, kept: 0, passing: 0 });
                paging.pools.len() - 1
            });
            let passing = &mut paging.pools[pool].passing;
            *passing = (*passing).max(GROUPS * top);
            let layer = PagedLayer { weights: weights_of_all, glu, experts, top, pool, first: 0, kept: 0 };
            paging.layers.push(layer);
        }
        (!paging.layers.is_empty()).then_some(paging)
    }

    /// With as many experts kept as `memory` bytes have slots for, the same part of each layer's. `None`: there are not
    /// even slots to pass through.
    pub fn within(mut self, memory: u64) -> Option<Paging> {
        let mut rest = memory.checked_sub(self.least_memory())?;
        let (all, share) = (self.expert_bytes().max(1), rest);
        for layer in &mut self.layers {
            let part = u128::from(share) * layer.experts as u128 / u128::from(all);
            layer.kept = (part as usize).min(layer.experts);
            rest -= layer.kept as u64 * layer.expert();
        }
        let mut kept = vec![0; self.pools.len()];
        for layer in &mut self.layers {
            if layer.kept < layer.experts && layer.expert() <= rest {
                layer.kept += 1;
                rest -= layer.expert();
            }
            layer.first = kept[layer.pool];
            kept[layer.pool] += layer.kept;
        }
        self.pools.iter_mut().zip(kept).for_each(|(pool, kept)| pool.kept = kept);
        Some(self)
    }

    /// Whether each layer has its slots. Devices check it before they use them.
    pub fn check(&self) -> Result<(), &'static str> {
        let fits = |layer: &PagedLayer| {
            let bytes = layer.weights.iter().map(|weight| weight.bytes);
            (1..=MAX_EXPERTS).contains(&layer.experts)
                && (1..=layer.experts).contains(&layer.top)
                && layer.glu <= layer.weights.len()
                && self.pools.get(layer.pool).is_some_and(|pool| {
                    bytes.eq(pool.bytes.iter().copied())
                        && layer.first.checked_add(layer.kept).is_some_and(|end| end <= pool.kept)
                        && pool.passing >= GROUPS * layer.top
                })
        };
        match self.layers.iter().all(fits) {
            true => Ok(()),
            false => Err("the slots of paged experts do not fit their layers"),
        }
    }

    /// Memory of the slots without any expert that is kept.
    pub fn least_memory(&self) -> u64 {
        self.pools.iter().map(|pool| pool.passing as u64 * pool.expert()).sum()
    }

    /// Memory of all slots.
    pub fn memory(&self) -> u64 {
        self.pools.iter().map(|pool| pool.slots() as u64 * pool.expert()).sum()
    }

    /// Bytes of all experts in the file.
    pub fn expert_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.experts as u64 * layer.expert()).sum()
    }

    /// Bytes of the experts that are kept.
    pub fn kept_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.kept as u64 * layer.expert()).sum()
    }

    /// Bytes of the experts of one token.
    pub fn token_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.top as u64 * layer.expert()).sum()
    }

    /// Bytes that a token reads from the file on the average, if each expert is chosen equally often: the most, since
    /// the experts that are kept are those that are used most.
    pub fn read_by_token(&self) -> u64 {
        let read = |layer: &PagedLayer| {
            let missing =
                layer.top as u128 * u128::from(layer.expert()) * (layer.experts - layer.kept) as u128;
            (missing / layer.experts as u128) as u64
        };
        self.layers.iter().map(read).sum()
    }
}

/// The planes of a command's weights.
fn weights_of(plan: &ModelPlan, command: &DispatchCommand, experts: usize) -> Vec<PagedWeight> {
    let Ok(extents) = crate::extents(plan.tables.decode(), command) else { return Vec::new() };
    let bound = command.kernel.bindings().into_iter().zip(command.bindings()).zip(extents);
    let weights = bound.filter(|((slot, _), _)| slot.content.is_weight());
    let weights = weights.map(|((_, binding), bytes)| PagedWeight {
        buffer: binding.buffer,
        offset: binding.offset,
        bytes: bytes / experts as u64,
    });
    weights.collect()
}

/// Whether a weight is in a mapped file as the plan binds it.
fn is_mapped(plan: &ModelPlan, weights: &dyn WeightProvider, weight: &PagedWeight) -> bool {
    let BufferKind::Weight { tensor, plane, cut: None } = plan.buffers[weight.buffer.index()].kind else {
        return false;
    };
    let tensor = &weights.tensors()[tensor];
    let place = tensor.places().nth(plane).unwrap_or(tensor.place());
    weights.regions()[place.region].is_mapped()
}

impl ModelPlan {
    /// Pages the experts of a plan. Its memory has the slots then, and not the experts.
    pub fn page(&mut self, paging: Paging) {
        let (memory, file, slots) = (&mut self.memory, paging.expert_bytes(), paging.memory());
        match self.options.host.is_nothing() {
            true => {
                memory.weights_in_place = memory.weights_in_place.saturating_sub(file);
                memory.expert_slots = slots;
            }
            false => {
                memory.host_weights = memory.host_weights.saturating_sub(file);
                memory.host_work += slots;
            }
        }
        self.paging = Some(paging);
    }
}

/// The part of a layer's products that a command computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertPart {
    /// Gate and up.
    Glu,
    /// The products after them.
    Down,
}

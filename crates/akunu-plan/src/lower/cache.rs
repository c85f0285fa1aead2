//! The KV cache of a model: how many blocks it has, and its buffers.
//!
//! Sliding-window layers have blocks of their own where that takes less memory: as many as the windows of all slots
//! and the rows of a pass need at once, however long the texts are. Layers with a state have slots for it, one for each
//! block of positions whose end a sequence may go on from, found through a table as those blocks are.

use akunu_arch::{MambaFacts, ModelConfig};

use super::{Buffers, KvLayout, card_of, size, too_large};
use crate::ops::Blocks;
use crate::plan::{CachePlan, PlanError, PlanOptions, WindowPlan};
use crate::table::Binding;
use crate::{BufferId, BufferKind, Capabilities, Card, Side, shard};

const TOO_MANY_POSITIONS: &str = "the requested context and slots need more than 4294967295 cache positions";

/// The cache of the layers that see the whole text, and that of sliding-window layers if they have one of their own.
#[derive(Debug)]
pub(super) struct Caches {
    pub kv: KvLayout,
    pub windows: Option<KvLayout>,
    pub states: Option<StateLayout>,
    pub plan: CachePlan,
}

/// The states of layers that have no attention: in each layer `slots` of them, with the inputs that the convolution still
/// reads.
#[derive(Clone, Debug)]
pub(super) struct StateLayout {
    /// The inputs and the state of each such layer.
    layers: Vec<(usize, [Binding; 2])>,
    pub slots: u32,
    /// Positions of a block.
    pub block: u32,
    /// The slot of each block of each sequence.
    table: BufferId,
}

impl StateLayout {
    pub fn table(&self) -> Blocks<Binding> {
        Blocks(self.table.into())
    }

    /// The inputs and the state of a layer.
    pub fn layer(&self, layer: usize) -> Option<[Binding; 2]> {
        self.layers.iter().find_map(|(other, bindings)| (*other == layer).then_some(*bindings))
    }
}

/// Positions that a row needs of a sequence with states: its own, and the one before it, whose block has the state.
const SEEN: u32 = 2;

pub(super) fn caches(
    (config, arch): (&ModelConfig, &'static Card),
    options: &PlanOptions,
    capabilities: &Capabilities,
    buffers: &mut Buffers,
) -> Result<Caches, PlanError> {
    let row = options.kv.row_bytes(config.head_dim).unwrap_or(0);
    let sizes = CacheSizes::new((config, arch), options, capabilities, None)?;
    let block = sizes.block;
    let slot_positions = options.context.next_multiple_of(block);
    let logical = slot_positions
        .checked_mul(options.slots)
        .and_then(|positions| u32::try_from(positions).ok())
        .ok_or_else(|| PlanError::Unsupported(TOO_MANY_POSITIONS.into()))?;
    let slides = |layer: &usize| arch.layer_window(config, *layer).is_some();
    let sliding = windows(config, arch).count();
    let window = windows(config, arch).max().unwrap_or(0);
    let (block, slot_positions) = (block as u32, slot_positions as u32);
    let count = match options.kv_bytes {
        None => logical / block,
        Some(bytes) => sizes.count(bytes).min((logical / block).into()) as u32,
    };
    if count * block < slot_positions {
        let needed = sizes.needed((slot_positions / block).into());
        return Err(PlanError::Unsupported(format!(
            "a KV cache of {} bytes has {} positions, fewer than the context of {}; it needs at least {needed} \
             bytes (--kv-memory), or a smaller context (-c)",
            options.kv_bytes.unwrap_or(needed),
            count * block,
            options.context
        )));
    }
    let mut layout = |prefix: &str, layers: &[usize], count: u32| {
        let positions = count * block;
        let layer_bytes = size(&[config.kv_head_count, positions as usize, row])?;
        layer_bytes.checked_mul(layers.len() as u64).ok_or_else(too_large)?;
        let table_bytes = size(&[(logical / block) as usize, 4])?;
        let mut bindings = Vec::with_capacity(layers.len());
        for layers in layers.chunk_by(|a, b| options.side_of(*a) == options.side_of(*b)) {
            let side = side_prefix(options.side_of(layers[0]));
            let bytes = layer_bytes * layers.len() as u64;
            let mut add = |part: &str| buffers.add(format!("{prefix}{side}{part}"), bytes, BufferKind::Kv);
            // Latent rows are keys and values at once.
            let both = match config.latent {
                Some(_) => [add("latent"); 2],
                None => ["k", "v"].map(add),
            };
            bindings.extend(layers_in(both, layer_bytes, layers.len()));
        }
        let table = buffers.add(format!("{prefix}blocks"), table_bytes, BufferKind::Io);
        let (blocks, alignment) = (Some(table), block);
        let layout =
            KvLayout { layers: bindings, positions, logical, slot_positions, alignment, blocks, block };
        Ok::<_, PlanError>((layout, table))
    };
    let all: Vec<usize> = (0..config.layer_count).filter(|layer| !config.is_recurrent(*layer)).collect();
    let other_layers = all.iter().filter(|layer| options.side_of(**layer) != Side::Device).count() as u32;
    // The buffers of the last layers are those of the device.
    let plan = |kv: &KvLayout, layers: &[usize]| CachePlan {
        table: None,
        block,
        count,
        slot_blocks: slot_positions / block,
        k: kv.layers[kv.layers.len() - 1][0].buffer,
        v: kv.layers[kv.layers.len() - 1][1].buffer,
        heads: layers.iter().filter(|layer| options.side_of(**layer) == Side::Device).count() as u32
            * config.kv_head_count as u32,
        row_bytes: row as u32,
        windows: None,
        ranks: capabilities.ranks as u32,
        other_layers,
    };
    if sliding == 0 || sizes.enough >= count.into() {
        let (kv, table) = layout("kv.", &all, count)?;
        let plan = CachePlan { table: Some(table), ..plan(&kv, &all) };
        let states = states(config, options, (block, logical, sizes.state_slots), buffers)?;
        let windows = states.as_ref().map(|states| WindowPlan {
            table: states.table,
            count: states.slots,
            positions: SEEN,
            are_states: true,
        });
        return Ok(Caches { kv, windows: None, states, plan: CachePlan { windows, ..plan } });
    }
    let (of_windows, whole): (Vec<usize>, Vec<usize>) = all.iter().copied().partition(slides);
    let (own, table) = layout("kv.window_", &of_windows, sizes.enough as u32)?;
    let windows =
        Some(WindowPlan { table, count: sizes.enough as u32, positions: window as u32, are_states: false });
    if whole.is_empty() {
        // The other blocks have no memory.
        let plan = CachePlan { windows, ..plan(&own, &[]) };
        return Ok(Caches { kv: own.clone(), windows: Some(own), states: None, plan });
    }
    let (kv, table) = layout("kv.", &whole, count)?;
    let plan = CachePlan { table: Some(table), windows, ..plan(&kv, &whole) };
    Ok(Caches { kv, windows: Some(own), states: None, plan })
}

fn side_prefix(side: Side) -> String {
    match side {
        Side::Device => String::new(),
        Side::Stage(stage) => format!("stage{stage}_"),
        Side::Host => "host_".into(),
    }
}

/// Bytes of a slot of one layer: of the inputs, and of the state.
fn state_bytes(facts: MambaFacts) -> Result<[u64; 2], PlanError> {
    let inputs = size(&[facts.channels(), facts.taps.saturating_sub(1), 4])?;
    Ok([inputs, size(&[facts.inner(), facts.state_size, 4])?])
}

/// The slots of layers with a state, if there are such layers.
fn states(
    config: &ModelConfig,
    options: &PlanOptions,
    (block, logical, slots): (u32, u32, u64),
    buffers: &mut Buffers,
) -> Result<Option<StateLayout>, PlanError> {
    let layers: Vec<usize> = (0..config.layer_count).filter(|layer| config.is_recurrent(*layer)).collect();
    let Some(facts) = config.mamba.filter(|_| !layers.is_empty()) else { return Ok(None) };
    let slots = u32::try_from(slots).map_err(|_| too_large())?;
    let bytes = state_bytes(facts)?;
    let of_slots = |bytes: u64, layers: usize| size(&[bytes as usize, slots as usize, layers]);
    let mut bindings = Vec::with_capacity(layers.len());
    for layers in layers.chunk_by(|a, b| options.side_of(*a) == options.side_of(*b)) {
        let side = side_prefix(options.side_of(layers[0]));
        let mut add = |part: &str, bytes: u64| {
            let all = of_slots(bytes, layers.len())?;
            Ok::<_, PlanError>(buffers.add(format!("kv.{side}{part}"), all, BufferKind::Kv))
        };
        let both = [add("state_inputs", bytes[0])?, add("states", bytes[1])?];
        let each = [of_slots(bytes[0], 1)?, of_slots(bytes[1], 1)?];
        bindings.extend((0..).zip(layers).map(|(index, layer)| {
            let at = |part: usize| Binding { buffer: both[part], offset: index * each[part] };
            (*layer, [at(0), at(1)])
        }));
    }
    let table = buffers.add("kv.state_blocks", size(&[(logical / block) as usize, 4])?, BufferKind::Io);
    Ok(Some(StateLayout { layers: bindings, slots, block, table }))
}

/// The keys and values of layers that are one after the other in two buffers.
pub(super) fn layers_in(
    [k, v]: [BufferId; 2],
    layer_bytes: u64,
    count: usize,
) -> impl Iterator<Item = [Binding; 2]> {
    (0..count as u64).map(move |layer| [k, v].map(|buffer| Binding { buffer, offset: layer * layer_bytes }))
}

/// Positions of a block: as the device prefers, unless a context is shorter. The host beside it has the same blocks.
fn block_positions(capabilities: &Capabilities, context: usize) -> usize {
    let of_host = capabilities.host.as_ref().map_or(1, |host| host.keys.alignment());
    let least = capabilities.keys.alignment().max(of_host);
    capabilities.block.min(context.next_power_of_two()).max(least)
}

/// Blocks of sliding-window layers that are enough for all slots at once: those of the positions that the next row of
/// each slot sees, itself included, one more of each that is begun in a pass or copied, and those of the rows of a
/// pass.
fn enough_for_windows(window: usize, options: &PlanOptions, block: usize) -> u64 {
    let of_slot = window.saturating_add(block).saturating_sub(2) / block + 2;
    let of_pass = options.prefill_rows.max(options.chain).div_ceil(block);
    (of_slot as u64).saturating_mul(options.slots as u64).saturating_add(of_pass as u64)
}

/// Slots for states that are enough for all slots of sequences at once: for each that of the position before the next row
/// and that of the next block, and those of the rows of a pass.
fn enough_for_states(options: &PlanOptions, block: usize) -> u64 {
    let of_pass = options.prefill_rows.max(options.chain).div_ceil(block);
    (options.slots as u64).saturating_mul(2).saturating_add(of_pass as u64)
}

fn windows<'a>(config: &'a ModelConfig, arch: &'static Card) -> impl Iterator<Item = usize> + use<'a> {
    (0..config.layer_count).filter_map(|layer| arch.layer_window(config, layer))
}

/// What positions of a KV cache take in memory: of all layers, or of those of one side.
#[derive(Clone, Copy, Debug)]
pub struct CacheSizes {
    /// Positions of a block.
    block: usize,
    /// Bytes of a block: of the layers that see the whole text, and of sliding-window layers, of which `enough` are
    /// enough.
    whole: u64,
    sliding: u64,
    enough: u64,
    /// Slots for states, and the bytes of all of them in all layers.
    state_slots: u64,
    states: u64,
}

impl CacheSizes {
    /// Those of a plan with these options; their `kv_bytes` do not matter. `None`: of all sides.
    pub fn of(
        config: &ModelConfig,
        options: &PlanOptions,
        capabilities: &Capabilities,
        side: Option<Side>,
    ) -> Result<CacheSizes, PlanError> {
        let kv_head_count = shard::kv_heads(config.kv_head_count, capabilities.ranks);
        let of_rank = ModelConfig { kv_head_count, ..config.clone() };
        CacheSizes::new((&of_rank, card_of(config)?), options, capabilities, side)
    }

    fn new(
        (config, arch): (&ModelConfig, &'static Card),
        options: &PlanOptions,
        capabilities: &Capabilities,
        side: Option<Side>,
    ) -> Result<CacheSizes, PlanError> {
        let row = options.kv.row_bytes(config.head_dim).unwrap_or(0);
        let block = block_positions(capabilities, options.context);
        let parts = if config.latent.is_some() { 1 } else { 2 };
        let bytes_of = |layers: usize| size(&[parts, layers, config.kv_head_count, block, row]);
        let is_there = |layer: &usize| side.is_none_or(|side| options.side_of(*layer) == side);
        let (recurrent, layers): (Vec<usize>, Vec<usize>) =
            (0..config.layer_count).filter(is_there).partition(|layer| config.is_recurrent(*layer));
        let (sliding, whole): (Vec<usize>, Vec<usize>) =
            layers.into_iter().partition(|layer| arch.layer_window(config, *layer).is_some());
        let enough =
            windows(config, arch).max().map_or(0, |window| enough_for_windows(window, options, block));
        let (whole, sliding) = (bytes_of(whole.len())?, bytes_of(sliding.len())?);
        let (state_slots, states) = match config.mamba.filter(|_| !recurrent.is_empty()) {
            None => (0, 0),
            Some(facts) => {
                let slots = enough_for_states(options, block);
                let of_layer: u64 = state_bytes(facts)?.iter().sum();
                (slots, size(&[of_layer as usize, recurrent.len(), slots as usize])?)
            }
        };
        Ok(CacheSizes { block, whole, sliding, enough, state_slots, states })
    }

    /// The most positions, in whole blocks, that fit in `bytes`.
    pub fn positions(&self, bytes: u64) -> u64 {
        self.count(bytes).saturating_mul(self.block as u64)
    }

    /// Bytes of the blocks of so many positions.
    pub fn bytes(&self, positions: u64) -> u64 {
        self.needed(positions.div_ceil(self.block as u64))
    }

    /// Bytes of `count` blocks, with as many for sliding-window layers as can be used.
    fn needed(&self, count: u64) -> u64 {
        let sliding = count.min(self.enough).saturating_mul(self.sliding);
        count.saturating_mul(self.whole).saturating_add(sliding).saturating_add(self.states)
    }

    /// The most blocks that fit in `bytes`.
    fn count(&self, bytes: u64) -> u64 {
        let Some(bytes) = bytes.checked_sub(self.states) else { return 0 };
        let both = bytes / (self.whole + self.sliding).max(1);
        if both < self.enough {
            return both;
        }
        match self.whole {
            0 => u64::MAX,
            whole => (bytes - self.enough * self.sliding) / whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided_so_that_windows_never_limit_what_runs() {
        let sizes = CacheSizes { block: 16, whole: 10, sliding: 50, enough: 6, state_slots: 0, states: 0 };
        // As long as there are fewer blocks than windows may need, each has both parts.
        assert_eq!([0, 59, 60, 360, 369].map(|bytes| sizes.count(bytes)), [0, 0, 1, 6, 6]);
        assert_eq!([420, 429, 430, 1300].map(|bytes| sizes.count(bytes)), [12, 12, 13, 100]);
        for count in [1, 6, 7, 100] {
            assert_eq!(sizes.count(sizes.needed(count)), count);
            assert_eq!(sizes.count(sizes.needed(count) - 1), count - 1);
            assert_eq!(sizes.positions(sizes.bytes(16 * count - 5)), 16 * count);
        }
        let plain = CacheSizes { sliding: 0, enough: 0, ..sizes };
        assert_eq!([9, 10, 29].map(|bytes| plain.count(bytes)), [0, 1, 2]);
        let everywhere = CacheSizes { whole: 0, ..sizes };
        assert_eq!([299, 300, 350].map(|bytes| everywhere.count(bytes)), [5, u64::MAX, u64::MAX]);
        // States take the same for any length of texts.
        let beside = CacheSizes { state_slots: 4, states: 100, ..plain };
        assert_eq!([99, 109, 110, 129].map(|bytes| beside.count(bytes)), [0, 0, 1, 2]);
        assert_eq!(beside.needed(2), 120);
    }
}

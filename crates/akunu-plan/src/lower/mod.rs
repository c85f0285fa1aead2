//! Lowers a tower to tables: `blocks` lowers blocks to plain operations, `fuse` rewrites these for a device, `forms`
//! and `place` assign buffers to values, and `emit` writes commands. No part of it knows an architecture by name.

mod align;
mod blocks;
mod cache;
mod cache_moves;
mod emit;
mod emit_halves;
mod emit_latent;
mod encode;
mod forms;
mod fuse;
mod graph;
mod listen;
mod mix;
mod pass;
mod place;
mod sampled;
mod stages;
mod streamed;
mod weights;

use std::sync::Arc;

use akunu_arch::{ModelConfig, WeightProvider};

pub use cache::CacheSizes;
use cache::{Caches, StateLayout, caches};
pub(crate) use encode::plan_encoder;
use graph::Action;
pub use stages::{MOST_STAGES, even_stages, layer_of};
pub(crate) use weights::vector_values;

use crate::ops::{Blocks, Keys, Values};
use crate::plan::{MemoryPlan, ModelPlan, PlanError, PlanOptions};
use crate::shard::Sharded;
use crate::table::Binding;
use crate::{
    BufferId, BufferKind, BufferSpec, CARDS, Capabilities, Card, DispatchTable, FewRows, Home, InPlace,
    OnHost, PackedRows, PassKind, Passes, RowBounds, Side, TableIo,
};

/// The buffers of a plan under construction.
#[derive(Debug, Default)]
struct Buffers(Vec<BufferSpec>);

impl Buffers {
    fn add(&mut self, name: impl Into<String>, bytes: u64, kind: BufferKind) -> BufferId {
        self.0.push(BufferSpec { name: name.into(), bytes, kind, home: Home::DEVICE });
        BufferId(self.0.len() as u32 - 1)
    }

    /// Scratch memory of a table. A pass that streams has that of the prefill pass, as only one of them runs at a time.
    fn scratch(&mut self, table: &str, name: &str, bytes: u64) -> BufferId {
        let of_prefill = format!("{}.{name}", PassKind::Prefill.name());
        let is_shared = |spec: &BufferSpec| spec.name == of_prefill && spec.kind == BufferKind::Scratch;
        let shared = match table == PassKind::StreamedPrefill.name() {
            true => self.0.iter().position(is_shared),
            false => None,
        };
        match shared {
            Some(index) => {
                self.0[index].bytes = self.0[index].bytes.max(bytes);
                BufferId(index as u32)
            }
            None => self.add(format!("{table}.{name}"), bytes, BufferKind::Scratch),
        }
    }

    fn constant<T: bytemuck::NoUninit>(&mut self, name: &str, values: &[T]) -> BufferId {
        let data = bytemuck::cast_slice(values).to_vec();
        self.add(name, data.len() as u64, BufferKind::Constant { data })
    }
}

/// Data shared by all tables of a model.
#[derive(Debug)]
struct Context<'a> {
    config: &'a ModelConfig,
    arch: &'static Card,
    options: &'a PlanOptions,
    folds: bool,
    half_products: Option<FewRows>,
    packed_products: Option<PackedRows>,
    /// As in [`Capabilities`], if the file asks for rows in FP8.
    eight_products: Option<usize>,
    kv: KvLayout,
    /// The cache of sliding-window layers, if they have one of their own.
    windows: Option<KvLayout>,
    /// The states of layers that have no attention, if they are kept.
    states: Option<StateLayout>,
    /// The cache of an encoder's states, if there is one.
    across: Option<KvLayout>,
    /// As in [`Capabilities`].
    ranks: usize,
}

impl Context<'_> {
    fn attention_scale(&self) -> f32 {
        self.config.score_scale()
    }

    /// States of a window of audio; 0 without an encoder.
    fn encoder_positions(&self) -> u32 {
        self.config.encoder.map_or(0, |encoder| encoder.positions as u32)
    }

    fn slides(&self, layer: usize) -> bool {
        self.windows.is_some() && self.arch.layer_window(self.config, layer).is_some()
    }

    /// The layers with attention whose cache is that of sliding-window layers, or the others.
    fn layers(&self, sliding: bool) -> impl Iterator<Item = usize> {
        let layers = (0..self.config.layer_count).filter(|layer| !self.config.is_recurrent(*layer));
        layers.filter(move |layer| self.slides(*layer) == sliding)
    }

    /// The cache of a layer, with its keys and values.
    fn cache(&self, layer: usize) -> (&KvLayout, Keys<Binding>, Values<Binding>) {
        let sliding = self.slides(layer);
        let index = self.layers(sliding).take_while(|other| *other < layer).count();
        let kv = self.windows.as_ref().filter(|_| sliding).unwrap_or(&self.kv);
        let (keys, values) = kv.layer(index);
        (kv, keys, values)
    }

    fn row_bounds(&self) -> RowBounds {
        RowBounds {
            vocab: self.config.vocab_size as u32,
            positions: self.kv.logical,
            context: self.options.context as u32,
            alignment: self.kv.alignment,
        }
    }
}

impl KvLayout {
    /// The KV cache of one layer.
    fn layer(&self, layer: usize) -> (Keys<Binding>, Values<Binding>) {
        let [k, v] = self.layers[layer];
        (Keys(k), Values(v))
    }

    /// The table of its blocks, if it is in blocks.
    fn table(&self) -> Option<Blocks<Binding>> {
        self.blocks.map(|blocks| Blocks(blocks.into()))
    }
}

/// The KV cache: `[layer][kv head][position][head dim]`, keys and values in separate buffers, keys in the device's
/// order. Each device has buffers of its own for the layers that it computes.
#[derive(Clone, Debug)]
struct KvLayout {
    /// The keys and values of each layer.
    layers: Vec<[Binding; 2]>,
    /// Positions of the cache.
    positions: u32,
    /// Positions of all slots: as many as the cache has, unless it is in blocks.
    logical: u32,
    /// Positions of one slot: the context, rounded up to the alignment, or to whole blocks.
    slot_positions: u32,
    /// Slots begin at multiples of this.
    alignment: u32,
    /// The table of its blocks, for each block of each slot, and the positions of a block; none and 0 if positions of
    /// a slot are one after the other.
    blocks: Option<BufferId>,
    block: u32,
}

pub(crate) fn plan(
    provider: &dyn WeightProvider,
    capabilities: &Capabilities,
    options: &PlanOptions,
) -> Result<ModelPlan, PlanError> {
    let config = provider.config();
    let arch = card_of(config)?;
    if config.bidirectional {
        let reason = "the model is an encoder: use it for embeddings or scores (embed, rerank)";
        return Err(PlanError::Unsupported(reason.into()));
    }
    if provider.tensor("cls.output.weight").is_some() {
        let reason = "the model has a classifier: use it for scores of texts (rerank)";
        return Err(PlanError::Unsupported(reason.into()));
    }
    check(config, options)?;
    let whole = config;
    let sharded = match capabilities.ranks {
        1 => None,
        ranks => Some(Sharded::new(provider, ranks)?),
    };
    if !options.host.is_nothing() && capabilities.host.is_none() {
        let reason = "there is no CPU beside this device to compute layers or experts";
        return Err(PlanError::Unsupported(reason.into()));
    }
    let devices = capabilities.ranks.max(options.stages.len() + 1);
    check_host(config, devices, options.host)?;
    stages::check(config, capabilities, options)?;
    let provider = sharded.as_ref().map_or(provider, |sharded| sharded as &dyn WeightProvider);
    let config = provider.config();

    let mut buffers = Buffers::default();
    let mut tensors = weights::Tensors::new(provider, arch, &mut buffers).cut_by(sharded.as_ref());
    let model = pass::Model::new(provider, arch, (options.context, options.into()), &mut tensors)?;
    let logits = pass::Logits::new(config, model.embedding, &mut tensors)?;
    let encoder = listen::Encoder::new(provider, arch, &mut tensors)?;
    tensors.refuse_unused()?;
    let generating_from = |mut graph: graph::Graph| {
        let output = logits.add(&mut graph, model.states, config);
        let argmax = Action::Argmax { logits: output, vocab: config.vocab_size };
        graph.push("argmax", argmax);
        (graph, output)
    };
    let generating = || generating_from(model.graph.clone());
    let Caches { kv, windows, states, plan: cache } =
        caches((config, arch), options, capabilities, &mut buffers)?;
    let across = listen::across_layout(config, options, capabilities.keys, &mut buffers)?;
    let slot_positions = kv.slot_positions;
    let window_positions = across.as_ref().map_or(0, |across| across.slot_positions);
    let context = Context {
        config,
        arch,
        options,
        folds: capabilities.folds && options.fuse && !options.keep_inputs,
        half_products: capabilities.half_products.filter(|_| !options.keep_inputs),
        packed_products: capabilities.packed_products,
        eight_products: capabilities
            .eight_products
            .filter(|_| config.fp8_activations && !options.keep_inputs),
        kv,
        windows,
        states,
        across,
        ranks: capabilities.ranks,
    };

    let name = PassKind::Decode.name();
    let decode = pass::Spec { name, rows: 1, logit_rows: 1, steps: options.chain, io: None, products: None };
    let prefill = pass::Spec {
        name: PassKind::Prefill.name(),
        rows: options.prefill_rows,
        logit_rows: options.prefill_logit_rows,
        steps: 1,
        io: None,
        products: None,
    };
    let mut tables = Passes::new(
        pass::build(&context, generating(), &model.ropes, &decode, &mut buffers)?,
        pass::build(&context, generating(), &model.ropes, &prefill, &mut buffers)?,
        cache_moves::kv_shift(&context, &model, PassKind::KvShift, &mut buffers)?,
        cache_moves::kv_copy(&context, PassKind::KvCopy, &mut buffers)?,
    );
    if context.windows.is_some() && cache.table.is_some() {
        let kind = PassKind::WindowShift;
        tables.push(kind, cache_moves::kv_shift(&context, &model, kind, &mut buffers)?);
        let kind = PassKind::WindowCopy;
        tables.push(kind, cache_moves::kv_copy(&context, kind, &mut buffers)?);
    }
    let (rows, logit_rows, io) = (tables.prefill().rows, tables.prefill().logit_rows, tables.prefill().io);
    for (kind, rows) in pass::tables_for_fewer_rows(&context, &model.graph, rows) {
        let spec = pass::Spec { name: kind.name(), rows, logit_rows, steps: 1, io: Some(io), products: None };
        tables.push(kind, pass::build(&context, generating(), &model.ropes, &spec, &mut buffers)?);
    }
    // A state is where its layer is, so what surrounds it would go back and forth.
    let streams = !options.host.is_nothing() && context.states.is_none();
    if let Some(least_rows) = options.stream_rows.filter(|_| streams) {
        find_homes(&mut buffers.0, tables.iter().map(|(_, table)| table));
        let kind = PassKind::StreamedPrefill;
        let spec = pass::Spec { name: kind.name(), rows, logit_rows, steps: 1, io: Some(io), products: None };
        let graph = generating_from(streamed::on_device(&model.graph));
        let mut table = pass::build(&context, graph, &model.ropes, &spec, &mut buffers)?;
        streamed::lend(&mut table, least_rows, provider, &mut buffers);
        tables.push(kind, table);
    }
    if capabilities.samples {
        let decode = sampled::decode(tables.decode(), config.vocab_size, &mut buffers)?;
        let pick = sampled::pick(tables.prefill(), config.vocab_size, &mut buffers)?;
        let [held, held_pick] = sampled::held(tables.decode(), config.vocab_size, &mut buffers)?;
        tables.push(PassKind::SampledDecode, decode);
        tables.push(PassKind::Pick, pick);
        tables.push(PassKind::HeldDecode, held);
        tables.push(PassKind::HeldPick, held_pick);
    }
    let mut aligned_heads = 0;
    if let (Some(encoder), Some(across)) = (&encoder, context.across.clone()) {
        tables.push(PassKind::Encode, encoder.table((arch, options, capabilities), across, &mut buffers)?);
        if options.word_times {
            aligned_heads = align::heads(config)?.len();
            let table = align::table(&context, generating(), &model, tables.prefill(), &mut buffers)?;
            tables.push(PassKind::Align, table);
        }
    }
    let tables = tables.map(Arc::new);
    let every = || tables.iter().map(|(_, table)| &**table);
    find_homes(&mut buffers.0, every());
    let memory_of = |side: Side, of: &Capabilities| memory(&buffers.0, provider, every(), (of, side));
    let memory = memory_of(Side::Device, capabilities);
    let others = capabilities.stages.iter().take(options.stages.len());
    let stages = (0..).zip(others).map(|(stage, of)| memory_of(Side::Stage(stage), of)).collect();
    Ok(ModelPlan {
        config: whole.clone(),
        arch,
        options: options.clone(),
        buffers: buffers.0,
        tables,
        cache,
        slot_positions,
        window_positions,
        aligned_heads,
        memory,
        stages,
        paging: None,
    })
}

fn card_of(config: &ModelConfig) -> Result<&'static Card, PlanError> {
    Card::find(&config.architecture).ok_or_else(|| {
        let names: Vec<&str> = CARDS.iter().flat_map(|a| a.names).copied().collect();
        PlanError::UnknownArchitecture(config.architecture.clone(), names.join(", "))
    })
}

/// Rejects configurations for which no table can be built, before any weight is read.
fn check(config: &ModelConfig, options: &PlanOptions) -> Result<(), PlanError> {
    let unsupported = |reason: String| Err(PlanError::Unsupported(reason));
    let shape = [
        ("vocabulary", config.vocab_size),
        ("hidden size", config.hidden_size),
        ("layer count", config.layer_count),
        ("feed-forward size", config.ffn_size),
        ("head count", config.head_count),
        ("KV head count", config.kv_head_count),
        ("head size", config.head_dim),
    ];
    for (what, value) in shape {
        if value == 0 || value > u32::MAX as usize / 4 {
            return unsupported(format!("the file's {what} is {value}"));
        }
    }
    if !config.head_count.is_multiple_of(config.kv_head_count) {
        return unsupported(format!(
            "{} heads are not a multiple of {} KV heads",
            config.head_count, config.kv_head_count
        ));
    }
    let recurrent = (0..config.layer_count).filter(|layer| config.is_recurrent(*layer)).count();
    if recurrent == config.layer_count {
        return unsupported("models without any attention are not supported".into());
    }
    if recurrent > 0 && config.window.is_some() {
        return unsupported("layers with a state beside sliding-window layers are not supported".into());
    }
    let dims = config.rope.dims;
    if !dims.is_multiple_of(2) || dims > config.head_dim {
        return unsupported(format!("RoPE over {dims} dimensions of heads of {}", config.head_dim));
    }
    if options.kv.row_bytes(config.head_dim).is_none() {
        return unsupported(format!(
            "a {} KV cache needs a head size that is a multiple of 32, but this model's is {}; use --kv-type f16",
            options.kv.name(),
            config.head_dim
        ));
    }
    for (what, value) in [
        ("context", options.context),
        ("slots", options.slots),
        ("rows", options.prefill_rows),
        ("logit rows", options.prefill_logit_rows),
        ("chain", options.chain),
        ("windows", options.windows),
        ("beams", options.beams),
    ] {
        if value == 0 || value > i32::MAX as usize {
            return unsupported(format!("{what} must be from 1 to {}, not {value}", i32::MAX));
        }
    }
    Ok(())
}

/// Rejects parts on the host that the model does not have, or that cannot be there.
pub fn check_host(config: &ModelConfig, ranks: usize, host: OnHost) -> Result<(), PlanError> {
    let unsupported = |reason: &str| Err(PlanError::Unsupported(reason.into()));
    if host.is_nothing() {
        return Ok(());
    }
    if ranks > 1 {
        return unsupported("a model on several devices cannot leave layers or experts to the CPU");
    }
    if config.encoder.is_some() {
        return unsupported("models that transcribe cannot leave layers to the CPU");
    }
    if host.layers > config.layer_count || host.experts > config.layer_count {
        let reason = format!(
            "{} layers on the CPU; the model has {}",
            host.layers.max(host.experts),
            config.layer_count
        );
        return Err(PlanError::Unsupported(reason));
    }
    if host.experts > 0 && config.experts.is_none() {
        return unsupported("the model has no experts that the CPU could compute (--cpu-moe, --n-cpu-moe)");
    }
    Ok(())
}

/// Gives each buffer to the sides whose commands use it.
fn find_homes<'a>(buffers: &mut [BufferSpec], tables: impl Iterator<Item = &'a DispatchTable>) {
    let mut used = vec![Home::NOWHERE; buffers.len()];
    for table in tables {
        for command in &table.commands {
            let inputs = [table.io.rows, table.io.logit_rows, table.io.tokens];
            for buffer in command.bindings().iter().map(|binding| binding.buffer).chain(inputs) {
                used[buffer.index()] = used[buffer.index()].and(command.side);
            }
        }
    }
    for (buffer, used) in buffers.iter_mut().zip(used) {
        buffer.home = if used == Home::NOWHERE { Home::DEVICE } else { used };
    }
}

fn memory<'a>(
    buffers: &[BufferSpec],
    provider: &dyn WeightProvider,
    tables: impl Iterator<Item = &'a DispatchTable>,
    (capabilities, side): (&Capabilities, Side),
) -> MemoryPlan {
    let place_of = |tensor: usize, plane: usize| {
        let tensor = &provider.tensors()[tensor];
        let place = tensor.places().nth(plane).unwrap_or(tensor.place());
        (tensor.dtype, &provider.regions()[place.region], place.offset)
    };
    let is_in_place = |tensor: usize, plane: usize| {
        let (dtype, region, offset) = place_of(tensor, plane);
        capabilities.in_place.holds(dtype, plane, region, offset)
    };
    let tables: Vec<&DispatchTable> = tables.collect();
    let rows = tables.iter().map(|table| table.rows.max(table.logit_rows)).max().unwrap_or(0);
    let mut memory = MemoryPlan { workspace: capabilities.workspace(rows), ..MemoryPlan::default() };
    if let Some(host) = &capabilities.host {
        let streams = tables.iter().any(|table| !table.streams.loans.is_empty());
        memory.host_work = host.workspace(rows) + if streams { capabilities.streaming_bytes } else { 0 };
    }
    for buffer in buffers {
        if side == Side::Device && buffer.home.has(Side::Host) {
            let part = match buffer.kind {
                BufferKind::Weight { .. } => &mut memory.host_weights,
                _ => &mut memory.host_work,
            };
            *part += buffer.bytes;
        }
        if !buffer.home.has(side) {
            continue;
        }
        let part = match buffer.kind {
            BufferKind::Weight { tensor, plane, cut }
                if cut.is_none_or(|cut| cut.is_in_one_piece()) && is_in_place(tensor, plane) =>
            {
                if place_of(tensor, plane).1.is_derived() {
                    memory.weights_made += buffer.bytes;
                }
                &mut memory.weights_in_place
            }
            BufferKind::Weight { .. } | BufferKind::Vector { .. } => &mut memory.weights_copied,
            BufferKind::Constant { .. } => &mut memory.constants,
            BufferKind::Kv => &mut memory.kv,
            BufferKind::Slot => &mut memory.slots,
            BufferKind::Scratch => &mut memory.scratch,
            BufferKind::Io => &mut memory.io,
        };
        *part += buffer.bytes;
    }
    // The commands of all devices are in the host's memory once.
    if side == Side::Device {
        memory.tables = tables.into_iter().map(DispatchTable::bytes).sum();
    }
    if capabilities.in_place == InPlace::Nothing {
        memory.loading = loading(buffers.iter().filter(|buffer| buffer.home.has(side)));
    }
    memory
}

/// What drivers round large allocations up to.
const GRANULE: u64 = 2 << 20;
/// For the code of kernels and for graphs.
const CODE: u64 = 64 << 20;

/// As [`MemoryPlan::loading`].
fn loading<'a>(buffers: impl Iterator<Item = &'a BufferSpec>) -> u64 {
    let (mut largest, mut rounding) = (0, 0);
    for buffer in buffers {
        if matches!(buffer.kind, BufferKind::Weight { .. } | BufferKind::Slot) {
            largest = largest.max(buffer.bytes);
        }
        // Small ones share granules.
        if buffer.bytes >= GRANULE / 2 {
            rounding += buffer.bytes.next_multiple_of(GRANULE) - buffer.bytes;
        }
    }
    largest + rounding + CODE
}

/// The buffers of a table that the host accesses.
fn table_io(
    buffers: &mut Buffers,
    name: &str,
    [rows, logit_rows, steps, vocab]: [usize; 4],
) -> Result<TableIo, PlanError> {
    let mut io = |field: &str, bytes: u64| buffers.add(format!("{name}.{field}"), bytes, BufferKind::Io);
    Ok(TableIo::new([
        io("rows", size(&[rows, crate::Row::BYTES])?),
        io("logit_rows", size(&[logit_rows, 4])?),
        io("tokens", size(&[steps + 1, logit_rows, 4])?),
        io("logits", size(&[logit_rows, vocab, 4])?),
    ]))
}

/// A product of sizes in bytes, or an error if it overflows.
fn size(factors: &[usize]) -> Result<u64, PlanError> {
    factors
        .iter()
        .try_fold(1u64, |product, &f| product.checked_mul(f as u64))
        .filter(|&bytes| bytes <= i64::MAX as u64)
        .ok_or_else(too_large)
}

fn too_large() -> PlanError {
    PlanError::Unsupported("the requested context and slots need too many bytes".into())
}

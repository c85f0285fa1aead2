//! A model on a device with its KV cache.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use akunu_plan::sample::Records;
use akunu_plan::{
    Capabilities, Device, InPlace, KvType, Loaded, MemoryPlan, ModelPlan, OnHost, OnLoad, PassKind,
    PlanOptions, Row,
};

use crate::blocks::Name;
use crate::memory::reserved;
use crate::pass::{Feed, LastPass};
use crate::pick::HostPick;
use crate::prompt::check_prompt;
use crate::session::SlotPool;
use crate::tiers::{self, KvDisk, Tiers, fingerprint};
use crate::{
    BackendOptions, DeviceChoice, Error, Model, Sampler, Sampling, Session, cache_size, experts, memory,
    split,
};

/// The salt of sessions that are used without a scheduler.
pub(crate) const ALONE: u64 = 0;

/// Short enough that text streams smoothly and cancelling takes effect quickly.
pub const DEFAULT_CHAIN_TIME: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    pub device: DeviceChoice,
    /// CPU threads; `None`: one per physical core.
    pub threads: Option<usize>,
    /// Settings of the device's backend.
    pub backends: BackendOptions,
    /// Context length of each slot; `None`: the model's own, as far as the KV cache has room for it beside 4096 positions of each
    /// other slot.
    pub context: Option<usize>,
    pub kv: KvType,
    /// Bytes of the KV cache, which all sessions share, at least for one context, at most for the contexts of all slots. `None`:
    /// half of the memory that is free beside the model, or 90% of a card's own; with a stated `context` enough for all slots,
    /// if there is memory for it. Where free memory is not known, it is enough for all slots.
    pub kv_memory: Option<u64>,
    /// The memory that a cache of default size counts as available, if it is less than there is.
    pub memory: Option<u64>,
    /// Models that share the memory: a cache of default size takes one part of so many.
    pub models: usize,
    /// Bytes of the host's memory for blocks of the cache that the device has no memory for any more, of which whole blocks are
    /// used; `None`: these are forgotten.
    pub kv_host: Option<u64>,
    /// A folder for blocks that neither the device nor the host's memory has place for, and that a later process finds again.
    pub kv_disk: Option<KvDisk>,
    /// Number of slots, which is the maximum number of sessions.
    pub slots: usize,
    /// Maximum rows of a prefill pass; `None`: chosen for the device.
    pub chunk: Option<usize>,
    /// Maximum rows of a prefill pass that compute logits. 1 is enough to generate; more make scoring faster and take
    /// `vocabulary · 4` bytes each.
    pub logit_rows: usize,
    /// Maximum steps of a decode submission; `None`: chosen for the device.
    pub chain: Option<usize>,
    /// Maximum duration of a decode submission, estimated from measured steps. Text is streamed, and requests are cancelled or
    /// added, between submissions. [`Duration::ZERO`]: submissions of one step.
    pub chain_time: Duration,
    /// Windows of audio that the encoder computes in one pass, in models that transcribe.
    pub encoder_windows: usize,
    /// Slots, one after the other, whose texts are about the same window of audio, in models that transcribe.
    pub beams: usize,
    /// Plan the pass for the times of words, in models that transcribe. It takes memory.
    pub word_times: bool,
    /// Fuse QKV and gate·up where their types agree, and other operations where the device supports it. Off only for comparisons.
    pub fuse: bool,
    /// Layers that the device computes: the last ones, and the output. The CPU computes those before. `None`: all.
    pub gpu_layers: Option<usize>,
    /// The CPU computes the routed experts of so many of the first layers. `None`: of none.
    pub cpu_experts: Option<usize>,
    /// Prompts copy the CPU's weights to the device in passes of so many rows and more, if there is memory for them; 0: in
    /// none. `None`: where that is faster.
    pub stream_rows: Option<usize>,
    /// Bytes of memory for experts that the CPU computes in a mapped file; the others are read when they are needed. 0: all are
    /// used in the mapped file. `None`: what everything else leaves, if the model is larger than the memory.
    pub expert_memory: Option<u64>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            device: DeviceChoice::Auto,
            threads: None,
            backends: BackendOptions::default(),
            context: None,
            kv: KvType::F16,
            kv_memory: None,
            memory: None,
            models: 1,
            kv_host: None,
            kv_disk: None,
            slots: 1,
            chunk: None,
            logit_rows: 1,
            chain: None,
            chain_time: DEFAULT_CHAIN_TIME,
            encoder_windows: 1,
            beams: 1,
            word_times: false,
            fuse: true,
            gpu_layers: None,
            cpu_experts: None,
            stream_rows: None,
            expert_memory: None,
        }
    }
}

impl EngineOptions {
    /// Options for this many concurrent sequences: a slot and a row of logits for each.
    pub fn batching(self, sequences: usize) -> EngineOptions {
        EngineOptions { slots: sequences, logit_rows: self.logit_rows.max(sequences), ..self }
    }
}

/// A decision made while loading that the user should know of. Display is a line for stderr.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Note {
    #[error("device auto: {device} ({detail})")]
    AutoDevice { device: &'static str, detail: String },
    #[error("the GPU is not used: {reason}")]
    UnusedGpu { reason: String },
    #[error("the context length is {context}, and the model was trained for {trained}; use -c for more")]
    DefaultContext { context: usize, trained: usize },
    #[error(
        "a context length of {context} exceeds the {trained} that the model was trained for: expect poor quality beyond"
    )]
    BeyondTraining { context: usize, trained: usize },
    #[error("this model generates text; its hidden states are pooled as requested ({pooling})")]
    GenerativeEmbedding { pooling: &'static str },
    #[error("the model's files do not specify a pooling: the mean is used (--pooling changes it)")]
    AssumedPooling,
    #[error(
        "the weights ({}) are larger than the memory available ({}): parts are read from disk again for each token",
        memory::human(*weights), memory::human(*available)
    )]
    WeightsExceedMemory { weights: u64, available: u64 },
    #[error(
        "the model is larger than the memory: {} of its experts ({}) are kept in memory, and a token reads up to {} of \
         others from the file (--expert-memory changes that)",
        memory::human(*kept), memory::human(*experts), memory::human(*read)
    )]
    PagedExperts { kept: u64, experts: u64, read: u64 },
    #[error(
        "the model does not fit into the memory of the GPU as a whole: the CPU computes {} (--gpu-layers and \
         --n-cpu-moe change that)", crate::split::describe_split(*host, *layers)
    )]
    Split { host: OnHost, layers: usize },
    #[error("{0}")]
    Tokenizer(String),
}

/// The result of a prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilled {
    /// Tokens that were in the session already.
    pub reused: usize,
    /// Tokens that were processed.
    pub fed: usize,
}

/// Plans a model for a device, without allocating or loading anything or checking the memory.
pub fn plan(model: &Model, capabilities: &Capabilities, options: &EngineOptions) -> Result<ModelPlan, Error> {
    let at_least_1 = |name, value: Option<usize>| match value {
        Some(0) => Err(Error::Setting { name, value: "0".into(), expected: "at least 1" }),
        _ => Ok(()),
    };
    if model.config().bidirectional {
        return Err(Error::NotGenerative);
    }
    at_least_1("the context", options.context)?;
    at_least_1("the number of slots", Some(options.slots))?;
    at_least_1("the chunk", options.chunk)?;
    at_least_1("the number of logit rows", Some(options.logit_rows))?;
    at_least_1("the chain", options.chain)?;
    at_least_1("the number of windows of a pass", Some(options.encoder_windows))?;
    at_least_1("the number of beams", Some(options.beams))?;
    at_least_1("the number of models", Some(options.models))?;

    let stated = split::on_host(model.config(), capabilities, options)?;
    let asked = planned(model, capabilities, options, (stated, None))?;
    let fits = |plan: &ModelPlan| check_fits(plan, capabilities).is_ok();
    let plan = if fits(&asked) || !split::may_choose(model.config(), capabilities, options) {
        asked
    } else {
        let fitting = split::choose(model.config(), options, |host| {
            let plan = planned(model, capabilities, options, (host, None))?;
            Ok(fits(&plan).then_some(plan))
        })?;
        fitting.unwrap_or(asked)
    };
    // Slots for the host's weights take what is left, and leave no more to the host.
    let host = plan.options.host;
    let mut plan = match split::stream_rows(&plan.config, host, capabilities, options) {
        None => plan,
        Some(rows) => {
            let streaming = planned(model, capabilities, options, (host, Some(rows)))?;
            if fits(&streaming) { streaming } else { plan }
        }
    };
    experts::page(model, capabilities, options, &mut plan)?;
    Ok(plan)
}

/// Plans a model of which the host computes a part, and whose prompts stream that from so many rows on.
fn planned(
    model: &Model,
    capabilities: &Capabilities,
    options: &EngineOptions,
    (host, stream_rows): (OnHost, Option<usize>),
) -> Result<ModelPlan, Error> {
    let with_host = split::capabilities(capabilities, host, options)?;
    let capabilities = with_host.as_ref().unwrap_or(capabilities);
    let stages = split::stages(model, capabilities)?;
    // The host begins each step of a model that is divided by layers.
    let longest_chain = if host.is_nothing() && stages.is_empty() { usize::MAX } else { 1 };
    // A pass has a row for each sequence.
    let chunk = options.chunk.unwrap_or(capabilities.prefill_rows);
    let plan_options = |context, kv_bytes| {
        let prefill_rows = chunk.clamp(1, context).max(options.slots);
        PlanOptions {
            context,
            slots: options.slots,
            kv: options.kv,
            kv_bytes,
            prefill_rows,
            prefill_logit_rows: options.logit_rows.min(prefill_rows),
            chain: options.chain.unwrap_or(capabilities.chain).clamp(1, context.min(longest_chain)),
            windows: options.encoder_windows,
            beams: options.beams,
            word_times: options.word_times,
            fuse: options.fuse,
            keep_inputs: false,
            host,
            stages: stages.clone(),
            // Not if no pass has so many.
            stream_rows: stream_rows.filter(|rows| *rows <= prefill_rows),
        }
    };
    let mut plan = cache_size::planned(model, capabilities, options, plan_options)?;
    plan.memory.host_cache = tiers::host_bytes(options, &plan.cache)?;
    Ok(plan)
}

/// Memory that a device can still allocate, if known.
pub(crate) fn available(capabilities: &Capabilities) -> Option<u64> {
    match capabilities.available_bytes {
        Some(bytes) => Some(bytes),
        None if capabilities.in_place != InPlace::Nothing => memory::available_memory(),
        None => None,
    }
}

/// Checks that a plan fits into what is available of each device's memory.
pub(crate) fn check_fits(plan: &ModelPlan, capabilities: &Capabilities) -> Result<(), Error> {
    let context = plan.options.context;
    if capabilities.in_place != InPlace::Nothing {
        return check_memory(&plan.whole_memory(), context, available(capabilities));
    }
    let count = plan.stages.len() + 1;
    let mut devices = plan.memory_of_devices().zip(capabilities.devices()).enumerate();
    devices.try_for_each(|(device, (memory, of))| {
        let named = |error| match count {
            1 => error,
            _ => Error::OnDevice { device, count, error: Box::new(error) },
        };
        check_memory(memory, context, available(of)).map_err(named)
    })
}

/// Checks that what a plan needs of the host's memory, for the CPU's part and for the cache there, fits into what is
/// available of that.
pub fn check_host(
    memory: &MemoryPlan,
    capabilities: &Capabilities,
    available: Option<u64>,
) -> Result<(), Error> {
    let beside = if capabilities.in_place == InPlace::Nothing { 0 } else { memory.allocated() };
    let (cache, work) = (memory.host_cache, memory.host_work);
    let bytes = cache + work;
    let Some(available) = available.filter(|available| bytes > 0 && beside + bytes > *available) else {
        return Ok(());
    };
    let available = available.saturating_sub(beside);
    Err(if work > 0 {
        Error::CpuPartTooLarge { bytes, available }
    } else {
        Error::HostCacheTooLarge { bytes, available }
    })
}

/// Checks that a plan fits into the available memory.
pub(crate) fn check_memory(plan: &MemoryPlan, context: usize, available: Option<u64>) -> Result<(), Error> {
    let Some(available) = available else { return Ok(()) };
    // The device has allocated its own workspace already.
    if plan.peak() - plan.workspace + plan.weights_made <= available {
        return Ok(());
    }
    let advice = memory::advice(plan, context, available);
    Err(Error::DoesNotFit { plan: Box::new(*plan), context, available, advice })
}

fn notes(
    model: &Model,
    options: &EngineOptions,
    plan: &ModelPlan,
    capabilities: &Capabilities,
    available: Option<u64>,
) -> Vec<Note> {
    let mut notes = Vec::new();
    if options.device == DeviceChoice::Auto {
        notes.push(Note::AutoDevice { device: capabilities.name, detail: capabilities.detail.clone() });
        notes.extend(crate::devices::unused_gpu(&options.backends).map(|reason| Note::UnusedGpu { reason }));
    }
    let (context, trained) = (plan.options.context, plan.config.context_length);
    if context > trained {
        notes.push(Note::BeyondTraining { context, trained });
    } else if options.context.is_none() && context < trained {
        notes.push(Note::DefaultContext { context, trained });
    }
    let host = plan.options.host;
    if !host.is_nothing() && options.gpu_layers.is_none() && options.cpu_experts.is_none() {
        notes.push(Note::Split { host, layers: plan.config.layer_count });
    }
    if let (Some(paging), None) = (&plan.paging, options.expert_memory) {
        let (kept, experts, read) = (paging.kept_bytes(), paging.expert_bytes(), paging.read_by_token());
        notes.push(Note::PagedExperts { kept, experts, read });
    }
    let (weights, available) = match host.is_nothing() {
        true => (plan.whole_memory().weights_in_place, available),
        false => (plan.memory.host_weights, memory::available_memory()),
    };
    // What was read is no longer part of the available memory.
    if let Some(available) = available.filter(|&available| weights > available && model.read_bytes() == 0) {
        notes.push(Note::WeightsExceedMemory { weights, available });
    }
    notes
}

/// A model loaded on a device.
#[derive(Debug)]
pub struct Engine {
    model: Arc<Model>,
    pub(crate) device: Box<dyn Device>,
    pub(crate) plan: ModelPlan,
    pub(crate) loaded: Loaded,
    pub(crate) pool: Arc<SlotPool>,
    /// Where blocks go that the pool drops.
    pub(crate) tiers: Option<Tiers>,
    /// The name of the model and its cache, once it was needed.
    pub(crate) fingerprint: OnceLock<Name>,
    notes: Vec<Note>,
    load_time: Duration,

    // Host buffers of passes, allocated once.
    /// At most the prefill table's rows.
    pub(crate) rows: Vec<Row>,
    /// Which of them need logits.
    pub(crate) asking: Vec<u32>,
    /// The ids of a submission, step by step.
    pub(crate) found: Vec<u32>,
    /// What the device reads to sample.
    pub(crate) sampling: Records,
    /// Empty; kept for its memory.
    pub(crate) picks: Vec<Mutex<HostPick<'static>>>,
    /// One row's.
    pub(crate) logits: Vec<f32>,
    /// Entries of a table of blocks.
    pub(crate) entries: Vec<u32>,
    /// Of the pass that runs, or of the last one.
    pub(crate) pass_kind: PassKind,
    pub(crate) last: Option<LastPass>,
    /// The row of an answer in a grammar that the device decodes already, or has decoded ([`crate::held`]).
    pub(crate) ahead: Option<Row>,
    /// As in [`EngineOptions`].
    pub(crate) chain_time: Duration,
    /// Seconds of one decode step, as measured; a moving average.
    pub(crate) step_seconds: Option<f64>,
}

impl Engine {
    /// Opens the device, plans, checks that memory suffices, loads and prepares.
    pub fn new(model: Arc<Model>, options: &EngineOptions) -> Result<Engine, Error> {
        let device = crate::open_device(options.device, options.threads, &options.backends)?;
        Engine::on_device(model, device, options)
    }

    /// As [`Engine::new`], on an open device: `options.threads` and `options.backends` are used only for the CPU beside it, and
    /// for notes.
    pub fn on_device(
        model: Arc<Model>,
        device: Box<dyn Device>,
        options: &EngineOptions,
    ) -> Result<Engine, Error> {
        Engine::load(model, device, options, &mut akunu_plan::unwatched)
    }

    /// As [`Engine::on_device`], and reports the progress, which may cancel it.
    pub fn load(
        model: Arc<Model>,
        device: Box<dyn Device>,
        options: &EngineOptions,
        on_load: OnLoad<'_>,
    ) -> Result<Engine, Error> {
        match model.config().encoder {
            Some(_) => Err(Error::OnlyTranscribes),
            None => Engine::load_any(model, device, options, on_load),
        }
    }

    /// As [`Engine::load`], models that transcribe included.
    pub(crate) fn load_any(
        model: Arc<Model>,
        device: Box<dyn Device>,
        options: &EngineOptions,
        on_load: OnLoad<'_>,
    ) -> Result<Engine, Error> {
        let start = Instant::now();
        let plan = plan(&model, device.capabilities(), options)?;
        let engine = Engine::by_plan(model, device, plan, options, on_load)?;
        Ok(Engine { load_time: start.elapsed(), ..engine })
    }

    /// As [`Engine::load`], by a plan that [`plan`] has made for this device with these options. Another one could differ:
    /// the memory that is free changes.
    pub fn by_plan(
        model: Arc<Model>,
        device: Box<dyn Device>,
        plan: ModelPlan,
        options: &EngineOptions,
        on_load: OnLoad<'_>,
    ) -> Result<Engine, Error> {
        let start = Instant::now();
        let mut device = split::device_for_plan(&plan, device, options)?;
        let available = available(device.capabilities());
        check_fits(&plan, device.capabilities())?;
        check_host(&plan.memory, device.capabilities(), memory::available_memory())?;
        let mut notes = notes(&model, options, &plan, device.capabilities(), available);
        notes.extend(model.tokenizer_notes());
        let loaded = akunu_plan::load(&plan, model.weights(), &mut *device, on_load)?;
        let mut logits = reserved("logits", plan.config.vocab_size)?;
        logits.resize(plan.config.vocab_size, 0.0);
        let name = || fingerprint(&model, &plan, device.capabilities());
        let tiers = Tiers::open(options, &plan.cache, name)?;
        let names = tiers.is_some().then(name);
        Ok(Engine {
            pool: Arc::new(SlotPool::new(plan.options.slots, &plan.cache, names)),
            tiers,
            fingerprint: names.map_or_else(OnceLock::new, OnceLock::from),
            rows: Vec::with_capacity(plan.options.prefill_rows),
            asking: Vec::with_capacity(plan.options.prefill_rows),
            sampling: Records::default(),
            picks: Vec::with_capacity(plan.options.slots),
            found: vec![0; plan.tables.decode().steps.max(plan.tables.prefill().logit_rows)],
            logits,
            entries: Vec::with_capacity(plan.cache.slot_blocks as usize),
            pass_kind: PassKind::Prefill,
            last: None,
            ahead: None,
            chain_time: options.chain_time,
            step_seconds: None,
            load_time: start.elapsed(),
            model,
            device,
            plan,
            loaded,
            notes,
        })
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn plan(&self) -> &ModelPlan {
        &self.plan
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The context length of each slot.
    pub fn context(&self) -> usize {
        self.plan.options.context
    }

    pub fn vocab_size(&self) -> usize {
        self.plan.config.vocab_size
    }

    /// Decisions that the user should know of.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The time for planning, loading and preparing.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// A sampler for a text, with the model's default breakers for DRY if the settings have none.
    pub fn sampler(&self, sampling: &Sampling) -> Result<Sampler, Error> {
        if sampling.dry_multiplier > 0.0 && sampling.dry_breakers.is_none() {
            let dry_breakers = Some(self.model.default_breakers().clone());
            return Sampler::new(&Sampling { dry_breakers, ..sampling.clone() }, self.vocab_size());
        }
        Sampler::new(sampling, self.vocab_size())
    }

    /// Takes a free slot.
    pub fn session(&mut self) -> Result<Session, Error> {
        let slots = self.plan.options.slots;
        let tokens = reserved("the tokens of a session", self.context())?;
        self.pool.take(tokens).ok_or(Error::NoFreeSlot { slots })
    }

    /// Makes the session's tokens equal to `ids`: keeps their common prefix, and processes the rest (at least the last token,
    /// for its logits).
    pub fn prefill(&mut self, session: &mut Session, ids: &[u32]) -> Result<Prefilled, Error> {
        let reused = self.reuse(session, ids)?;
        self.feed(session, &ids[reused..])?;
        Ok(Prefilled { reused, fed: ids.len() - reused })
    }

    /// Checks a prompt, and truncates the session to their common prefix, leaving at least one token to process. Returns how
    /// many tokens are left in the session.
    pub(crate) fn reuse(&mut self, session: &mut Session, ids: &[u32]) -> Result<usize, Error> {
        self.check_own(session)?;
        self.check_prompt(ids)?;
        let shared = session.tokens.iter().zip(ids).take_while(|(a, b)| a == b).count();
        session.truncate(shared.min(ids.len() - 1));
        session.is_kept = true;
        self.bring_back(session, ALONE, &ids[..ids.len() - 1])?;
        Ok(session.len())
    }

    /// Processes tokens after those of the session, in passes as large as the prefill table; only the last row has logits.
    pub(crate) fn feed(&mut self, session: &mut Session, ids: &[u32]) -> Result<(), Error> {
        let chunk = self.plan.tables.prefill().rows;
        for (index, part) in ids.chunks(chunk).enumerate() {
            let is_last = index * chunk + part.len() == ids.len();
            self.pass(&mut [Feed { session, ids: part, logits: usize::from(is_last) }])?;
        }
        Ok(())
    }

    /// The logits of every position of `ids` (`all`) or of the last, one row after the other, in passes of at most `chunk`
    /// rows (`None`: the engine's maximum). Uses a free slot temporarily.
    pub fn logits(&mut self, ids: &[u32], all: bool, chunk: Option<usize>) -> Result<Vec<f32>, Error> {
        self.check_prompt(ids)?;
        let table = self.plan.tables.prefill();
        let max_rows = if all { table.logit_rows } else { table.rows };
        let chunk = chunk.unwrap_or(max_rows).clamp(1, max_rows);
        let mut session = self.session()?;
        let rows = if all { ids.len() } else { 1 };
        let mut logits = reserved("logits", self.vocab_size().saturating_mul(rows))?;
        for (index, part) in ids.chunks(chunk).enumerate() {
            let is_last = index * chunk + part.len() == ids.len();
            let wanted = if all { part.len() } else { usize::from(is_last) };
            self.pass(&mut [Feed { session: &mut session, ids: part, logits: wanted }])?;
            if wanted > 0 {
                self.append_logits(&mut logits)?;
            }
        }
        Ok(logits)
    }

    pub(crate) fn check_prompt(&self, ids: &[u32]) -> Result<(), Error> {
        check_prompt(ids, self.vocab_size(), self.context())
    }

    pub(crate) fn check_own(&self, session: &Session) -> Result<(), Error> {
        if Arc::ptr_eq(&self.pool, &session.pool) { Ok(()) } else { Err(Error::ForeignSession) }
    }
}

//! Models: loading, freeing, properties, and tokenization.

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use akunu::schedule::SchedulerOptions;
use akunu::{Constraints, DeviceChoice, Engine, EngineOptions, Error, Note};
use akunu_tokenizer::{EncodeOptions, Tokenizer};

use crate::arguments::{
    OutBuffer, check_pointer, items, optional_text, read_options, text, write, write_struct,
};
use crate::boundary::{Failure, Status, check_not_in_callback, guard};
use crate::loading::Watcher;
use crate::log::{LogLevel, log, log_notes};
use crate::registry::{Registry, number};
use crate::requests::{REQUESTS, RequestQueue};
use crate::session::SESSIONS;
use crate::structs::{Config, KvType, LoadOptions, Memory, ModelHandle};
use crate::worker::EngineQueue;

pub(crate) static MODELS: Registry<Model> = Registry::new("model");

/// A loaded model, shared between threads.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) number: usize,
    pub(crate) model: Arc<akunu::Model>,
    /// Its file or folder; `None`: the embedded model.
    pub(crate) path: Option<PathBuf>,
    pub(crate) constraints: Constraints,
    work: Work,
    pub(crate) info: EngineInfo,
}

/// What a model does with its engine.
#[derive(Debug)]
enum Work {
    Sessions(EngineQueue),
    /// Loaded with `batch`.
    Requests(RequestQueue),
}

/// Properties of an engine that do not change.
#[derive(Debug)]
pub(crate) struct EngineInfo {
    config: Config,
    memory: Memory,
    device: String,
    notes: String,
    /// The commands of a decode step.
    pub(crate) labels: Vec<String>,
    load_time: Duration,
    decisions: Vec<Note>,
}

impl Model {
    /// The queue of calls for sessions.
    pub(crate) fn queue(&self) -> Result<&EngineQueue, Failure> {
        match &self.work {
            Work::Sessions(queue) => Ok(queue),
            Work::Requests(_) => Err(Failure::argument(
                "this model was loaded with `batch`, so it has no sessions: use akunu_submit, or load it without",
            )),
        }
    }

    pub(crate) fn requests(&self) -> Result<&RequestQueue, Failure> {
        match &self.work {
            Work::Requests(requests) => Ok(requests),
            Work::Sessions(_) => Err(Failure::argument(
                "this model takes no requests: set `batch` of akunu_load_options to 1 when it is loaded",
            )),
        }
    }

    /// Cancels all generations, and waits until the engine is dropped.
    fn close(&self) {
        match &self.work {
            Work::Sessions(queue) => queue.close(),
            Work::Requests(requests) => requests.close(),
        }
    }

    pub(crate) fn tokenizer(&self) -> Result<&dyn Tokenizer, Failure> {
        Ok(&**self.model.tokenizer()?)
    }
}

/// Converts a count, saturating. Real counts are far below the limit.
pub(crate) fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn token(id: Option<u32>) -> i32 {
    id.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1)
}

fn info(engine: &Engine) -> EngineInfo {
    let (model, plan) = (engine.model(), engine.plan());
    let (config, options, memory) = (model.config(), &plan.options, &plan.memory);
    let tokenizer = model.tokenizer().ok();
    let capabilities = engine.device().capabilities();
    let labels = &plan.tables.decode().labels;
    let kernels = plan.tables.decode().commands.iter().map(|command| command.kernel.name());
    EngineInfo {
        config: Config {
            size: small(size_of::<Config>()),
            vocabulary: small(config.vocab_size),
            context: small(options.context),
            trained_context: small(config.context_length),
            layers: small(config.layer_count),
            hidden_size: small(config.hidden_size),
            ffn_size: small(config.ffn_size),
            heads: small(config.head_count),
            kv_heads: small(config.kv_head_count),
            head_size: small(config.head_dim),
            sessions: small(options.slots),
            chunk: small(options.prefill_rows),
            chain: small(plan.tables.decode().steps),
            commands: small(plan.tables.decode().commands.len()),
            tokens: small(tokenizer.map_or(0, |tokenizer| tokenizer.vocab_size())),
            begin_token: token(config.bos_id.or_else(|| tokenizer?.bos())),
            end_token: token(tokenizer.and_then(|t| t.eos()).or_else(|| model.eos_ids().first().copied())),
            reserved: 0,
        },
        memory: Memory {
            size: small(size_of::<Memory>()),
            reserved: 0,
            allocated: memory.allocated(),
            weights_copied: memory.weights_copied,
            constants: memory.constants,
            kv_cache: memory.kv,
            scratch: memory.scratch,
            rows_and_logits: memory.io,
            workspace: memory.workspace,
            weights_in_place: memory.weights_in_place,
            tables: memory.tables,
        },
        device: format!("{} ({})", capabilities.name, capabilities.detail),
        load_time: engine.load_time(),
        decisions: engine.notes().to_vec(),
        notes: engine.notes().iter().map(|note| note.to_string()).collect::<Vec<_>>().join("\n"),
        labels: labels.iter().zip(kernels).map(|(label, kernel)| format!("{label} {kernel}")).collect(),
    }
}

/// # Safety
/// The device's name is null or a text.
unsafe fn engine_options(options: &LoadOptions) -> Result<EngineOptions, Failure> {
    let nonzero = |value: u32| (value > 0).then_some(value as usize);
    // SAFETY: guaranteed by the caller.
    let device = unsafe { optional_text(options.device, "the device") }?;
    let kv = match options.kv_type {
        v if v == KvType::F16 as u32 => akunu::KvType::F16,
        v if v == KvType::F32 as u32 => akunu::KvType::F32,
        v if v == KvType::Q8_0 as u32 => akunu::KvType::Q8_0,
        other => {
            return Err(Failure::argument(format!("the KV type {other} is not an akunu_kv_type")));
        }
    };
    let defaults = EngineOptions::default();
    Ok(EngineOptions {
        device: device.map_or(Ok(DeviceChoice::Auto), DeviceChoice::from_str)?,
        threads: nonzero(options.threads),
        backends: crate::environment::backends(),
        context: nonzero(options.context),
        kv,
        slots: options.sessions.max(1) as usize,
        chunk: nonzero(options.chunk),
        chain: nonzero(options.chain),
        chain_time: match options.chain_ms {
            0 => defaults.chain_time,
            ms => Duration::from_millis(ms.into()),
        },
        ..defaults
    })
}

/// The number of devices that this library supports, available or not.
#[unsafe(no_mangle)]
pub extern "C" fn akunu_device_count() -> u32 {
    small(DeviceChoice::ALL.len())
}

/// The name of device number `index`, for akunu_load_options. The first is "auto".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_device_name(
    index: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let device = DeviceChoice::ALL.get(index as usize);
        let device = device.ok_or_else(|| Failure::argument(format!("there is no device number {index}")))?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer, capacity, length }.fill_text(device.name().as_bytes()) }
    })
}

/// Loads a model: a GGUF file, a SafeTensors file, or a folder in the format of Hugging Face or MLX. A null `path` loads the
/// small story-telling model embedded in the library. Null `options` select the defaults. Free it with akunu_free_model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_load_model(
    path: *const c_char,
    options: *const LoadOptions,
    model: *mut *mut ModelHandle,
) -> Status {
    guard(|| {
        check_pointer(model, "the pointer for the model")?;
        // SAFETY: guaranteed by the caller.
        let path = unsafe { optional_text(path, "the path") }?.map(Path::new);
        // SAFETY: guaranteed by the caller.
        let settings = unsafe { read_options(options) }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { engine_options(&settings) }?;
        check_not_in_callback()?;
        let watcher = Watcher { on_progress: settings.on_progress, user: settings.progress_user };
        watcher.begin()?;
        let opened = Arc::new(path.map_or_else(akunu::Model::embedded, akunu::Model::open)?);
        let (work, info) = work(&opened, options, &settings, &watcher)?;
        log_notes(&info.decisions);
        log(LogLevel::Info, || {
            let (seconds, bytes) = (info.load_time.as_secs_f64(), akunu::human(info.memory.allocated));
            format!("loaded {} on {} in {seconds:.1} s, with {bytes} of memory", opened.name(), info.device)
        });
        let number = number();
        let path = path.map(Path::to_path_buf);
        let constraints = Constraints::new(opened.clone());
        let loaded = Arc::new(Model { number, model: opened, path, constraints, work, info });
        // SAFETY: checked above; the rest is guaranteed by the caller.
        unsafe { write(model, MODELS.add(number, loaded), "the pointer for the model") }
    })
}

/// Loads the engine.
fn work(
    model: &Arc<akunu::Model>,
    options: EngineOptions,
    settings: &LoadOptions,
    watcher: &Watcher,
) -> Result<(Work, EngineInfo), Failure> {
    if settings.batch == 0 {
        let (queue, info) = EngineQueue::open(model.clone(), options, watcher, info)?;
        return Ok((Work::Sessions(queue), info));
    }
    let slots = options.slots;
    let mut scheduler = SchedulerOptions::default();
    if settings.queue > 0 {
        scheduler.queue = settings.queue as usize;
    }
    let (requests, info) =
        RequestQueue::open(model.clone(), options.batching(slots), scheduler, watcher, info)?;
    Ok((Work::Requests(requests), info))
}

/// Frees a model with its sessions and requests, and invalidates their handles. Generations of other threads are
/// cancelled and waited for. Does nothing if `model` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_free_model(model: *mut ModelHandle) -> Status {
    guard(|| {
        if model.is_null() {
            return Ok(());
        }
        check_not_in_callback()?;
        let model = MODELS.remove(model)?;
        model.close();
        // After closing: what is added later is removed by the call that adds it.
        SESSIONS.retain(|session| session.model.number != model.number);
        REQUESTS.retain(|request| request.model.number != model.number);
        Ok(())
    })
}

/// Gets the properties of a loaded model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_get_config(model: *const ModelHandle, config: *mut Config) -> Status {
    // SAFETY: guaranteed by the caller.
    guard(|| unsafe { write_struct(config, &MODELS.get(model)?.info.config) })
}

/// Gets the memory use of a loaded model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_model_memory(model: *const ModelHandle, memory: *mut Memory) -> Status {
    // SAFETY: guaranteed by the caller.
    guard(|| unsafe { write_struct(memory, &MODELS.get(model)?.info.memory) })
}

/// Selects the result of akunu_describe.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum About {
    /// The name of the file or folder, or `embedded`.
    Name = 0,
    /// The architecture as the file names it, such as `llama`.
    Architecture = 1,
    /// The device that the model runs on.
    Device = 2,
    /// Notes about decisions made while loading, one per line; often empty.
    Notes = 3,
}

/// Describes a model; `about` is an akunu_about.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_describe(
    model: *const ModelHandle,
    about: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        let text = match about {
            a if a == About::Name as u32 => model.model.name(),
            a if a == About::Architecture as u32 => &model.model.config().architecture,
            a if a == About::Device as u32 => &model.info.device,
            a if a == About::Notes as u32 => &model.info.notes,
            other => return Err(Failure::argument(format!("{other} is not an akunu_about"))),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer, capacity, length }.fill_text(text.as_bytes()) }
    })
}

/// Add the special tokens that the model expects around a prompt, usually a beginning-of-sequence token.
pub const AKUNU_ENCODE_ADD_SPECIAL: u32 = 1;
/// Encode special tokens that are spelled out in the text, such as `<|im_end|>`, as those tokens. Not for untrusted text.
pub const AKUNU_ENCODE_PARSE_SPECIAL: u32 = 2;

/// Tokenizes a UTF-8 text of `text_length` bytes (AKUNU_TO_NULL: null-terminated). `flags` are AKUNU_ENCODE_…, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_encode(
    model: *const ModelHandle,
    text: *const c_char,
    text_length: usize,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        if flags & !(AKUNU_ENCODE_ADD_SPECIAL | AKUNU_ENCODE_PARSE_SPECIAL) != 0 {
            return Err(Failure::argument(format!(
                "the flags {flags:#x} contain unknown bits: use AKUNU_ENCODE_…"
            )));
        }
        let options = EncodeOptions {
            add_special: flags & AKUNU_ENCODE_ADD_SPECIAL != 0,
            parse_special: flags & AKUNU_ENCODE_PARSE_SPECIAL != 0,
        };
        // SAFETY: guaranteed by the caller.
        let text = unsafe { self::text(text, text_length, "the text") }?;
        let ids = model.tokenizer()?.encode(text, options).map_err(Error::from)?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer: tokens, capacity, length: count }.fill(&ids) }
    })
}

/// The bytes of a token: none for a control token, and for some tokens only a part of a character. A null character is
/// appended and not counted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_decode_token(
    model: *const ModelHandle,
    token: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        let tokenizer = model.tokenizer()?;
        if token as usize >= model.model.config().vocab_size {
            return Err(outside(token, model.model.config().vocab_size));
        }
        // The embedding may have more rows than the vocabulary has tokens; those have no text.
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer, capacity, length }.fill_text(bytes) }
    })
}

fn outside(token: u32, vocabulary: usize) -> Failure {
    Failure::argument(format!("token {token} is outside the vocabulary of {vocabulary}"))
}

/// Decodes tokens to UTF-8 text. Control tokens have no text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_decode(
    model: *const ModelHandle,
    tokens: *const u32,
    count: usize,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let tokens = unsafe { items(tokens, count, "the tokens") }?;
        let vocabulary = model.model.config().vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(outside(token, vocabulary));
        }
        let text = model.model.decode(tokens)?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer, capacity, length }.fill_text(text.as_bytes()) }
    })
}

/// Sets `is_end` to 1 if the token is one of the model's end-of-sequence tokens, else to 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_is_end(model: *const ModelHandle, token: u32, is_end: *mut u32) -> Status {
    guard(|| {
        let is_eos = MODELS.get(model)?.model.eos_ids().contains(&token);
        // SAFETY: guaranteed by the caller.
        unsafe { write(is_end, u32::from(is_eos), "is_end") }
    })
}

//! Models: loading and freeing, what they are, and their vocabulary.

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use akunu::{DeviceChoice, Engine, EngineOptions, Error};
use akunu_tokenizer::{EncodeOptions, Tokenizer};

use crate::arguments::{Room, check_pointer, items, read_options, text, wanted_text, write, write_struct};
use crate::boundary::{Failure, Status, check_not_in_callback, guard};
use crate::registry::{Registry, number};
use crate::session::SESSIONS;
use crate::structs::{Config, KvType, LoadOptions, Memory, ModelHandle};
use crate::worker::Post;

pub(crate) static MODELS: Registry<Model> = Registry::new("model");

/// A loaded model, as every thread may see it.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) number: usize,
    pub(crate) model: Arc<akunu::Model>,
    /// Where its file or folder is; `None`: embedded.
    pub(crate) path: Option<PathBuf>,
    pub(crate) post: Post,
    pub(crate) facts: Facts,
}

/// What an engine is for good.
#[derive(Debug)]
pub(crate) struct Facts {
    config: Config,
    memory: Memory,
    device: String,
    notes: String,
    /// Of a decode step's commands.
    pub(crate) labels: Vec<String>,
}

impl Model {
    pub(crate) fn tokenizer(&self) -> Result<&dyn Tokenizer, Failure> {
        Ok(&**self.model.tokenizer()?)
    }
}

/// A count for C. None of them comes near the limit.
pub(crate) fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn token(id: Option<u32>) -> i32 {
    id.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1)
}

fn facts(engine: &Engine) -> Facts {
    let (model, plan) = (engine.model(), engine.plan());
    let (config, options, memory) = (model.config(), &plan.options, &plan.memory);
    let tokenizer = model.tokenizer().ok();
    let capabilities = engine.device().capabilities();
    let labels = &plan.tables.decode().labels;
    let kernels = plan.tables.decode().commands.iter().map(|command| command.kernel.name());
    Facts {
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
        notes: engine.notes().iter().map(|note| note.to_string()).collect::<Vec<_>>().join("\n"),
        labels: labels.iter().zip(kernels).map(|(label, kernel)| format!("{label} {kernel}")).collect(),
    }
}

/// # Safety
/// The device's name is null or a text.
unsafe fn engine_options(options: &LoadOptions) -> Result<EngineOptions, Failure> {
    let wanted = |value: u32| (value > 0).then_some(value as usize);
    // SAFETY: the caller's word.
    let device = unsafe { wanted_text(options.device, "the device") }?;
    let kv = match options.kv_type {
        v if v == KvType::F16 as u32 => akunu::KvType::F16,
        v if v == KvType::F32 as u32 => akunu::KvType::F32,
        v if v == KvType::Q8_0 as u32 => akunu::KvType::Q8_0,
        other => {
            return Err(Failure::argument(format!("the KV type {other} is none: take an akunu_kv_type")));
        }
    };
    let defaults = EngineOptions::default();
    Ok(EngineOptions {
        device: device.map_or(Ok(DeviceChoice::Auto), DeviceChoice::from_str)?,
        threads: wanted(options.threads),
        backends: crate::environment::backends(),
        context: wanted(options.context),
        kv,
        slots: options.sessions.max(1) as usize,
        chunk: wanted(options.chunk),
        chain: wanted(options.chain),
        chain_time: match options.chain_ms {
            0 => defaults.chain_time,
            ms => Duration::from_millis(ms.into()),
        },
        ..defaults
    })
}

/// How many devices this library knows, whether or not they are there.
#[unsafe(no_mangle)]
pub extern "C" fn akunu_device_count() -> u32 {
    small(DeviceChoice::ALL.len())
}

/// The name of the device number `index`, for akunu_load_options: "auto" comes first.
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
        // SAFETY: the caller's word.
        unsafe { Room { buffer, capacity, length }.fill_text(device.name().as_bytes()) }
    })
}

/// Loads a model: a GGUF file, a SafeTensors file, or a folder of Hugging Face's or MLX's. A null `path` loads the small
/// story-teller that comes with the library. Null `options` are the usual ones. Free it with akunu_free_model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_load_model(
    path: *const c_char,
    options: *const LoadOptions,
    model: *mut *mut ModelHandle,
) -> Status {
    guard(|| {
        check_pointer(model, "the place for the model")?;
        // SAFETY: the caller's word.
        let path = unsafe { wanted_text(path, "the path") }?.map(Path::new);
        // SAFETY: the caller's word.
        let options = unsafe { engine_options(&read_options(options)?) }?;
        let opened = Arc::new(path.map_or_else(akunu::Model::embedded, akunu::Model::open)?);
        let (post, facts) = Post::open(opened.clone(), options, facts)?;
        let number = number();
        let path = path.map(Path::to_path_buf);
        let loaded = Arc::new(Model { number, model: opened, path, post, facts });
        // SAFETY: checked, and the caller's word.
        unsafe { write(model, MODELS.add(number, loaded), "the place for the model") }
    })
}

/// Frees a model and its sessions, whose handles are no good from then on. A text that another thread is generating ends
/// as cancelled, and is waited for. Null is nothing to free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_free_model(model: *mut ModelHandle) -> Status {
    guard(|| {
        if model.is_null() {
            return Ok(());
        }
        check_not_in_callback()?;
        let model = MODELS.remove(model)?;
        SESSIONS.retain(|session| session.model.number != model.number);
        model.post.close();
        Ok(())
    })
}

/// What a model is, and how it was loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_get_config(model: *const ModelHandle, config: *mut Config) -> Status {
    // SAFETY: the caller's word.
    guard(|| unsafe { write_struct(config, &MODELS.get(model)?.facts.config) })
}

/// Where a model's bytes are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_model_memory(model: *const ModelHandle, memory: *mut Memory) -> Status {
    // SAFETY: the caller's word.
    guard(|| unsafe { write_struct(memory, &MODELS.get(model)?.facts.memory) })
}

/// What akunu_describe tells.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum About {
    /// The file's name, or `embedded`.
    Name = 0,
    /// As the file names it: `llama`.
    Architecture = 1,
    /// What the model runs on.
    Device = 2,
    /// What was decided when it was loaded and is worth telling, a line each; often nothing.
    Notes = 3,
}

/// A text about a model: `about` is an akunu_about.
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
            a if a == About::Device as u32 => &model.facts.device,
            a if a == About::Notes as u32 => &model.facts.notes,
            other => return Err(Failure::argument(format!("{other} is no akunu_about"))),
        };
        // SAFETY: the caller's word.
        unsafe { Room { buffer, capacity, length }.fill_text(text.as_bytes()) }
    })
}

/// Add what the model wants around a prompt: usually a token that begins it.
pub const AKUNU_ENCODE_ADD_SPECIAL: u32 = 1;
/// Read `<|im_end|>` and the like as the tokens that they name. Not for text that a stranger wrote.
pub const AKUNU_ENCODE_PARSE_SPECIAL: u32 = 2;

/// The tokens of a UTF-8 text of `text_length` bytes (AKUNU_TO_NULL: up to its null character). `flags` are AKUNU_ENCODE_…, or 0
/// for the text and nothing else.
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
            return Err(Failure::argument(format!("the flags {flags:#x} hold more than AKUNU_ENCODE_…")));
        }
        let options = EncodeOptions {
            add_special: flags & AKUNU_ENCODE_ADD_SPECIAL != 0,
            parse_special: flags & AKUNU_ENCODE_PARSE_SPECIAL != 0,
        };
        // SAFETY: the caller's word.
        let text = unsafe { self::text(text, text_length, "the text") }?;
        let found = model.tokenizer()?.encode(text, options).map_err(Error::from)?;
        // SAFETY: the caller's word.
        unsafe { Room { buffer: tokens, capacity, length: count }.fill(&found) }
    })
}

/// The bytes that a token adds to a text: none for a control token, a part of a character for some. A null character
/// behind them is not counted.
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
        // Models have more rows than tokens; those have no text.
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        // SAFETY: the caller's word.
        unsafe { Room { buffer, capacity, length }.fill_text(bytes) }
    })
}

fn outside(token: u32, vocabulary: usize) -> Failure {
    Failure::argument(format!("token {token} is outside the vocabulary of {vocabulary}"))
}

/// The text of tokens, in UTF-8. Control tokens have none.
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
        // SAFETY: the caller's word.
        let tokens = unsafe { items(tokens, count, "the tokens") }?;
        let vocabulary = model.model.config().vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(outside(token, vocabulary));
        }
        let text = model.model.decode(tokens)?;
        // SAFETY: the caller's word.
        unsafe { Room { buffer, capacity, length }.fill_text(text.as_bytes()) }
    })
}

/// 1 to `is_end` if a token ends texts, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_is_end(model: *const ModelHandle, token: u32, is_end: *mut u32) -> Status {
    guard(|| {
        let ends = MODELS.get(model)?.model.eos_ids().contains(&token);
        // SAFETY: the caller's word.
        unsafe { write(is_end, u32::from(ends), "is_end") }
    })
}

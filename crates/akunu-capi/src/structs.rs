//! The structs of the interface. Each says its own size first; fields are only ever added, at the end, and 0 means in a new one what
//! was meant before it was there. No padding: layouts are the same wherever pointers are as long.

use std::ffi::{c_char, c_void};

use crate::arguments::Plain;

/// A model that stands on a device. An opaque handle.
#[derive(Debug)]
pub struct ModelHandle(());

/// A text in a model's cache, and how it goes on. An opaque handle.
#[derive(Debug)]
pub struct SessionHandle(());

/// A model that makes vectors of texts, on a device. An opaque handle.
#[derive(Debug)]
pub struct EmbedderHandle(());

/// How the states of a text's tokens become one vector.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Pooling {
    /// As the model's files say.
    Model = 0,
    Mean = 1,
    /// The first token's.
    Cls = 2,
    /// The last token's.
    Last = 3,
}

/// How an embedder is loaded. All zeros but for `size`: as the model's files say.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbedSettings {
    /// sizeof(akunu_embed_options)
    pub size: u32,
    /// Host threads; 0: one for each physical core.
    pub threads: u32,
    /// A name that akunu_device_name gives; null: "auto".
    pub device: *const c_char,
    /// Tokens of the longest text; 0: what vectors of the model were made for, at most 8192.
    pub context: u32,
    /// An akunu_pooling.
    pub pooling: u32,
    /// 1: vectors keep the length that the model gives them. 0: they get length 1.
    pub keep_length: u32,
    /// 1: texts that are too long are cut. 0: they are AKUNU_STATUS_CONTEXT.
    pub truncate: u32,
}

/// What a KV cache is made of.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum KvType {
    F16 = 0,
    F32 = 1,
    Q8_0 = 2,
}

/// How a model is loaded. All zeros but for `size`: as Akunu thinks best.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// sizeof(akunu_load_options)
    pub size: u32,
    /// Host threads; 0: one for each physical core.
    pub threads: u32,
    /// A name that akunu_device_name gives; null: "auto".
    pub device: *const c_char,
    /// Positions that each session has; 0: the model's own, at most 4096.
    pub context: u32,
    /// Sessions at once; 0: 1.
    pub sessions: u32,
    /// What the cache is made of, an akunu_kv_type.
    pub kv_type: u32,
    /// Most tokens of a prompt in one pass; 0: what the device likes.
    pub chunk: u32,
    /// Most tokens that the device decodes without the host; 0: what it likes.
    pub chain: u32,
    /// Most milliseconds that the device decodes without the host; 0: 50.
    pub chain_ms: u32,
}

/// What a model is, and how it was loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// sizeof(akunu_config)
    pub size: u32,
    /// Logits of a position. Token ids are smaller.
    pub vocabulary: u32,
    /// Positions that each session has.
    pub context: u32,
    /// Positions that the model was trained for.
    pub trained_context: u32,
    pub layers: u32,
    pub hidden_size: u32,
    pub ffn_size: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_size: u32,
    /// Sessions at once.
    pub sessions: u32,
    /// Most tokens of a prompt in one pass.
    pub chunk: u32,
    /// Most tokens that the device decodes without the host.
    pub chain: u32,
    /// Commands of a decode step: what akunu_profile_decode_step times.
    pub commands: u32,
    /// Tokens that have a text; 0: the model takes and gives ids only.
    pub tokens: u32,
    /// The token that begins a text, or -1.
    pub begin_token: i32,
    /// The token that ends a text, or -1. There may be more: akunu_is_end.
    pub end_token: i32,
    /// 0.
    pub reserved: u32,
}

/// Where a model's bytes are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// sizeof(akunu_memory)
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// What the device allocated: the sum of the six that follow.
    pub allocated: u64,
    /// Weights that were copied to the device.
    pub weights_copied: u64,
    pub constants: u64,
    pub kv_cache: u64,
    pub scratch: u64,
    pub rows_and_logits: u64,
    /// The device's own.
    pub workspace: u64,
    /// Weights used where the file is mapped, shared with everyone who maps it.
    pub weights_in_place: u64,
    /// The list of commands, on the host.
    pub tables: u64,
}

/// How the next token is picked. A session begins with temperature 0: always the best token. Get it, change it, set it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SamplingSettings {
    /// sizeof(akunu_sampling)
    pub size: u32,
    /// 0: always the best token.
    pub temperature: f32,
    /// Only the k best; 0: all.
    pub top_k: u32,
    /// Only the fewest best whose probabilities reach this; 1: all.
    pub top_p: f32,
    /// Only those at least this times as probable as the best; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens among the latest; 1: off.
    pub repeat_penalty: f32,
    /// Subtracted for each occurrence among the latest; 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once for an occurrence among the latest; 0: off.
    pub presence_penalty: f32,
    /// How many the latest are.
    pub repeat_last_n: u32,
    /// 0.
    pub reserved: u32,
    /// The same seed gives the same tokens.
    pub seed: u64,
}

/// What happens when the context is full and the text is not done.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Overflow {
    /// The text ends, with AKUNU_FINISH_CONTEXT_FULL.
    Stop = 0,
    /// AKUNU_STATUS_CONTEXT.
    Error = 1,
    /// The older half of what follows the first `keep` tokens is forgotten, and the text goes on.
    Shift = 2,
}

/// When a text ends. All zeros but for `size`: where the model ends it, or the context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GenerateSettings {
    /// sizeof(akunu_generate_options)
    pub size: u32,
    /// Most tokens; 0: no limit.
    pub max_tokens: u32,
    /// Texts, each up to its null character, that end the text before them. They may span tokens.
    pub stop_texts: *const *const c_char,
    /// Tokens that end the text, besides the model's own.
    pub stop_tokens: *const u32,
    pub stop_text_count: u32,
    pub stop_token_count: u32,
    /// An akunu_overflow.
    pub overflow: u32,
    /// Tokens at the beginning that AKUNU_OVERFLOW_SHIFT never forgets.
    pub keep: u32,
    /// 1: go on past the model's own end of a text.
    pub ignore_end: u32,
    /// 0.
    pub reserved: u32,
}

/// What a callback gets: a piece of text as soon as it is certain. It is gone when the callback returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenPiece {
    /// What this library's akunu_piece has.
    pub size: u32,
    /// How many tokens came since the last piece.
    pub token_count: u32,
    /// Whole UTF-8 characters, and a null character that `text_length` does not count.
    pub text: *const c_char,
    pub text_length: usize,
    /// Text that may begin a stop text is held back, so the text may belong to earlier tokens in part.
    pub tokens: *const u32,
}

/// Called with each piece of a text on the thread that asked for it; AKUNU_CONTINUE or AKUNU_STOP.
///
/// It may call what does not wait for the model (akunu_encode, akunu_decode, akunu_get_config, akunu_cancel, akunu_get_error);
/// whatever else it calls answers AKUNU_STATUS_BUSY. It must neither throw nor jump out.
pub type OnPiece = Option<unsafe extern "C" fn(piece: *const TokenPiece, user: *mut c_void) -> i32>;

/// Why a text ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, with `end_token`.
    End = 1,
    /// A stop text came up.
    StopText = 2,
    /// `end_token` did, one of the stop tokens.
    StopToken = 3,
    MaxTokens = 4,
    ContextFull = 5,
    /// akunu_cancel, or the model was freed.
    Cancelled = 6,
    /// The callback said so.
    Callback = 7,
}

/// What a text took.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// sizeof(akunu_stats)
    pub size: u32,
    /// An akunu_finish.
    pub finish: u32,
    /// The token that ended the text, which is no part of it, or -1.
    pub end_token: i64,
    pub prompt_tokens: u64,
    /// Of these, how many stood in the session already.
    pub reused_tokens: u64,
    pub generated_tokens: u64,
    /// From the call to the prompt's last logits.
    pub prompt_seconds: f64,
    /// From then to the end.
    pub generate_seconds: f64,
    /// From the call to the first token.
    pub first_token_seconds: f64,
}

macro_rules! plain {
    ($($name:ident = $c:literal;)*) => {$(
        // SAFETY: repr(C), a u32 first, integers, floats and pointers without padding (tests/abi.rs adds them up).
        unsafe impl Plain for $name {
            const NAME: &'static str = $c;
            const FIRST: usize = size_of::<$name>();
        }
    )*};
}

plain! {
    LoadOptions = "akunu_load_options";
    EmbedSettings = "akunu_embed_options";
    Config = "akunu_config";
    Memory = "akunu_memory";
    SamplingSettings = "akunu_sampling";
    GenerateSettings = "akunu_generate_options";
    Stats = "akunu_stats";
}

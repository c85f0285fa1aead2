//! The structs of the C API. Each begins with its own size. New fields are only added at the end, and 0 in a new field selects the
//! behaviour from before the field existed. There is no padding, so layouts depend only on the size of pointers.

use std::ffi::{c_char, c_void};

use crate::arguments::SizedStruct;

/// A model that is loaded on a device. An opaque handle.
#[derive(Debug)]
pub struct ModelHandle(());

/// A sequence of tokens in a model's KV cache, with sampling settings. An opaque handle.
#[derive(Debug)]
pub struct SessionHandle(());

/// An embedding model that is loaded on a device. An opaque handle.
#[derive(Debug)]
pub struct EmbedderHandle(());

/// A model that transcribes, loaded on a device. An opaque handle.
#[derive(Debug)]
pub struct TranscriberHandle(());

/// A request to a model that was loaded with `batch`. An opaque handle.
#[derive(Debug)]
pub struct RequestHandle(());

/// Called while a model is loaded, on the thread that loads it: `done` of `total` bytes of weights are loaded. Both
/// are 0 before the files have been read, and both are equal while the device prepares. Returns AKUNU_CONTINUE or
/// AKUNU_STOP, which cancels the loading with AKUNU_STATUS_CANCELLED. The rules of akunu_on_piece apply.
pub type OnProgress = Option<unsafe extern "C-unwind" fn(done: u64, total: u64, user: *mut c_void) -> i32>;

/// How the hidden states of a text's tokens become one vector.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Pooling {
    /// As the model's files say.
    Model = 0,
    /// The mean over all tokens.
    Mean = 1,
    /// The state of the first token.
    Cls = 2,
    /// The state of the last token.
    Last = 3,
}

/// Options for loading an embedder. 0 in every field but `size` selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbedSettings {
    /// sizeof(akunu_embed_options)
    pub size: u32,
    /// CPU threads; 0: one per physical core.
    pub threads: u32,
    /// The name of a device as akunu_device_name gives it; null: "auto".
    pub device: *const c_char,
    /// Maximum tokens of a text; 0: the maximum that the model was trained for, at most 8192.
    pub context: u32,
    /// An akunu_pooling.
    pub pooling: u32,
    /// 1: vectors keep the length that the model gives them. 0: they are normalised to length 1.
    pub keep_length: u32,
    /// 1: texts that are too long are truncated. 0: they are an error, AKUNU_STATUS_CONTEXT.
    pub truncate: u32,
    /// Called while the model is loaded; may be null.
    pub on_progress: OnProgress,
    /// Passed to `on_progress`.
    pub progress_user: *mut c_void,
}

/// The data type of a KV cache.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum KvType {
    F16 = 0,
    F32 = 1,
    Q8_0 = 2,
}

/// Options for loading a model. 0 in every field but `size` selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// sizeof(akunu_load_options)
    pub size: u32,
    /// CPU threads; 0: one per physical core.
    pub threads: u32,
    /// The name of a device as akunu_device_name gives it; null: "auto".
    pub device: *const c_char,
    /// Context length of each session, in tokens; 0: the model's own, as far as memory allows.
    pub context: u32,
    /// Maximum number of sessions; 0: 1.
    pub sessions: u32,
    /// The data type of the KV cache, an akunu_kv_type.
    pub kv_type: u32,
    /// Maximum tokens of a prompt in one prefill pass; 0: chosen for the device.
    pub chunk: u32,
    /// Maximum tokens decoded in one submission to the device; 0: chosen for the device.
    pub chain: u32,
    /// Maximum duration of one submission when decoding, in milliseconds; 0: 50.
    pub chain_ms: u32,
    /// Called while the model is loaded; may be null.
    pub on_progress: OnProgress,
    /// Passed to `on_progress`.
    pub progress_user: *mut c_void,
    /// 1: the model takes requests (akunu_submit), up to `sessions` of which share each pass. It has no sessions of
    /// the program's.
    pub batch: u32,
    /// With `batch`: maximum number of requests that wait; 0: 256.
    pub queue: u32,
}

/// Properties of a loaded model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// sizeof(akunu_config)
    pub size: u32,
    /// Number of logits per position. Every token id is below it.
    pub vocabulary: u32,
    /// Context length of each session, in tokens.
    pub context: u32,
    /// Context length that the model was trained for.
    pub trained_context: u32,
    pub layers: u32,
    pub hidden_size: u32,
    pub ffn_size: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_size: u32,
    /// Maximum number of sessions.
    pub sessions: u32,
    /// Maximum tokens of a prompt in one prefill pass.
    pub chunk: u32,
    /// Maximum tokens decoded in one submission to the device.
    pub chain: u32,
    /// Commands of a decode step, as timed by akunu_profile_decode_step.
    pub commands: u32,
    /// Size of the tokenizer's vocabulary; 0: the model has no tokenizer, so only token ids can be used.
    pub tokens: u32,
    /// The beginning-of-sequence token, or -1.
    pub begin_token: i32,
    /// The end-of-sequence token, or -1. A model may have several; see akunu_is_end.
    pub end_token: i32,
    /// Must be 0.
    pub reserved: u32,
}

/// Memory use of a loaded model, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// sizeof(akunu_memory)
    pub size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Allocated on the device: the sum of the next six fields.
    pub allocated: u64,
    /// Weights copied to the device.
    pub weights_copied: u64,
    pub constants: u64,
    pub kv_cache: u64,
    pub scratch: u64,
    pub rows_and_logits: u64,
    /// Scratch memory of the device's driver and libraries.
    pub workspace: u64,
    /// Weights used in place in the memory-mapped file, not part of `allocated`.
    pub weights_in_place: u64,
    /// Dispatch tables in host memory, not part of `allocated`.
    pub tables: u64,
}

/// Sampling settings. A new session samples greedily (temperature 0). To change a setting, call akunu_get_sampling, change the
/// field, and call akunu_set_sampling. docs/sampling.md defines the samplers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SamplingSettings {
    /// sizeof(akunu_sampling)
    pub size: u32,
    /// 0: greedy, the most probable token.
    pub temperature: f32,
    /// Sample from the k most probable tokens; 0: from all.
    pub top_k: u32,
    /// Sample from the smallest set of most probable tokens whose probabilities sum to this; 1: from all.
    pub top_p: f32,
    /// Sample from tokens whose probability is at least this fraction of the highest; 0: from all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the penalty window; 1: off.
    pub repeat_penalty: f32,
    /// Subtracted from a logit for each occurrence in the penalty window; 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of a token in the penalty window; 0: off.
    pub presence_penalty: f32,
    /// The penalty window: how many of the latest tokens are considered.
    pub repeat_last_n: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The same seed gives the same tokens.
    pub seed: u64,
    /// Sample from tokens whose logit is at most this many standard deviations of all logits below the highest; 0: from
    /// all.
    pub top_n_sigma: f32,
    /// Sample from the tokens whose surprise is nearest to the mean, until their probabilities sum to this; 0 or 1: from
    /// all.
    pub typical_p: f32,
    /// XTC: how often the most probable tokens are excluded, from 0 to 1; 0: never.
    pub xtc_probability: f32,
    /// XTC: tokens with at least this probability are excluded, except the least probable of them; 0: 0.1.
    pub xtc_threshold: f32,
    /// Dynamic temperature: from `temperature` less this to `temperature` and this, by the entropy; 0: off.
    pub dynatemp_range: f32,
    /// Dynamic temperature: the power of the relative entropy by which it rises; 0: 1.
    pub dynatemp_exponent: f32,
    /// DRY: what is subtracted from the logit of a token that would extend a repetition of `dry_allowed_length` tokens;
    /// 0: off.
    pub dry_multiplier: f32,
    /// DRY: multiplies that for each further token of the repetition; 0: 1.75.
    pub dry_base: f32,
    /// DRY: the shortest repetition that counts, in tokens; 0: 2.
    pub dry_allowed_length: u32,
    /// DRY: how many of the latest tokens are searched for repetitions; 0: all. akunu_set_dry_breakers says what ends a
    /// repetition.
    pub dry_last_n: u32,
    /// Mirostat 2: the mean surprise of tokens in bits, which a limit is adjusted to; 0: off. Usual is 5.
    pub mirostat_tau: f32,
    /// Mirostat 2: how fast the limit is adjusted; 0: 0.1.
    pub mirostat_eta: f32,
}

/// What happens when the context is full before the text is complete.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Overflow {
    /// Stop with AKUNU_FINISH_CONTEXT_FULL.
    Stop = 0,
    /// Fail with AKUNU_STATUS_CONTEXT.
    Error = 1,
    /// Discard the older half of the tokens after the first `keep`, and continue.
    Shift = 2,
}

/// Limits of a generation. 0 in every field but `size`: until the model ends the text or the context is full.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GenerateSettings {
    /// sizeof(akunu_generate_options)
    pub size: u32,
    /// Maximum number of generated tokens; 0: no limit.
    pub max_tokens: u32,
    /// Null-terminated texts. The generation stops before the first of them, which may span tokens.
    pub stop_texts: *const *const c_char,
    /// Token ids that stop the generation, in addition to the model's end-of-sequence tokens.
    pub stop_tokens: *const u32,
    pub stop_text_count: u32,
    pub stop_token_count: u32,
    /// An akunu_overflow.
    pub overflow: u32,
    /// Tokens at the beginning that AKUNU_OVERFLOW_SHIFT keeps.
    pub keep: u32,
    /// 1: continue after the model's end-of-sequence tokens.
    pub ignore_end: u32,
    /// The format that the text must have, an akunu_answer_format except AKUNU_ANSWER_FORMAT_TOOL_CALL. Not for
    /// akunu_generate_answer, which has its own.
    pub format: u32,
    /// As `schema` of akunu_answer_options.
    pub schema: *const c_char,
    /// 1: pieces have the log probabilities of their tokens. Not for akunu_generate_answer.
    pub logprobs: u32,
    /// With `logprobs`: how many of the most probable tokens in each token's place to report too, at most 256.
    pub top_logprobs: u32,
}

/// A token and the natural logarithm of its probability, before temperature, limits and penalties. Its layout does not
/// change.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    pub token: u32,
    pub logprob: f32,
}

/// A piece of generated text. Valid until the callback returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenPiece {
    /// The size of akunu_piece in this library.
    pub size: u32,
    /// Number of tokens generated since the previous piece.
    pub token_count: u32,
    /// Whole UTF-8 characters, followed by a null character that `text_length` does not count.
    pub text: *const c_char,
    pub text_length: usize,
    /// The tokens since the previous piece. Text that may be the beginning of a stop text is held back, so `text` may
    /// belong to earlier tokens in part.
    pub tokens: *const u32,
    /// If requested, `logprob_count` for each of `tokens`: the token's own, then those of the most probable tokens in
    /// its place, descending. Else null.
    pub logprobs: *const Logprob,
    /// 1 and the number of most probable tokens, or 0.
    pub logprob_count: u32,
    /// 0.
    pub reserved: u32,
}

/// Called with each piece of text, on the thread that called akunu_generate. Returns AKUNU_CONTINUE or AKUNU_STOP.
///
/// It may call functions that do not wait for the model (akunu_encode, akunu_decode, akunu_get_config, akunu_cancel,
/// akunu_get_error). Others return AKUNU_STATUS_BUSY. It must not use longjmp, and an exception that leaves it ends
/// the process.
pub type OnPiece = Option<unsafe extern "C-unwind" fn(piece: *const TokenPiece, user: *mut c_void) -> i32>;

/// Why a generation ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended the text, with `end_token`.
    End = 1,
    /// A stop text was generated.
    StopText = 2,
    /// A stop token was generated, `end_token`.
    StopToken = 3,
    /// `max_tokens` were generated.
    MaxTokens = 4,
    /// The context is full.
    ContextFull = 5,
    /// By akunu_cancel, or because the model or session was freed.
    Cancelled = 6,
    /// The callback returned AKUNU_STOP.
    Callback = 7,
    /// The model ended its answer, which has tool calls to be run (akunu_generate_answer only).
    ToolCalls = 8,
}

/// Statistics of a generation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// sizeof(akunu_stats)
    pub size: u32,
    /// An akunu_finish.
    pub finish: u32,
    /// The token that ended the text and is not part of it, or -1.
    pub end_token: i64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, how many were in the session already.
    pub reused_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// From the call to the end of the prefill.
    pub prompt_seconds: f64,
    /// From the end of the prefill to the end of the generation.
    pub generate_seconds: f64,
    /// From the call to the first token.
    pub first_token_seconds: f64,
    /// Generated tokens that belong to reasoning (akunu_generate_answer only).
    pub reasoning_tokens: u64,
}

/// The format that an answer must have.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum AnswerFormat {
    /// Any text, and tool calls if the conversation has tools.
    Text = 0,
    /// A JSON object.
    JsonObject = 1,
    /// JSON that conforms to `schema`.
    JsonSchema = 2,
    /// One call of one of the conversation's tools.
    ToolCall = 3,
    /// A text that the regular expression in `schema` matches as a whole.
    Regex = 4,
    /// A text of the grammar in `schema`, in llama.cpp's syntax (GBNF) or in Lark's.
    Grammar = 5,
}

/// Options for answering a conversation. 0 in every field but `size` selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AnswerSettings {
    /// sizeof(akunu_answer_options)
    pub size: u32,
    /// An akunu_answer_format.
    pub format: u32,
    /// A JSON Schema for AKUNU_ANSWER_FORMAT_JSON_SCHEMA, as JSON; a regular expression for _REGEX; a grammar for _GRAMMAR.
    pub schema: *const c_char,
    /// The name of a chat template of the model; null: the default.
    pub template_name: *const c_char,
    /// 1: the answer ends after its first tool call.
    pub one_call: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// What an akunu_delta adds to an answer.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaKind {
    /// `text` is reasoning.
    Reasoning = 1,
    /// `text` is part of the answer.
    Answer = 2,
    /// A whole tool call: of the function `name`, with the JSON object `text` as arguments.
    ToolCall = 3,
}

/// An addition to an answer. Valid until the callback returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AnswerDelta {
    /// The size of akunu_delta in this library.
    pub size: u32,
    /// An akunu_delta_kind.
    pub kind: u32,
    /// Whole UTF-8 characters, followed by a null character that `text_length` does not count.
    pub text: *const c_char,
    /// Bytes of `text`.
    pub text_length: usize,
    /// The function that a tool call calls, else null.
    pub name: *const c_char,
    /// The number of a tool call in the answer, from 0.
    pub index: u32,
    /// 0.
    pub reserved: u32,
}

/// Called with each addition to an answer, on the thread that called akunu_generate_answer. The rules of akunu_on_piece apply.
pub type OnDelta = Option<unsafe extern "C-unwind" fn(delta: *const AnswerDelta, user: *mut c_void) -> i32>;

/// How a request is scheduled and sampled. 0 in every field but `size` selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestSettings {
    /// sizeof(akunu_request_options)
    pub size: u32,
    /// Requests with a lower value get a place in the batch first.
    pub priority: i32,
    /// Places are shared fairly between owners, however many requests each has.
    pub owner: u64,
    /// The cache of prompts is shared by requests of the same salt only, because its use can be measured.
    pub salt: u64,
    /// Null: greedy.
    pub sampling: *const SamplingSettings,
    /// `biases[i]` is added to the logit of `bias_tokens[i]`.
    pub bias_tokens: *const u32,
    pub biases: *const f32,
    pub bias_count: usize,
    /// As in akunu_set_dry_breakers.
    pub dry_breakers: *const *const c_char,
    pub dry_breaker_count: usize,
}

/// Options for loading a transcriber. 0 in every field but `size` selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TranscriberSettings {
    /// sizeof(akunu_transcriber_options)
    pub size: u32,
    /// CPU threads; 0: one per physical core.
    pub threads: u32,
    /// The name of a device as akunu_device_name gives it; null: "auto".
    pub device: *const c_char,
    /// Windows of audio that are decoded together, with `parallel`; 0: 1. Each takes memory.
    pub windows: u32,
    /// Texts of a window that are followed; 1: greedy; 0: 5. Each takes memory.
    pub beams: u32,
    /// 1: the times of words can be found (AKUNU_TIMESTAMPS_WORD). It takes memory.
    pub word_times: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Called while the model is loaded; may be null.
    pub on_progress: OnProgress,
    /// Passed to `on_progress`.
    pub progress_user: *mut c_void,
}

/// The language of a transcript.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum SpeechTask {
    /// The language that is spoken.
    Transcribe = 0,
    /// English.
    Translate = 1,
}

/// The times in a transcript.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Timestamps {
    /// Of segments, as the model writes them.
    Segment = 0,
    /// Of segments and words. The transcriber needs `word_times`.
    Word = 1,
    /// The model writes no times, and segments are windows that are cut where the audio is quiet.
    None = 2,
}

/// Options for a transcription. 0 in every field but `size` selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TranscribeSettings {
    /// sizeof(akunu_transcribe_options)
    pub size: u32,
    /// An akunu_speech_task.
    pub task: u32,
    /// A code or an English name, such as "de" or "german"; null: detected in the first 30 seconds.
    pub language: *const c_char,
    /// Text before the audio, from which names, spelling and style are taken; null: none.
    pub prompt: *const c_char,
    /// An akunu_timestamps.
    pub timestamps: u32,
    /// 1: windows are cut where the audio is quiet, and several of them are decoded together. 0: each window is decoded
    /// after the text of the one before.
    pub parallel: u32,
    /// 0: the most probable text, and higher temperatures for windows whose text is poor.
    pub temperature: f32,
    /// 1: one attempt at each window.
    pub no_fallback: u32,
}

/// A word and when it is said, in seconds. Its layout does not change.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpokenWord {
    /// Whole UTF-8 characters, with the space before the word, followed by a null character that `text_length` does not
    /// count.
    pub text: *const c_char,
    pub text_length: usize,
    pub start: f64,
    pub end: f64,
}

/// A part of a transcript. Valid until the callback returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpeechSegment {
    /// The size of akunu_segment in this library.
    pub size: u32,
    /// Number of `words`.
    pub word_count: u32,
    /// Whole UTF-8 characters, with the space before the first word, followed by a null character that `text_length` does
    /// not count.
    pub text: *const c_char,
    pub text_length: usize,
    /// Seconds from the beginning of the audio.
    pub start: f64,
    pub end: f64,
    /// With AKUNU_TIMESTAMPS_WORD, else null.
    pub words: *const SpokenWord,
    /// The code of the language that is spoken, such as "en".
    pub language: *const c_char,
}

/// Called with each segment of a transcript, on the thread that called akunu_transcribe. The rules of akunu_on_piece
/// apply.
pub type OnSegment =
    Option<unsafe extern "C-unwind" fn(segment: *const SpeechSegment, user: *mut c_void) -> i32>;

macro_rules! sized_structs {
    ($($name:ident = $c:literal, $first:expr;)*) => {$(
        impl Default for $name {
            /// The defaults, with the size set.
            fn default() -> $name {
                // SAFETY: as of the implementation below: zeros are a value.
                let zeros = unsafe { std::mem::zeroed::<$name>() };
                $name { size: size_of::<$name>() as u32, ..zeros }
            }
        }

        // SAFETY: repr(C), a u32 first, integers, floats, pointers and optional functions without padding (checked by
        // tests/capi/abi.rs).
        unsafe impl SizedStruct for $name {
            const NAME: &'static str = $c;
            const FIRST: usize = $first;
        }
    )*};
}

sized_structs! {
    // Without what has been added since.
    LoadOptions = "akunu_load_options", std::mem::offset_of!(LoadOptions, on_progress);
    EmbedSettings = "akunu_embed_options", std::mem::offset_of!(EmbedSettings, on_progress);
    TranscriberSettings = "akunu_transcriber_options", size_of::<TranscriberSettings>();
    TranscribeSettings = "akunu_transcribe_options", size_of::<TranscribeSettings>();
    GenerateSettings = "akunu_generate_options", std::mem::offset_of!(GenerateSettings, schema);
    Stats = "akunu_stats", std::mem::offset_of!(Stats, reasoning_tokens);
    Config = "akunu_config", size_of::<Config>();
    Memory = "akunu_memory", size_of::<Memory>();
    SamplingSettings = "akunu_sampling", std::mem::offset_of!(SamplingSettings, top_n_sigma);
    AnswerSettings = "akunu_answer_options", size_of::<AnswerSettings>();
    RequestSettings = "akunu_request_options", std::mem::offset_of!(RequestSettings, dry_breakers);
}

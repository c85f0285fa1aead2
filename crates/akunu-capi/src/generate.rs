//! Generation of text from tokens, streamed in pieces.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use akunu::schedule::TokenLogprob;
use akunu::{Constraint, FinishReason, GenerateOptions, Generated, Piece, Sampling, Timings};

use crate::answer::response_format;
use crate::arguments::{AKUNU_TO_NULL, check_struct, items, optional_text, read_options, text, write_struct};
use crate::boundary::{Failure, Status, check_not_in_callback, guard, in_callback};
use crate::log::{LogLevel, log};
use crate::model::{Model, small};
use crate::session::{SESSIONS, Session};
use crate::structs::{
    Finish, GenerateSettings, Logprob, OnPiece, Overflow, SessionHandle, Stats, TokenPiece,
};
use crate::worker::{Emit, EngineQueue, Worker, keep_pending};

/// Returned by a callback to continue.
pub const AKUNU_CONTINUE: i32 = 0;
/// Returned by a callback to stop the generation. Any value but AKUNU_CONTINUE does.
pub const AKUNU_STOP: i32 = 1;

/// The most alternatives whose log probabilities are reported.
const MAX_TOP_LOGPROBS: u32 = 256;

/// A piece of text and its tokens, on its way from the engine's thread to the caller's.
#[derive(Debug)]
pub(crate) struct OwnedPiece {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<Logprob>,
}

impl OwnedPiece {
    pub(crate) fn new(text: &str, ids: &[u32], logprobs: &[TokenLogprob]) -> OwnedPiece {
        let mut text = text.to_string();
        text.push('\0');
        let flat = |of: &TokenLogprob| {
            let own = Logprob { token: of.id, logprob: of.logprob };
            let top = of.top.iter().map(|&(token, logprob)| Logprob { token, logprob });
            std::iter::once(own).chain(top).collect::<Vec<_>>()
        };
        OwnedPiece { text, tokens: ids.to_vec(), logprobs: logprobs.iter().flat_map(flat).collect() }
    }

    /// The piece for C, valid as long as this one.
    pub(crate) fn view(&self) -> TokenPiece {
        let OwnedPiece { text, tokens, logprobs } = self;
        TokenPiece {
            size: small(size_of::<TokenPiece>()),
            token_count: small(tokens.len()),
            text: text.as_ptr().cast::<c_char>(),
            text_length: text.len() - 1,
            tokens: tokens.as_ptr(),
            logprobs: if logprobs.is_empty() { std::ptr::null() } else { logprobs.as_ptr() },
            logprob_count: small(logprobs.len() / tokens.len().max(1)),
            reserved: 0,
        }
    }
}

/// Generates the continuation of the prompt `tokens`. The prefix of the prompt that is in the session already is not prefilled
/// again. `on_piece` (may be null) is called with each piece of text and `user`. `stats` (may be null) gets the statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_generate(
    session: *mut SessionHandle,
    tokens: *const u32,
    count: usize,
    options: *const GenerateSettings,
    on_piece: OnPiece,
    user: *mut c_void,
    stats: *mut Stats,
) -> Status {
    // SAFETY: guaranteed by the caller.
    guard(|| unsafe { generate(session, false, (tokens, count), options, (on_piece, user), stats) })
}

/// As akunu_generate, with a prompt that is the session's whole text followed by `tokens` (`count` may be 0).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_generate_continue(
    session: *mut SessionHandle,
    tokens: *const u32,
    count: usize,
    options: *const GenerateSettings,
    on_piece: OnPiece,
    user: *mut c_void,
    stats: *mut Stats,
) -> Status {
    // SAFETY: guaranteed by the caller.
    guard(|| unsafe { generate(session, true, (tokens, count), options, (on_piece, user), stats) })
}

/// Cancels the generations of a session that are running or queued. May be called from any thread, and from a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_cancel(session: *mut SessionHandle) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        session.model.queue()?.cancel(session.number);
        Ok(())
    })
}

/// # Safety
/// The pointers are as the documentation of akunu_generate says.
unsafe fn generate(
    session: *mut SessionHandle,
    continues: bool,
    (tokens, count): (*const u32, usize),
    options: *const GenerateSettings,
    (on_piece, user): (OnPiece, *mut c_void),
    stats: *mut Stats,
) -> Result<(), Failure> {
    let session = SESSIONS.get(session)?;
    // SAFETY: guaranteed by the caller.
    let tokens = unsafe { items(tokens, count, "the tokens") }?.to_vec();
    // SAFETY: guaranteed by the caller.
    let settings = unsafe { read_options(options) }?;
    // SAFETY: guaranteed by the caller.
    let mut options = unsafe { generate_options(&settings, session.sampling()) }?;
    // SAFETY: guaranteed by the caller.
    unsafe { check_stats(stats) }?;
    check_not_in_callback()?;
    let running = RunningGuard::new(&session)?;
    options.cancel = Some(running.cancel().clone());
    // SAFETY: guaranteed by the caller.
    options.constraint = unsafe { constraint(&session.model, &settings, options.cancel.as_deref()) }?;

    let number = session.number;
    let has_listener = on_piece.is_some();
    let task = move |worker: &mut Worker, emit: Emit<'_, OwnedPiece>| {
        run(worker, number, continues, tokens, &options, &|piece: Piece<'_>| match has_listener {
            true => emit(OwnedPiece::new(piece.text, piece.ids, piece.logprobs)),
            false => ControlFlow::Continue(()),
        })
    };
    let on_emit = |piece: OwnedPiece| {
        let Some(on_piece) = on_piece else { return ControlFlow::Continue(()) };
        let view = piece.view();
        // SAFETY: the caller's function, called as it is declared; the piece outlives the call.
        flow(in_callback(|| unsafe { on_piece(&raw const view, user) }))
    };
    let generated = session.model.queue()?.run_streaming(task, on_emit)?;
    log_generation(&generated);
    // SAFETY: guaranteed by the caller.
    unsafe { write_stats(stats, &stats_of(&generated)) }
}

/// What a callback's result says.
pub(crate) fn flow(returned: i32) -> ControlFlow<()> {
    match returned {
        AKUNU_CONTINUE => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    }
}

/// # Safety
/// `stats` is null or a struct whose size is in its first field.
pub(crate) unsafe fn check_stats(stats: *mut Stats) -> Result<(), Failure> {
    match stats.is_null() {
        true => Ok(()),
        // SAFETY: guaranteed by the caller.
        false => unsafe { check_struct(stats) },
    }
}

/// # Safety
/// As of [`check_stats`].
pub(crate) unsafe fn write_stats(stats: *mut Stats, value: &Stats) -> Result<(), Failure> {
    match stats.is_null() {
        true => Ok(()),
        // SAFETY: guaranteed by the caller.
        false => unsafe { write_struct(stats, value) },
    }
}

/// A generation that is registered as running, so that it can be cancelled. Unregisters it when dropped.
pub(crate) struct RunningGuard<'a> {
    queue: &'a EngineQueue,
    cancel: Arc<AtomicBool>,
}

impl RunningGuard<'_> {
    pub(crate) fn new(session: &Session) -> Result<RunningGuard<'_>, Failure> {
        let queue = session.model.queue()?;
        Ok(RunningGuard { queue, cancel: queue.register(session.number)? })
    }

    pub(crate) fn cancel(&self) -> &Arc<AtomicBool> {
        &self.cancel
    }
}

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        self.queue.unregister(&self.cancel);
    }
}

/// Generates on the engine's thread, and keeps the tokens that the model has not processed yet.
fn run(
    worker: &mut Worker,
    number: usize,
    continues: bool,
    tokens: Vec<u32>,
    options: &GenerateOptions,
    emit: &dyn Fn(Piece<'_>) -> ControlFlow<()>,
) -> Result<Generated, Failure> {
    let (engine, state) = worker.session(number)?;
    let mut prompt = match continues {
        true => [state.session.tokens(), &state.pending].concat(),
        false => Vec::new(),
    };
    prompt.extend(tokens);
    let on_piece = &mut |piece: Piece<'_>| emit(piece);
    let generate = |session: &mut _| engine.generate(session, &prompt, options, on_piece);
    keep_pending(&mut state.session, &mut state.pending, &prompt, generate, |generated| generated)
}

/// The grammar of a text's format. Waits until it is compiled.
///
/// # Safety
/// The schema is null or a text.
pub(crate) unsafe fn constraint(
    model: &Model,
    settings: &GenerateSettings,
    cancel: Option<&AtomicBool>,
) -> Result<Option<Arc<Constraint>>, Failure> {
    // SAFETY: guaranteed by the caller.
    let schema = unsafe { optional_text(settings.schema, "the schema") }?;
    match response_format(settings.format, schema)? {
        Some(format) => Ok(Some(model.constraints.get(&format, None, cancel)?)),
        None => Ok(None),
    }
}

/// Everything but the format and the flag that cancels.
///
/// # Safety
/// The lists are as long as they say, and so are their texts.
pub(crate) unsafe fn generate_options(
    settings: &GenerateSettings,
    sampling: Sampling,
) -> Result<GenerateOptions, Failure> {
    let logprobs = match (settings.logprobs, settings.top_logprobs) {
        (0, 0) => None,
        (0, _) => return Err(Failure::argument("`top_logprobs` needs `logprobs` = 1")),
        (_, top) if top > MAX_TOP_LOGPROBS => {
            return Err(Failure::argument(format!(
                "`top_logprobs` is {top}; it must be at most {MAX_TOP_LOGPROBS}"
            )));
        }
        (_, top) => Some(top as usize),
    };
    let overflow = match settings.overflow {
        o if o == Overflow::Stop as u32 => akunu::Overflow::Stop,
        o if o == Overflow::Error as u32 => akunu::Overflow::Error,
        o if o == Overflow::Shift as u32 => akunu::Overflow::Shift { keep: settings.keep as usize },
        other => return Err(Failure::argument(format!("{other} is not an akunu_overflow"))),
    };
    // SAFETY: guaranteed by the caller.
    let texts = unsafe { items(settings.stop_texts, settings.stop_text_count as usize, "the stop texts") }?;
    // SAFETY: guaranteed by the caller for each of them.
    let text =
        |&stop: &*const c_char| unsafe { text(stop, AKUNU_TO_NULL, "a stop text") }.map(str::to_string);
    // SAFETY: guaranteed by the caller.
    let ids = unsafe { items(settings.stop_tokens, settings.stop_token_count as usize, "the stop tokens") }?;
    Ok(GenerateOptions {
        max_tokens: (settings.max_tokens > 0).then_some(settings.max_tokens as usize),
        sampling,
        stop_strings: texts.iter().map(text).collect::<Result<_, _>>()?,
        stop_ids: ids.to_vec(),
        visible_ids: Vec::new(),
        ignore_eos: settings.ignore_end != 0,
        logprobs,
        constraint: None,
        overflow,
        cancel: None,
    })
}

pub(crate) fn log_generation(generated: &Generated) {
    log(LogLevel::Debug, || describe(&generated.timings, &generated.finish));
}

pub(crate) fn describe(timings: &Timings, finish: &FinishReason) -> String {
    let Timings { prompt_tokens, reused_tokens, prompt_s, generated_tokens, generate_s, .. } = timings;
    format!(
        "generated {generated_tokens} tokens in {generate_s:.3} s after a prompt of {prompt_tokens} ({reused_tokens} in the \
         cache) in {prompt_s:.3} s: {finish:?}"
    )
}

pub(crate) fn stats_of(generated: &Generated) -> Stats {
    stats(&generated.timings, &generated.finish)
}

pub(crate) fn stats(timings: &Timings, finish: &FinishReason) -> Stats {
    let (finish, end) = match finish {
        FinishReason::Eos(id) => (Finish::End, Some(*id)),
        FinishReason::StopString(_) => (Finish::StopText, None),
        FinishReason::StopId(id) => (Finish::StopToken, Some(*id)),
        FinishReason::MaxTokens => (Finish::MaxTokens, None),
        FinishReason::ContextFull => (Finish::ContextFull, None),
        FinishReason::Cancelled => (Finish::Cancelled, None),
        FinishReason::Complete => (Finish::End, None),
        FinishReason::Callback => (Finish::Callback, None),
    };
    Stats {
        size: small(size_of::<Stats>()),
        finish: finish as u32,
        end_token: end.map_or(-1, i64::from),
        prompt_tokens: timings.prompt_tokens as u64,
        reused_tokens: timings.reused_tokens as u64,
        generated_tokens: timings.generated_tokens as u64,
        prompt_seconds: timings.prompt_s,
        generate_seconds: timings.generate_s,
        first_token_seconds: timings.ttft_s,
        reasoning_tokens: 0,
    }
}

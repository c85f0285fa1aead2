//! From tokens to text, a piece at a time.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use akunu::{FinishReason, GenerateOptions, Generated};

use crate::arguments::{AKUNU_TO_NULL, check_struct, items, read_options, text, write_struct};
use crate::boundary::{Failure, Status, calling_back, guard};
use crate::model::small;
use crate::session::{SESSIONS, Session};
use crate::structs::{Finish, GenerateSettings, OnPiece, Overflow, SessionHandle, Stats, TokenPiece};
use crate::worker::{Say, Worker};

/// What a callback answers to get the next piece.
pub const AKUNU_CONTINUE: i32 = 0;
/// What a callback answers to end the text. Anything but AKUNU_CONTINUE does.
pub const AKUNU_STOP: i32 = 1;

/// A piece of text and its tokens, on the way from the engine's thread.
type Said = (String, Vec<u32>);

/// Generates what follows the prompt `tokens`, of which nothing that stands in the session already is read again. `on_piece` (may be
/// null) gets each piece of the text, with `user`; `stats` (may be null) how it went.
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
    // SAFETY: the caller's word.
    guard(|| unsafe { generate(session, false, (tokens, count), options, (on_piece, user), stats) })
}

/// As akunu_generate, but that the prompt is the session's whole text so far, and then `tokens` (`count` may be 0).
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
    // SAFETY: the caller's word.
    guard(|| unsafe { generate(session, true, (tokens, count), options, (on_piece, user), stats) })
}

/// Ends what is being generated in a session soon, and what waits to be. From any thread, and from within a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_cancel(session: *mut SessionHandle) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        session.model.post.cancel(session.number);
        Ok(())
    })
}

/// # Safety
/// What C says of its pointers.
unsafe fn generate(
    session: *mut SessionHandle,
    continues: bool,
    (tokens, count): (*const u32, usize),
    options: *const GenerateSettings,
    (on_piece, user): (OnPiece, *mut c_void),
    stats: *mut Stats,
) -> Result<(), Failure> {
    let session = SESSIONS.get(session)?;
    // SAFETY: the caller's word.
    let tokens = unsafe { items(tokens, count, "the tokens") }?.to_vec();
    // SAFETY: the caller's word.
    let settings = unsafe { read_options(options) }?;
    // SAFETY: the caller's word.
    let mut options = unsafe { generate_options(&session, &settings) }?;
    if !stats.is_null() {
        // SAFETY: the caller's word.
        unsafe { check_struct(stats) }?;
    }
    let cancel = session.model.post.begin(session.number)?;
    let _ending = Ending { session: &session, cancel: &cancel };
    options.cancel = Some(cancel.clone());

    let number = session.number;
    let listens = on_piece.is_some();
    let task = move |worker: &mut Worker, say: Say<'_, Said>| {
        run(worker, number, continues, tokens, &options, &|text: &str, ids: &[u32]| match listens {
            true => say((text.to_string(), ids.to_vec())),
            false => ControlFlow::Continue(()),
        })
    };
    let hear = |(mut text, tokens): Said| {
        let Some(on_piece) = on_piece else { return ControlFlow::Continue(()) };
        let text_length = text.len();
        text.push('\0');
        let piece = TokenPiece {
            size: small(size_of::<TokenPiece>()),
            token_count: small(tokens.len()),
            text: text.as_ptr().cast::<c_char>(),
            text_length,
            tokens: tokens.as_ptr(),
        };
        // SAFETY: the caller's function, called as it is declared; the piece outlives the call.
        match calling_back(|| unsafe { on_piece(&raw const piece, user) }) {
            AKUNU_CONTINUE => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let generated = session.model.post.converse(task, hear)?;
    match stats.is_null() {
        true => Ok(()),
        // SAFETY: the caller's word.
        false => unsafe { write_struct(stats, &told(&generated)) },
    }
}

/// However a generation ends, it is over.
struct Ending<'a> {
    session: &'a Session,
    cancel: &'a Arc<AtomicBool>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.session.model.post.end(self.cancel);
    }
}

/// The engine's side: generates, and remembers what of the text has not been through the model.
fn run(
    worker: &mut Worker,
    number: usize,
    continues: bool,
    tokens: Vec<u32>,
    options: &GenerateOptions,
    say: &dyn Fn(&str, &[u32]) -> ControlFlow<()>,
) -> Result<Generated, Failure> {
    let (engine, held) = worker.held(number)?;
    let tail = std::mem::take(&mut held.tail);
    let mut prompt = match continues {
        true => [held.session.tokens(), &tail].concat(),
        false => Vec::new(),
    };
    prompt.extend(tokens);
    let on_piece = &mut |piece: akunu::Piece<'_>| say(piece.text, piece.ids);
    let generated = engine.generate(&mut held.session, &prompt, options, on_piece)?;
    let text = prompt.iter().chain(&generated.ids);
    held.tail = text.skip(generated.dropped + held.session.len()).copied().collect();
    Ok(generated)
}

/// # Safety
/// The lists are as long as they say, and so are their texts.
unsafe fn generate_options(
    session: &Session,
    settings: &GenerateSettings,
) -> Result<GenerateOptions, Failure> {
    let overflow = match settings.overflow {
        o if o == Overflow::Stop as u32 => akunu::Overflow::Stop,
        o if o == Overflow::Error as u32 => akunu::Overflow::Error,
        o if o == Overflow::Shift as u32 => akunu::Overflow::Shift { keep: settings.keep as usize },
        other => return Err(Failure::argument(format!("{other} is no akunu_overflow"))),
    };
    // SAFETY: the caller's word.
    let texts = unsafe { items(settings.stop_texts, settings.stop_text_count as usize, "the stop texts") }?;
    // SAFETY: the caller's word, for each of them.
    let text =
        |&stop: &*const c_char| unsafe { text(stop, AKUNU_TO_NULL, "a stop text") }.map(str::to_string);
    // SAFETY: the caller's word.
    let ids = unsafe { items(settings.stop_tokens, settings.stop_token_count as usize, "the stop tokens") }?;
    Ok(GenerateOptions {
        max_tokens: (settings.max_tokens > 0).then_some(settings.max_tokens as usize),
        sampling: session.sampling(),
        stop_strings: texts.iter().map(text).collect::<Result<_, _>>()?,
        stop_ids: ids.to_vec(),
        visible_ids: Vec::new(),
        ignore_eos: settings.ignore_end != 0,
        constraint: None,
        overflow,
        cancel: None,
    })
}

fn told(generated: &Generated) -> Stats {
    let (finish, end) = match &generated.finish {
        FinishReason::Eos(id) => (Finish::End, Some(*id)),
        FinishReason::StopString(_) => (Finish::StopText, None),
        FinishReason::StopId(id) => (Finish::StopToken, Some(*id)),
        FinishReason::MaxTokens => (Finish::MaxTokens, None),
        FinishReason::ContextFull => (Finish::ContextFull, None),
        FinishReason::Cancelled => (Finish::Cancelled, None),
        FinishReason::Complete => (Finish::End, None),
        FinishReason::Callback => (Finish::Callback, None),
    };
    let timings = &generated.timings;
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
    }
}

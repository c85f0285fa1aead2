//! Compiles grammars on threads of their own, with a deadline and a flag to cancel.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use llguidance::TokenParser;
use llguidance::api::TopLevelGrammar;

use crate::error::GrammarError;
use crate::format::{Reasoning, ResponseFormat};
use crate::pool::{Pool, Substitute};
use crate::vocabulary::Vocabulary;

/// How often a waiting request looks whether it is cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

const COMPILING_THREADS: usize = 2;
/// A GPU's pass over many constrained texts is shorter than their masks one after the other.
const MASK_THREADS: RangeInclusive<usize> = 2..=16;

/// Two processors are left for the threads of engine and network.
fn mask_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.saturating_sub(2).clamp(*MASK_THREADS.start(), *MASK_THREADS.end())
}

/// The threads that compile grammars, and those that compute masks. One for all grammars of a model.
#[derive(Debug)]
pub struct Workers {
    compiling: Pool,
    pub(crate) masks: Pool,
    /// For masks that other answers do not wait for.
    pub(crate) slow_masks: Pool,
    /// Unfinished compilations by client.
    clients: Arc<Mutex<HashMap<u64, u32>>>,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers {
            compiling: Pool::new("akunu-compile", COMPILING_THREADS).giving_way(),
            masks: Pool::new("akunu-masks", mask_threads()),
            slow_masks: Pool::new("akunu-slow-masks", mask_threads() - 1).giving_way(),
            clients: Arc::default(),
        }
    }
}

impl Workers {
    /// Prepares for masks that are needed within less than a millisecond, one after the other.
    pub fn expect_masks(&self) {
        self.masks.linger();
    }
}

/// Who waits for a grammar.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client<'a> {
    /// Compilations of one client do not delay those of others.
    pub owner: u64,
    /// Set when the client no longer needs the grammar.
    pub cancel: Option<&'a AtomicBool>,
}

/// A compiled grammar over a vocabulary. It may be shared by many answers.
pub struct Grammar {
    /// In the state before an answer. Clones are independent of it.
    parser: Mutex<TokenParser>,
    pub(crate) vocabulary: Arc<Vocabulary>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Grammar {
    /// A parser of its own for one answer.
    pub(crate) fn parser(&self) -> TokenParser {
        let mut parser = lock(&self.parser).deep_clone();
        parser.start_without_prompt();
        parser
    }

    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }
}

/// The state of one compilation, shared by the waiting request and the thread.
#[derive(Default)]
struct Ticket {
    state: Mutex<TicketState>,
    done: Condvar,
    /// Nobody waits for the result.
    is_abandoned: AtomicBool,
}

#[derive(Default)]
struct TicketState {
    result: Option<Result<Grammar, GrammarError>>,
    /// Nobody waits for the result. Its thread has a substitute, if possible.
    abandoned: Option<Option<Substitute>>,
}

/// Counts a compilation of a client until it is dropped.
struct Unfinished {
    clients: Arc<Mutex<HashMap<u64, u32>>>,
    owner: u64,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut clients = lock(&self.clients);
        let left = clients.get(&self.owner).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => clients.remove(&self.owner),
            left => clients.insert(self.owner, left),
        };
    }
}

impl Workers {
    /// Without threads: jobs run where they are submitted. For the fuzz targets, which would mostly wait for threads.
    #[cfg(fuzzing)]
    pub fn without_threads() -> Workers {
        let [compiling, masks, slow_masks] =
            ["akunu-compile", "akunu-masks", "akunu-slow-masks"].map(|name| Pool::new(name, 0));
        Workers { compiling, masks, slow_masks, clients: Arc::default() }
    }

    /// Compiles a format, and waits for it. Returns early if the client cancels.
    pub fn compile(
        &self,
        vocabulary: &Arc<Vocabulary>,
        format: &ResponseFormat,
        before: Option<&Reasoning>,
        client: Client<'_>,
    ) -> Result<Grammar, GrammarError> {
        let (what, limits) = (format.what(), &vocabulary.limits);
        format.check_size(limits)?;
        let waiting = self.compiling.waiting();
        if waiting >= limits.waiting {
            return Err(GrammarError::Busy { waiting });
        }
        let (rank, unfinished) = self.unfinished(client.owner);
        let ticket = Arc::new(Ticket::default());
        let job = {
            let (ticket, vocabulary) = (ticket.clone(), vocabulary.clone());
            let (format, before) = (format.clone(), before.cloned());
            move || {
                let is_cancelled = || ticket.is_abandoned.load(Ordering::Relaxed);
                let result = compile(&vocabulary, &format, before.as_ref(), &is_cancelled);
                drop(unfinished);
                let mut state = lock(&ticket.state);
                state.result = Some(result);
                // A substitute ends here.
                state.abandoned = None;
                ticket.done.notify_all();
            }
        };
        let failed = |message| GrammarError::Panicked { what, message };
        let key = self.compiling.submit(rank, job).map_err(failed)?;
        self.wait(&ticket, key, what, limits.compile_time, client)
    }

    fn wait(
        &self,
        ticket: &Ticket,
        key: (u32, u64),
        what: &'static str,
        limit: Duration,
        client: Client<'_>,
    ) -> Result<Grammar, GrammarError> {
        let deadline = Instant::now() + limit;
        let mut state = lock(&ticket.state);
        let error = loop {
            if client.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                break GrammarError::Cancelled;
            }
            if let Some(result) = state.result.take() {
                return result;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break GrammarError::CompileTime { what, limit };
            }
            let step = ticket.done.wait_timeout(state, left.min(CANCEL_INTERVAL));
            state = step.unwrap_or_else(PoisonError::into_inner).0;
        };
        ticket.is_abandoned.store(true, Ordering::Relaxed);
        if state.result.is_none() {
            let waiting = self.compiling.waiting();
            if !self.compiling.withdraw(key) {
                state.abandoned = Some(self.compiling.abandon());
            } else if matches!(error, GrammarError::CompileTime { .. }) {
                // It has not begun, so the format is not to blame.
                return Err(GrammarError::Busy { waiting });
            }
        }
        Err(error)
    }

    /// Counts a compilation of a client; its rank is the number of the client's others.
    fn unfinished(&self, owner: u64) -> (u32, Unfinished) {
        let mut clients = lock(&self.clients);
        let count = clients.entry(owner).or_default();
        *count += 1;
        (*count - 1, Unfinished { clients: self.clients.clone(), owner })
    }
}

/// Compiles on this thread.
fn compile(
    vocabulary: &Arc<Vocabulary>,
    format: &ResponseFormat,
    before: Option<&Reasoning>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Grammar, GrammarError> {
    let what = format.what();
    let work = || {
        let grammars = format.grammars(before, is_cancelled)?;
        check_nesting(what, &grammars)?;
        let parser = vocabulary.factory.create_parser(grammars);
        let parser = parser.map_err(|error| refusal(what, &format!("{error:#}")))?;
        Ok(Grammar { parser: Mutex::new(parser), vocabulary: vocabulary.clone() })
    };
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(panicked(what, crate::panic_message(&*panic))))
}

/// The library panics where a grammar has the name of a special token and the vocabulary has none.
fn panicked(what: &'static str, message: String) -> GrammarError {
    match message.contains("missing special token prefix") {
        true => {
            let reason = "it names a special token (<NAME>), and the model's vocabulary has none".to_string();
            GrammarError::Invalid { what, reason }
        }
        false => GrammarError::Panicked { what, message },
    }
}

/// The library recurses over nested expressions and over rules.
const MAX_NESTING: i64 = 100;
const MAX_LINES: usize = 2_000;

/// Refuses grammars whose nesting could exhaust the stack. Brackets within strings count too.
fn check_nesting(what: &'static str, grammars: &TopLevelGrammar) -> Result<(), GrammarError> {
    for lark in grammars.grammars.iter().filter_map(|grammar| grammar.lark_grammar.as_deref()) {
        let (mut depth, mut negations) = (0i64, 0i64);
        for byte in lark.bytes() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = (depth - 1).max(0),
                b'~' => negations += 1,
                _ if !byte.is_ascii_whitespace() => negations = 0,
                _ => {}
            }
            if depth > MAX_NESTING || negations > MAX_NESTING {
                let reason = format!("it is nested more than {MAX_NESTING} deep");
                return Err(GrammarError::TooLarge { what, reason });
            }
        }
        let lines = lark.lines().count();
        if lines > MAX_LINES {
            let reason = format!("it has {lines} lines, and the limit is {MAX_LINES}");
            return Err(GrammarError::TooLarge { what, reason });
        }
    }
    Ok(())
}

/// An error of the library. Its limits are recognised by their messages.
fn refusal(what: &'static str, message: &str) -> GrammarError {
    let mut reason = message.trim_end_matches("<non-verbose/>").trim().to_string();
    if let Some(at) = reason.find("\n<backtrace>") {
        reason.truncate(at);
    }
    if reason.contains("Unable to determine if regex is empty") {
        let reason = "it is not known whether any string has the 'pattern' or 'format' and the 'minLength' or 'maxLength' \
                      that are asked for together: finding out takes too many steps";
        return GrammarError::TooLarge { what, reason: reason.into() };
    }
    const TOO_LARGE: [&str; 4] = ["too big", "fuel", "too large", "too many"];
    match () {
        () if reason.starts_with("panic: ") => panicked(what, reason["panic: ".len()..].into()),
        () if reason.contains("nsatisfiable") => GrammarError::Unsatisfiable { what, reason },
        () if TOO_LARGE.iter().any(|sign| reason.contains(sign)) => GrammarError::TooLarge { what, reason },
        () => GrammarError::Invalid { what, reason },
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

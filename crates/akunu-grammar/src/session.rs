//! One answer in a grammar: its masks, computed by other threads while the model runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use llguidance::api::StopReason;
use llguidance::{CancellationHandle, TokenParser};
use toktrie::SimpleVob;

use crate::compiler::{Grammar, Workers, lock};
use crate::error::GrammarError;

/// The tokens that may follow.
#[derive(Clone, Debug)]
pub struct Mask {
    tokens: SimpleVob,
    /// Whether the text may end here.
    pub may_end: bool,
}

impl Mask {
    pub fn contains(&self, id: u32) -> bool {
        (id as usize) < self.tokens.len() && self.tokens.is_allowed(id)
    }

    /// A bit for each token, from the lowest of the first word on. Tokens beyond the last word may not follow.
    pub fn words(&self) -> &[u32] {
        self.tokens.as_slice()
    }

    /// Whether no token may follow.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_zero()
    }

    /// Sets the logits of all tokens that may not follow to −∞.
    pub fn apply(&self, logits: &mut [f32]) {
        let words = self.tokens.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

/// A mask that another thread computes, and the parser while it does.
#[derive(Default)]
struct Pending {
    state: Mutex<Option<Computed>>,
    done: Condvar,
    cancel: Cancel,
}

/// Ends the work of a parser, which another thread makes.
#[derive(Default)]
struct Cancel {
    is_asked: AtomicBool,
    handle: OnceLock<CancellationHandle>,
}

impl Cancel {
    fn cancel(&self) {
        self.is_asked.store(true, Ordering::SeqCst);
        if let Some(handle) = self.handle.get() {
            handle.cancel();
        }
    }

    fn ends(&self, parser: &mut TokenParser) {
        let handle = self.handle.get_or_init(|| parser.enable_cancellation());
        if self.is_asked.load(Ordering::SeqCst) {
            handle.cancel();
        }
    }
}

struct Computed {
    /// `None`: it could not be made.
    parser: Option<TokenParser>,
    /// `None`: the answer is complete, and nothing can follow.
    mask: Result<Option<Mask>, GrammarError>,
    took: Duration,
}

/// A mask that took longer is followed by slow ones, which other answers do not wait for.
const SLOW: Duration = Duration::from_millis(1);

/// A mask is usually known sooner than a sleeping thread would be woken.
const SPIN: Duration = Duration::from_micros(100);

/// The state of one answer. After each token, the next mask is requested from the threads for masks. They also make the
/// parser and free it, which can take milliseconds.
pub struct Session {
    workers: Arc<Workers>,
    grammar: Arc<Grammar>,
    /// `None` while a mask is computed, which the first one is from the beginning.
    parser: Option<TokenParser>,
    pending: Arc<Pending>,
    requested: Instant,
    mask: Option<Mask>,
    /// Time of all masks so far.
    spent: Duration,
    is_slow: bool,
    is_over: bool,
    error: Option<GrammarError>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pending.cancel.cancel();
        let remains = (self.parser.take(), std::mem::take(&mut self.pending));
        // Without a thread they are freed here.
        let _ = self.workers.slow_masks.submit(0, move || drop(remains));
    }
}

impl Session {
    /// Begins an answer, and requests its first mask.
    pub fn new(workers: Arc<Workers>, grammar: Arc<Grammar>) -> Session {
        let mut session = Session {
            workers,
            grammar,
            parser: None,
            pending: Arc::default(),
            requested: Instant::now(),
            mask: None,
            spent: Duration::ZERO,
            is_slow: false,
            is_over: false,
            error: None,
        };
        session.request(None, None);
        session
    }

    /// Whether its masks take so long that other answers do not wait for them.
    pub fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Whether the answer is complete, and nothing can follow. After [`Session::push_later`] this is known with the mask.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Appends a token, and requests the next mask. An error is also that of the next [`Session::mask`].
    pub fn push(&mut self, token: u32) {
        if !self.begin_push() {
            return;
        }
        let Some(parser) = &mut self.parser else { return };
        match catch_unwind(AssertUnwindSafe(|| append(parser, token)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))
        {
            Ok(is_over) => self.is_over = is_over,
            Err(error) => self.error = Some(error),
        }
        if !self.is_over && self.error.is_none() {
            let parser = self.parser.take();
            self.request(parser, None);
        }
    }

    /// As [`Session::push`], but the token too is appended by the threads for masks.
    pub fn push_later(&mut self, token: u32) {
        if self.begin_push() {
            let parser = self.parser.take();
            self.request(parser, Some(token));
        }
    }

    /// Whether a token can be appended. Waits for the mask before it.
    fn begin_push(&mut self) -> bool {
        if self.is_over || self.error.is_some() {
            return false;
        }
        if let Err(error) = self.receive() {
            self.error = Some(error);
            return false;
        }
        self.mask = None;
        !self.is_over
    }

    /// Whether the next mask is known, or why there is none.
    pub fn is_ready(&mut self) -> bool {
        if self.mask.is_none() && self.parser.is_none() && self.error.is_none() {
            let computed = lock(&self.pending.state).take();
            match computed {
                Some(computed) => self.keep(computed),
                None if self.requested.elapsed() > self.limit() => self.fail_by_time(),
                None => {}
            }
        }
        self.parser.is_some() || self.error.is_some()
    }

    /// Waits for the next mask, at most this long. Whether it is known.
    pub fn wait(&mut self, limit: Duration) -> bool {
        if self.is_ready() {
            return true;
        }
        let start = Instant::now();
        while start.elapsed() < limit.min(SPIN) {
            if self.is_ready() {
                return true;
            }
            std::thread::yield_now();
        }
        let pending = self.pending.clone();
        let state = lock(&pending.state);
        let limit = limit.saturating_sub(start.elapsed());
        let waited = pending.done.wait_timeout_while(state, limit, |computed| computed.is_none());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.is_ready()
    }

    /// The tokens that may follow. Waits for them if they are not known yet.
    pub fn mask(&mut self) -> Result<&Mask, GrammarError> {
        self.receive()?;
        self.mask.as_ref().ok_or(GrammarError::NothingFits)
    }

    fn receive(&mut self) -> Result<(), GrammarError> {
        while !self.wait(self.limit()) {}
        self.error.clone().map_or(Ok(()), Err)
    }

    fn limit(&self) -> Duration {
        self.grammar.vocabulary.limits.mask_time
    }

    fn fail_by_time(&mut self) {
        self.pending.cancel.cancel();
        self.error = Some(GrammarError::MaskTime { limit: self.limit() });
    }

    fn keep(&mut self, computed: Computed) {
        let Computed { parser, mask, took } = computed;
        self.parser = parser;
        self.is_slow = took > SLOW;
        self.spent += took;
        let limit = self.grammar.vocabulary.limits.answer_time;
        match mask {
            Ok(_) if self.spent > limit => self.error = Some(GrammarError::MaskTime { limit }),
            Ok(Some(mask)) => self.mask = Some(mask),
            Ok(None) => self.is_over = true,
            Err(error) => self.error = Some(error),
        }
    }

    /// Lets a thread append a token, if there is one, and compute the mask of the next. The first time it makes the parser.
    fn request(&mut self, mut parser: Option<TokenParser>, token: Option<u32>) {
        let (pending, grammar) = (self.pending.clone(), self.grammar.clone());
        self.requested = Instant::now();
        let job = move || {
            let start = Instant::now();
            let next = AssertUnwindSafe(|| {
                let parser = parser.get_or_insert_with(|| grammar.parser());
                pending.cancel.ends(parser);
                match token.map_or(Ok(false), |token| append(parser, token))? {
                    true => Ok(None),
                    false => compute(parser, &grammar).map(Some),
                }
            });
            let mask = catch_unwind(next).unwrap_or_else(|panic| Err(panicked(&*panic)));
            *lock(&pending.state) = Some(Computed { parser, mask, took: start.elapsed() });
            pending.done.notify_all();
        };
        let pool = if self.is_slow { &self.workers.slow_masks } else { &self.workers.masks };
        if let Err(reason) = pool.submit(0, job) {
            self.error = Some(GrammarError::TooComplex { reason });
        }
    }
}

/// Whether the answer is complete with this token.
fn append(parser: &mut TokenParser, token: u32) -> Result<bool, GrammarError> {
    parser.consume_token(token).map_err(|_| failure(parser))?;
    parser.check_stop().map_err(|_| failure(parser))
}

fn compute(parser: &mut TokenParser, grammar: &Grammar) -> Result<Mask, GrammarError> {
    let may_end = parser.is_accepting();
    let tokens = match parser.compute_mask() {
        Ok(mut tokens) => {
            tokens.and(&grammar.vocabulary.texts);
            tokens
        }
        Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => {
            grammar.vocabulary.factory.tok_env().tok_trie().alloc_token_set()
        }
        Err(_) => return Err(failure(parser)),
    };
    if tokens.is_zero() && !may_end {
        return Err(GrammarError::NothingFits);
    }
    Ok(Mask { tokens, may_end })
}

/// Why a parser has stopped.
fn failure(parser: &TokenParser) -> GrammarError {
    let limit = parser.limits.step_max_items;
    match parser.stop_reason() {
        StopReason::NoExtension | StopReason::NoExtensionBias => GrammarError::NothingFits,
        StopReason::Cancelled => GrammarError::Cancelled,
        StopReason::LexerTooComplex => {
            GrammarError::TooComplex { reason: "its regular expressions exceed the limit of steps".into() }
        }
        _ => {
            let reason = parser.error_message();
            let reason = reason.unwrap_or_else(|| format!("more than {limit} ways to read the answer"));
            GrammarError::TooComplex { reason }
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> GrammarError {
    GrammarError::TooComplex {
        reason: format!("the grammar library panicked ({})", crate::panic_message(panic)),
    }
}

//! Requests to a model that was loaded with `batch`: the engine's scheduler runs them together, and their pieces wait
//! here until the program takes them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use akunu::schedule::{Event, Handle, Refused, Request as Scheduled, Scheduler, SchedulerOptions};
use akunu::{Engine, EngineOptions, OnLoad};

use crate::arguments::{check_pointer, check_struct, items, read_options, read_struct, write, write_struct};
use crate::boundary::{Failure, Status, check_not_in_callback, guard};
use crate::generate::{OwnedPiece, constraint, describe, generate_options, stats};
use crate::loading::{Serve, Watcher, load_on_thread};
use crate::log::{LogLevel, log};
use crate::model::{MODELS, Model, small};
use crate::registry::{Registry, number};
use crate::session::{breakers, sampling_of};
use crate::structs::{
    GenerateSettings, ModelHandle, RequestHandle, RequestSettings, SamplingSettings, Stats, TokenPiece,
};
use crate::worker::{broken, freed, load_engine};

pub(crate) static REQUESTS: Registry<Request> = Registry::new("request");

/// Passed as a number of milliseconds to wait without a limit.
pub const AKUNU_FOREVER: u32 = u32::MAX;

/// A request, shared between threads.
#[derive(Debug)]
pub(crate) struct Request {
    number: usize,
    pub(crate) model: Arc<Model>,
    cancel: Arc<AtomicBool>,
    /// The piece that was returned last.
    shown: Mutex<Option<Shown>>,
}

/// A piece and what C sees of it.
#[derive(Debug)]
struct Shown {
    _piece: OwnedPiece,
    view: Box<TokenPiece>,
}

// SAFETY: the pointers of `view` are into `_piece`, which is not changed.
unsafe impl Send for Shown {}

/// The callers' side of a scheduler.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    handle: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
    mail: Arc<Mailbox>,
}

/// What the requests of a model have generated, until the program takes it.
#[derive(Debug, Default)]
struct Mailbox {
    state: Mutex<MailState>,
    /// There is something to take from any of them.
    any: Condvar,
}

#[derive(Debug, Default)]
struct MailState {
    inboxes: BTreeMap<usize, Inbox>,
    /// The request that akunu_ready_request returned last.
    last: usize,
    is_closing: bool,
}

#[derive(Debug, Default)]
struct Inbox {
    pieces: VecDeque<OwnedPiece>,
    ended: Option<Result<Stats, (Status, String)>>,
    /// The program knows that it has ended.
    is_over: bool,
    wake: Arc<Condvar>,
}

impl Inbox {
    fn is_ready(&self) -> bool {
        !self.pieces.is_empty() || (self.ended.is_some() && !self.is_over)
    }
}

/// What a caller takes from an inbox.
enum Taken {
    Piece(OwnedPiece),
    Over,
    Nothing,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MailState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes an inbox on the engine's thread. False: the request was freed.
    fn put(&self, number: usize, change: impl FnOnce(&mut Inbox)) -> bool {
        let mut state = self.lock();
        let Some(inbox) = state.inboxes.get_mut(&number) else { return false };
        change(inbox);
        inbox.wake.notify_all();
        self.any.notify_all();
        true
    }

    fn remove(&self, number: usize) {
        if let Some(inbox) = self.lock().inboxes.remove(&number) {
            inbox.wake.notify_all();
        }
        self.any.notify_all();
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        state.inboxes.values().for_each(|inbox| inbox.wake.notify_all());
        self.any.notify_all();
    }

    fn take(&self, number: usize, wait: Wait) -> Result<Taken, Failure> {
        let mut state = self.lock();
        loop {
            let is_closing = state.is_closing;
            let inbox = state.inboxes.get_mut(&number).ok_or_else(|| freed("request"))?;
            if let Some(piece) = inbox.pieces.pop_front() {
                return Ok(Taken::Piece(piece));
            }
            if let Some(ended) = &inbox.ended {
                inbox.is_over = true;
                return match ended {
                    Ok(_) => Ok(Taken::Over),
                    Err((status, message)) => Err(Failure::new(*status, message.clone())),
                };
            }
            if is_closing {
                return Err(freed("model"));
            }
            let wake = inbox.wake.clone();
            state = match wait.on(&wake, state) {
                Some(state) => state,
                None => return Ok(Taken::Nothing),
            };
        }
    }

    /// A request that has something to take, in turns; `None`: none has in time, or all have ended.
    fn ready(&self, wait: Wait) -> Result<Option<usize>, Failure> {
        let mut state = self.lock();
        loop {
            if state.is_closing {
                return Err(freed("model"));
            }
            let after = state.inboxes.range(state.last + 1..).chain(state.inboxes.range(..=state.last));
            if let Some(number) =
                after.filter(|(_, inbox)| inbox.is_ready()).map(|(number, _)| *number).next()
            {
                state.last = number;
                return Ok(Some(number));
            }
            if state.inboxes.values().all(|inbox| inbox.is_over) {
                return Ok(None);
            }
            state = match wait.on(&self.any, state) {
                Some(state) => state,
                None => return Ok(None),
            };
        }
    }
}

/// How long to wait.
#[derive(Clone, Copy)]
struct Wait {
    /// `None`: forever.
    until: Option<Instant>,
}

impl Wait {
    fn new(milliseconds: u32) -> Wait {
        let limit = Duration::from_millis(milliseconds.into());
        Wait { until: (milliseconds != AKUNU_FOREVER).then(|| Instant::now() + limit) }
    }

    /// Waits once; `None`: the time is over.
    fn on<'a>(self, wake: &Condvar, state: MutexGuard<'a, MailState>) -> Option<MutexGuard<'a, MailState>> {
        let Some(until) = self.until else {
            return Some(wake.wait(state).unwrap_or_else(PoisonError::into_inner));
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        Some(wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// Puts the events of a request into its inbox. If it is dropped before the last event, the engine has panicked.
struct Postman {
    mail: Arc<Mailbox>,
    number: usize,
    has_ended: bool,
}

impl Postman {
    fn deliver(&mut self, event: Event<'_>) -> ControlFlow<()> {
        let is_kept = match event {
            Event::Started { .. } | Event::StepEnd => return ControlFlow::Continue(()),
            Event::Piece { text, ids, logprobs } => {
                let piece = OwnedPiece::new(text, ids, logprobs);
                self.mail.put(self.number, |inbox| inbox.pieces.push_back(piece))
            }
            Event::Finished(finished) => {
                log(LogLevel::Debug, || describe(&finished.timings, &finished.finish));
                self.end(Ok(stats(&finished.timings, &finished.finish)))
            }
            Event::Failed(error) => self.end(Err(error.into())),
        };
        if is_kept { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn end(&mut self, result: Result<Stats, Failure>) -> bool {
        self.has_ended = true;
        let result = result.map_err(|Failure { status, message }| (status, message));
        self.mail.put(self.number, |inbox| inbox.ended = Some(result))
    }
}

impl Drop for Postman {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Err(broken()));
        }
    }
}

impl RequestQueue {
    /// Starts a thread with an engine and its scheduler, and returns what `inspect` reads from the engine.
    pub(crate) fn open<T: Send + 'static>(
        model: Arc<akunu::Model>,
        options: EngineOptions,
        scheduler: SchedulerOptions,
        watcher: &Watcher,
        inspect: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<(RequestQueue, T), Failure> {
        let load = move |on_load: OnLoad<'_>| {
            let engine = load_engine(model, &options, on_load)?;
            let inspected = inspect(&engine);
            let (scheduler, handle) = Scheduler::new(engine, &scheduler)?;
            let serve: Serve = Box::new(move || drop(scheduler.run()));
            Ok(((handle, inspected), serve))
        };
        let (thread, (handle, inspected)) = load_on_thread("akunu-engine", watcher, load, broken)?;
        let thread = Mutex::new(Some(thread));
        Ok((RequestQueue { handle, thread, mail: Arc::default() }, inspected))
    }

    fn submit(&self, number: usize, request: Scheduled) -> Result<(), Failure> {
        self.mail.lock().inboxes.insert(number, Inbox::default());
        let mut postman = Postman { mail: self.mail.clone(), number, has_ended: false };
        let submitted = self.handle.submit(request, Box::new(move |event| postman.deliver(event)));
        submitted.map_err(|refused| {
            self.mail.remove(number);
            match refused {
                Refused::QueueFull { .. } | Refused::TooMany { .. } | Refused::TooLate { .. } => {
                    Failure::new(Status::QueueFull, refused.to_string())
                }
                Refused::Closed if self.mail.lock().is_closing => freed("model"),
                Refused::Closed => broken(),
            }
        })
    }

    /// Cancels all requests, and waits until the engine is dropped.
    pub(crate) fn close(&self) {
        self.mail.close();
        self.handle.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that panicked has failed its requests already.
        let _ = thread.map(JoinHandle::join);
    }
}

/// Submits a request to continue the prompt `tokens`. The model was loaded with `batch`; up to `sessions` requests
/// share its passes, and others wait. The text is the same as that of akunu_generate. `options` and `settings` may be
/// null. Take the text with akunu_next_piece, and free the request with akunu_free_request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_submit(
    model: *mut ModelHandle,
    tokens: *const u32,
    count: usize,
    options: *const GenerateSettings,
    settings: *const RequestSettings,
    request: *mut *mut RequestHandle,
) -> Status {
    guard(|| {
        check_pointer(request, "the pointer for the request")?;
        let model = MODELS.get(model)?;
        let queue = model.requests()?;
        // SAFETY: guaranteed by the caller.
        let prompt = unsafe { items(tokens, count, "the tokens") }?.to_vec();
        // SAFETY: guaranteed by the caller.
        let (options, settings) = unsafe { (read_options(options)?, read_options(settings)?) };
        let cancel = Arc::new(AtomicBool::new(false));
        // SAFETY: guaranteed by the caller.
        let mut scheduled = unsafe { scheduled(&model, &options, &settings) }?;
        (scheduled.prompt, scheduled.options.cancel) = (prompt, Some(cancel.clone()));
        let number = number();
        let added = Request { number, model: model.clone(), cancel, shown: Mutex::default() };
        // First, because akunu_ready_request may return it at once.
        let handle: *mut RequestHandle = REQUESTS.add(number, Arc::new(added));
        if let Err(failure) = queue.submit(number, scheduled) {
            // It may have been removed with the model.
            let _ = REQUESTS.remove::<RequestHandle>(handle);
            return Err(failure);
        }
        // SAFETY: checked above; the rest is guaranteed by the caller.
        unsafe { write(request, handle, "the pointer for the request") }
    })
}

/// A request without its prompt.
///
/// # Safety
/// The lists are as long as they say, and so are their texts.
unsafe fn scheduled(
    model: &Model,
    options: &GenerateSettings,
    settings: &RequestSettings,
) -> Result<Scheduled, Failure> {
    let count = settings.bias_count;
    // SAFETY: guaranteed by the caller.
    let (biased, biases) = unsafe {
        (items(settings.bias_tokens, count, "the tokens")?, items(settings.biases, count, "the biases")?)
    };
    let sampling = match settings.sampling.is_null() {
        true => akunu::Sampling::default(),
        // SAFETY: guaranteed by the caller.
        false => sampling_of(&unsafe { read_struct::<SamplingSettings>(settings.sampling) }?),
    };
    let sampling = akunu::Sampling {
        logit_bias: biased.iter().copied().zip(biases.iter().copied()).collect(),
        // SAFETY: guaranteed by the caller.
        dry_breakers: unsafe { breakers(&model.model, settings.dry_breakers, settings.dry_breaker_count) }?,
        ..sampling
    };
    sampling.check(model.model.config().vocab_size)?;
    // SAFETY: guaranteed by the caller.
    let mut generate = unsafe { generate_options(options, sampling) }?;
    // SAFETY: guaranteed by the caller.
    generate.constraint = unsafe { constraint(model, options, None) }?;
    let RequestSettings { priority, owner, salt, .. } = *settings;
    Ok(Scheduled { options: generate, priority, owner, salt, ..Scheduled::default() })
}

/// Takes the next piece of a request's text: waits up to `wait_ms` milliseconds for it (AKUNU_FOREVER: without a
/// limit). `piece` is null if there is none in this time, or if the text is over; then `is_over` is 1, and
/// akunu_request_stats has the reason. The piece is valid until the next call for this request. A request that failed
/// returns its error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_next_piece(
    request: *mut RequestHandle,
    wait_ms: u32,
    piece: *mut *const TokenPiece,
    is_over: *mut u32,
) -> Status {
    guard(|| {
        check_pointer(piece, "the pointer for the piece")?;
        check_pointer(is_over, "is_over")?;
        if wait_ms > 0 {
            check_not_in_callback()?;
        }
        let request = REQUESTS.get(request)?;
        let mut shown = request.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = request.model.requests()?.mail.take(request.number, Wait::new(wait_ms))?;
        let over = u32::from(matches!(taken, Taken::Over));
        let mut view: *const TokenPiece = std::ptr::null();
        *shown = match taken {
            Taken::Piece(piece) => {
                let new = Shown { view: Box::new(piece.view()), _piece: piece };
                view = &raw const *new.view;
                Some(new)
            }
            Taken::Over | Taken::Nothing => None,
        };
        // SAFETY: checked above; the rest is guaranteed by the caller.
        unsafe { write(piece, view, "the pointer for the piece") }?;
        // SAFETY: as above.
        unsafe { write(is_over, over, "is_over") }
    })
}

/// Waits up to `wait_ms` milliseconds until any request of a model has a piece or has ended, and gives its handle, in
/// turns. Null: none has in this time, or the program knows of all that they have ended (akunu_next_piece has said
/// so).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_ready_request(
    model: *mut ModelHandle,
    wait_ms: u32,
    request: *mut *mut RequestHandle,
) -> Status {
    guard(|| {
        check_pointer(request, "the pointer for the request")?;
        if wait_ms > 0 {
            check_not_in_callback()?;
        }
        let model = MODELS.get(model)?;
        let ready = model.requests()?.mail.ready(Wait::new(wait_ms))?;
        let handle = ready.map_or(std::ptr::null_mut(), std::ptr::without_provenance_mut);
        // SAFETY: checked above; the rest is guaranteed by the caller.
        unsafe { write(request, handle, "the pointer for the request") }
    })
}

/// Cancels a request, which ends within a step with AKUNU_FINISH_CANCELLED. May be called from any thread, and from a
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_cancel_request(request: *mut RequestHandle) -> Status {
    guard(|| {
        REQUESTS.get(request)?.cancel.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// Gets the statistics of a request. `finish` is 0, and so are the others, until the request has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_request_stats(request: *const RequestHandle, stats: *mut Stats) -> Status {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { check_struct(stats) }?;
        let request = REQUESTS.get(request)?;
        let state = request.model.requests()?.mail.lock();
        let found = match state.inboxes.get(&request.number).and_then(|inbox| inbox.ended.as_ref()) {
            None => Stats { end_token: -1, ..Stats::default() },
            Some(Ok(stats)) => *stats,
            Some(Err((status, message))) => return Err(Failure::new(*status, message.clone())),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { write_struct(stats, &found) }
    })
}

/// Frees a request, and cancels it if it has not ended. Does nothing if `request` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_free_request(request: *mut RequestHandle) -> Status {
    guard(|| {
        if request.is_null() {
            return Ok(());
        }
        let request = REQUESTS.remove(request)?;
        request.cancel.store(true, Ordering::Relaxed);
        request.model.requests()?.mail.remove(request.number);
        Ok(())
    })
}

/// Gets the number of requests that wait for a place in the batch, and of those that have one, as of the last step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_batch_counts(
    model: *const ModelHandle,
    waiting: *mut u32,
    running: *mut u32,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        let stats = model.requests()?.handle.stats();
        // SAFETY: guaranteed by the caller.
        unsafe { write(waiting, small(stats.waiting), "waiting") }?;
        // SAFETY: guaranteed by the caller.
        unsafe { write(running, small(stats.reading + stats.running), "running") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox(numbers: &[usize]) -> Mailbox {
        let mail = Mailbox::default();
        for &number in numbers {
            mail.lock().inboxes.insert(number, Inbox::default());
        }
        mail
    }

    fn piece() -> OwnedPiece {
        OwnedPiece::new("a", &[1], &[])
    }

    #[test]
    fn requests_with_pieces_take_turns() {
        let mail = mailbox(&[1, 3, 5]);
        assert_eq!(mail.ready(Wait::new(0)).unwrap(), None);
        for number in [1, 1, 5, 5] {
            assert!(mail.put(number, |inbox| inbox.pieces.push_back(piece())));
        }
        assert!(!mail.put(7, |_| panic!("there is none")));
        let mut turns = Vec::new();
        while let Some(number) = mail.ready(Wait::new(0)).unwrap() {
            turns.push(number);
            assert!(matches!(mail.take(number, Wait::new(0)), Ok(Taken::Piece(_))));
        }
        assert_eq!(turns, [1, 5, 1, 5]);
    }

    #[test]
    fn waiting_ends_when_all_requests_have_ended() {
        let mail = mailbox(&[1]);
        assert!(matches!(mail.take(1, Wait::new(0)), Ok(Taken::Nothing)));
        mail.put(1, |inbox| inbox.ended = Some(Ok(Stats::default())));
        assert_eq!(mail.ready(Wait::new(AKUNU_FOREVER)).unwrap(), Some(1));
        assert!(matches!(mail.take(1, Wait::new(AKUNU_FOREVER)), Ok(Taken::Over)));
        assert_eq!(mail.ready(Wait::new(AKUNU_FOREVER)).unwrap(), None);
    }

    #[test]
    fn an_engine_that_panicked_fails_its_requests() {
        let mail = Arc::new(mailbox(&[1]));
        drop(Postman { mail: mail.clone(), number: 1, has_ended: false });
        let failure = mail.take(1, Wait::new(AKUNU_FOREVER)).err().unwrap();
        assert_eq!(failure.status, Status::Internal);
    }
}

//! Sessions: sequences in the KV cache, which are prefilled and decoded.

use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use akunu::{Breakers, Engine, Error, Sampling};

use crate::arguments::{
    AKUNU_TO_NULL, OutBuffer, check_pointer, items, read_struct, text, write, write_optional, write_struct,
};
use crate::boundary::{Failure, Status, check_not_in_callback, guard};
use crate::model::{MODELS, Model, small};
use crate::registry::{Registry, number};
use crate::structs::{ModelHandle, SamplingSettings, SessionHandle};
use crate::worker::{SessionState, freed};

pub(crate) static SESSIONS: Registry<Session> = Registry::new("session");

/// A session, shared between threads.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: usize,
    pub(crate) model: Arc<Model>,
    sampling: Mutex<Sampling>,
}

impl Session {
    fn locked(&self) -> MutexGuard<'_, Sampling> {
        self.sampling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sampling(&self) -> Sampling {
        self.locked().clone()
    }

    /// Changes the settings if the result is valid.
    fn change(&self, change: impl FnOnce(&mut Sampling)) -> Result<(), Failure> {
        let mut sampling = self.locked();
        let mut changed = sampling.clone();
        change(&mut changed);
        changed.check(self.model.model.config().vocab_size)?;
        *sampling = changed;
        Ok(())
    }

    /// Runs a task with the session on the engine's thread.
    fn run<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Engine, &mut SessionState) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let number = self.number;
        self.model.queue()?.run(move |worker| {
            let (engine, state) = worker.session(number)?;
            task(engine, state)
        })
    }

    /// As [`Session::run`], for a task after which the engine's latest logits are those of the session's last token.
    fn run_for_logits<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Engine, &mut SessionState) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let number = self.number;
        self.model.queue()?.run(move |worker| {
            let (engine, state) = worker.session(number)?;
            state.pending.clear();
            let result = task(engine, state)?;
            worker.fresh = Some(number);
            Ok(result)
        })
    }
}

/// Creates an empty session. Any number of threads may use the sessions of a model; their calls are queued.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_create_session(
    model: *mut ModelHandle,
    session: *mut *mut SessionHandle,
) -> Status {
    guard(|| {
        check_pointer(session, "the pointer for the session")?;
        let model = MODELS.get(model)?;
        let number = number();
        model.queue()?.run(move |worker| worker.add(number))?;
        let handle = add(number, model)?;
        // SAFETY: checked above; the rest is guaranteed by the caller.
        unsafe { write(session, handle, "the pointer for the session") }
    })
}

/// Registers a session, unless its model is freed meanwhile.
fn add(number: usize, model: Arc<Model>) -> Result<*mut SessionHandle, Failure> {
    let handle =
        SESSIONS.add(number, Arc::new(Session { number, model: model.clone(), sampling: Mutex::default() }));
    if model.queue()?.is_closing() {
        // It may have been removed with the model.
        let _ = SESSIONS.remove::<SessionHandle>(handle);
        return Err(freed("model"));
    }
    Ok(handle)
}

/// Frees a session, and invalidates its handle. A generation of another thread is cancelled and waited for. Does nothing
/// if `session` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_free_session(session: *mut SessionHandle) -> Status {
    guard(|| {
        if session.is_null() {
            return Ok(());
        }
        check_not_in_callback()?;
        let session = SESSIONS.remove(session)?;
        let number = session.number;
        session.model.queue()?.cancel(number);
        session.model.queue()?.run(move |worker| {
            worker.remove(number);
            Ok(())
        })
    })
}

/// The tokens whose keys and values are in the KV cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_session_tokens(
    session: *const SessionHandle,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        let number = session.number;
        let found = session.model.queue()?.run(move |worker| worker.tokens(number))?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer: tokens, capacity, length: count }.fill(&found) }
    })
}

/// Removes all but the first `length` tokens; 0 clears the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_session_truncate(session: *mut SessionHandle, length: usize) -> Status {
    guard(|| {
        SESSIONS.get(session)?.run(move |_, state| {
            let len = state.session.len();
            if length > len {
                return Err(Failure::argument(format!(
                    "the session has {len} tokens and cannot be truncated to {length}"
                )));
            }
            let reach = state.session.reach(length);
            if reach < length {
                return Err(Failure::argument(format!(
                    "the window before token {length} is no longer in the cache: the session can be truncated to {reach}"
                )));
            }
            state.session.truncate(length);
            state.pending.clear();
            Ok(())
        })
    })
}

/// Replaces the content of `to` with the first `count` tokens of `from`, without running the model. Both must belong to the
/// same model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_session_copy(
    from: *const SessionHandle,
    to: *mut SessionHandle,
    count: usize,
) -> Status {
    guard(|| {
        let (from, to) = (SESSIONS.get(from)?, SESSIONS.get(to)?);
        if from.number == to.number {
            return Err(Failure::argument("a session cannot be copied to itself"));
        }
        if from.model.number != to.model.number {
            return Err(Error::ForeignSession.into());
        }
        let (a, b) = (from.number, to.number);
        from.model.queue()?.run(move |worker| worker.copy(a, b, count))
    })
}

/// Writes the session's tokens with their keys and values to a file, from which akunu_session_restore takes them, in this
/// process or another one. A file of this name is replaced when the new one is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_session_save(session: *const SessionHandle, path: *const c_char) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: guaranteed by the caller.
        let path = PathBuf::from(unsafe { text(path, AKUNU_TO_NULL, "the path") }?);
        session.run(move |engine, state| Ok(engine.save_session(&state.session, &path).map(|_| ())?))
    })
}

/// Replaces the content of the session with that of a file of akunu_session_save, which must have been written with the same
/// model, type of cache and kind of device. After an error the session is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_session_restore(session: *mut SessionHandle, path: *const c_char) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: guaranteed by the caller.
        let path = PathBuf::from(unsafe { text(path, AKUNU_TO_NULL, "the path") }?);
        session.run(move |engine, state| {
            state.pending.clear();
            Ok(engine.restore_session(&mut state.session, &path).map(|_| ())?)
        })
    })
}

/// Gets the session's sampling settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_get_sampling(
    session: *const SessionHandle,
    sampling: *mut SamplingSettings,
) -> Status {
    guard(|| {
        let settings = settings(&SESSIONS.get(session)?.sampling());
        // SAFETY: guaranteed by the caller.
        unsafe { write_struct(sampling, &settings) }
    })
}

/// Sets the session's sampling settings, except the logit biases and DRY's breakers. Devices that can sample do so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_set_sampling(
    session: *mut SessionHandle,
    sampling: *const SamplingSettings,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: guaranteed by the caller.
        let settings = unsafe { read_struct(sampling) }?;
        session.change(|sampling| {
            *sampling = Sampling {
                logit_bias: std::mem::take(&mut sampling.logit_bias),
                dry_breakers: sampling.dry_breakers.take(),
                ..sampling_of(&settings)
            };
        })
    })
}

/// The settings, without logit biases and breakers.
pub(crate) fn sampling_of(settings: &SamplingSettings) -> Sampling {
    let usual = Sampling::default();
    let or = |value: f32, usual: f32| if value == 0.0 { usual } else { value };
    let count_or = |value: u32, usual: usize| if value == 0 { usual } else { value as usize };
    Sampling {
        temperature: settings.temperature,
        top_k: settings.top_k as usize,
        top_p: settings.top_p,
        min_p: settings.min_p,
        repeat_penalty: settings.repeat_penalty,
        frequency_penalty: settings.frequency_penalty,
        presence_penalty: settings.presence_penalty,
        repeat_last_n: settings.repeat_last_n as usize,
        logit_bias: Vec::new(),
        top_n_sigma: settings.top_n_sigma,
        typical_p: or(settings.typical_p, usual.typical_p),
        xtc_probability: settings.xtc_probability,
        xtc_threshold: or(settings.xtc_threshold, usual.xtc_threshold),
        dynatemp_range: settings.dynatemp_range,
        dynatemp_exponent: or(settings.dynatemp_exponent, usual.dynatemp_exponent),
        dry_multiplier: settings.dry_multiplier,
        dry_base: or(settings.dry_base, usual.dry_base),
        dry_allowed_length: count_or(settings.dry_allowed_length, usual.dry_allowed_length),
        dry_last_n: count_or(settings.dry_last_n, usual.dry_last_n),
        dry_breakers: None,
        mirostat_tau: settings.mirostat_tau,
        mirostat_eta: or(settings.mirostat_eta, usual.mirostat_eta),
        seed: settings.seed,
    }
}

/// Gets the sampling settings that the model's files suggest, or greedy sampling where they suggest none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_suggested_sampling(
    model: *const ModelHandle,
    sampling: *mut SamplingSettings,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        let suggested = Sampling::suggested(&model.model.config().sampling, &Sampling::default());
        // SAFETY: guaranteed by the caller.
        unsafe { write_struct(sampling, &settings(&suggested)) }
    })
}

fn settings(sampling: &Sampling) -> SamplingSettings {
    SamplingSettings {
        size: small(size_of::<SamplingSettings>()),
        temperature: sampling.temperature,
        top_k: small(sampling.top_k),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repeat_penalty: sampling.repeat_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        repeat_last_n: small(sampling.repeat_last_n),
        reserved: 0,
        seed: sampling.seed,
        top_n_sigma: sampling.top_n_sigma,
        typical_p: sampling.typical_p,
        xtc_probability: sampling.xtc_probability,
        xtc_threshold: sampling.xtc_threshold,
        dynatemp_range: sampling.dynatemp_range,
        dynatemp_exponent: sampling.dynatemp_exponent,
        dry_multiplier: sampling.dry_multiplier,
        dry_base: sampling.dry_base,
        dry_allowed_length: small(sampling.dry_allowed_length),
        // All, as 0.
        dry_last_n: u32::try_from(sampling.dry_last_n).unwrap_or(0),
        mirostat_tau: sampling.mirostat_tau,
        mirostat_eta: sampling.mirostat_eta,
    }
}

/// Sets the texts that DRY's repetitions do not reach across: tokens that contain one of them, and control tokens, end
/// a repetition. If `texts` is null, they are the default ones: line breaks, colons, quotation marks and asterisks. If
/// it is not null and `count` is 0, only control tokens do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_set_dry_breakers(
    session: *mut SessionHandle,
    texts: *const *const c_char,
    count: usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: guaranteed by the caller.
        let breakers = unsafe { breakers(&session.model.model, texts, count) }?;
        session.change(|sampling| sampling.dry_breakers = breakers)
    })
}

/// The tokens that contain one of the texts; `None`: the default ones.
///
/// # Safety
/// `texts` is null or points at `count` null-terminated texts.
pub(crate) unsafe fn breakers(
    model: &akunu::Model,
    texts: *const *const c_char,
    count: usize,
) -> Result<Option<Breakers>, Failure> {
    if texts.is_null() && count == 0 {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let texts = unsafe { items(texts, count, "the breakers") }?;
    let breaker = |&breaker: &*const c_char| {
        // SAFETY: guaranteed by the caller for each of them.
        match unsafe { text(breaker, AKUNU_TO_NULL, "a breaker") }? {
            "" => Err(Failure::argument("a breaker is empty")),
            text => Ok(text),
        }
    };
    let texts: Vec<&str> = texts.iter().map(breaker).collect::<Result<_, _>>()?;
    Ok(Some(model.breakers(&texts)))
}

/// Sets the logit biases, replacing earlier ones: `biases[i]` is added to the logit of `tokens[i]`. -INFINITY excludes a token.
/// A count of 0 removes all biases.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_set_logit_bias(
    session: *mut SessionHandle,
    tokens: *const u32,
    biases: *const f32,
    count: usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: guaranteed by the caller.
        let (tokens, biases) =
            unsafe { (items(tokens, count, "the tokens")?, items(biases, count, "the biases")?) };
        session.change(|sampling| {
            sampling.logit_bias = tokens.iter().copied().zip(biases.iter().copied()).collect();
        })
    })
}

/// Makes the session's content equal to `tokens`: keeps their common prefix, and prefills the rest. `next` (may be null) gets the
/// next token, sampled with the session's settings. `reused` (may be null) gets the length of the common prefix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_prefill(
    session: *mut SessionHandle,
    tokens: *const u32,
    count: usize,
    next: *mut u32,
    reused: *mut usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: guaranteed by the caller.
        let tokens = unsafe { items(tokens, count, "the tokens") }?.to_vec();
        let sampling = (!next.is_null()).then(|| session.sampling());
        let (sampled, kept) = session.run_for_logits(move |engine, state| {
            let kept = engine.prefill(&mut state.session, &tokens)?.reused;
            let Some(sampling) = sampling else { return Ok((0, kept)) };
            let mut sampler = engine.sampler(&sampling)?;
            Ok((sampler.pick(engine.last_logits()?, &tokens)?, kept))
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { write_optional(next, sampled, "next") }?;
        // SAFETY: guaranteed by the caller.
        unsafe { write_optional(reused, kept, "reused") }
    })
}

/// Appends `token` to the session, and gets the next token, sampled with the session's settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_decode_step(
    session: *mut SessionHandle,
    token: u32,
    next: *mut u32,
) -> Status {
    guard(|| {
        check_pointer(next, "next")?;
        let session = SESSIONS.get(session)?;
        let sampling = session.sampling();
        let sampled = session.run_for_logits(move |engine, state| {
            let ids = decode(engine, state, &sampling, token, 1, &[])?;
            ids.first()
                .copied()
                .ok_or_else(|| Failure::new(Status::Internal, "a decode step returned no token"))
        })?;
        // SAFETY: checked above; the rest is guaranteed by the caller.
        unsafe { write(next, sampled, "next") }
    })
}

/// Decodes up to `steps` tokens after `token`, in as few submissions to the device as possible. `token` and all tokens but the last
/// are appended to the session; the last is to be passed to the next call. Decoding stops after an end-of-sequence token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_chain_decode(
    session: *mut SessionHandle,
    token: u32,
    steps: usize,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        let output = OutBuffer { buffer: tokens, capacity, length: count };
        output.check()?;
        if capacity < steps || steps == 0 {
            let message = format!(
                "the buffer of {capacity} tokens is too small for a chain of {steps}, which must be at least 1"
            );
            let status = if steps == 0 { Status::Argument } else { Status::BufferTooSmall };
            return Err(Failure::new(status, message));
        }
        let sampling = session.sampling();
        let eos_ids = session.model.model.eos_ids().to_vec();
        let found = session.run(move |engine, state| {
            state.pending.clear();
            if state.session.len().saturating_add(steps) > engine.context() {
                return Err(Error::ContextFull { context: engine.context() }.into());
            }
            decode(engine, state, &sampling, token, steps, &eos_ids)
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { output.fill(&found) }
    })
}

/// Decodes `steps` tokens, in as many chains as necessary; fewer if one of `eos_ids` is sampled.
fn decode(
    engine: &mut Engine,
    state: &mut SessionState,
    sampling: &Sampling,
    token: u32,
    steps: usize,
    eos_ids: &[u32],
) -> Result<Vec<u32>, Failure> {
    let mut sampler = match sampling.is_plain_greedy() {
        true => None,
        false => Some(engine.sampler(sampling)?),
    };
    let start = state.session.len();
    let mut history = state.session.tokens().to_vec();
    history.push(token);
    loop {
        let done = history.len() - start - 1;
        let last = history[history.len() - 1];
        if done == steps || (done > 0 && eos_ids.contains(&last)) {
            return Ok(history.split_off(start + 1));
        }
        let session = &mut state.session;
        let ids = engine.chain(session, &history, sampler.as_mut(), steps - done, eos_ids, None)?;
        if ids.is_empty() {
            return Err(Failure::new(Status::Internal, "a chain returned no token"));
        }
        history.extend_from_slice(ids);
    }
}

/// The logits after the session's last token, one per token id. If the engine ran other work in between, the last token is
/// processed again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_get_logits(
    session: *mut SessionHandle,
    logits: *mut f32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        let output = OutBuffer { buffer: logits, capacity, length: count };
        let vocabulary = session.model.model.config().vocab_size;
        if output.check()? {
            // SAFETY: checked above; the rest is guaranteed by the caller.
            return unsafe { write(count, vocabulary, "the count") };
        }
        let number = session.number;
        let found = session.model.queue()?.run(move |worker| worker.logits(number))?;
        // SAFETY: guaranteed by the caller.
        unsafe { output.fill(&found) }
    })
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;
    use crate::model::{akunu_free_model, akunu_load_model};

    #[test]
    fn a_session_that_is_made_while_its_model_is_freed_is_not_registered() {
        let mut handle = null_mut();
        // SAFETY: null selects the defaults, and the model's pointer is valid.
        assert_eq!(unsafe { akunu_load_model(null(), null(), &mut handle) }, Status::Ok);
        let model = MODELS.get(handle).unwrap();
        let number = number();
        model.queue().unwrap().run(move |worker| worker.add(number)).unwrap();
        // SAFETY: any value of a handle is allowed.
        assert_eq!(unsafe { akunu_free_model(handle) }, Status::Ok);
        assert_eq!(add(number, model).unwrap_err().status, Status::Handle);
        let session: *const SessionHandle = std::ptr::without_provenance(number);
        assert!(SESSIONS.get(session).is_err());
    }
}

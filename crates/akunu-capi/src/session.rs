//! Sessions: a text in the model's cache, fed and decoded step by step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use akunu::{Engine, Error, Sampler, Sampling};

use crate::arguments::{Room, check_pointer, items, read_struct, write, write_struct, write_wanted};
use crate::boundary::{Failure, Status, check_not_in_callback, guard};
use crate::model::{MODELS, Model, small};
use crate::registry::{Registry, number};
use crate::structs::{ModelHandle, SamplingSettings, SessionHandle};
use crate::worker::SessionState;

pub(crate) static SESSIONS: Registry<Session> = Registry::new("session");

/// A session, as every thread may see it.
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

    /// Changes the settings, unless what comes of it makes no sense.
    fn change(&self, change: impl FnOnce(&mut Sampling)) -> Result<(), Failure> {
        let mut sampling = self.locked();
        let mut changed = sampling.clone();
        change(&mut changed);
        changed.check(self.model.model.config().vocab_size)?;
        *sampling = changed;
        Ok(())
    }

    /// Has the engine do something with the session.
    fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Engine, &mut SessionState) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let number = self.number;
        self.model.post.ask(move |worker| {
            let (engine, held) = worker.held(number)?;
            task(engine, held)
        })
    }

    /// As [`Session::ask`], of what leaves the logits after the session's last token behind.
    fn ask_for_logits<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Engine, &mut SessionState) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let number = self.number;
        self.model.post.ask(move |worker| {
            let (engine, held) = worker.held(number)?;
            held.tail.clear();
            let done = task(engine, held)?;
            worker.fresh = Some(number);
            Ok(done)
        })
    }
}

/// Begins an empty text in a model's cache. Any number of threads may use a model's sessions: they take turns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_create_session(
    model: *mut ModelHandle,
    session: *mut *mut SessionHandle,
) -> Status {
    guard(|| {
        check_pointer(session, "the place for the session")?;
        let model = MODELS.get(model)?;
        let number = number();
        model.post.ask(move |worker| worker.add(number))?;
        let made = Arc::new(Session { number, model, sampling: Mutex::default() });
        // SAFETY: checked, and the caller's word.
        unsafe { write(session, SESSIONS.add(number, made), "the place for the session") }
    })
}

/// Frees a session, whose handle is no good from then on. What another thread is generating in it ends as cancelled, and
/// is waited for. Null is nothing to free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_free_session(session: *mut SessionHandle) -> Status {
    guard(|| {
        if session.is_null() {
            return Ok(());
        }
        check_not_in_callback()?;
        let session = SESSIONS.remove(session)?;
        let number = session.number;
        session.model.post.cancel(number);
        session.model.post.ask(move |worker| {
            worker.remove(number);
            Ok(())
        })
    })
}

/// The tokens whose keys and values stand in the cache.
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
        let found = session.model.post.ask(move |worker| worker.tokens(number))?;
        // SAFETY: the caller's word.
        unsafe { Room { buffer: tokens, capacity, length: count }.fill(&found) }
    })
}

/// Forgets all but the first `length` tokens; 0 forgets the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_session_truncate(session: *mut SessionHandle, length: usize) -> Status {
    guard(|| {
        SESSIONS.get(session)?.ask(move |_, held| {
            let len = held.session.len();
            if length > len {
                return Err(Failure::argument(format!("the session has {len} tokens, not {length}")));
            }
            held.session.truncate(length);
            held.tail.clear();
            Ok(())
        })
    })
}

/// Makes the first `count` tokens of `from` all that `to` holds, without running the model. Both are of one model.
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
        from.model.post.ask(move |worker| worker.copy(a, b, count))
    })
}

/// How the session's next tokens are picked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_get_sampling(
    session: *const SessionHandle,
    sampling: *mut SamplingSettings,
) -> Status {
    guard(|| {
        let settings = settings(&SESSIONS.get(session)?.sampling());
        // SAFETY: the caller's word.
        unsafe { write_struct(sampling, &settings) }
    })
}

/// Sets how the session's next tokens are picked, on the device where it can. Biases stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_set_sampling(
    session: *mut SessionHandle,
    sampling: *const SamplingSettings,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: the caller's word.
        let settings = unsafe { read_struct(sampling) }?;
        session.change(|sampling| {
            *sampling = Sampling {
                temperature: settings.temperature,
                top_k: settings.top_k as usize,
                top_p: settings.top_p,
                min_p: settings.min_p,
                repeat_penalty: settings.repeat_penalty,
                frequency_penalty: settings.frequency_penalty,
                presence_penalty: settings.presence_penalty,
                repeat_last_n: settings.repeat_last_n as usize,
                seed: settings.seed,
                logit_bias: std::mem::take(&mut sampling.logit_bias),
            }
        })
    })
}

/// What the makers of a model suggest for sampling, or the best token always where they suggest nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_suggested_sampling(
    model: *const ModelHandle,
    sampling: *mut SamplingSettings,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        let suggested = Sampling::suggested(&model.model.config().sampling, &Sampling::default());
        // SAFETY: the caller's word.
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
    }
}

/// Adds `biases[i]` to the logit of `tokens[i]` from now on, in the place of earlier biases; -INFINITY rules a token out. A count of
/// 0 takes them all away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_set_logit_bias(
    session: *mut SessionHandle,
    tokens: *const u32,
    biases: *const f32,
    count: usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: the caller's word.
        let (tokens, biases) =
            unsafe { (items(tokens, count, "the tokens")?, items(biases, count, "the biases")?) };
        session.change(|sampling| {
            sampling.logit_bias = tokens.iter().copied().zip(biases.iter().copied()).collect();
        })
    })
}

/// Sets the temperature of the session's sampling, which the device then does; 0 takes the best token always.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_gpu_temperature_scale(
    session: *mut SessionHandle,
    temperature: f32,
) -> Status {
    guard(|| SESSIONS.get(session)?.change(|sampling| sampling.temperature = temperature))
}

/// Sets the repeat penalty of the session's sampling, which the device then does, and how many of the latest tokens it looks
/// back at; a penalty of 1 is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_gpu_repetition_penalty(
    session: *mut SessionHandle,
    penalty: f32,
    last_n: u32,
) -> Status {
    guard(|| {
        SESSIONS.get(session)?.change(|sampling| {
            sampling.repeat_penalty = penalty;
            sampling.repeat_last_n = last_n as usize;
        })
    })
}

/// Makes the session's text equal to `tokens`: keeps the beginning that they share, and runs the model over the rest. `next` (may be
/// null) gets the token that follows, picked as the session samples; `reused` (may be null) how many tokens stood there already.
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
        // SAFETY: the caller's word.
        let tokens = unsafe { items(tokens, count, "the tokens") }?.to_vec();
        let sampling = (!next.is_null()).then(|| session.sampling());
        let (picked, kept) = session.ask_for_logits(move |engine, held| {
            let kept = engine.prefill(&mut held.session, &tokens)?.reused;
            let Some(sampling) = sampling else { return Ok((0, kept)) };
            let mut sampler = Sampler::new(&sampling, engine.vocab_size())?;
            Ok((sampler.pick(engine.last_logits()?, &tokens)?, kept))
        })?;
        // SAFETY: the caller's word.
        unsafe { write_wanted(next, picked, "next") }?;
        // SAFETY: the caller's word.
        unsafe { write_wanted(reused, kept, "reused") }
    })
}

/// Appends `token` to the session's text, and gives the one that follows it, picked as the session samples.
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
        let found = session.ask_for_logits(move |engine, held| {
            let found = decode(engine, held, &sampling, token, 1, &[])?;
            found.first().copied().ok_or_else(|| Failure::new(Status::Internal, "a step gave no token"))
        })?;
        // SAFETY: checked, and the caller's word.
        unsafe { write(next, found, "next") }
    })
}

/// Decodes up to `steps` tokens after `token` without coming back in between, where the device can: `token` is appended to the
/// session's text, then each token found but the last, which is to be fed next. Fewer come where one ends the text; that one comes last.
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
        let room = Room { buffer: tokens, capacity, length: count };
        room.check()?;
        if capacity < steps || steps == 0 {
            let message =
                format!("the buffer holds {capacity} tokens, and a chain of {steps} may give as many");
            let status = if steps == 0 { Status::Argument } else { Status::BufferTooSmall };
            return Err(Failure::new(status, message));
        }
        let sampling = session.sampling();
        let endings = session.model.model.eos_ids().to_vec();
        let found = session.ask(move |engine, held| {
            held.tail.clear();
            if held.session.len().saturating_add(steps) > engine.context() {
                return Err(Error::ContextFull { context: engine.context() }.into());
            }
            decode(engine, held, &sampling, token, steps, &endings)
        })?;
        // SAFETY: the caller's word.
        unsafe { room.fill(&found) }
    })
}

/// Decodes `steps` tokens, in as many chains as it takes; fewer if one of `endings` comes up.
fn decode(
    engine: &mut Engine,
    held: &mut SessionState,
    sampling: &Sampling,
    token: u32,
    steps: usize,
    endings: &[u32],
) -> Result<Vec<u32>, Failure> {
    let mut sampler = match sampling.is_plain_greedy() {
        true => None,
        false => Some(Sampler::new(sampling, engine.vocab_size())?),
    };
    let start = held.session.len();
    let mut history = held.session.tokens().to_vec();
    history.push(token);
    loop {
        let done = history.len() - start - 1;
        let last = history[history.len() - 1];
        if done == steps || (done > 0 && endings.contains(&last)) {
            return Ok(history.split_off(start + 1));
        }
        let session = &mut held.session;
        let found = engine.chain(session, &history, sampler.as_mut(), steps - done, endings, None)?;
        if found.is_empty() {
            return Err(Failure::new(Status::Internal, "a chain gave no token"));
        }
        history.extend_from_slice(found);
    }
}

/// The logits after the session's last token, one for each id. Where other work came between, the token goes through the
/// model once more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_get_logits(
    session: *mut SessionHandle,
    logits: *mut f32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        let room = Room { buffer: logits, capacity, length: count };
        let vocabulary = session.model.model.config().vocab_size;
        if room.check()? {
            // SAFETY: checked, and the caller's word.
            return unsafe { write(count, vocabulary, "the count") };
        }
        let number = session.number;
        let found = session.model.post.ask(move |worker| worker.logits(number))?;
        // SAFETY: the caller's word.
        unsafe { room.fill(&found) }
    })
}

//! From a prompt to streamed text.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::output::{OnPiece, Output};
use crate::{Engine, Error, Sampler, Sampling, Session};

/// What happens when the context is full and the text is not done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// [`Error::ContextFull`].
    Error,
    /// Stop with [`FinishReason::ContextFull`].
    #[default]
    Stop,
    /// Forget the older half of what follows the first `keep` tokens, and go on.
    Shift { keep: usize },
}

#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// `None`: until the model ends the text, or the context is full.
    pub max_tokens: Option<usize>,
    pub sampling: Sampling,
    /// End the text where one of these would begin. They may span tokens.
    pub stop_strings: Vec<String>,
    /// End the text at one of these, besides the model's own end-of-text ids.
    pub stop_ids: Vec<u32>,
    /// Control tokens that are written out in the text, such as `<think>`; others have none.
    pub visible_ids: Vec<u32>,
    /// Go on past the model's end-of-text ids (`stop_ids` still count).
    pub ignore_eos: bool,
    pub overflow: Overflow,
    /// Set from another thread or a signal handler, it ends the text soon.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// A piece of generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Whole characters. Empty where the model has no vocabulary, and where the last ids have no text.
    pub text: &'a str,
    /// The ids decoded since the last piece. Text that may be the beginning of a stop string is held back, so this text
    /// may belong to earlier ids in part.
    pub ids: &'a [u32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text with this id.
    Eos(u32),
    StopString(String),
    StopId(u32),
    MaxTokens,
    ContextFull,
    Cancelled,
    /// The callback broke off.
    Callback,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    pub prompt_tokens: usize,
    /// Of these, how many stood in the session already.
    pub reused_tokens: usize,
    /// Seconds from the call to the prompt's last logits.
    pub prompt_s: f64,
    pub generated_tokens: usize,
    /// Seconds from the prompt's last logits to the end.
    pub generate_s: f64,
    /// Seconds from the call to the first token.
    pub ttft_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    pub finish: FinishReason,
    /// The ids generated, without the end-of-text or stop id that ended them.
    pub ids: Vec<u32>,
    /// Tokens that were shifted out of the session.
    pub dropped: usize,
    pub timings: Timings,
}

/// One submission should take no longer than this: text streams smoothly, and Ctrl-C is heard.
const CHAIN_SECONDS: f64 = 0.05;

impl Engine {
    /// Generates what follows `prompt` into the session (whose tokens are reused as far as the prompt begins with
    /// them), giving each piece of text to `on_piece` as soon as it is certain. Afterwards the session holds the prompt and
    /// those of the generated ids that went through the model.
    ///
    /// After an error, what was given out before stands, and so does the session's state.
    pub fn generate(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        on_piece: &mut dyn FnMut(Piece<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        let start = Instant::now();
        let model = self.model().clone();
        self.check_options(options)?;
        let sampler = match options.sampling.is_plain_greedy() {
            true => None,
            false => Some(Sampler::new(&options.sampling, self.vocab_size())?),
        };
        let reused = self.reuse(session, prompt)?;
        let mut output = Output::new(&model, prompt, options, self.context());
        let complete = self.feed(session, &prompt[reused..], options.cancel.as_deref())?;
        let prompt_s = start.elapsed().as_secs_f64();

        let mut run = Run { engine: self, options, sampler, chain: 1, dropped: 0, first_token: None };
        let result = match complete {
            true => run.run(session, &mut output, on_piece),
            false => Ok(FinishReason::Cancelled),
        };
        let Run { dropped, first_token, .. } = run;
        if !matches!(result, Ok(FinishReason::Callback | FinishReason::StopString(_))) {
            output.flush(on_piece);
        }
        // What a chain decoded past the end.
        session.truncate(output.history().len() - dropped);
        let finish = result?;
        let total_s = start.elapsed().as_secs_f64();
        let ids = output.into_ids();
        let timings = Timings {
            prompt_tokens: prompt.len(),
            reused_tokens: reused,
            prompt_s,
            generated_tokens: ids.len(),
            generate_s: total_s - prompt_s,
            ttft_s: first_token.map_or(total_s, |at| (at - start).as_secs_f64()),
        };
        Ok(Generated { finish, ids, dropped, timings })
    }

    fn check_options(&self, options: &GenerateOptions) -> Result<(), Error> {
        let vocab = self.vocab_size();
        options.sampling.check(vocab)?;
        for (index, &id) in options.stop_ids.iter().enumerate() {
            if id as usize >= vocab {
                return Err(Error::TokenOutsideVocabulary { id, index, vocab, place: "stop ids" });
            }
        }
        if !options.stop_strings.is_empty() {
            self.model().tokenizer()?;
        }
        if options.stop_strings.iter().any(String::is_empty) {
            return Err(Error::Setting {
                name: "a stop string",
                value: "empty".into(),
                expected: "some text",
            });
        }
        match options.overflow {
            Overflow::Shift { keep } if keep >= self.context() => Err(Error::Setting {
                name: "the number of tokens to keep when shifting",
                value: keep.to_string(),
                expected: "less than the context",
            }),
            _ => Ok(()),
        }
    }
}

/// One generation on its way.
struct Run<'a> {
    engine: &'a mut Engine,
    options: &'a GenerateOptions,
    /// `None`: plain greedy.
    sampler: Option<Sampler>,
    /// Steps of the next submission, if nothing limits it.
    chain: usize,
    /// Tokens that were shifted out of the session.
    dropped: usize,
    first_token: Option<Instant>,
}

impl Run<'_> {
    fn run(
        &mut self,
        session: &mut Session,
        output: &mut Output<'_>,
        on_piece: OnPiece<'_>,
    ) -> Result<FinishReason, Error> {
        if output.left() == 0 {
            return Ok(FinishReason::MaxTokens);
        }
        let mut next = match &mut self.sampler {
            None => self.engine.best_token(session)?,
            Some(sampler) => sampler.pick(self.engine.last_logits()?, output.history())?,
        };
        self.first_token = Some(Instant::now());
        loop {
            if let Some(finish) = output.take(next, on_piece) {
                return Ok(finish);
            }
            if self.is_cancelled() {
                return Ok(FinishReason::Cancelled);
            }
            if session.len() == self.engine.context() && !self.make_room(session)? {
                return Ok(FinishReason::ContextFull);
            }
            let room = self.engine.context() - session.len();
            let limit = room.min(output.left()).min(self.engine.steps_within(CHAIN_SECONDS));
            let steps = self.chain.min(limit);
            let cancel = self.options.cancel.as_deref();
            let endings = output.endings();
            let found = match &mut self.sampler {
                None => self.engine.decode(session, next, steps, endings, cancel)?,
                Some(sampler) => {
                    self.engine.decode_sampled(session, sampler, output.history(), steps, endings, cancel)?
                }
            };
            let Some((&last, before)) = found.split_last() else { return Ok(FinishReason::Cancelled) };
            for &id in before {
                if let Some(finish) = output.take(id, on_piece) {
                    return Ok(finish);
                }
            }
            next = last;
            self.chain = (self.chain * 2).min(self.engine.plan().tables.decode.steps);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.options.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed))
    }

    /// The context is full: does it go on?
    fn make_room(&mut self, session: &mut Session) -> Result<bool, Error> {
        match self.options.overflow {
            Overflow::Error => Err(Error::ContextFull { context: self.engine.context() }),
            Overflow::Stop => Ok(false),
            Overflow::Shift { keep } => {
                let discard = (session.len() - keep).div_ceil(2);
                self.engine.shift(session, keep, discard)?;
                self.dropped += discard;
                Ok(true)
            }
        }
    }
}

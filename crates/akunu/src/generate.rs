//! Generation of streamed text from a prompt.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::constraint::Constraint;
use crate::generation::Generation;
use crate::schedule::TokenLogprob;
use crate::{Engine, Error, Sampling, Session, schedule};

/// What happens when the context is full before the text is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Fail with [`Error::ContextFull`].
    Error,
    /// Stop with [`FinishReason::ContextFull`].
    #[default]
    Stop,
    /// Discard the older half of the tokens after the first `keep`, and continue.
    Shift { keep: usize },
}

#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// `None`: no limit but the end of the text and the context length.
    pub max_tokens: Option<usize>,
    pub sampling: Sampling,
    /// Stop before the first of these texts. They may span tokens.
    pub stop_strings: Vec<String>,
    /// Stop at these ids, in addition to the model's end-of-text ids.
    pub stop_ids: Vec<u32>,
    /// Control tokens whose names are part of the text, such as `<think>`; other control tokens have no text.
    pub visible_ids: Vec<u32>,
    /// Continue after the model's end-of-text ids (`stop_ids` still stop).
    pub ignore_eos: bool,
    pub overflow: Overflow,
    /// Report the log probability of each token, and of this many most probable alternatives.
    pub logprobs: Option<usize>,
    /// The grammar of the text.
    pub constraint: Option<Arc<Constraint>>,
    /// Set from another thread or a signal handler to cancel the generation.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// A piece of generated text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece<'a> {
    /// Whole characters. Empty if the model has no tokenizer, or if the last ids have no text.
    pub text: &'a str,
    /// The ids since the previous piece. Text that may be the beginning of a stop string is held back, so the text may belong
    /// to earlier ids in part.
    pub ids: &'a [u32],
    /// One for each of `ids`, if requested.
    pub logprobs: &'a [TokenLogprob],
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
    /// The text is complete according to its grammar.
    Complete,
    /// The callback returned `Break`.
    Callback,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    pub prompt_tokens: usize,
    /// Of these, how many were in the session already.
    pub reused_tokens: usize,
    /// Seconds from the call to the end of the prefill.
    pub prompt_s: f64,
    pub generated_tokens: usize,
    /// Seconds from the end of the prefill to the end of the generation.
    pub generate_s: f64,
    /// Seconds from the call to the first token.
    pub ttft_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    pub finish: FinishReason,
    /// The generated ids, without the end-of-text or stop id at the end.
    pub ids: Vec<u32>,
    /// Tokens discarded by [`Overflow::Shift`].
    pub dropped: usize,
    pub timings: Timings,
}

impl Engine {
    /// Generates the continuation of `prompt` in the session, whose common prefix with the prompt is reused. Each piece of text
    /// is passed to `on_piece` as soon as it is certain. Afterwards the session holds the prompt and the generated ids that were
    /// processed, usually all but the last.
    ///
    /// This runs the scheduler with a single request. After an error of the device in a pass the content of the KV cache is unknown,
    /// so the session is empty; after other errors it keeps its state.
    pub fn generate(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        on_piece: &mut dyn FnMut(Piece<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        let mut generation = Generation::new(self, prompt, options)?;
        generation.reused = self.reuse(session, prompt)?;
        schedule::run_alone(self, session, generation, options.logprobs, on_piece)
    }

    /// Checks options for this model.
    pub(crate) fn check_options(&self, options: &GenerateOptions) -> Result<(), Error> {
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
                expected: "a non-empty text",
            });
        }
        if options.constraint.as_ref().is_some_and(|constraint| constraint.vocab_size() != vocab) {
            return Err(Error::Setting {
                name: "the vocabulary of the constraint",
                value: "that of another model".into(),
                expected: "that of this model",
            });
        }
        match options.overflow {
            Overflow::Shift { .. } if !self.model().moves_keys() => Err(Error::CannotShift),
            Overflow::Shift { keep } if keep >= self.context() => Err(Error::Setting {
                name: "the number of tokens to keep when shifting",
                value: keep.to_string(),
                expected: "less than the context",
            }),
            Overflow::Shift { keep } if self.most_discarded(self.context(), keep) == 0 => {
                Err(Error::Setting {
                    name: "the number of tokens to keep when shifting",
                    value: keep.to_string(),
                    expected: "less than the context without the window of the model's layers",
                })
            }
            _ => Ok(()),
        }
    }
}

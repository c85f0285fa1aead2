//! From a prompt to streamed text.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::constrain::Constraint;
use crate::generation::Generation;
use crate::{Engine, Error, Sampling, Session, schedule};

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
    /// What the text is held to.
    pub constraint: Option<Arc<Constraint>>,
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
    /// What the text was held to is whole.
    Complete,
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

impl Engine {
    /// Generates what follows `prompt` into the session (whose tokens are reused as far as the prompt begins with
    /// them), giving each piece of text to `on_piece` as soon as it is certain. Afterwards the session holds the prompt and
    /// those of the generated ids that went through the model.
    ///
    /// This is a scheduler's work for a single request. After an error, what was given out before stands. The session keeps its
    /// state, except after an error of the device in a pass: then what stands in the cache is not certain, and the session is empty.
    pub fn generate(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        on_piece: &mut dyn FnMut(Piece<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        let mut generation = Generation::new(self, prompt, options)?;
        generation.reused = self.reuse(session, prompt)?;
        schedule::run_alone(self, session, generation, on_piece)
    }

    /// Refuses what makes no sense for this model.
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
                expected: "some text",
            });
        }
        if options.constraint.as_ref().is_some_and(|constraint| constraint.vocab_size() != vocab) {
            return Err(Error::Setting {
                name: "the vocabulary that an answer's form was made for",
                value: "another".into(),
                expected: "the model's",
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

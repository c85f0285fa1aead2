//! Constrained generation: grammars over a model's vocabulary, and the state of an answer in one.
//!
//! `docs/constrained.md` describes how an answer is held to its grammar.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use akunu_grammar::{Client, Grammar, Limits, Reasoning, ResponseFormat, Session, Vocabulary, Workers};
use akunu_plan::sample::mask_words;

use crate::{Error, Model};

/// Number of cached constraints, and the maximum size of their keys in bytes.
const KEPT: usize = 8;
const KEPT_BYTES: usize = 4 << 20;

/// What may precede an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Preamble {
    pub reasoning: Option<Reasoning>,
    /// Control tokens that occur in the tags of reasoning and calls. They count as text by their names.
    pub marks: Vec<u32>,
}

/// The constraints of a model, and the threads that they need. Compiling takes time, so the latest are cached. Clones share all of it.
#[derive(Clone, Debug)]
pub struct Constraints {
    shared: Arc<Shared>,
    /// Whose constraints are compiled. Those of one owner do not delay those of others.
    owner: u64,
}

#[derive(Debug)]
struct Shared {
    model: Arc<Model>,
    workers: Arc<Workers>,
    /// Latest first, each with a key of everything that it was created from.
    kept: Mutex<VecDeque<(String, Arc<Constraint>)>>,
}

impl Constraints {
    pub fn new(model: Arc<Model>) -> Constraints {
        let shared = Shared { model, workers: Arc::default(), kept: Mutex::default() };
        Constraints { shared: Arc::new(shared), owner: 0 }
    }

    /// The same for an owner's requests.
    #[must_use]
    pub fn of(&self, owner: u64) -> Constraints {
        Constraints { shared: self.shared.clone(), owner }
    }

    /// Finds what is wrong with a format before a model is opened. Grammars that name tokens need its vocabulary, and are
    /// not looked at here.
    pub fn check(format: &ResponseFormat, cancel: Option<&AtomicBool>) -> Result<(), Error> {
        if matches!(format, ResponseFormat::Lark(text) | ResponseFormat::Gbnf(text) if text.contains('<')) {
            return Ok(());
        }
        let bytes: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        let vocabulary = Arc::new(Vocabulary::new(&bytes, Limits::default())?);
        format.check_size(vocabulary.limits())?;
        let workers: Arc<Workers> = Arc::default();
        workers.compile(&vocabulary, format, None, Client { cancel, ..Client::default() })?;
        Ok(())
    }

    /// The constraint of a format. Waits until it is compiled, or until `cancel` is set.
    pub fn get(
        &self,
        format: &ResponseFormat,
        before: Option<&Preamble>,
        cancel: Option<&AtomicBool>,
    ) -> Result<Arc<Constraint>, Error> {
        let Shared { model, workers, kept } = &*self.shared;
        let marks = before.map_or(&[][..], |before| &before.marks);
        let vocabulary = model.vocabulary(marks)?;
        // The key is several times as large as the format.
        format.check_size(vocabulary.limits())?;
        let key = format!("{format:?} {before:?}");
        let kept = || kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, constraint)) = kept().iter().find(|(other, _)| *other == key) {
            return Ok(constraint.clone());
        }
        let client = Client { owner: self.owner, cancel };
        let reasoning = before.and_then(|before| before.reasoning.as_ref());
        let grammar = Arc::new(workers.compile(&vocabulary, format, reasoning, client)?);
        let constraint = Arc::new(Constraint { grammar, workers: workers.clone() });
        keep(&mut kept(), key, constraint.clone());
        Ok(constraint)
    }
}

/// Adds a constraint, unless its key is too long, and removes the oldest ones.
fn keep<T>(kept: &mut VecDeque<(String, T)>, key: String, constraint: T) {
    if key.len() > KEPT_BYTES {
        return;
    }
    kept.push_front((key, constraint));
    let mut bytes = 0;
    let fits = kept.iter().take(KEPT).take_while(|(key, _)| {
        bytes += key.len();
        bytes <= KEPT_BYTES
    });
    let count = fits.count();
    kept.truncate(count);
}

/// The grammar of a format over a model's vocabulary. It may be shared by many requests.
#[derive(Debug)]
pub struct Constraint {
    grammar: Arc<Grammar>,
    workers: Arc<Workers>,
}

impl Constraint {
    pub(crate) fn vocab_size(&self) -> usize {
        self.grammar.vocabulary().size()
    }
}

/// The state of a constrained answer. Its masks are computed by other threads.
#[derive(Debug)]
pub(crate) struct Cursor {
    session: Session,
    /// The number of tokens of the history that the session has.
    read: usize,
    /// Tokens that end the text, with their logits while a mask is applied.
    endings: Vec<(u32, f32)>,
    /// The mask in the form for devices.
    allowed: Vec<u32>,
}

impl Cursor {
    /// `hurries`: a device waits for each mask that takes longer than its pass.
    pub(crate) fn new(constraint: &Constraint, prompt_len: usize, endings: &[u32], hurries: bool) -> Cursor {
        if hurries {
            constraint.workers.expect_masks();
        }
        let session = Session::new(constraint.workers.clone(), constraint.grammar.clone());
        let mut endings = endings.to_vec();
        endings.sort_unstable();
        endings.dedup();
        let endings = endings.into_iter().map(|id| (id, 0.0)).collect();
        Cursor { session, read: prompt_len, endings, allowed: Vec::new() }
    }

    fn follow(&mut self, history: &[u32]) {
        for &id in history.get(self.read..).unwrap_or_default() {
            self.session.push(id);
        }
        self.read = history.len();
    }

    /// Requests the mask of the token after `history`, if it was not yet requested.
    pub(crate) fn request(&mut self, history: &[u32]) {
        for &id in history.get(self.read..).unwrap_or_default() {
            self.session.push_later(id);
        }
        self.read = history.len();
    }

    /// Whether the mask of the token after `history` is known, or why there is none. Waits for it until `deadline`.
    pub(crate) fn is_ready(&mut self, history: &[u32], deadline: Instant) -> bool {
        self.request(history);
        self.session.is_ready() || self.session.wait(deadline.saturating_duration_since(Instant::now()))
    }

    /// Masks the tokens that cannot follow. Waits for the mask if it is not known yet.
    pub(crate) fn rule_out(&mut self, history: &[u32], logits: &mut [f32]) -> Result<(), Error> {
        self.follow(history);
        let mask = self.session.mask()?;
        // They may have a text, which is not meant as text.
        for (id, logit) in &mut self.endings {
            *logit = std::mem::replace(&mut logits[*id as usize], f32::NEG_INFINITY);
        }
        mask.apply(logits);
        if mask.may_end {
            for (id, logit) in &self.endings {
                logits[*id as usize] = *logit;
            }
        }
        Ok(())
    }

    /// The tokens of a vocabulary of this size that may follow, with a bit for each. Waits for the mask if it is not known yet.
    pub(crate) fn allowed(&mut self, history: &[u32], vocab: usize) -> Result<&[u32], Error> {
        self.follow(history);
        let mask = self.session.mask()?;
        let words = mask.words();
        self.allowed.clear();
        self.allowed.extend_from_slice(&words[..words.len().min(mask_words(vocab))]);
        self.allowed.resize(mask_words(vocab), 0);
        for &(id, _) in &self.endings {
            let (word, bit) = (&mut self.allowed[id as usize / 32], 1 << (id % 32));
            *word = if mask.may_end { *word | bit } else { *word & !bit };
        }
        Ok(&self.allowed)
    }

    /// See [`Session::is_slow`].
    pub(crate) fn is_slow(&self) -> bool {
        self.session.is_slow()
    }

    /// Whether the answer is complete with `history`, and nothing can follow.
    pub(crate) fn is_over(&mut self, history: &[u32]) -> bool {
        self.follow(history);
        self.session.is_over()
    }

    /// The same, as far as it is known without its last tokens' masks.
    pub(crate) fn is_known_over(&self) -> bool {
        self.session.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_constraints_are_kept_while_their_keys_are_short_enough() {
        let kept_of = |lengths: &[usize]| -> Vec<usize> {
            let mut kept = VecDeque::new();
            for &length in lengths {
                keep(&mut kept, "a".repeat(length), length);
            }
            kept.into_iter().map(|(_, length)| length).collect()
        };
        assert_eq!(kept_of(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), [10, 9, 8, 7, 6, 5, 4, 3]);
        const MIB: usize = 1 << 20;
        assert_eq!(kept_of(&[MIB, 1, 2 * MIB, MIB]), [MIB, 2 * MIB, 1]);
        assert_eq!(kept_of(&[1, KEPT_BYTES]), [KEPT_BYTES]);
        assert_eq!(kept_of(&[1, KEPT_BYTES + 1]), [1]);
    }
}

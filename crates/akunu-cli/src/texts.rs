//! The input texts of `embed` and `rerank`, and their names in messages.

use std::path::Path;

use akunu::{Embedder, Error, TextIds};

use crate::failure::Failure;
use crate::prompt;

/// The source of a command's texts.
#[derive(Debug)]
pub struct Source {
    /// The noun for a text in messages.
    noun: &'static str,
    /// The file with one text per line, or stdin.
    file: Option<String>,
    /// Describes the other text in the same pass, for messages with token counts.
    beside: &'static str,
}

impl Source {
    pub fn of_texts(file: Option<&Path>) -> Source {
        Source { noun: "text", file: file.map(shown), beside: "" }
    }

    /// Documents, each of which is processed together with a query.
    pub fn of_documents(file: Option<&Path>) -> Source {
        Source { noun: "document", file: file.map(shown), beside: " together with its query" }
    }

    /// The lines of the file, or the given texts. Empty texts are rejected.
    pub fn read(&self, given: &[String], file: Option<&Path>) -> Result<Vec<String>, Failure> {
        let texts: Vec<String> = match file {
            Some(file) => prompt::read_text(file)?.lines().map(str::to_string).collect(),
            None => given.to_vec(),
        };
        match texts.iter().position(String::is_empty) {
            Some(index) => Err(self.empty(index)),
            None => Ok(texts),
        }
    }

    /// Rejects texts that cannot be encoded, with their names.
    pub fn check(&self, embedder: &Embedder, texts: &[TextIds]) -> Result<(), Failure> {
        let check = |(index, text)| embedder.check(text, index).map_err(|error| self.failure(error, index));
        texts.iter().enumerate().try_for_each(check)
    }

    /// `text number 2`, `line 2 of texts.txt`.
    fn name(&self, index: usize) -> String {
        match &self.file {
            Some(file) => format!("line {} of {file}", index + 1),
            None => format!("{} number {}", self.noun, index + 1),
        }
    }

    fn empty(&self, index: usize) -> Failure {
        let failure = Failure::new(format!("{} is empty", self.name(index)));
        match self.file {
            Some(_) => failure.hint(format!("each line must contain a {}: remove empty ones", self.noun)),
            None => failure.hint(format!("each {} must have at least one token", self.noun)),
        }
    }

    fn failure(&self, error: Error, text: usize) -> Failure {
        let name = self.name(text);
        match error {
            Error::EmptyText { .. } => self.empty(text),
            Error::TokenOutsideVocabulary { id, index, vocab, .. } => Failure::new(format!(
                "token id {id} (number {} of {name}) is outside the vocabulary of {vocab} ids",
                index + 1
            ))
            .hint(format!("valid ids are 0 to {}", vocab.saturating_sub(1))),
            Error::TextTooLong { tokens, longest, .. } => Failure::new(format!(
                "{name} has {tokens} tokens{}, but the maximum is {longest}",
                self.beside
            ))
            .hint("shorten it, or truncate it (--truncate)"),
            error => error.into(),
        }
    }
}

fn shown(file: &Path) -> String {
    if file == Path::new("-") { "stdin".to_string() } else { file.display().to_string() }
}

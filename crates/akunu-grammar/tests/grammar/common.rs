//! Vocabularies, and answers in a grammar.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, LazyLock};

use akunu_grammar::{
    Client, Grammar, GrammarError, Limits, Reasoning, ResponseFormat, Session, Vocabulary, Workers,
};

pub fn workers() -> Arc<Workers> {
    static WORKERS: LazyLock<Arc<Workers>> = LazyLock::new(Arc::default);
    WORKERS.clone()
}

/// Each byte as a token, and a control token.
pub fn bytes_vocabulary() -> Arc<Vocabulary> {
    static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
        let tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).chain([Vec::new()]).collect();
        Arc::new(Vocabulary::new(&tokens, Limits::default()).unwrap())
    });
    VOCABULARY.clone()
}

pub fn compile(
    vocabulary: &Arc<Vocabulary>,
    format: &ResponseFormat,
    before: Option<&Reasoning>,
) -> Result<Arc<Grammar>, GrammarError> {
    workers().compile(vocabulary, format, before, Client::default()).map(Arc::new)
}

/// Whether a text of bytes is an answer. False: a byte is not allowed, or the text may not end.
pub fn takes(
    vocabulary: &Arc<Vocabulary>,
    format: &ResponseFormat,
    before: Option<&Reasoning>,
    text: &str,
) -> Result<bool, GrammarError> {
    let mut session = Session::new(workers(), compile(vocabulary, format, before)?);
    for byte in text.bytes() {
        if session.is_over() || !session.mask()?.contains(u32::from(byte)) {
            return Ok(false);
        }
        session.push(u32::from(byte));
    }
    if session.is_over() {
        return Ok(true);
    }
    Ok(session.mask()?.may_end)
}

//! What a model says, read as it comes: reasoning, answer, and calls of tools.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use akunu::chat::{Call, CallReader, Kind, Part, Splitter, Spoken};
use serde_json::Value as Json;

use crate::job::{Piece, ToolCall};

/// Takes away the white space that follows the tags of reasoning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader {
    /// Without one, all is answer.
    splitter: Option<Splitter>,
    calls: Calls,
    one_call: bool,
    so_far: SoFar,
}

/// Where calls of tools stand in an answer.
#[derive(Clone, Debug, Default)]
pub(crate) enum Calls {
    /// Nowhere: all is text.
    #[default]
    None,
    /// Among the text, as the model writes them.
    Among(CallReader),
    /// The answer is one; so much of it has come.
    All(String),
}

#[derive(Clone, Debug, Default)]
struct SoFar {
    reasoning_tokens: usize,
    has_tags: bool,
    has_reasoned: bool,
    in_answer: bool,
    has_called: bool,
}

impl Reader {
    pub(crate) fn new(splitter: Splitter, calls: Calls, one_call: bool) -> Reader {
        Reader { splitter: Some(splitter), calls, one_call, so_far: SoFar::default() }
    }

    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.so_far.reasoning_tokens
    }

    /// Nothing more of it is wanted.
    pub(crate) fn is_over(&self) -> bool {
        self.one_call && self.so_far.has_called
    }

    pub(crate) fn read(&mut self, text: &str, tokens: usize) -> Piece {
        let mut piece = Piece::default();
        let Reader { splitter, calls, one_call, so_far } = self;
        match splitter {
            None => piece.answer.push_str(text),
            Some(splitter) => {
                let _ = splitter.push(text, &mut |part| so_far.part(part, calls, *one_call, &mut piece));
            }
        }
        if !piece.reasoning.is_empty() {
            so_far.reasoning_tokens += tokens;
        }
        piece
    }

    pub(crate) fn finish(&mut self) -> Piece {
        let mut piece = Piece::default();
        let Reader { splitter, calls, one_call, so_far } = self;
        if let Some(splitter) = splitter {
            let _ = splitter.finish(&mut |part| so_far.part(part, calls, *one_call, &mut piece));
        }
        match calls {
            Calls::None => {}
            Calls::Among(calls) => {
                calls.finish(&mut |spoken| so_far.spoken(spoken, *one_call, &mut piece));
            }
            Calls::All(text) => match serde_json::from_str(text).ok().and_then(call_of) {
                Some(call) => so_far.spoken(Spoken::Call(call), *one_call, &mut piece),
                // It was cut off.
                None => piece.answer.push_str(text),
            },
        }
        piece
    }
}

impl SoFar {
    fn part(
        &mut self,
        part: Part<'_>,
        calls: &mut Calls,
        one_call: bool,
        piece: &mut Piece,
    ) -> ControlFlow<()> {
        match part.kind {
            Kind::Tag => self.has_tags = true,
            Kind::Reasoning => {
                let text = if self.has_reasoned { part.text } else { part.text.trim_start() };
                piece.reasoning.push_str(text);
                self.has_reasoned |= !text.is_empty();
            }
            Kind::Answer => {
                let is_begun = self.in_answer || !self.has_tags;
                let text = if is_begun { part.text } else { part.text.trim_start() };
                self.in_answer |= !text.is_empty();
                match calls {
                    Calls::Among(calls) => {
                        calls.push(text, &mut |spoken| self.spoken(spoken, one_call, piece));
                    }
                    Calls::All(whole) => whole.push_str(text),
                    Calls::None => piece.answer.push_str(text),
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn spoken(&mut self, spoken: Spoken<'_>, one_call: bool, piece: &mut Piece) {
        match spoken {
            _ if one_call && self.has_called => {}
            Spoken::Text(text) => piece.answer.push_str(text),
            Spoken::Call(call) => {
                self.has_called = true;
                piece.calls.push(ToolCall { id: new_id(), call });
            }
        }
    }
}

/// `{"name": …, "arguments": {…}}`
fn call_of(mut whole: Json) -> Option<Call> {
    let arguments = whole.get_mut("arguments")?.as_object_mut().map(std::mem::take)?;
    Some(Call { name: whole["name"].as_str()?.to_string(), arguments })
}

/// Never the same twice.
fn new_id() -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut random = RandomState::new().hash_one(0);
    let digit = |_| {
        let digit = DIGITS[(random % DIGITS.len() as u64) as usize];
        random /= DIGITS.len() as u64;
        char::from(digit)
    };
    (0..9).map(digit).collect()
}

//! What an answer is: reasoning, text and calls of tools, read from the pieces that a model generates.
//!
//! [`ChatForm::answer`] decides everything about one answer in one place: what ends it, which control tokens are visible, how
//! reasoning and tool calls are read, and which grammar it is held to. Command line, server and C API use this and nothing else.

use std::ops::ControlFlow;

use serde_json::{Value as Json, json};

use super::conversation::message;
use super::{Call, CallReader, ChatForm, Kind, OnPart, Part, Splitter, Spoken};
use crate::constrain::{Constraints, ResponseFormat};
use crate::{Error, GenerateOptions};

/// What somebody asks of an answer besides its content.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// Tools that the model may call, in the form of the OpenAI API.
    pub tools: Option<Vec<Json>>,
    /// The format that the answer has to have. With [`ResponseFormat::Call`] the whole answer is one call.
    pub format: Option<ResponseFormat>,
    /// The answer ends with its first call of a tool.
    pub one_call: bool,
}

impl ChatForm {
    /// Prepares the answer to a rendered prompt: adds to `options` what ends the answer, what of it has to be visible and the
    /// grammar of its format, and gives what reads it.
    pub fn answer(
        &self,
        prompt: &str,
        wanted: &AnswerOptions,
        constraints: &Constraints,
        options: &mut GenerateOptions,
    ) -> Result<AnswerReader, Error> {
        self.extend(options);
        let is_call = matches!(wanted.format, Some(ResponseFormat::Call(_)));
        let calls = match &wanted.tools {
            _ if is_call => Calls::Whole(String::new()),
            Some(tools) => self.call_reader(tools.clone(), options).map_or(Calls::None, Calls::Among),
            None => Calls::None,
        };
        if let Some(format) = &wanted.format {
            options.constraint = Some(constraints.get(format, self.reasoning(prompt).as_ref())?);
        }
        Ok(AnswerReader {
            splitter: Some(self.splitter(prompt)),
            calls,
            one_call: wanted.one_call,
            ..AnswerReader::default()
        })
    }
}

/// Where calls of tools stand in an answer.
#[derive(Clone, Debug, Default)]
enum Calls {
    /// Nowhere: everything is text.
    #[default]
    None,
    /// Among the text, as the model writes them.
    Among(CallReader),
    /// The answer as a whole is one call. This much of it has come.
    Whole(String),
}

/// What one more piece of generated text has added to an answer. White space next to the tags of reasoning is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerDelta {
    /// Came before `answer`, in whole characters.
    pub reasoning: String,
    pub answer: String,
    /// Came behind `answer`.
    pub calls: Vec<Call>,
}

/// An answer as far as it has come, with its white space.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// Everything that was generated, tags and marks of calls included.
    pub raw: String,
    pub reasoning: String,
    /// The answer without reasoning and, where calls are read, without those.
    pub answer: String,
    pub calls: Vec<Call>,
}

impl Draft {
    /// The message that goes into the conversation, with `answer` as its content.
    pub fn message(&self, answer: &str) -> Json {
        let mut message = message("assistant", answer);
        let reasoning = self.reasoning.trim();
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !self.calls.is_empty() {
            let call = |call: &Call| json!({ "type": "function", "function": { "name": call.name, "arguments": call.arguments } });
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// Reads one answer from its pieces. The default reads text that is not a chat's: all of it is answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerReader {
    /// `None`: the text has no reasoning in it.
    splitter: Option<Splitter>,
    calls: Calls,
    one_call: bool,
    reasoning_tokens: usize,
    /// A tag of reasoning has come, so the white space before the answer is the template's.
    has_tags: bool,
    /// Reasoning that is not white space has come.
    has_reasoned: bool,
    /// An answer that is not white space has come.
    has_answered: bool,
    draft: Draft,
}

impl AnswerReader {
    /// Reads a text that is not a chat's, and adds to `options` the grammar of its format.
    pub fn of_text(
        format: Option<&ResponseFormat>,
        constraints: &Constraints,
        options: &mut GenerateOptions,
    ) -> Result<AnswerReader, Error> {
        if let Some(format) = format {
            options.constraint = Some(constraints.get(format, None)?);
        }
        Ok(AnswerReader::default())
    }

    /// Takes a piece of text and the number of its tokens. `on_part` is given the parts of the text as they were generated, for
    /// a reader who wants to see tags and white space; if it breaks, so does the answer.
    pub fn push(&mut self, text: &str, tokens: usize, on_part: OnPart<'_>) -> (AnswerDelta, ControlFlow<()>) {
        self.draft.raw.push_str(text);
        let mut delta = AnswerDelta::default();
        let flow = match self.splitter.take() {
            None => self.part(Part { kind: Kind::Answer, text }, &mut delta, on_part),
            Some(mut splitter) => {
                let flow = splitter.push(text, &mut |part| self.part(part, &mut delta, on_part));
                self.splitter = Some(splitter);
                flow
            }
        };
        if !delta.reasoning.is_empty() {
            self.reasoning_tokens += tokens;
        }
        (delta, flow)
    }

    /// The answer has ended: what was held back in case it became a tag or a call is what it looks like.
    pub fn finish(&mut self, on_part: OnPart<'_>) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        if let Some(mut splitter) = self.splitter.take() {
            // Whatever the callback answers, nothing more follows.
            let _ = splitter.finish(&mut |part| self.part(part, &mut delta, on_part));
            self.splitter = Some(splitter);
        }
        match std::mem::take(&mut self.calls) {
            Calls::None => {}
            Calls::Among(mut calls) => calls.finish(&mut |spoken| self.spoken(spoken, &mut delta)),
            Calls::Whole(text) => match serde_json::from_str(&text).ok().and_then(call_of) {
                Some(call) => self.spoken(Spoken::Call(call), &mut delta),
                // The call was cut off.
                None => self.spoken(Spoken::Text(&text), &mut delta),
            },
        }
        delta
    }

    /// Whether the answer is complete, although the model may go on.
    pub fn is_complete(&self) -> bool {
        self.one_call && !self.draft.calls.is_empty()
    }

    /// Tokens of the pieces that had reasoning in them.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// The answer as far as it has come.
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    fn part(&mut self, part: Part<'_>, delta: &mut AnswerDelta, on_part: OnPart<'_>) -> ControlFlow<()> {
        match part.kind {
            Kind::Tag => self.has_tags = true,
            Kind::Reasoning => {
                let text = if self.has_reasoned { part.text } else { part.text.trim_start() };
                self.draft.reasoning.push_str(part.text);
                delta.reasoning.push_str(text);
                self.has_reasoned |= !text.is_empty();
            }
            Kind::Answer => {
                let keeps_space = self.has_answered || !self.has_tags;
                let text = if keeps_space { part.text } else { part.text.trim_start() };
                let space = &part.text[..part.text.len() - text.len()];
                self.draft.answer.push_str(space);
                self.has_answered |= !text.is_empty();
                match std::mem::take(&mut self.calls) {
                    Calls::None => self.spoken(Spoken::Text(text), delta),
                    Calls::Among(mut calls) => {
                        calls.push(text, &mut |spoken| self.spoken(spoken, delta));
                        self.calls = Calls::Among(calls);
                    }
                    Calls::Whole(mut whole) => {
                        whole.push_str(text);
                        self.calls = Calls::Whole(whole);
                    }
                }
            }
        }
        on_part(part)
    }

    fn spoken(&mut self, spoken: Spoken<'_>, delta: &mut AnswerDelta) {
        match spoken {
            _ if self.is_complete() => {}
            Spoken::Text(text) => {
                self.draft.answer.push_str(text);
                delta.answer.push_str(text);
            }
            Spoken::Call(call) => {
                self.draft.calls.push(call.clone());
                delta.calls.push(call);
            }
        }
    }
}

/// Reads `{"name": …, "arguments": {…}}`.
fn call_of(mut whole: Json) -> Option<Call> {
    let arguments = whole.get_mut("arguments")?.as_object_mut().map(std::mem::take)?;
    Some(Call { name: whole["name"].as_str()?.to_string(), arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{CallMarks, Tags};

    /// Everything that a reader gives of text in pieces, together.
    fn read(mut reader: AnswerReader, pieces: &[&str]) -> (AnswerDelta, String, AnswerReader) {
        let (mut all, mut shown) = (AnswerDelta::default(), String::new());
        let mut on_part = |part: Part<'_>| {
            shown.push_str(part.text);
            ControlFlow::Continue(())
        };
        let mut add = |delta: AnswerDelta| {
            all.reasoning.push_str(&delta.reasoning);
            all.answer.push_str(&delta.answer);
            all.calls.extend(delta.calls);
        };
        for piece in pieces {
            let (delta, flow) = reader.push(piece, 1, &mut on_part);
            assert!(flow.is_continue());
            add(delta);
        }
        add(reader.finish(&mut on_part));
        (all, shown, reader)
    }

    fn thinker(calls: Calls, one_call: bool) -> AnswerReader {
        let splitter = Some(Splitter::new(Tags::of_template(""), false));
        AnswerReader { splitter, calls, one_call, ..AnswerReader::default() }
    }

    fn caller() -> Calls {
        let marks = CallMarks::of_template("<tool_call>").unwrap();
        Calls::Among(CallReader::new(marks, Vec::new()))
    }

    const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";

    #[test]
    fn space_at_tags_is_shown_and_is_no_part_of_the_answer() {
        let pieces = ["<think>\nHm", ".\n</thi", "nk>\n\nYes."];
        let (all, shown, reader) = read(thinker(Calls::None, false), &pieces);
        assert_eq!((all.reasoning.as_str(), all.answer.as_str()), ("Hm.\n", "Yes."));
        assert_eq!(shown, pieces.concat());
        let draft = reader.draft();
        assert_eq!((draft.raw.as_str(), draft.reasoning.as_str()), (shown.as_str(), "\nHm.\n"));
        assert_eq!(draft.answer, "\n\nYes.");
        assert_eq!(draft.message("Yes.")["reasoning_content"], "Hm.");
        assert_eq!(reader.reasoning_tokens(), 2);
    }

    #[test]
    fn calls_are_read_behind_reasoning_and_end_an_answer_of_one() {
        let text = format!("<think>a</think>So: {CALL} {CALL} end");
        for (one_call, calls, answer) in [(false, 2, "So:end"), (true, 1, "So:")] {
            let (all, _, reader) = read(thinker(caller(), one_call), &[&text]);
            assert_eq!((all.calls.len(), all.answer.as_str()), (calls, answer));
            assert_eq!(reader.is_complete(), one_call);
            assert_eq!(reader.draft().message("")["tool_calls"].as_array().unwrap().len(), calls);
        }
    }

    #[test]
    fn an_answer_that_is_a_call_is_one_or_else_text() {
        let whole = || thinker(Calls::Whole(String::new()), false);
        let (all, ..) = read(whole(), &["{\"name\": \"f\", ", "\"arguments\": {\"a\": 1}}"]);
        assert_eq!((all.calls.len(), all.answer.as_str()), (1, ""));
        let (all, ..) = read(whole(), &["{\"name\": \"f\", "]);
        assert_eq!((all.calls.len(), all.answer.as_str()), (0, "{\"name\": \"f\", "));
    }

    #[test]
    fn text_of_no_chat_is_answer_as_it_is() {
        let (all, ..) = read(AnswerReader::default(), &[" <think>", "a</think> "]);
        assert_eq!((all.reasoning.as_str(), all.answer.as_str()), ("", " <think>a</think> "));
    }
}

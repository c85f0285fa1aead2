//! Answers: reasoning, text and tool calls, parsed from generated text as it streams.
//!
//! [`ChatFormat::answer`] sets up everything about an answer in one place: its stop tokens, the visible control tokens, the parsing of
//! reasoning and tool calls, and the grammar. The CLI, the server and the C API all use it.

use std::ops::ControlFlow;

use serde_json::{Value as Json, json};

use super::conversation::{call_id, message};
use super::{Call, CallReader, ChatFormat, Kind, OnPart, Part, Segment, Splitter};
use crate::constraint::Constraints;
use crate::{Error, GenerateOptions, ResponseFormat};

/// Options of an answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// Tools that the model may call, in the form of the OpenAI API.
    pub tools: Option<Vec<Json>>,
    /// The format that the answer must have. With [`ResponseFormat::Call`] the whole answer is one call.
    pub format: Option<ResponseFormat>,
    /// The answer ends after its first tool call.
    pub one_call: bool,
}

impl ChatFormat {
    /// Prepares the answer to a rendered prompt: adds stop tokens, visible control tokens and the grammar to `options`, and returns
    /// the reader for the generated text.
    pub fn answer(
        &self,
        prompt: &str,
        answer: &AnswerOptions,
        constraints: &Constraints,
        options: &mut GenerateOptions,
    ) -> Result<AnswerReader, Error> {
        self.extend(options);
        let is_call = matches!(answer.format, Some(ResponseFormat::Call(_)));
        let calls = match &answer.tools {
            _ if is_call => Calls::Whole(String::new()),
            Some(tools) => self.call_reader(tools.clone(), options).map_or(Calls::None, Calls::Among),
            None => Calls::None,
        };
        if let Some(format) = &answer.format {
            options.constraint =
                Some(constraints.get(format, self.preamble(prompt).as_ref(), options.cancel.as_deref())?);
        }
        Ok(AnswerReader {
            splitter: Some(self.splitter(prompt)),
            calls,
            one_call: answer.one_call,
            ..AnswerReader::default()
        })
    }
}

/// Where an answer may have tool calls.
#[derive(Clone, Debug, Default)]
enum Calls {
    /// Nowhere: all is text.
    #[default]
    None,
    /// In the text, in the format of the model.
    Among(CallReader),
    /// The whole answer is one call, of which this is the text so far.
    Whole(String),
}

/// The addition of a piece of generated text to an answer. White space next to reasoning tags is removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerDelta {
    /// Reasoning, which precedes `answer`.
    pub reasoning: String,
    pub answer: String,
    /// Tool calls, which follow `answer`.
    pub calls: Vec<Call>,
}

/// The answer so far, with its white space.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The generated text, including tags and tool calls.
    pub raw: String,
    pub reasoning: String,
    /// The answer without reasoning and parsed tool calls.
    pub answer: String,
    pub calls: Vec<Call>,
}

impl Draft {
    /// The message to append to the conversation, with `answer` as its content.
    pub fn message(&self, answer: &str) -> Json {
        let mut message = message("assistant", answer);
        let reasoning = self.reasoning.trim();
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !self.calls.is_empty() {
            let call = |call: &Call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call_id(), "type": "function", "function": function })
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// Parses an answer from pieces of generated text. The default is for text outside of a chat, all of which is answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerReader {
    /// `None`: the text has no reasoning.
    splitter: Option<Splitter>,
    calls: Calls,
    one_call: bool,
    reasoning_tokens: usize,
    /// There was a reasoning tag, so white space before the answer belongs to the template.
    has_tags: bool,
    /// There was reasoning other than white space.
    has_reasoned: bool,
    /// There was an answer other than white space.
    has_answered: bool,
    draft: Draft,
}

impl AnswerReader {
    /// A reader for text outside of a chat. Adds the grammar of the format to `options`.
    pub fn of_text(
        format: Option<&ResponseFormat>,
        constraints: &Constraints,
        options: &mut GenerateOptions,
    ) -> Result<AnswerReader, Error> {
        if let Some(format) = format {
            options.constraint = Some(constraints.get(format, None, options.cancel.as_deref())?);
        }
        Ok(AnswerReader::default())
    }

    /// The reader of what follows `text`, with which the answer begins.
    #[must_use]
    pub fn after(mut self, text: &str) -> AnswerReader {
        self.splitter = self.splitter.map(|splitter| splitter.after(text));
        self
    }

    /// Adds a piece of text and the number of its tokens. `on_part` gets the parts of the text as generated, including tags and
    /// white space; its `Break` is returned.
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

    /// Ends the answer, and returns what was held back as a possible tag or tool call.
    pub fn finish(&mut self, on_part: OnPart<'_>) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        if let Some(mut splitter) = self.splitter.take() {
            // The result is ignored, because this is the last part.
            let _ = splitter.finish(&mut |part| self.part(part, &mut delta, on_part));
            self.splitter = Some(splitter);
        }
        match std::mem::take(&mut self.calls) {
            Calls::None => {}
            Calls::Among(mut calls) => calls.finish(&mut |segment| self.segment(segment, &mut delta)),
            Calls::Whole(text) => match serde_json::from_str(&text).ok().and_then(call_of) {
                Some(call) => self.segment(Segment::Call(call), &mut delta),
                // The call was cut off.
                None => self.segment(Segment::Text(&text), &mut delta),
            },
        }
        delta
    }

    /// Whether the answer is complete before the model ends it.
    pub fn is_complete(&self) -> bool {
        self.one_call && !self.draft.calls.is_empty()
    }

    /// Number of tokens in pieces with reasoning.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// The answer so far.
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
                    Calls::None => self.segment(Segment::Text(text), delta),
                    Calls::Among(mut calls) => {
                        calls.push(text, &mut |segment| self.segment(segment, delta));
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

    fn segment(&mut self, segment: Segment<'_>, delta: &mut AnswerDelta) {
        match segment {
            _ if self.is_complete() => {}
            Segment::Text(text) => {
                self.draft.answer.push_str(text);
                delta.answer.push_str(text);
            }
            Segment::Call(call) => {
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

    /// All deltas of text in pieces, combined.
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
    fn white_space_at_tags_is_not_part_of_the_answer() {
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
    fn calls_after_reasoning_are_parsed_and_one_call_ends_the_answer() {
        let text = format!("<think>a</think>So: {CALL} {CALL} end");
        for (one_call, calls, answer) in [(false, 2, "So:end"), (true, 1, "So:")] {
            let (all, _, reader) = read(thinker(caller(), one_call), &[&text]);
            assert_eq!((all.calls.len(), all.answer.as_str()), (calls, answer));
            assert_eq!(reader.is_complete(), one_call);
            assert_eq!(reader.draft().message("")["tool_calls"].as_array().unwrap().len(), calls);
        }
    }

    #[test]
    fn an_answer_that_is_a_call_is_text_if_cut_off() {
        let whole = || thinker(Calls::Whole(String::new()), false);
        let (all, ..) = read(whole(), &["{\"name\": \"f\", ", "\"arguments\": {\"a\": 1}}"]);
        assert_eq!((all.calls.len(), all.answer.as_str()), (1, ""));
        let (all, ..) = read(whole(), &["{\"name\": \"f\", "]);
        assert_eq!((all.calls.len(), all.answer.as_str()), (0, "{\"name\": \"f\", "));
    }

    #[test]
    fn a_continued_answer_has_no_tags_at_its_start() {
        for (text, reasoning, answer) in [
            ("So ", "", "<think>a</think> b"),
            ("<think>x</think>So", "", "<think>a</think> b"),
            ("<think>x", "<think>a", "b"),
        ] {
            let (all, ..) = read(thinker(Calls::None, false).after(text), &["<think>a</think> b"]);
            assert_eq!((all.reasoning.as_str(), all.answer.as_str()), (reasoning, answer), "{text}");
        }
    }

    #[test]
    fn text_outside_of_a_chat_is_all_answer() {
        let (all, ..) = read(AnswerReader::default(), &[" <think>", "a</think> "]);
        assert_eq!((all.reasoning.as_str(), all.answer.as_str()), ("", " <think>a</think> "));
    }
}

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
use akunu_grammar::{Calls, Tool, WithoutCalls};

/// Options of an answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// Tools that the model may call, in the form of the OpenAI API.
    pub tools: Option<Vec<Json>>,
    pub tool_choice: ToolChoice,
    /// The format that an answer without calls must have.
    pub format: Option<ResponseFormat>,
    /// The answer ends after its first tool call.
    pub one_call: bool,
}

/// Whether the model must call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// One or more.
    Required,
    /// This one, once.
    Named(String),
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
        if let Some(used) = self.other(answer.tools.as_deref()) {
            return used.answer(prompt, answer, constraints, options);
        }
        self.extend(answer.tools.is_some(), options);
        // The name of text is removed even if there are no tools.
        let has_name = || !self.marks().form.text_name.is_empty();
        let tools = answer.tools.clone().or_else(|| has_name().then(Vec::new));
        let reader = tools.map(|tools| self.call_reader(tools, options).of_prompt(prompt));
        let calls = self.held_calls(prompt, answer);
        let format = calls.map(ResponseFormat::Calls).or_else(|| answer.format.clone());
        if let Some(format) = format {
            let before = self.preamble(prompt, answer.tools.is_some());
            let get =
                |format: &ResponseFormat| constraints.get(format, before.as_ref(), options.cancel.as_deref());
            options.constraint = Some(match get(&format) {
                Err(Error::Grammar(error)) if error.is_of_size() => match relaxed(format) {
                    Some(format) => get(&format)?,
                    None => return Err(error.into()),
                },
                constraint => constraint?,
            });
        }
        Ok(AnswerReader {
            splitter: Some(self.splitter(prompt)),
            calls: reader,
            one_call: answer.one_call,
            ..AnswerReader::default()
        })
    }

    /// The calls that the answer may have.
    fn held_calls(&self, prompt: &str, answer: &AnswerOptions) -> Option<Calls> {
        let tools = answer.tools.as_deref()?.iter().filter_map(Tool::from_openai);
        let is_chosen = |tool: &Tool| match &answer.tool_choice {
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Auto | ToolChoice::Required => true,
        };
        let without = match (&answer.tool_choice, &answer.format) {
            (ToolChoice::Auto, None) => WithoutCalls::Text,
            (ToolChoice::Auto, Some(format)) => WithoutCalls::Format(Box::new(format.clone())),
            _ => WithoutCalls::Refused,
        };
        let is_single = answer.one_call || matches!(answer.tool_choice, ToolChoice::Named(_));
        let tools: Vec<Tool> = tools.filter(is_chosen).collect();
        if tools.is_empty() && answer.tool_choice == ToolChoice::Auto {
            return None;
        }
        let mut form = self.marks().form;
        if !prompt.ends_with(form.open) {
            // The prompt ends with a text that the model continues.
            form.text_name = "";
        }
        Some(Calls { form, tools, is_single, without })
    }
}

/// The same calls with any object as the arguments of tools that are not strict; `None`: nothing changes.
fn relaxed(format: ResponseFormat) -> Option<ResponseFormat> {
    let ResponseFormat::Calls(mut calls) = format else { return None };
    calls.relax().then_some(ResponseFormat::Calls(calls))
}

/// The addition of a piece of generated text to an answer. White space next to reasoning tags is removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerDelta {
    /// Reasoning, which precedes `answer`.
    pub reasoning: String,
    pub answer: String,
    /// Tool calls, which follow `answer`.
    pub calls: Vec<Call>,
    /// The same as they are generated.
    pub progress: Vec<CallProgress>,
    /// The text of a call that had begun and did not become one.
    pub cut: String,
}

/// What happens to a call while it is generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallProgress {
    /// A call of this tool begins.
    Begun(String),
    /// More of the JSON text of its arguments.
    Arguments(String),
    /// The call is complete.
    Done,
    /// The call remains incomplete.
    Cut,
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
                // What is no JSON value of this program stays a text.
                let arguments = call.object().map_or_else(|| call.arguments.as_str().into(), Json::Object);
                let function = json!({ "name": call.name, "arguments": arguments });
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
    /// In the format of the model, if tools may be called.
    calls: Option<CallReader>,
    /// A call was announced and is not complete.
    has_begun: bool,
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
    /// white space; its `Break` is returned. What follows a call is in another delta than what precedes it.
    pub fn push(
        &mut self,
        text: &str,
        tokens: usize,
        on_part: OnPart<'_>,
    ) -> (Vec<AnswerDelta>, ControlFlow<()>) {
        self.draft.raw.push_str(text);
        let mut deltas = Vec::new();
        let flow = match self.splitter.take() {
            None => self.part(Part { kind: Kind::Answer, text }, &mut deltas, on_part),
            Some(mut splitter) => {
                let flow = splitter.push(text, &mut |part| self.part(part, &mut deltas, on_part));
                self.splitter = Some(splitter);
                flow
            }
        };
        if deltas.iter().any(|delta| !delta.reasoning.is_empty()) {
            self.reasoning_tokens += tokens;
        }
        (deltas, flow)
    }

    /// Ends the answer, and returns what was held back as a possible tag or tool call.
    pub fn finish(&mut self, on_part: OnPart<'_>) -> Vec<AnswerDelta> {
        let mut deltas = Vec::new();
        if let Some(mut splitter) = self.splitter.take() {
            // The result is ignored, because this is the last part.
            let _ = splitter.finish(&mut |part| self.part(part, &mut deltas, on_part));
            self.splitter = Some(splitter);
        }
        if let Some(mut calls) = self.calls.take() {
            calls.finish(&mut |segment| self.segment(segment, &mut deltas));
        }
        deltas
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

    fn part(
        &mut self,
        part: Part<'_>,
        deltas: &mut Vec<AnswerDelta>,
        on_part: OnPart<'_>,
    ) -> ControlFlow<()> {
        match part.kind {
            Kind::Tag => self.has_tags = true,
            Kind::Reasoning => {
                let text = if self.has_reasoned { part.text } else { part.text.trim_start() };
                self.draft.reasoning.push_str(part.text);
                if !text.is_empty() {
                    text_delta(deltas, |delta| delta.answer.is_empty()).reasoning.push_str(text);
                }
                self.has_reasoned |= !text.is_empty();
            }
            Kind::Answer => {
                let keeps_space = self.has_answered || !self.has_tags;
                let text = if keeps_space { part.text } else { part.text.trim_start() };
                let space = &part.text[..part.text.len() - text.len()];
                self.draft.answer.push_str(space);
                self.has_answered |= !text.is_empty();
                match self.calls.take() {
                    None => self.segment(Segment::Text(text), deltas),
                    Some(mut calls) => {
                        calls.push(text, &mut |segment| self.segment(segment, deltas));
                        self.calls = Some(calls);
                    }
                }
            }
        }
        on_part(part)
    }

    fn segment(&mut self, segment: Segment<'_>, deltas: &mut Vec<AnswerDelta>) {
        match segment {
            _ if self.is_complete() => {}
            Segment::Text("") => {}
            Segment::Text(text) => {
                self.draft.answer.push_str(text);
                text_delta(deltas, |_| true).answer.push_str(text);
            }
            Segment::Begun(name) => {
                self.has_begun = true;
                call_delta(deltas).progress.push(CallProgress::Begun(name.into()));
            }
            Segment::Arguments(text) => {
                let progress = &mut call_delta(deltas).progress;
                match progress.last_mut() {
                    Some(CallProgress::Arguments(before)) => before.push_str(text),
                    _ => progress.push(CallProgress::Arguments(text.into())),
                }
            }
            Segment::Call(call) => {
                let delta = call_delta(deltas);
                if !std::mem::take(&mut self.has_begun) {
                    let begun = CallProgress::Begun(call.name.clone());
                    delta.progress.extend([begun, CallProgress::Arguments(call.arguments.clone())]);
                }
                delta.progress.push(CallProgress::Done);
                self.draft.calls.push(call.clone());
                delta.calls.push(call);
            }
            Segment::Cut(text) => {
                self.has_begun = false;
                let delta = call_delta(deltas);
                delta.progress.push(CallProgress::Cut);
                self.draft.answer.push_str(text);
                delta.cut.push_str(text);
            }
        }
    }
}

/// The delta to which text is added: the last one if it has no calls, and `fits`.
fn text_delta(deltas: &mut Vec<AnswerDelta>, fits: impl Fn(&AnswerDelta) -> bool) -> &mut AnswerDelta {
    last_or_new(deltas, |last| last.progress.is_empty() && fits(last))
}

/// The delta to which calls are added: the last one if no call in it was cut off.
fn call_delta(deltas: &mut Vec<AnswerDelta>) -> &mut AnswerDelta {
    last_or_new(deltas, |last| last.cut.is_empty())
}

fn last_or_new(deltas: &mut Vec<AnswerDelta>, fits: impl Fn(&AnswerDelta) -> bool) -> &mut AnswerDelta {
    match deltas.pop() {
        Some(last) if fits(&last) => deltas.push(last),
        Some(last) => deltas.extend([last, AnswerDelta::default()]),
        None => deltas.push(AnswerDelta::default()),
    }
    let at = deltas.len() - 1;
    &mut deltas[at]
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
        let mut add = |deltas: Vec<AnswerDelta>| {
            for delta in deltas {
                assert_ne!(delta, AnswerDelta::default());
                all.reasoning.push_str(&delta.reasoning);
                all.answer.push_str(&delta.answer);
                all.calls.extend(delta.calls);
            }
        };
        for piece in pieces {
            let (deltas, flow) = reader.push(piece, 1, &mut on_part);
            assert!(flow.is_continue());
            add(deltas);
        }
        add(reader.finish(&mut on_part));
        (all, shown, reader)
    }

    fn thinker(calls: Option<CallReader>, one_call: bool) -> AnswerReader {
        let splitter = Some(Splitter::new(Tags::of_template(""), false));
        AnswerReader { splitter, calls, one_call, ..AnswerReader::default() }
    }

    fn caller() -> Option<CallReader> {
        let marks = CallMarks::of_template("<tool_call>").unwrap();
        Some(CallReader::new(marks, Vec::new()))
    }

    const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";

    #[test]
    fn white_space_at_tags_is_not_part_of_the_answer() {
        let pieces = ["<think>\nHm", ".\n</thi", "nk>\n\nYes."];
        let (all, shown, reader) = read(thinker(None, false), &pieces);
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
    fn text_after_a_call_is_in_another_delta() {
        let mut reader = thinker(caller(), false);
        let text = format!("<think>a</think>So: {CALL} and {CALL}");
        let (deltas, _) = reader.push(&text, 1, &mut |_| ControlFlow::Continue(()));
        let shown: Vec<_> = deltas.iter().map(|delta| (delta.answer.as_str(), delta.calls.len())).collect();
        assert_eq!(shown, [("So:", 1), ("and", 1)]);
    }

    #[test]
    fn a_continued_answer_has_no_tags_at_its_start() {
        for (text, reasoning, answer) in [
            ("So ", "", "<think>a</think> b"),
            ("<think>x</think>So", "", "<think>a</think> b"),
            ("<think>x", "<think>a", "b"),
        ] {
            let (all, ..) = read(thinker(None, false).after(text), &["<think>a</think> b"]);
            assert_eq!((all.reasoning.as_str(), all.answer.as_str()), (reasoning, answer), "{text}");
        }
    }

    #[test]
    fn text_outside_of_a_chat_is_all_answer() {
        let (all, ..) = read(AnswerReader::default(), &[" <think>", "a</think> "]);
        assert_eq!((all.reasoning.as_str(), all.answer.as_str()), ("", " <think>a</think> "));
    }
}

//! Answers are read in time and memory that grow with their size, however they are divided into pieces.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use akunu::chat::{CallMarks, CallReader, Splitter, Tags};
use akunu_testing::{MeasuringAllocator, assert_growth, fewest_or};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: MeasuringAllocator = MeasuringAllocator;

/// Templates of families whose calls are read differently.
const TEMPLATES: [&str; 12] = [
    "<tool_call> <arg_key>",
    "<tool_call> <parameter=",
    "<tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|> \"name\": function name, \"parameters\"",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "<|tool_calls_section_begin|><|tool_call_begin|>",
    "<|tool_call>",
    "[func_name1(",
    ">>>${recipient}",
    "functools[",
    "<think> <|channel|>analysis<|message|> <|end|> <|tool_call|>",
];

/// What answers consist of: a beginning, and what is repeated behind it.
const ANSWERS: [(&str, &str); 38] = [
    ("", "word "),
    ("", " "),
    ("", "\n\t"),
    ("a", " "),
    ("", "<"),
    ("", "<tool_call"),
    ("", "<tool_call>"),
    ("", "<tool_call> "),
    ("<tool_call>", " "),
    ("", "<tool_call>{}"),
    ("<tool_call>", "{\"a\":"),
    ("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"", "}\\\""),
    ("", "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>"),
    ("<tool_call>{\"name\": \"add\"}", " "),
    ("<tool_call>\n<function=add>", "<parameter=a>1</parameter>"),
    ("", "<tool_call><function=add></function>"),
    ("<tool_call>add", "<arg_key>a</arg_key><arg_value>1</arg_value>"),
    ("", "[TOOL_CALLS]add"),
    ("[TOOL_CALLS]", "a"),
    ("{\"name\": \"add\", \"parameters\": {\"a\": [", "[],"),
    ("", "<｜tool▁calls▁begin｜>"),
    ("", "<｜tool▁calls▁begin｜> "),
    ("<｜tool▁calls▁begin｜>", " "),
    ("<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}", " "),
    ("<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}```", " "),
    ("<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜>", " "),
    ("<|tool_call>call:add{a:<|\"|>", "word <|"),
    ("<|tool_call>call:add{a:[", "1,"),
    ("<|tool_call>call:add{a:", "1"),
    ("<|tool_call>call:add{a:1", " "),
    ("", "<|tool_call>call:add{}<tool_call|>"),
    ("[add(a='", "\\n"),
    ("[add(a='", "word "),
    ("[add(", "a={'b': [None]}, "),
    ("[add(a=1)", ", add(a=1)"),
    ("all\n", ">>>"),
    ("<think>", "</think"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>"),
];

/// Bytes of an answer.
const SIZE: usize = 1 << 12;

fn answer((start, part): (&str, &str), size: usize) -> String {
    format!("{start}{}", part.repeat(size / part.len()))
}

/// Calls a function for pieces of a few characters, as models generate them.
fn pieces(text: &str, mut each: impl FnMut(&str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.ceil_char_boundary(4));
        each(piece);
        rest = behind;
    }
}

/// Each template with each answer; with the fewest cases with every sixth, so that each answer still meets some.
fn all() -> impl Iterator<Item = (&'static str, (&'static str, &'static str))> {
    let step = fewest_or(6, 1, 1);
    let answers = move |at: usize| ANSWERS.into_iter().skip(at % step).step_by(step);
    TEMPLATES
        .into_iter()
        .enumerate()
        .flat_map(move |(at, template)| answers(at).map(move |parts| (template, parts)))
}

#[test]
fn tool_calls() {
    let tools = ["add", "clock"].map(|name| json!({ "type": "function", "function": { "name": name } }));
    for (template, parts) in all() {
        let marks = CallMarks::of_template(template).unwrap();
        for whole in [false, true] {
            let what = format!("{parts:?} for {template:?}, whole: {whole}");
            assert_growth(
                &what,
                SIZE,
                |size| answer(parts, size),
                |text| {
                    let (mut reader, mut segments) = (CallReader::new(marks, tools.to_vec()), 0);
                    let mut on_segment = |_: akunu::chat::Segment<'_>| segments += 1;
                    if whole {
                        reader.push(text, &mut on_segment);
                    } else {
                        pieces(text, |piece| reader.push(piece, &mut on_segment));
                    }
                    reader.finish(&mut on_segment);
                    segments
                },
            );
        }
    }
}

#[test]
fn reasoning() {
    for (template, parts) in all() {
        let tags = Tags::of_template(template);
        for inside in [false, true] {
            let what = format!("{parts:?} for {template:?}, inside: {inside}");
            assert_growth(
                &what,
                SIZE,
                |size| answer(parts, size),
                |text| {
                    let mut splitter = Splitter::new(tags, inside);
                    let mut bytes = 0;
                    let mut on_part = |part: akunu::chat::Part<'_>| {
                        bytes += part.text.len();
                        ControlFlow::Continue(())
                    };
                    pieces(text, |piece| assert!(splitter.push(piece, &mut on_part).is_continue()));
                    assert!(splitter.finish(&mut on_part).is_continue());
                    // Headers are neither reasoning nor answer.
                    let has_headers = tags.silent.iter().any(|header| text.contains(header));
                    assert!(bytes == text.len() || has_headers, "{bytes} of {}", text.len());
                },
            );
        }
    }
}

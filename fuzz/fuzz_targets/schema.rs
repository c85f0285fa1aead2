//! Arbitrary text as a JSON Schema: each answer that the compiled grammar allows is JSON, and has the schema's type.
#![no_main]

use akunu_fuzz::{answer, compile, on_a_large_stack, seed};
use akunu_grammar::ResponseFormat;
use libfuzzer_sys::fuzz_target;
use serde_json::Value as Json;

/// Steps of an answer. One that is not complete by then is not checked.
const STEPS: usize = 96;

/// What ends strings and lists is preferred, so that most answers end.
fn pick(allowed: &[u8], choice: usize) -> Option<u8> {
    let ends = |byte: &u8| matches!(byte, b'"' | b']' | b'}' | b'0'..=b'9');
    let ending: Vec<u8> = allowed.iter().copied().filter(ends).collect();
    let list = if choice % 3 < 2 && !ending.is_empty() { &ending[..] } else { allowed };
    list.get(choice / 3 % list.len().max(1)).copied()
}

fn has_type(value: &Json, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("a schema with the type {name:?} was accepted"),
    }
}

fuzz_target!(|data: &[u8]| on_a_large_stack(|| check(data)));

fn check(data: &[u8]) {
    let Ok(schema) = serde_json::from_slice::<Json>(data) else { return };
    let Some(grammar) = compile(&ResponseFormat::Schema(schema.clone())) else { return };
    let Some(text) = answer(&grammar, seed(data), STEPS, 4, pick) else { return };
    let value: Json = match serde_json::from_slice(&text) {
        Ok(value) => value,
        // JSON does not limit numbers, and serde_json does.
        Err(error) if error.to_string().contains("number out of range") => return,
        Err(error) => panic!("{error} in {:?}, allowed by {schema}", String::from_utf8_lossy(&text)),
    };
    let shown = || format!("{value} is allowed by {schema}");
    match &schema["type"] {
        Json::String(name) => assert!(has_type(&value, name), "{}", shown()),
        Json::Array(names) => {
            let mut names = names.iter().filter_map(Json::as_str);
            assert!(names.any(|name| has_type(&value, name)), "{}", shown());
        }
        _ => {}
    }
    if let (Some(fields), Some(Json::Array(required))) = (value.as_object(), schema.get("required")) {
        let mut names = required.iter().filter_map(Json::as_str);
        assert!(names.all(|name| fields.contains_key(name)), "{}", shown());
    }
    if let (Json::String(text), Some(most)) = (&value, schema["maxLength"].as_u64()) {
        assert!(text.chars().count() as u64 <= most, "{}", shown());
    }
    if let (Json::Array(items), Some(most)) = (&value, schema["maxItems"].as_u64()) {
        assert!(items.len() as u64 <= most, "{}", shown());
    }
    if let (Some(number), Some(least)) = (value.as_f64(), schema["minimum"].as_f64()) {
        assert!(number >= least, "{}", shown());
    }
}

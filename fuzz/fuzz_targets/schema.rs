//! Arbitrary text as a JSON Schema: each answer that the compiled grammar allows is JSON, and has the schema's type.
#![no_main]

use std::sync::{Arc, LazyLock};

use akunu_grammar::{Client, Limits, ResponseFormat, Session, Vocabulary, Workers};
use libfuzzer_sys::fuzz_target;
use serde_json::Value as Json;

/// One token for each byte.
static BYTES: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    Arc::new(Vocabulary::new(&tokens, Limits::default()).expect("a vocabulary of bytes"))
});
static WORKERS: LazyLock<Arc<Workers>> = LazyLock::new(Arc::default);

/// Steps of an answer. One that is not complete by then is not checked.
const STEPS: usize = 96;

/// An answer, chosen by pseudo-random numbers.
fn answer(format: &ResponseFormat, mut state: u64) -> Option<Vec<u8>> {
    let grammar = WORKERS.compile(&BYTES, format, None, Client::default()).ok()?;
    let mut session = Session::new(WORKERS.clone(), Arc::new(grammar));
    let mut text = Vec::new();
    while text.len() < STEPS {
        if session.is_over() {
            return Some(text);
        }
        let mask = session.mask().ok()?;
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let choice = (state >> 33) as usize;
        if mask.may_end && choice % 4 != 0 {
            return Some(text);
        }
        let allowed: Vec<u8> = (0..=255).filter(|&byte| mask.contains(byte.into())).collect();
        // What ends strings and lists is preferred, so that most answers end.
        let ends = |byte: &&u8| matches!(byte, b'"' | b']' | b'}' | b'0'..=b'9');
        let ending: Vec<&u8> = allowed.iter().filter(ends).collect();
        let byte = match choice % 3 {
            0 | 1 if !ending.is_empty() => *ending[choice / 3 % ending.len()],
            _ => allowed[choice / 3 % allowed.len().max(1)..].first().copied()?,
        };
        text.push(byte);
        session.push(byte.into());
    }
    None
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

fuzz_target!(|data: &[u8]| {
    let Ok(schema) = serde_json::from_slice::<Json>(data) else { return };
    let seed = data.iter().fold(0, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let Some(text) = answer(&ResponseFormat::Schema(schema.clone()), seed) else { return };
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
});

//! Constrained answers, which conform to their schema whatever the model prefers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::LazyLock;

use crate::common::{checked_in_models, generate, tales, tales_engine};
use akunu::{
    CallForm, Calls, Constraints, Engine, FinishReason, GenerateOptions, Generated, NAME_AND_ARGUMENTS,
    ResponseFormat, Sampling, Tool, WithoutCalls,
};
use serde_json::{Value as Json, json};

fn constrained(form: &ResponseFormat) -> GenerateOptions {
    static CONSTRAINTS: LazyLock<Constraints> = LazyLock::new(|| Constraints::new(tales()));
    let constraint = CONSTRAINTS.get(form, None, None).unwrap_or_else(|error| panic!("{error}"));
    GenerateOptions { constraint: Some(constraint), max_tokens: Some(150), ..Default::default() }
}

fn answer(engine: &mut Engine, options: &GenerateOptions) -> (String, Generated) {
    let prompt = tales().encode("Tom was a little fox. He").unwrap();
    generate(engine, &prompt, options)
}

/// Greedy, with moderate and with high temperature.
fn samplings() -> Vec<Sampling> {
    let drawn = |seed, temperature| Sampling { seed, temperature, ..Sampling::default() };
    let limited = Sampling { top_k: 5, top_p: 0.5, min_p: 0.1, repeat_penalty: 1.3, ..drawn(3, 1.0) };
    vec![Sampling::default(), drawn(1, 1.0), limited, drawn(2, 5.0), drawn(4, 50.0)]
}

type IsRight = fn(&Json) -> bool;

/// Schemas, and checks of their answers.
fn cases() -> Vec<(Json, IsRight)> {
    vec![
        (json!({ "type": "boolean" }), |v| v.is_boolean()),
        (json!({ "type": "integer", "minimum": -7, "exclusiveMaximum": 12 }), |v| {
            (-7..12).contains(&v.as_i64().unwrap())
        }),
        (json!({ "type": "number", "minimum": 0.25, "maximum": 0.5 }), |v| {
            (0.25..=0.5).contains(&v.as_f64().unwrap())
        }),
        (json!({ "enum": ["fox", "fog", "é", 12, 1, null, { "a": [1] }] }), |v| {
            [json!("fox"), json!("fog"), json!("é"), json!(12), json!(1), json!(null), json!({ "a": [1] })]
                .contains(v)
        }),
        (json!({ "type": "string", "minLength": 3, "maxLength": 9 }), |v| {
            (3..=9).contains(&v.as_str().unwrap().chars().count())
        }),
        (json!({ "type": "array", "items": { "type": "integer" }, "minItems": 2, "maxItems": 4 }), |v| {
            let items = v.as_array().unwrap();
            (2..=4).contains(&items.len()) && items.iter().all(Json::is_i64)
        }),
        (
            json!({
                "type": "object", "required": ["name", "age"], "additionalProperties": false,
                "properties": {
                    "name": { "type": "string", "maxLength": 12 }, "nick": { "type": ["string", "null"], "maxLength": 5 },
                    "age": { "type": "integer", "minimum": 0, "maximum": 99 },
                },
            }),
            |v| {
                v["name"].is_string() && v["age"].as_u64().unwrap() < 100 && v.as_object().unwrap().len() <= 3
            },
        ),
        (
            json!({
                "$ref": "#/$defs/tree",
                "$defs": { "tree": { "anyOf": [
                    { "type": "integer", "minimum": 0, "maximum": 9 },
                    { "type": "array", "items": { "$ref": "#/$defs/tree" }, "maxItems": 2 },
                ] } },
            }),
            |v| v.is_u64() || v.is_array(),
        ),
    ]
}

#[test]
fn answers_conform_to_the_schema_for_all_samplers() {
    let mut engine = tales_engine(|_| {});
    let mut whole = 0;
    for (schema, is_right) in cases() {
        let held = constrained(&ResponseFormat::Schema(schema.clone()));
        for sampling in samplings() {
            for ignore_eos in [false, true] {
                let options = GenerateOptions { sampling: sampling.clone(), ignore_eos, ..held.clone() };
                let (text, generated) = answer(&mut engine, &options);
                match generated.finish {
                    FinishReason::Complete | FinishReason::Eos(_) => {}
                    FinishReason::MaxTokens => continue,
                    other => panic!("{other:?}: {text}"),
                }
                whole += 1;
                let value: Json =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert!(is_right(&value), "{schema}: {text}");
            }
        }
    }
    assert!(whole > 60, "{whole} answers were whole");
}

#[test]
fn an_answer_may_be_any_object_or_a_call() {
    let mut engine = tales_engine(|_| {});
    for sampling in samplings() {
        let options = GenerateOptions { sampling: sampling.clone(), ..constrained(&ResponseFormat::Object) };
        let (text, generated) = answer(&mut engine, &options);
        assert!(text.trim_start().starts_with('{'), "{text}");
        if generated.finish == FinishReason::Complete {
            assert!(serde_json::from_str::<Json>(&text).unwrap().is_object(), "{text}");
        }
    }
}

#[test]
fn an_answer_may_have_to_be_a_call() {
    let mut engine = tales_engine(|_| {});
    let form = CallForm {
        section: [""; 2],
        ends_text: false,
        open: "<tool_call>",
        call: NAME_AND_ARGUMENTS,
        other: &[],
        is_list: false,
        close: "</tool_call>",
        is_bare: false,
        may_lack_open: false,
        text_name: "",
    };
    let parameters = json!({ "type": "object", "properties": { "x": { "enum": [1, 2] } }, "required": ["x"], "additionalProperties": false });
    let tools = [("add", parameters), ("sub", json!({ "type": "object", "additionalProperties": false }))];
    let tools =
        tools.map(|(name, schema)| Tool { name: name.into(), parameters: Some(schema), is_strict: true });
    let calls = Calls { form, tools: tools.to_vec(), is_single: true, without: WithoutCalls::Refused };
    for sampling in samplings() {
        let options = GenerateOptions { sampling, ..constrained(&ResponseFormat::Calls(calls.clone())) };
        let (text, generated) = answer(&mut engine, &options);
        assert_eq!(generated.finish, FinishReason::Complete, "{text}");
        let call = text.trim().strip_prefix("<tool_call>").and_then(|text| text.strip_suffix("</tool_call>"));
        let call: Json = serde_json::from_str(call.unwrap()).unwrap();
        match call["name"].as_str().unwrap() {
            "add" => assert!([json!(1), json!(2)].contains(&call["arguments"]["x"]), "{call}"),
            name => assert_eq!((name, &call["arguments"]), ("sub", &json!({}))),
        }
    }
}

#[test]
fn stop_strings_and_limits_apply() {
    let mut engine = tales_engine(|_| {});
    let schema = json!({ "type": "array", "items": { "const": "fox" }, "minItems": 100 });
    let held = constrained(&ResponseFormat::Schema(schema));
    let (text, generated) = answer(&mut engine, &held);
    assert_eq!((generated.finish, generated.ids.len()), (FinishReason::MaxTokens, 150));
    assert!(text.trim_start().starts_with('[') && text.contains("\"fox\""));
    let (text, generated) = answer(&mut engine, &GenerateOptions { stop_strings: vec!["ox".into()], ..held });
    assert_eq!(generated.finish, FinishReason::StopString("ox".into()));
    assert!(text.trim_start().trim_start_matches('[').trim_start() == "\"f", "{text}");
}

#[test]
fn a_constraint_for_another_vocabulary_is_refused() {
    let (_, path) = checked_in_models().into_iter().next().unwrap();
    let other = Constraints::new(akunu::Model::open(path).unwrap().into());
    let Ok(constraint) = other.get(&ResponseFormat::Object, None, None) else { return };
    let options = GenerateOptions { constraint: Some(constraint), ..Default::default() };
    let mut engine = tales_engine(|_| {});
    let mut session = engine.session().unwrap();
    let error =
        engine.generate(&mut session, &[1, 2], &options, &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(error.unwrap_err().to_string().contains("vocabulary"));
}

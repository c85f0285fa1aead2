//! Compares grammars with the valid and invalid values of test suites.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use akunu_tokenizer::Tokenizer;
use serde_json::{Value as Json, json};

use super::Vocabulary;
use super::machine::{Machine, Stack};
use super::schema::{Compiler, SchemaError};

fn machine(schema: &Json) -> Result<Machine, SchemaError> {
    let mut compiler = Compiler::default();
    let root = compiler.schema(schema)?;
    let impossible = SchemaError { place: "#".into(), reason: "nothing".into() };
    Machine::new(compiler.grammar(root)).ok_or(impossible)
}

/// The state after a text; empty if the text is not allowed.
fn after(machine: &Machine, text: &str) -> Vec<Stack> {
    let (mut stacks, mut next) = (machine.start(), Vec::new());
    for byte in text.bytes() {
        machine.step(&stacks, byte, &mut next);
        std::mem::swap(&mut stacks, &mut next);
    }
    stacks
}

fn takes(machine: &Machine, text: &str) -> bool {
    machine.may_end(&after(machine, text))
}

#[track_caller]
fn assert_takes(schema: Json, right: &[&str], wrong: &[&str]) {
    let machine = machine(&schema).unwrap_or_else(|error| panic!("{error}"));
    right.iter().for_each(|text| assert!(takes(&machine, text), "{text} should be right for {schema}"));
    wrong.iter().for_each(|text| assert!(!takes(&machine, text), "{text} should be wrong for {schema}"));
}

#[test]
fn json_values_are_accepted() {
    assert_takes(
        json!({}),
        &[
            "{}",
            "[]",
            " [ 1, -2.5e3\n]",
            "\"\"",
            "null",
            "{\"a\":{\"b\":[true,false]}}",
            "\"\\u00e9\\n\\\"é😀\"",
            "{\n  \"a\": {\n\t\t\"b\": 1\n    }\n}",
        ],
        &[
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "{a:1}",
            "'a'",
            "01",
            "\"\n\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "nul",
            "[1 2]",
            "[1 ,2]",
            "[1,  2]",
            "   1",
            "{\"a\" :1}",
            "{\n      }",
            "{}{}",
            "tru\u{65}e",
        ],
    );
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_takes(json!({}), &[&nested(60)], &[&nested(80)]);
}

#[test]
fn strings_are_utf_8_to_the_last_byte() {
    let machine = machine(&json!({ "type": "string" })).unwrap();
    let is_right = |bytes: &[u8]| {
        let (mut stacks, mut next) = (machine.start(), Vec::new());
        for &byte in &[b"\"", bytes, b"\""].concat() {
            machine.step(&stacks, byte, &mut next);
            std::mem::swap(&mut stacks, &mut next);
        }
        machine.may_end(&stacks)
    };
    for first in 0x80..=0xffu8 {
        for second in (0..=0xffu8).filter(|byte| !b"\"\\".contains(byte) && *byte >= 0x20) {
            assert_eq!(is_right(&[first, second]), std::str::from_utf8(&[first, second]).is_ok());
            for rest in [&[0x80][..], &[0xbf, 0x80], &[0x80, 0x41]] {
                let bytes = [&[first, second], rest].concat();
                assert_eq!(is_right(&bytes), std::str::from_utf8(&bytes).is_ok(), "{bytes:x?}");
            }
        }
    }
}

#[test]
fn properties_are_ordered_and_optional_ones_may_be_omitted() {
    let schema = json!({
        "type": "object", "required": ["b"],
        "properties": { "a": { "type": "integer" }, "b": { "type": "string" }, "c": { "enum": [1, "x", null] } },
    });
    assert_takes(
        schema.clone(),
        &[
            "{\"b\":\"\"}",
            "{\"a\":1,\"b\":\"\"}",
            "{\"b\":\"\",\"c\":null}",
            "{ \"a\": 1, \"b\": \"y\",\n\"c\": \"x\" }",
        ],
        &[
            "{}",
            "{\"a\":1}",
            "{\"b\":1}",
            "{\"b\":\"\",\"a\":1}",
            "{\"b\":\"\",\"c\":2}",
            "{\"b\":\"\",\"d\":2}",
            "{\"b\":\"\",}",
        ],
    );
    let mut open = schema;
    open["additionalProperties"] = json!({ "type": "boolean" });
    assert_takes(
        open,
        &["{\"b\":\"\",\"d\":true}", "{\"b\":\"\",\"bb\":true,\"\":false}", "{\"b\":\"\",\"d\\n\":true}"],
        &[
            "{\"d\":true}",
            "{\"b\":\"\",\"d\":1}",
            "{\"b\":\"\",\"b\":true}",
            "{\"b\":\"\",\"a\":true}",
            "{\"b\":\"\",\"\\u0061\":true}",
        ],
    );
}

#[test]
fn lists_have_item_counts_and_types() {
    let schema = json!({ "prefixItems": [{ "type": "integer" }], "items": { "const": "é" }, "minItems": 1, "maxItems": 3 });
    assert_takes(
        schema,
        &["[1]", "[1,\"é\"]", "[1, \"é\",\"é\"]"],
        &["[]", "[\"é\"]", "[1,1]", "[1,\"é\",\"é\",\"é\"]", "[1,]"],
    );
    assert_takes(json!({ "prefixItems": [true], "items": false }), &["[]", "[{}]"], &["[1,2]"]);
    let text = json!({ "type": "string", "minLength": 2, "maxLength": 3 });
    assert_takes(text, &["\"ab\"", "\"é😀\\n\""], &["\"\"", "\"a\"", "\"abcd\"", "\"\\u0041\""]);
}

#[test]
fn references_may_be_recursive() {
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "type": "object", "required": ["value"],
            "properties": { "value": { "type": "integer" }, "children": { "type": "array", "items": { "$ref": "#/$defs/node" } } },
        } },
    });
    assert_takes(
        tree,
        &["{\"value\":1}", "{\"value\":1,\"children\":[{\"value\":2,\"children\":[]}]}"],
        &["{\"value\":1,\"children\":[{}]}", "{\"children\":[]}"],
    );
    let around = json!({ "anyOf": [{ "$ref": "#" }, { "type": "null" }] });
    assert_takes(around, &["null"], &["1"]);
}

#[test]
fn unsupported_keywords_are_named() {
    let cases = [
        (json!({ "type": "object", "patternProperties": {} }), "#", "patternProperties"),
        (
            json!({ "properties": { "a": { "type": "array", "items": { "not": {} } } } }),
            "#/properties/a/items",
            "not",
        ),
        (json!({ "type": "number", "multipleOf": 2 }), "#", "multipleOf"),
        (json!({ "uniqueItems": true }), "#", "uniqueItems"),
        (json!({ "oneOf": [{ "type": "number" }, { "type": "integer" }] }), "#/oneOf", "anyOf"),
        (json!({ "allOf": [{}, {}] }), "#/allOf", "one schema"),
        (json!({ "anyOf": [{}], "type": "object" }), "#", "beside"),
        (json!({ "$ref": "#/$defs/none" }), "#/$ref", "#/$defs/none"),
        (json!({ "$ref": "https://example.com/schema" }), "#/$ref", "example.com"),
        (json!({ "type": "text" }), "#", "type"),
        (json!({ "items": [{}] }), "#/items", "prefixItems"),
        (json!({ "minLength": 3, "maxLength": 2 }), "#", "minLength"),
        (json!({ "required": "a" }), "#/required", "list"),
        (json!({ "enum": [] }), "#/enum", "list"),
        (json!({ "minimum": "1" }), "#/minimum", "number"),
        (json!(3), "#", "object"),
        // Schemas that no value satisfies.
        (json!({ "$ref": "#" }), "#", "nothing"),
        (
            json!({ "type": "object", "required": ["a"], "properties": { "a": { "$ref": "#" } } }),
            "#",
            "nothing",
        ),
        (json!({ "type": "integer", "minimum": 0.2, "maximum": 0.8 }), "#", "nothing"),
        (json!({ "items": false, "minItems": 1 }), "#", "nothing"),
        (json!({ "type": "string", "enum": [1] }), "#", "nothing"),
        (json!(false), "#", "nothing"),
    ];
    for (schema, place, word) in cases {
        let error = machine(&schema).err().unwrap_or_else(|| panic!("{schema} is held to"));
        assert_eq!(error.place, place, "{schema}: {error}");
        assert!(error.reason.contains(word), "{schema}: {error}");
    }
}

#[test]
fn one_of_is_supported_for_disjoint_alternatives() {
    let tagged = |tag: &str, kind: &str| json!({ "type": "object", "required": ["tag", "value"], "properties": { "tag": { "const": tag }, "value": { "type": kind } } });
    let schema = json!({ "oneOf": [tagged("a", "string"), tagged("b", "integer"), { "type": ["null", "array"], "maxItems": 0 }] });
    assert_takes(
        schema,
        &["{\"tag\":\"a\",\"value\":\"\"}", "{\"tag\":\"b\",\"value\":1}", "null", "[]"],
        &["{\"tag\":\"a\",\"value\":1}", "{\"tag\":\"b\",\"value\":\"\"}", "{}"],
    );
}

#[test]
fn schemas_that_are_too_large_are_refused() {
    let chain = (0..5000).map(|n| (format!("d{n}"), json!({ "$ref": format!("#/$defs/d{}", n + 1) })));
    let chain = json!({ "$ref": "#/$defs/d0", "$defs": Json::Object(chain.collect()) });
    assert!(machine(&chain).unwrap_err().reason.contains("nested schemas"));
    let around = json!({ "oneOf": [{ "$ref": "#" }, { "$ref": "#" }, { "type": "null" }] });
    assert!(machine(&around).unwrap_err().reason.contains("anyOf"));
    let many: Vec<Json> = (0..400).map(|n| json!({ "const": n })).collect();
    assert!(machine(&json!({ "oneOf": many })).unwrap_err().reason.contains("anyOf"));
    let wide: Vec<Json> = (0..20_000).map(|n| json!({ "type": "string", "maxLength": n })).collect();
    assert!(machine(&json!({ "anyOf": wide })).unwrap_err().reason.contains("parts"));
}

#[test]
fn an_answer_ends_where_nothing_can_follow() {
    let is_over = |schema: Json, text: &str| {
        let machine = machine(&schema).unwrap();
        machine.is_over(&after(&machine, text))
    };
    assert!(is_over(json!({ "type": "object" }), "{}"));
    assert!(is_over(json!({ "enum": ["a", "b"] }), "\"a\""));
    assert!(!is_over(json!({ "type": "integer" }), "12") && !is_over(json!({ "enum": [1, 12] }), "1"));
    assert!(is_over(json!({ "type": "integer", "maximum": 12 }), "12"));
}

/// Sorts properties in the order of a schema, where that is easy.
fn ordered(schema: &Json, value: &Json) -> Json {
    match value {
        Json::Object(map) => {
            let properties = schema["properties"].as_object();
            let place = |name: &str| {
                properties.and_then(|p| p.keys().position(|key| key == name)).unwrap_or(usize::MAX)
            };
            let mut entries: Vec<(&String, &Json)> = map.iter().collect();
            entries.sort_by_key(|(name, _)| place(name));
            let entries = entries
                .into_iter()
                .map(|(name, value)| (name.clone(), ordered(&schema["properties"][name.as_str()], value)));
            Json::Object(entries.collect())
        }
        Json::Array(items) => items.iter().map(|item| ordered(&schema["items"], item)).collect(),
        value => value.clone(),
    }
}

/// A random accepted text of up to 2,000 bytes. Checks that in every state the text may end or can continue.
fn walk(machine: &Machine, name: &str) -> bool {
    let (mut stacks, mut next, mut text) = (machine.start(), Vec::new(), Vec::new());
    let mut random = name.len() as u64;
    while text.len() < 2000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let may_end = machine.may_end(&stacks);
        if may_end && random >> 62 == 0 {
            return true;
        }
        let follows = |byte: &u8| {
            let mut next = Vec::new();
            machine.step(&stacks, *byte, &mut next);
            !next.is_empty()
        };
        let all: Vec<u8> = (0..=u8::MAX).filter(follows).collect();
        // Prefers to end, because few values would otherwise.
        let ends: Vec<u8> = all.iter().copied().filter(|byte| b"\"}]".contains(byte)).collect();
        let from = if ends.is_empty() || random >> 60 & 1 == 0 { &all } else { &ends };
        let Some(&byte) = from.get((random >> 33) as usize % from.len().max(1)) else {
            assert!(may_end, "{name}: nothing follows {}", String::from_utf8_lossy(&text));
            return true;
        };
        machine.step(&stacks, byte, &mut next);
        std::mem::swap(&mut stacks, &mut next);
        text.push(byte);
    }
    false
}

#[derive(Debug, Default)]
struct Tally {
    held_to: usize,
    /// Schemas for which a random text was complete.
    walks_taken: usize,
    refused: usize,
    right: usize,
    right_taken: usize,
    wrong: usize,
}

impl Tally {
    /// Checks that no invalid value is accepted.
    fn case(&mut self, name: &str, schema: &Json, tests: &[Json]) {
        let Ok(machine) = machine(schema) else {
            self.refused += 1;
            return;
        };
        self.held_to += 1;
        self.walks_taken += usize::from(walk(&machine, name));
        for test in tests {
            let texts = [test["data"].to_string(), ordered(schema, &test["data"]).to_string()];
            let is_taken = texts.iter().any(|text| takes(&machine, text));
            if test["valid"] == true {
                self.right += 1;
                self.right_taken += usize::from(is_taken);
            } else {
                self.wrong += 1;
                assert!(!is_taken, "{name}: {schema} takes {}", texts[0]);
            }
        }
    }
}

fn real_vocabularies() -> Vec<(&'static str, Arc<dyn Tokenizer>, Vocabulary)> {
    let open = |name| {
        let path = shared(&format!("vocab/{name}.gguf"))?;
        let file = akunu_format::Gguf::open(&path).unwrap();
        let tokenizer: Arc<dyn Tokenizer> = Arc::new(akunu_tokenizer::from_gguf(file.metadata()).unwrap());
        let vocabulary = Vocabulary::new(&*tokenizer, tokenizer.vocab_size());
        Some((name, tokenizer, vocabulary))
    };
    ["llama-spm", "llama-bpe", "qwen2"].into_iter().filter_map(open).collect()
}

/// Values at several paths, with their schemas.
fn places() -> Vec<(Json, &'static str)> {
    let person = json!({
        "type": "object", "required": ["name"],
        "properties": {
            "name": { "type": "string" }, "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "tags": { "type": "array", "items": { "enum": ["fox", "foxes", "é"] } }, "note": { "type": "string", "maxLength": 9 },
        },
        "additionalProperties": { "type": "number" },
    });
    let text =
        "{\"name\": \"Zoë\\n\", \"age\": 12, \"tags\": [\"foxes\"], \"note\": \"an é\", \"nam\": -2.5e3}";
    vec![(person, text), (json!({}), "{\"a\": [1, {\"b\\u00e9\": null}], \"c\": \"\\\"\"}")]
}

#[test]
fn masks_have_exactly_the_allowed_tokens() {
    for (name, tokenizer, vocabulary) in real_vocabularies() {
        for (schema, text) in places() {
            let machine = machine(&schema).unwrap();
            let ends: Vec<usize> = (0..text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            for end in ends.into_iter().step_by(3) {
                let stacks = after(&machine, &text[..end]);
                assert!(!stacks.is_empty(), "{}", &text[..end]);
                let mask = vocabulary.allowed(&machine, &stacks, &[]).unwrap();
                for id in 0..tokenizer.vocab_size() as u32 {
                    let bytes = tokenizer.token_bytes(id).filter(|bytes| !bytes.is_empty());
                    let bytes = bytes.filter(|_| !tokenizer.is_control(id)).unwrap_or(b"\0");
                    let (mut from, mut to) = (stacks.clone(), Vec::new());
                    let follows = bytes.iter().all(|byte| {
                        machine.step(&from, *byte, &mut to);
                        std::mem::swap(&mut from, &mut to);
                        !from.is_empty()
                    });
                    assert_eq!(mask.contains(id), follows, "{name}: {id} after {}", &text[..end]);
                }
            }
        }
    }
}

/// `cargo test --release -p akunu --lib constrain -- --ignored --nocapture how_long`
#[test]
#[ignore = "says how long masks take"]
fn how_long_masks_take() {
    for (name, tokenizer, vocabulary) in real_vocabularies() {
        for (schema, text) in places() {
            let machine = machine(&schema).unwrap();
            let ids = tokenizer.encode(text, Default::default()).unwrap();
            let (mut stacks, mut next, mut times) = (machine.start(), Vec::new(), Vec::new());
            for id in ids {
                let started = Instant::now();
                let mask = vocabulary.allowed(&machine, &stacks, &[]).unwrap();
                times.push(started.elapsed().as_micros());
                assert!(mask.contains(id));
                for byte in tokenizer.token_bytes(id).unwrap() {
                    machine.step(&stacks, *byte, &mut next);
                    std::mem::swap(&mut stacks, &mut next);
                }
            }
            assert!(machine.may_end(&stacks));
            times.sort_unstable();
            let mean = times.iter().sum::<u128>() / times.len() as u128;
            let [half, most] = [times.len() / 2, times.len() - 1].map(|at| times[at]);
            println!(
                "{name}, {} tokens: of {} masks, µs: mean {mean}, median {half}, longest {most}",
                tokenizer.vocab_size(),
                times.len()
            );
        }
    }
}

fn shared(name: &str) -> Option<PathBuf> {
    let thread = std::thread::current();
    akunu_testing::data(thread.name().unwrap_or("a test"), name)
}

/// Keywords of other drafts, or that change the meaning of values.
#[test]
fn invalid_values_of_the_json_schema_test_suite_are_rejected() {
    let Some(folder) = shared("grammar/json-schema-draft2020-12") else { return };
    let mut tally = Tally::default();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let groups: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for group in groups.as_array().unwrap() {
            let name = format!("{}: {}", path.display(), group["description"]);
            tally.case(&name, &group["schema"], group["tests"].as_array().unwrap());
        }
    }
    println!("JSON-Schema-Test-Suite: {tally:?}");
    assert!(tally.held_to > 100 && tally.wrong > 150, "{tally:?}");
}

#[test]
fn no_wrong_value_of_7427_schemas_is_let_through() {
    let Some(path) = shared("grammar/maskbench-shared.jsonl.gz") else { return };
    let Ok(mut unpacked) = Command::new("gzip").arg("-dc").arg(path).stdout(Stdio::piped()).spawn() else {
        return println!("SKIPPED: gzip is not there");
    };
    let mut tally = Tally::default();
    for line in BufReader::new(unpacked.stdout.take().unwrap()).lines() {
        let case: Json = serde_json::from_str(&line.unwrap()).unwrap();
        tally.case(case["id"].as_str().unwrap(), &case["schema"], case["tests"].as_array().unwrap());
    }
    assert!(unpacked.wait().unwrap().success());
    println!("MaskBench: {tally:?}");
    assert!(tally.held_to > 1000 && tally.wrong > 1000, "{tally:?}");
}

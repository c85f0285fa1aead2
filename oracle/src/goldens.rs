//! Answers of the library for tests that run without it: `tests/golden/expressions.json` and `general_form.json` of
//! `akunu-tokenizer`. With `AKUNU_WRITE_GOLDENS=1`, they are made anew.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};
use tokenizers::utils::SysRegex;

use crate::{expressions, general_form, pre_tokenizers, random_expressions, tokenizer_json};

fn path(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/akunu-tokenizer/tests/golden").join(name)
}

/// One case in each line.
fn written(cases: &[Value]) -> String {
    format!("[\n{}\n]\n", cases.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n"))
}

fn read_or_made(name: &str, make: impl FnOnce() -> Vec<Value>) -> Vec<Value> {
    if std::env::var_os("AKUNU_WRITE_GOLDENS").is_some() {
        std::fs::write(path(name), written(&make())).unwrap();
    }
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

fn random<T>(runner: &mut TestRunner, strategy: &impl Strategy<Value = T>) -> T {
    strategy.new_tree(runner).unwrap().current()
}

fn bounds(regex: &SysRegex, text: &str) -> Value {
    regex.find_iter(text).flat_map(|(start, end)| [start, end]).collect::<Vec<_>>().into()
}

/// Those of tokenizers, and random ones that match something, which ours does not refuse.
fn expressions() -> Vec<Value> {
    let mut runner = TestRunner::deterministic();
    let (long, short, pattern) =
        (pre_tokenizers::text(), random_expressions::short_text(), expressions::pattern());
    let known = akunu_tokenizer::oracle::expressions().chain(expressions::EXPRESSIONS.iter().copied());
    let mut cases = Vec::new();
    for pattern in known {
        let regex = SysRegex::new(pattern).unwrap();
        let mut texts = Map::new();
        while texts.len() < 4 {
            let text = random(&mut runner, &long);
            texts.insert(text.clone(), bounds(&regex, &text));
        }
        cases.push(json!({"pattern": pattern, "texts": texts}));
    }
    while cases.len() < 260 {
        let pattern = random(&mut runner, &pattern);
        let (Some(regex), Ok(_)) =
            (expressions::library(&pattern), akunu_tokenizer::oracle::Expression::new(&pattern))
        else {
            continue;
        };
        let texts: Vec<String> = (0..6).map(|_| random(&mut runner, &short)).collect();
        let texts: Map<String, Value> =
            texts.into_iter().map(|text| (text.clone(), bounds(&regex, &text))).collect();
        if texts.values().any(|bounds| bounds.as_array().unwrap().chunks(2).any(|pair| pair[0] != pair[1])) {
            cases.push(json!({"pattern": pattern, "texts": texts}));
        }
    }
    cases
}

#[test]
fn expressions_of_the_golden_match_so_in_the_library() {
    for case in read_or_made("expressions.json", expressions) {
        let regex = SysRegex::new(case["pattern"].as_str().unwrap()).unwrap();
        for (text, expected) in case["texts"].as_object().unwrap() {
            assert_eq!(bounds(&regex, text), *expected, "{} in {text:?}", case["pattern"]);
        }
    }
}

/// The library's ids of a text, whole and with special tokens as text. `null` is an error.
fn ids(three: &tokenizer_json::Three, text: &str) -> Option<Value> {
    let (whole, plain) = three.library_ids(text)?;
    Some(json!([whole, plain]))
}

/// A line with all models, and lines with files of random parts, in which the model is its number.
fn files() -> Vec<Value> {
    let mut runner = TestRunner::deterministic();
    let (models, texts) = (general_form::models(), tokenizer_json::text());
    let parts = general_form::file((0..models.len()).prop_map(Value::from));
    let mut lines = vec![json!(models)];
    while lines.len() < 90 {
        let file = random(&mut runner, &parts);
        let Some(three) = general_form::opened(&general_form::with_model(&file, &models)) else { continue };
        let mut answers = Map::new();
        while answers.len() < 5 {
            let text = random(&mut runner, &texts);
            if text.len() < 120
                && let Some(ids) = ids(&three, &text)
            {
                answers.insert(text, ids);
            }
        }
        lines.push(json!({"file": file, "texts": answers}));
    }
    lines
}

#[test]
fn files_of_the_golden_give_these_ids_in_the_library() {
    let lines = read_or_made("general_form.json", files);
    let models = lines[0].as_array().unwrap();
    for line in &lines[1..] {
        let three = general_form::opened(&general_form::with_model(&line["file"], models)).unwrap();
        for (text, expected) in line["texts"].as_object().unwrap() {
            assert_eq!(ids(&three, text), Some(expected.clone()), "{} {text:?}", line["file"]);
        }
    }
}

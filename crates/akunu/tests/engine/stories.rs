//! The trained stories260K in every weight type, against its goldens.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;

use crate::common::rounding::follow;
use crate::common::{DEVICES, exact, floats, generate, ids, json, options, relative_error, shared};
use akunu::{Engine, EngineOptions, GenerateOptions, KvType, Model};

fn stories(file: &str) -> Option<(Arc<Model>, std::path::PathBuf)> {
    let path = shared(&format!("stories260K/{file}"))?;
    Some((Arc::new(Model::open(&path).unwrap()), path))
}

#[test]
fn greedy_text_of_200_steps_is_the_expected_one() {
    let Some((model, path)) = stories("stories260K.gguf") else { return };
    let expected = std::fs::read_to_string(path.with_file_name("expected_stdout_200steps_t0.txt")).unwrap();
    for device in DEVICES {
        let mut engine = Engine::new(model.clone(), &options(device)).unwrap();
        let prompt = model.encode("").unwrap();
        let wanted = GenerateOptions { max_tokens: Some(200), ..Default::default() };
        let (text, _) = generate(&mut engine, &prompt, &wanted);
        assert_eq!(text, expected.trim_end_matches('\n'), "{device}");
    }
}

#[test]
fn prompts_match_the_golden_ids_and_logits() {
    let Some((model, path)) = stories("stories260K.gguf") else { return };
    let golden = json(path.with_file_name("golden.json"));
    for device in DEVICES {
        let mut engine = Engine::new(model.clone(), &exact(device)).unwrap();
        let mut worst: f64 = 0.0;
        for case in golden["cases"].as_array().unwrap() {
            let (prompt, expected) = (ids(&case["prompt_ids"]), ids(&case["greedy_ids"]));
            assert_eq!(model.encode(case["prompt"].as_str().unwrap()).unwrap(), prompt);
            let logits = engine.logits(&prompt, false, None).unwrap();
            worst = worst.max(relative_error(&logits, &[floats(&case["prompt_last_logits_f64"])]));
            check_greedy(&mut engine, &expected, prompt.len());
        }
        println!("stories260K F32 on {device}: worst relative error of the prompts' last logits {worst:.1e}");
        assert!(worst <= 1e-5, "{device}: {worst:e}");
    }
}

/// Checks that the model generates the ids after the first `prompt`.
fn check_greedy(engine: &mut Engine, expected: &[u32], prompt: usize) {
    let wanted = GenerateOptions { max_tokens: Some(expected.len() - prompt), ..Default::default() };
    let (_, generated) = generate(engine, &expected[..prompt], &wanted);
    assert_eq!(generated.ids, expected[prompt..]);
}

#[test]
fn float_files_match_all_golden_ids() {
    for (file, golden) in [
        ("stories260K.gguf", None),
        ("hf", None),
        ("stories260K-f16.gguf", Some("stories260K-f16.greedy.json")),
        ("stories260K-bf16.gguf", Some("stories260K-bf16.greedy.json")),
    ] {
        let Some((model, path)) = stories(file) else { continue };
        let expected = match golden {
            Some(golden) => ids(&json(path.with_file_name(golden))["greedy_ids"]),
            None => ids(&json(path.with_file_name("golden.json"))["cases"][0]["greedy_ids"]),
        };
        for device in DEVICES {
            for kv in [KvType::F16, KvType::F32] {
                let options = EngineOptions { kv, ..options(device) };
                check_greedy(&mut Engine::new(model.clone(), &options).unwrap(), &expected, 1);
            }
        }
    }
}

/// See `common::rounding` for the criteria.
#[test]
fn quantised_files_follow_their_golden_ids() {
    for kind in ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] {
        let Some((model, path)) = stories(&format!("stories260K-{kind}.gguf")) else { continue };
        let golden = ids(&json(path.with_file_name(format!("stories260K-{kind}.greedy.json")))["greedy_ids"]);
        let name = format!("stories260K {kind}");
        follow(&model, &golden[..golden.len() - 1], &golden[1..], &DEVICES, &name);
    }
}

//! Compares the embedded model with its goldens: float64 logits of its dequantised Q8_0 weights.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::common::rounding::{follow, unrounded};
use crate::common::{DEVICES, checked_in, floats, generate, ids, json, options, relative_error, tales};
use akunu::{Engine, GenerateOptions};
use akunu_testing::fewest_or;
use akunu_tokenizer::EncodeOptions;

fn golden() -> serde_json::Value {
    json(checked_in("tales/golden.json"))
}

/// With the fewest cases every second.
fn prompts(golden: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    golden["prompts"].as_array().unwrap().iter().step_by(fewest_or(2, 1, 1))
}

#[test]
fn its_vocabulary_tokenizes_as_it_was_trained() {
    let model = tales();
    let tokenizer = model.tokenizer().unwrap();
    for case in golden()["tokenizer"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let found = tokenizer.encode(text, EncodeOptions::default()).unwrap();
        assert_eq!(found, ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.decode(&found), text);
    }
}

#[test]
fn unrounded_it_agrees_with_float64() {
    let mut engine = unrounded(&tales());
    let vocab = engine.vocab_size();
    let mut worst: f64 = 0.0;
    for prompt in prompts(&golden()) {
        let prompt_ids = ids(&prompt["ids"]);
        assert_eq!(tales().encode(prompt["text"].as_str().unwrap()).unwrap(), prompt_ids);
        let logits = engine.logits(&prompt_ids, true, None).unwrap();
        for (position, expected) in ids(&prompt["positions"]).iter().zip(prompt["logits"].as_array().unwrap())
        {
            let found = &logits[*position as usize * vocab..][..vocab];
            worst = worst.max(relative_error(found, &[floats(expected)]));
        }
        let greedy = ids(&prompt["greedy"]);
        let wanted =
            GenerateOptions { max_tokens: Some(greedy.len()), ignore_eos: true, ..Default::default() };
        let (text, generated) = generate(&mut engine, &prompt_ids, &wanted);
        assert_eq!(generated.ids, greedy);
        assert_eq!(text, prompt["greedy_text"].as_str().unwrap());
    }
    println!("tales, unrounded: worst relative error {worst:.1e}");
    assert!(worst <= 1e-5, "{worst:e}");
}

#[test]
fn rounded_it_follows_its_golden_ids() {
    for prompt in prompts(&golden()) {
        let prompt_ids = ids(&prompt["ids"]);
        let all = [&prompt_ids[..], &ids(&prompt["greedy"])].concat();
        let best = [&ids(&prompt["argmax"])[..], &ids(&prompt["greedy"])[1..]].concat();
        follow(&tales(), &all[..all.len() - 1], &best, &DEVICES, &format!("tales ({} ids)", all.len()));
    }
}

/// The greedy text does not depend on the device or the type of the cache, because the gaps between logits are wide enough.
#[test]
fn the_first_story_is_the_same_everywhere() {
    let prompt = &golden()["prompts"][0];
    let gaps = floats(&prompt["greedy_gap"]);
    let sure = gaps.iter().position(|gap| *gap < 0.3).unwrap_or(gaps.len());
    for device in DEVICES {
        let mut engine = Engine::new(tales(), &options(device)).unwrap();
        let wanted = GenerateOptions { max_tokens: Some(sure), ignore_eos: true, ..Default::default() };
        let (_, generated) = generate(&mut engine, &ids(&prompt["ids"]), &wanted);
        assert_eq!(generated.ids, ids(&prompt["greedy"])[..sure], "{device}");
    }
}

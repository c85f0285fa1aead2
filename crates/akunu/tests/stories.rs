//! The trained stories260K in every weight type, against its goldens.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::sync::Arc;

use akunu::{Capabilities, Device, Engine, EngineOptions, GenerateOptions, KvType, Model};
use akunu_plan::reference::ReferenceDevice;
use common::{DEVICES, exact, floats, generate, ids, json, options, relative_error, shared};

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
fn prompts_give_the_golden_ids_and_logits() {
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

/// What follows the first `prompt` ids is what the model generates.
fn check_greedy(engine: &mut Engine, expected: &[u32], prompt: usize) {
    let wanted = GenerateOptions { max_tokens: Some(expected.len() - prompt), ..Default::default() };
    let (_, generated) = generate(engine, &expected[..prompt], &wanted);
    assert_eq!(generated.ids, expected[prompt..]);
}

#[test]
fn float_files_give_their_golden_ids_in_full() {
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

/// How the logits of a quantised file differ between int8-rounded and unrounded activations.
struct Rounding {
    /// Root mean square of the difference, over all logits of all positions.
    noise: f64,
    /// Root mean square of the logits about their mean.
    signal: f64,
}

/// The goldens of quantised files do not round activations; the integer kernels do. So along the golden ids:
///
/// - with unrounded activations (the reference device, told so) every best token is the golden one;
/// - rounding moves logits by no more than it can. An activation is off by at most half a step, amax / 254; evenly spread,
///   that is amax / 440 in the root mean square, and with amax about 2.5 times a block's root mean square a product is off
///   by about 0.6 %. The vocabulary's product adds that much itself. Those before it come in through residuals that are
///   not rounded, so they add less each, and like independent errors: two to three times 0.6 % in all is what can be
///   explained, and we allow 2 %;
/// - the best token differs only where the golden one leads by less than 3 standard deviations of the difference of two
///   such errors, and at 3 % of positions at most.
#[test]
fn quantised_files_follow_their_golden_ids() {
    for kind in ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] {
        let Some((model, path)) = stories(&format!("stories260K-{kind}.gguf")) else { continue };
        let golden = ids(&json(path.with_file_name(format!("stories260K-{kind}.greedy.json")))["greedy_ids"]);
        for device in DEVICES {
            follow(&model, &golden, &format!("{kind} on {device}"), &exact(device));
        }
    }
}

fn follow(model: &Arc<Model>, golden: &[u32], name: &str, options: &EngineOptions) {
    let fed = &golden[..golden.len() - 1];
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let vocab = engine.vocab_size();
    let unrounded = unrounded_logits(model, fed);
    let rounded = engine.logits(fed, true, None).unwrap();
    let Rounding { noise, signal } = rounding(&rounded, &unrounded);

    let mut disagreements = Vec::new();
    let positions = rounded.chunks_exact(vocab).zip(unrounded.chunks_exact(vocab));
    for ((rounded, unrounded), &next) in positions.zip(&golden[1..]) {
        assert_eq!(best(unrounded), next, "{name}: the reference does not follow the golden ids");
        let found = best(rounded);
        if found != next {
            disagreements.push(f64::from(unrounded[next as usize] - unrounded[found as usize]));
        }
    }
    let worst = disagreements.iter().copied().fold(0.0, f64::max);
    println!(
        "stories260K {name:<18} noise {:.2} % of the signal, {} of {} differ, widest gap {worst:.3} (3σ: {:.3})",
        100.0 * noise / signal,
        disagreements.len(),
        fed.len(),
        3.0 * noise * 2f64.sqrt()
    );
    assert!(noise <= 0.02 * signal, "{name}: {noise} of {signal}");
    assert!(worst <= 3.0 * noise * 2f64.sqrt(), "{name}: {worst}");
    assert!(disagreements.len() as f64 <= 0.03 * fed.len() as f64, "{name}: {disagreements:?}");
}

fn unrounded_logits(model: &Arc<Model>, ids: &[u32]) -> Vec<f32> {
    let device = ReferenceDevice::new();
    let capabilities = Capabilities { q8_activations: false, ..device.capabilities().clone() };
    let device = Box::new(ReferenceDevice::like(&capabilities));
    let mut engine = Engine::on_device(model.clone(), device, &exact(common::DEVICES[0])).unwrap();
    engine.logits(ids, true, None).unwrap()
}

fn rounding(rounded: &[f32], unrounded: &[f32]) -> Rounding {
    let n = unrounded.len() as f64;
    let mean = unrounded.iter().map(|&l| f64::from(l)).sum::<f64>() / n;
    let rms = |sum: f64| (sum / n).sqrt();
    let differences = rounded.iter().zip(unrounded).map(|(r, u)| f64::from(r - u).powi(2));
    Rounding {
        noise: rms(differences.sum()),
        signal: rms(unrounded.iter().map(|&l| (f64::from(l) - mean).powi(2)).sum()),
    }
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

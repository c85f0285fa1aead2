//! Tokens, logits and perplexity.

#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::path::Path;

use akunu_format::GgufWriter;

use crate::common::{json, ok, path, refuses, run, with_stdin};

const EMBEDDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../akunu/embedded/akunu-tales.gguf");

#[test]
fn detokenize_inverts_tokenize() {
    for text in ["Once upon a time", "Zoë's  café – 日本", " two spaces  ", "line\nbreak"] {
        let ids = ok(&["tokenize", "-p", text]);
        assert_eq!(ok(&["detokenize", ids.trim()]), format!("{text}\n"));
        let listed = json(&["tokenize", "-p", text, "--json"]);
        assert_eq!(listed["ids"].as_array().unwrap().len(), ids.split(',').count());
    }
}

#[test]
fn a_vocabulary_file_without_weights_can_tokenize() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vocabulary.gguf");
    let model = akunu::Model::embedded().unwrap();
    let bytes = GgufWriter::new(Vec::new(), model.metadata().unwrap(), Vec::new()).unwrap().finish().unwrap();
    fs::write(&file, bytes).unwrap();
    let ids = ok(&["tokenize", path(&file), "Once upon a time"]);
    assert_eq!(ids, ok(&["tokenize", "Once upon a time"]));
    assert_eq!(ok(&["detokenize", path(&file), ids.trim()]), "Once upon a time\n");
}

#[test]
fn special_tokens_can_be_left_out() {
    let all = ok(&["tokenize", "Once"]);
    let plain = ok(&["tokenize", "Once", "--no-special"]);
    let bos = akunu::Model::embedded().unwrap().config().bos_id.unwrap();
    assert_eq!(all, format!("{bos},{plain}"));
    assert_eq!(ok(&["tokenize", "Once", "--list"]).lines().count(), 2);
}

#[test]
fn text_and_ids_may_come_from_stdin() {
    let ids = with_stdin(&["tokenize"], b"Once upon a time");
    assert_eq!(ids.stdout, ok(&["tokenize", "Once upon a time"]));
    assert_eq!(with_stdin(&["detokenize"], ids.stdout.as_bytes()).stdout, "Once upon a time\n");
}

#[test]
fn logits_are_the_same_in_json_and_safetensors_at_any_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("logits.safetensors");
    let base = ["logits", "--ids", "0,520,560,259,445", "--all"];
    let found = json(&[&base[..], &["--json", "--out", path(&file)]].concat());
    let rows = found["logits"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    let bytes = fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("logits").unwrap();
    assert_eq!(tensor.shape(), [5, rows[0].as_array().unwrap().len()]);
    let stored: Vec<f32> =
        tensor.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let flat = rows.iter().flat_map(|row| row.as_array().unwrap());
    let told: Vec<f32> = flat.map(|v| v.as_f64().unwrap() as f32).collect();
    assert_eq!(stored, told);
    for chunk in ["1", "2"] {
        assert_eq!(json(&[&base[..], &["--json", "--chunk", chunk]].concat()), found, "{chunk}");
    }
    let last = json(&["logits", "--ids", "0,520,560,259,445", "--json"]);
    assert_eq!(last["logits"][0], rows[4]);
}

#[test]
fn perplexity_prefers_stories_to_noise() {
    let dir = tempfile::tempdir().unwrap();
    let measure = |text: &str| {
        let file = dir.path().join("text.txt");
        fs::write(&file, text).unwrap();
        json(&["perplexity", path(&file), "-c", "64", "--stride", "32", "--json"])
    };
    let story = ok(&["run", "Once upon a time", "-n", "60", "--temp", "0", "-q"]);
    let (story, noise) = (measure(&story), measure("qz xv 9 kk; zzz bb vv. qq xq jj pw"));
    let perplexity = |v: &serde_json::Value| v["perplexity"].as_f64().unwrap();
    assert!(perplexity(&story) * 10.0 < perplexity(&noise), "{story} {noise}");
}

const STORY: &str = "Once upon a time there was a little girl who lived in a small house near the forest. Every \
    morning she went out to feed the birds, and every evening she told her brother what they had said. One day a grey \
    bird came and did not want to eat. The girl was sad.";

/// A text of some windows, and the files of two models: the embedded one, and the same quantised.
fn divergence_scene(dir: &Path) -> (String, String, String) {
    let [text, base, other] =
        ["text.txt", "base", "other.gguf"].map(|name| path(&dir.join(name)).to_string());
    fs::write(&text, STORY).unwrap();
    ok(&["quantize", EMBEDDED, &other, "-q", "Q4_0"]);
    (text, base, other)
}

const WINDOW: usize = 16;

#[test]
fn a_model_does_not_diverge_from_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (text, base, _) = divergence_scene(dir.path());
    let saved = json(&["perplexity", &text, "-c", "16", "--save-logits", &base, "--json"]);
    assert_eq!(saved, json(&["perplexity", &text, "-c", "16", "--json"]));
    let found = json(&["perplexity", &text, "--kl", &base, "--json"]);
    assert_eq!((&found["tokens"], &found["window"]), (&saved["tokens"], &saved["window"]));
    assert_eq!(found["perplexity"]["value"], saved["perplexity"]);
    // Half a step of the file is less than 0.0005.
    assert!(found["kl_max"].as_f64().unwrap() < 1e-6, "{found}");
    assert_eq!(found["same_top"]["value"], 100.0);
    assert_eq!(found["perplexity_ratio"], serde_json::json!({"value": 1.0, "uncertainty": 0.0}));
    assert_eq!(found["delta_p_rms"], serde_json::json!({"value": 0.0, "uncertainty": null}));
    let shown = ok(&["perplexity", &text, "--kl", &base]);
    assert!(shown.contains("mean KL divergence  0.000000 ± 0.000000\n"), "{shown}");
}

/// ln p of all ids after each token but the last, in f64.
fn log_softmaxes(model: &str, ids: &[u64]) -> Vec<Vec<f64>> {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let found = json(&["logits", model, "--ids", &ids.join(","), "--all", "--json"]);
    let rows = found["logits"].as_array().unwrap().iter().take(ids.len() - 1);
    // The shortest decimals that are the f32 of the model.
    let float = |value: &serde_json::Value| f64::from(value.as_f64().unwrap() as f32);
    let floats = |row: &serde_json::Value| row.as_array().unwrap().iter().map(float).collect();
    let log_softmax = |logits: Vec<f64>| {
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.iter().map(|logit| logit - sum.ln()).collect()
    };
    rows.map(floats).map(log_softmax).collect()
}

#[test]
fn the_divergence_of_a_quantised_model_is_that_of_plain_loops() {
    let dir = tempfile::tempdir().unwrap();
    let (text, base, other) = divergence_scene(dir.path());
    ok(&["perplexity", &text, "-c", "16", "--save-logits", &base]);
    let found = json(&["perplexity", &other, &text, "--kl", &base, "--json"]);

    let listed = json(&["tokenize", "-f", &text, "--json"]);
    let ids: Vec<u64> = listed["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let (mut divergences, mut bounds, mut deltas, mut ln_ratios) = (vec![], vec![], vec![], vec![]);
    let mut same = 0;
    for window in ids.chunks(WINDOW).filter(|window| window.len() > 1) {
        let (p, q) = (log_softmaxes(EMBEDDED, window), log_softmaxes(&other, window));
        for ((p, q), &id) in p.iter().zip(&q).zip(&window[1..]) {
            let terms = || p.iter().zip(q).map(|(p, q)| (p.exp(), p - q));
            let divergence: f64 = terms().map(|(p, ln_ratio)| p * ln_ratio).sum();
            let largest = |row: &[f64]| row.iter().copied().fold(f64::MIN, f64::max);
            let smallest = p.iter().copied().fold(f64::MAX, f64::min);
            // The file rounds ln p to half a step, which may shift the sum of p by as much again.
            let step = (largest(p) - smallest) / 65534.0;
            bounds.push(
                step * terms().map(|(p, ratio)| p * (ratio - divergence).abs()).sum::<f64>() + step * step,
            );
            divergences.push(divergence);
            deltas.push(100.0 * (q[id as usize].exp() - p[id as usize].exp()));
            ln_ratios.push(p[id as usize] - q[id as usize]);
            same += usize::from(
                p.iter().position(|x| *x == largest(p)) == q.iter().position(|x| *x == largest(q)),
            );
        }
    }
    let count = divergences.len() as f64;
    let mean = |all: &[f64]| all.iter().sum::<f64>() / count;
    let close = |key: &str, found: &serde_json::Value, expected: f64, tolerance: f64| {
        let found = found.as_f64().unwrap();
        assert!((found - expected).abs() <= tolerance, "{key}: {found} instead of {expected} ± {tolerance}");
    };
    assert_eq!(found["tokens"].as_u64(), Some(divergences.len() as u64));
    assert!(mean(&divergences) > 1e-3 && same < divergences.len(), "the models differ");
    close("kl_mean", &found["kl_mean"]["value"], mean(&divergences), mean(&bounds));
    let bound = bounds.iter().copied().fold(0.0, f64::max);
    let deviation = |all: &[f64]| all.iter().map(|x| (x - mean(all)).powi(2)).sum::<f64>();
    let error = (deviation(&divergences) / (count - 1.0) / count).sqrt();
    close("the error of kl_mean", &found["kl_mean"]["uncertainty"], error, bound);
    divergences.sort_by(f64::total_cmp);
    close("kl_max", &found["kl_max"], divergences[divergences.len() - 1], bound);
    let middle = (divergences[(divergences.len() - 1) / 2] + divergences[divergences.len() / 2]) / 2.0;
    close("kl_median", &found["kl_median"], middle, bound);
    close("same_top", &found["same_top"]["value"], 100.0 * same as f64 / count, 1e-9);
    let squares: Vec<f64> = deltas.iter().map(|delta| delta * delta).collect();
    close("delta_p_mean", &found["delta_p_mean"]["value"], mean(&deltas), 1e-9);
    close("delta_p_rms", &found["delta_p_rms"]["value"], mean(&squares).sqrt(), 1e-9);
    close("perplexity_ratio", &found["perplexity_ratio"]["value"], mean(&ln_ratios).exp(), 1e-9);
}

#[test]
fn bases_of_other_texts_models_and_windows_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (text, base, _) = divergence_scene(dir.path());
    ok(&["perplexity", &text, "-c", "16", "--save-logits", &base]);
    let refused = |args: &[&str], words: &[&str]| {
        refuses(&[&["perplexity"], args, &["--kl", &base]].concat(), 1, &[words, &["hint: "]].concat());
    };
    refused(&[&text, "-c", "8"], &["windows of 16 tokens and stride 16, not 8 and 8"]);
    refused(&[&text, "--stride", "8"], &["stride 16, not 16 and 8"]);
    assert_eq!(run(&["perplexity", &text, "-c", "16", "--kl", &base]).code, 0);
    let second = path(&dir.path().join("second.txt")).to_string();
    fs::write(&second, format!("{STORY} The end.")).unwrap();
    refused(&[&second], &["another text: that has"]);
    fs::write(&second, STORY.replacen("sad", "glad", 1)).unwrap();
    refused(&[&second], &["it was made from another text"]);
    let bytes = fs::read(&base).unwrap();
    fs::write(&base, &bytes[..bytes.len() - 1]).unwrap();
    refused(&[&text], &["cut short", &bytes.len().to_string()]);
    fs::write(&base, "Once upon a time").unwrap();
    refused(&[&text], &["it begins with “Once upo”"]);
    refuses(&["perplexity", &text, "--kl", &base, "--save-logits", &base], 2, &["--kl"]);
}

//! Predicted speeds of divisions between a device and the CPU.

#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use serde_json::Value;

use crate::common::{file, json, ok, path, refuses};

fn speeds(arguments: &[&str]) -> Vec<Value> {
    let report = json(&[&["plan", "--speed", "--json"], arguments].concat());
    report["speeds"].as_array().unwrap().clone()
}

fn division(speed: &Value) -> [u64; 2] {
    ["gpu_layers", "n_cpu_moe"].map(|field| speed[field].as_u64().unwrap())
}

#[test]
fn divisions_of_a_model_have_a_speed_each() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("experts.gguf");
    ok(&["synth", "tiny-experts", path(&model), "--layers", "8"]);
    let arguments = [path(&model), "--device", "reference", "-c", "12", "--n-cpu-moe", "3"];
    let found = speeds(&arguments);
    let expected = [[8, 0], [8, 2], [8, 3], [8, 4], [8, 6], [8, 8], [6, 8], [4, 8], [2, 8], [0, 8]];
    assert_eq!(found.iter().map(division).collect::<Vec<_>>(), expected);
    for speed in &found {
        assert_eq!(speed["planned"], division(speed) == [8, 3], "{speed}");
        assert_eq!(speed["fits"], true, "{speed}");
        for rate in ["decode_tok_s", "prompt_tok_s"] {
            assert!(speed[rate].as_f64().unwrap() > 0.0, "{speed}");
        }
    }
    // The reference device is far slower than the CPU.
    let rate = |of: usize| found[of]["decode_tok_s"].as_f64().unwrap();
    assert!(rate(9) > rate(0), "{found:?}");
    let shown = ok(&[&["plan", "--speed"], &arguments[..]].concat());
    assert!(shown.contains("the experts of 3 of 8 layers"), "{shown}");
}

/// Also of one layer, of which there is no smaller model.
#[test]
fn a_cpu_alone_and_models_of_few_layers_have_a_speed() {
    assert_eq!(speeds(&["--device", "cpu"]).len(), 1);
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    for layers in ["1", "2", "3"] {
        ok(&["synth", "tiny", path(&model), "--layers", layers, "--force"]);
        let found = speeds(&[path(&model), "--device", "reference", "-c", "16"]);
        assert!(found.iter().all(|speed| speed["decode_tok_s"].as_f64().unwrap() > 0.0), "{found:?}");
        assert_eq!(division(found.last().unwrap())[0], 0, "{layers}");
    }
}

/// Of a model whose experts do not fit the stated memory, the plan has what is read; of one that fits, nothing.
#[test]
fn experts_that_are_read_from_the_file_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("experts.gguf");
    ok(&["synth", "tiny-experts", path(&model), "--layers", "8"]);
    let arguments = ["plan", path(&model), "-c", "16", "--device", "cpu", "--expert-memory"];
    let plan = |memory: &str| json(&[&arguments[..], &[memory, "--json"]].concat());
    let (whole, paged) = (plan("1000"), plan("1"));
    assert!(whole.get("paging").is_none() && whole["memory"]["expert_slots"] == 0, "{whole}");
    let of = |field: &str| paged["paging"][field].as_u64().unwrap();
    let bytes = |report: &Value, field: &str| report["memory"][field].as_u64().unwrap();
    assert!(of("slots") <= 1 << 20 && of("slots") == bytes(&paged, "expert_slots"), "{paged}");
    let in_place = [&whole, &paged].map(|report| bytes(report, "weights_in_place"));
    assert_eq!(in_place[0] - in_place[1], of("experts"));
    assert_eq!(of("read_by_pass"), of("experts") - of("kept"));
    assert!(of("read_by_token") > 0 && of("read_by_token") < of("read_by_pass"));
    let told = ok(&[&arguments[..], &["1"]].concat());
    assert!(
        told.contains("are kept in memory") && told.contains("if all are chosen equally often"),
        "{told}"
    );
    assert!(!ok(&[&arguments[..], &["0"]].concat()).contains("are kept in memory"));
    refuses(&["plan", "--device", "cpu", "--expert-memory", "1"], 1, &["this model has none"]);
}

/// Contexts without a place for a prompt and a step, and caches that leave no layers to the CPU.
#[test]
fn speeds_are_of_divisions_that_the_options_allow() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("experts.gguf");
    ok(&["synth", "tiny-experts", path(&model)]);
    for context in ["1", "2", "3"] {
        assert!(speeds(&[path(&model), "--device", "reference", "-c", context]).len() > 1, "{context}");
    }
    let found = speeds(&[path(&model), "--device", "reference", "-c", "16", "--kv-host", "1"]);
    assert_eq!(found.iter().map(division).collect::<Vec<_>>(), [[4, 0], [4, 1], [4, 2], [4, 3], [4, 4]]);
}

/// Prompts are predicted to stream in divisions that are planned with slots.
#[test]
fn prompts_stream_in_what_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    ok(&["synth", "tiny", path(&model)]);
    let prompts = |rows: &str| -> f64 {
        let arguments = [path(&model), "--device", "reference", "-c", "16", "--stream-rows", rows];
        speeds(&arguments).last().unwrap()["prompt_tok_s"].as_f64().unwrap()
    };
    // The reference device multiplies far slower than the CPU.
    assert!(prompts("2") < prompts("0"));
}

#[test]
fn what_cannot_be_run_in_parts_has_no_speed() {
    let encoder = file("testdata/encoders").join("bert-mean");
    refuses(&["plan", path(&encoder), "--speed"], 2, &["as a whole", "leave out --speed"]);
    refuses(&["plan", path(&encoder), "--beam", "3"], 2, &["does not transcribe", "--beam"]);
    refuses(&["plan", path(&encoder), "--kv-host", "1"], 2, &["models for texts", "--kv-host"]);
    refuses(&["plan", "--speed", "--for", "cuda"], 2, &["--for", "--speed"]);
    let hearing = file("testdata/speech/akunu-speech-q8_0.gguf");
    refuses(&["plan", path(&hearing), "--speed"], 1, &["transcribes"]);
}

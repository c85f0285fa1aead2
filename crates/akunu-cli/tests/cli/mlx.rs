//! MLX folders, and those of other tools, on the command line, valid and damaged.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{json, ok, path, refuses};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mlx/llama-mixed")
}

#[test]
fn a_folder_is_inspected_planned_verified_and_run() {
    let folder = folder();
    let inspected = json(&["inspect", path(&folder), "--tensors", "--json"]);
    assert_eq!(
        (inspected["format"].as_str(), inspected["architecture"].as_str()),
        (Some("MLX"), Some("llama"))
    );
    let tensors = inspected["tensors"].as_array().unwrap();
    let down = tensors.iter().find(|t| t["name"] == "blk.0.ffn_down.weight").unwrap();
    // 64 rows of 128 weights of 5 bits, with a scale and an offset of 2 bytes for each row.
    assert_eq!((down["dtype"].as_str(), down["bytes"].as_u64()), (Some("MLX5_G128_BF16"), Some(64 * 84)));
    assert_eq!(down["shape"], json!([64, 128]));

    let plan = json(&["plan", path(&folder), "--json"]);
    let matrices = tensors.iter().filter(|t| t["shape"].as_array().unwrap().len() == 2);
    let packed: u64 = matrices.map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(plan["memory"]["weights_in_place"].as_u64(), Some(packed));

    assert!(ok(&["table", path(&folder)]).contains("mlx4_g32_bf16"));
    ok(&["verify", path(&folder), "--device", "cpu"]);
    let run = ["run", path(&folder), "--prompt-ids", "3,4,5", "-n", "6", "--ids", "--ignore-eos", "-q"];
    let ids = ok(&run);
    assert_eq!(ids.split_whitespace().count(), 6, "{ids}");
}

#[test]
fn folders_of_other_tools_are_inspected_planned_verified_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let (dense, experts) = ("blk.0.ffn_down.weight", "blk.0.ffn_down_exps.weight");
    for (name, format, down, dtype) in [
        ("gptq-asymmetric", "GPTQ", dense, "MLX4_G32_F32"),
        ("gptq-ordered", "GPTQ", dense, "MLX4_G32_F16"),
        ("awq", "AWQ", dense, "MLX4_G64_F32"),
        ("integers-4-bits", "compressed-tensors", dense, "MLX4_G64_BF16"),
        ("fp8-tensor", "FP8", dense, "FP8_ROW"),
        ("fp8-qwen3", "FP8", dense, "FP8_G128"),
        ("experts-fp8-minimax", "FP8", experts, "FP8_G128"),
        ("experts-fp8-llama4", "FP8", experts, "FP8_ROW"),
        ("experts-awq-qwen3", "AWQ", experts, "MLX4_G32_F32"),
        ("experts-gptq-mixtral", "GPTQ", experts, "MLX4_G32_F16"),
        ("experts-integers-kimi", "compressed-tensors", experts, "MLX4_G32_BF16"),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised").join(name);
        let inspected = json(&["inspect", path(&folder), "--tensors", "--json"]);
        assert_eq!(inspected["format"].as_str(), Some(format), "{name}");
        let tensors = inspected["tensors"].as_array().unwrap();
        let down = tensors.iter().find(|t| t["name"] == down).unwrap();
        assert_eq!(down["dtype"].as_str(), Some(dtype), "{name}");
        let plan = json(&["plan", path(&folder), "--json"]);
        let matrices = tensors.iter().filter(|t| t["shape"].as_array().unwrap().len() >= 2);
        let packed: u64 = matrices.map(|t| t["bytes"].as_u64().unwrap()).sum();
        assert_eq!(plan["memory"]["weights_in_place"].as_u64(), Some(packed), "{name}");
        // What is not where the file has it: all planes of experts, and of others those that are transposed or repeated.
        let made = plan["memory"]["weights_made"].as_u64().unwrap();
        let of_experts = tensors.iter().filter(|t| t["name"].as_str().unwrap().contains("_exps."));
        let least: u64 = of_experts.map(|t| t["bytes"].as_u64().unwrap()).sum();
        assert!(least <= made && 0 < made && made < packed, "{name}: {least} {made} {packed}");
        ok(&["verify", path(&folder), "--device", "cpu"]);
        let file = dir.path().join(format!("{name}.gguf"));
        ok(&["quantize", path(&folder), path(&file), "--type", "Q8_0", "--no-vocab"]);
        assert_eq!(json(&["inspect", path(&file), "--json"])["format"].as_str(), Some("GGUF"));
    }
}

#[test]
fn a_synthetic_folder_is_a_model_of_the_shape_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    for (bits, dtype) in akunu_testing::some_of([("4", "MLX4_G64_BF16"), ("6", "MLX6_G64_BF16")], 2) {
        let folder = dir.path().join(bits);
        ok(&["synth", "qwen3-0.6b", path(&folder), "--mlx", bits, "--layers", "1"]);
        let found = json(&["inspect", path(&folder), "--tensors", "--json"]);
        assert_eq!((found["format"].as_str(), found["architecture"].as_str()), (Some("MLX"), Some("qwen3")));
        let tensors = found["tensors"].as_array().unwrap();
        let down = tensors.iter().find(|t| t["name"] == "blk.0.ffn_down.weight").unwrap();
        assert_eq!((down["dtype"].as_str(), &down["shape"]), (Some(dtype), &json!([1024, 3072])));
        ok(&["verify", path(&folder), "--device", "cpu", "--tokens", "2"]);
    }
    // The folder exists already; and these shapes are not supported.
    let other = dir.path().join("other");
    refuses(&["synth", "tiny", path(&dir.path().join("4")), "--mlx", "4"], 1, &["exists", "--force"]);
    for shape in ["gemma3-1b", "tiny-experts", "gpt-oss-20b", "deepseek-v2-lite", "minilm-l6", "whisper-tiny"]
    {
        for form in [&["--mlx", "4"][..], &["--fp8"]] {
            let args = [&["synth", shape, path(&other)], form].concat();
            refuses(&args, 2, &["cannot be made as a folder", "a dense decoder"]);
        }
    }
    ok(&["synth", "tiny", path(&dir.path().join("4")), "--mlx", "8", "--force"]);
    let found = json(&["inspect", path(&dir.path().join("4")), "--json"]);
    assert_eq!(found["architecture"].as_str(), Some("llama"));
}

/// A copy of the folder with a changed configuration, and its file truncated to `bytes`.
fn changed(change: impl FnOnce(&mut Value), bytes: Option<usize>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(folder().join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let weights = fs::read(folder().join("model.safetensors")).unwrap();
    fs::write(dir.path().join("model.safetensors"), &weights[..bytes.unwrap_or(weights.len())]).unwrap();
    dir
}

#[test]
fn damaged_folders_are_one_line_errors() {
    type Change = fn(&mut Value);
    let cases: [(Change, Option<usize>, &[&str]); 8] = [
        (
            |c| c["quantization"]["mode"] = json!("mxfp4"),
            None,
            &["tensor model.layers.", "mxfp4", "only affine"],
        ),
        (|c| c["quantization"]["bits"] = json!(7), None, &["tensor model.layers.", "7 bits in groups of 32"]),
        (
            |c| c["quantization"]["group_size"] = json!(64),
            None,
            &["tensor model.layers.", "the shape of its scales"],
        ),
        (
            |c| c["quantization"]["lm_head"] = json!({"bits": 4, "group_size": 128}),
            None,
            &["tensor lm_head.weight", "the shape of its scales"],
        ),
        (
            |c| c["quantization"]["lm_head"] = json!({"bits": 8, "group_size": 128}),
            None,
            &["tensor lm_head.weight", "are not whole groups of 128"],
        ),
        (
            |c| c["quantization"]["lm_head"] = json!(false),
            None,
            &["tensor lm_head.weight", "config.json says that it is not"],
        ),
        (
            |c| {
                c["quantization"].take();
                c["quantization_config"] = json!({"quant_method": "bitsandbytes"});
            },
            None,
            &["quantization_config.quant_method", "bitsandbytes"],
        ),
        (|_| {}, Some(20_000), &["cut short or damaged"]),
    ];
    for (change, bytes, words) in cases {
        let dir = changed(change, bytes);
        let done = refuses(&["plan", path(dir.path())], 1, words);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        match bytes {
            None => assert!(ok(&["inspect", path(dir.path())]).contains(words[words.len() - 1])),
            Some(_) => drop(refuses(&["inspect", path(dir.path())], 1, words)),
        }
        refuses(&["run", path(dir.path()), "--prompt-ids", "3"], 1, words);
    }
}

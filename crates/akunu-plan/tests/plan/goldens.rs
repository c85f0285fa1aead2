//! The logits of the reference device, compared with float64 logits from Hugging Face transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;

use akunu_arch::{WeightProvider, open_model};
use akunu_device_testing::goldens;
use akunu_fixtures::Dequantised;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::verify::verify;
use akunu_plan::{Capabilities, Device, FewRows, KvType, OnHost, PlanOptions, plan};

use crate::common;

/// The largest difference over the largest logit, or the reason why the model did not run.
fn try_worst(folder: &Path, chunk: usize) -> Result<f64, String> {
    let model = open_model(folder).map_err(|error| error.to_string())?;
    let exact = ReferenceDevice::new();
    let options = PlanOptions { slots: 1, ..common::options() };
    plan(&*model, exact.capabilities(), &options).map_err(|error| error.to_string())?;
    Ok(worst(&*model, &folder.join("golden.json"), chunk, KvType::F32))
}

/// The largest difference over the largest logit.
///
/// Weights are dequantised, so that activations are not rounded, as in the goldens of quantised models. Small chunks
/// use folded commands.
fn worst(model: &dyn WeightProvider, golden: &Path, chunk: usize, kv: KvType) -> f64 {
    let folds = Capabilities { folds: true, ..ReferenceDevice::new().capabilities().clone() };
    let mut open = || Box::new(ReferenceDevice::like(&folds)) as Box<dyn Device>;
    goldens::worst(&Dequantised::as_stored(model), &mut open, golden, (chunk, kv, OnHost::default())).unwrap()
}

#[test]
fn pico_models_match_float64_goldens() {
    let Some(golden) = akunu_testing::data("pico_models_match_float64_goldens", "golden") else { return };
    for (file, logits) in [
        ("tiny_llama.safetensors", "tiny_llama_logits.json"),
        ("tiny_llama_f32.gguf", "tiny_llama_logits.json"),
        ("tiny_qwen3.safetensors", "tiny_qwen3_logits.json"),
        ("tiny_gemma.safetensors", "tiny_gemma_logits.json"),
        ("tiny_gemma3.safetensors", "tiny_gemma3_logits.json"),
    ] {
        let model = open_model(&golden.join(file)).unwrap();
        for chunk in [1, 5, 64] {
            let worst = worst(&*model, &golden.join(logits), chunk, KvType::F32);
            assert!(worst < 1e-5, "{file}, chunks of {chunk}: {worst:.2e}");
        }
        let worst = worst(&*model, &golden.join(logits), 64, KvType::F16);
        assert!(worst < 2e-3, "{file}, F16 cache: {worst:.2e}");
    }
}

#[test]
fn kernel_shaped_models_match_float64_goldens() {
    all_match("models");
}

/// Quantised by mlx-lm, which also computed the logits.
#[test]
fn mlx_folders_match_float64_goldens() {
    all_match("mlx");
}

/// Packed by the tools that define these formats, with the logits of transformers.
#[test]
fn quantised_folders_match_float64_goldens() {
    all_match("quantised");
}

/// Q, K and V of the folder have one order, as real models have it; gate and up have one each.
#[test]
fn products_of_one_order_share_the_reordered_input() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised/gptq-ordered");
    let model = open_model(&folder).unwrap();
    let device = ReferenceDevice::new();
    let plan = plan(&*model, device.capabilities(), &common::options()).unwrap();
    let labels = &plan.tables.decode().labels;
    let found: Vec<&str> = labels
        .iter()
        .filter(|label| label.contains("order") || label.ends_with("qkv"))
        .map(|l| &**l)
        .collect();
    let expected = [
        "layer.0.q.order",
        "layer.0.q.reordered_quantise",
        "layer.0.qkv",
        "layer.0.attn_output.order",
        "layer.0.attn_output.reordered_quantise",
        "layer.0.ffn_gate.order",
        "layer.0.ffn_gate.reordered_quantise",
        "layer.0.ffn_up.order",
        "layer.0.ffn_up.reordered_quantise",
        "layer.0.ffn_down.order",
        "layer.0.ffn_down.reordered_quantise",
    ];
    assert_eq!(found, expected);
}

/// Planes that are made of the files are those whose regions are computed; all of the experts' are.
#[test]
fn plans_say_which_weights_are_made_of_the_files() {
    let quantised = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised");
    for (name, expected) in [
        // Scales of 7 matrices, of which o_proj is left as it is.
        ("fp8-channel", 4 * (64 + 32 + 32 + 96 + 96 + 64)),
        // Experts: 3 of gate and up with 2 scales a row, and of down with one. Scales of Q, K, V and the output.
        ("experts-fp8-minimax", 3 * (2 * 8 * (136 + 8) + 136 * (8 + 4)) + 4 * (2 * (64 + 32 + 32) + 136)),
    ] {
        let model = open_model(&quantised.join(name)).unwrap();
        let plan = plan(&*model, ReferenceDevice::new().capabilities(), &common::options()).unwrap();
        assert_eq!(plan.memory.weights_made, expected, "{name}");
    }
}

fn all_match(testdata: &str) {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(testdata);
    let (mut tried, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(models).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        for chunk in [64, 7, 1] {
            match try_worst(&folder, chunk) {
                Ok(worst) if worst < 1e-5 => println!("{}, chunks of {chunk}: {worst:.2e}", folder.display()),
                other => wrong.push(format!("{}, chunks of {chunk}: {other:?}", folder.display())),
            }
        }
        tried += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 0);
}

/// transformers uses the short factors while a sequence is no longer than the original context; here the planned
/// context decides.
#[test]
fn short_contexts_take_long_ropes_short_factors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/phi3-hd64-longrope");
    let model = open_model(&folder).unwrap();
    let off = worst(&*model, &folder.join("golden-short.json"), 64, KvType::F32);
    assert!(off < 1e-5, "{off:.2e}");
}

#[test]
fn the_reference_verifies_against_itself() {
    for dtype in [akunu_format::DType::Q8_0, common::affine(5, 32)] {
        for family in ["gemma3", "qwen3", "qwen2moe"] {
            verifies(family, dtype, None, &["prefill", "decode"]);
            verifies(family, dtype, Some(2), &["small_prefill", "prefill", "decode"]);
        }
    }
}

fn verifies(family: &str, dtype: akunu_format::DType, half_products: Option<usize>, tables: &[&str]) {
    let model = common::model(common::family(family), |_| dtype);
    let reference = ReferenceDevice::new();
    let half_products = half_products.map(FewRows::all);
    let capabilities = Capabilities { folds: true, half_products, ..reference.capabilities().clone() };
    let mut device = ReferenceDevice::like(&capabilities);
    let plan = plan(&model, device.capabilities(), &common::options()).unwrap();
    let report = verify(&plan, &model, &mut device, &[1, 2, 3, 4, 5], &mut |_, _| {}).unwrap();
    assert!(report.first_bad().is_none());
    assert!(report.differences.iter().all(|d| d.relative == 0.0));
    let commands = plan.tables.prefill().commands.len() + plan.tables.decode().commands.len();
    assert!(report.differences.len() >= commands);
    let mut compared: Vec<&str> = report.differences.iter().map(|d| d.table).collect();
    compared.dedup();
    assert_eq!(compared, tables);
}

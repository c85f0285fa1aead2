//! The logits of the reference device, compared with float64 logits from Hugging Face transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;

use akunu_arch::{WeightProvider, open_model};
use akunu_fixtures::Dequantised;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::verify::verify;
use akunu_plan::{
    Capabilities, Device, Entries, FewRows, KvType, PlanOptions, Row, Submission, load, plan, unwatched,
};

use crate::common;

/// The logits of every position of one sequence, processed in chunks.
///
/// Weights are dequantised, so that activations are not rounded, as in the goldens of quantised models. Small chunks
/// use folded commands.
fn logits(model: &dyn WeightProvider, ids: &[u32], chunk: usize, kv: KvType) -> Vec<Vec<f32>> {
    let model = &Dequantised::as_stored(model);
    let reference = ReferenceDevice::new();
    let mut device = ReferenceDevice::like(&Capabilities { folds: true, ..reference.capabilities().clone() });
    let options = PlanOptions {
        context: ids.len(),
        slots: 1,
        kv,
        kv_bytes: None,
        prefill_rows: chunk,
        prefill_logit_rows: chunk,
        chain: 1,
        windows: 1,
        beams: 1,
        word_times: false,
        fuse: true,
        keep_inputs: false,
    };
    let plan = plan(model, device.capabilities(), &options).unwrap();
    let loaded = load(&plan, model, &mut device, &mut unwatched).unwrap();
    let vocab = plan.config.vocab_size;
    let table = Arc::clone(plan.tables.prefill());
    let mut all = Vec::new();
    for (n, ids) in ids.chunks(chunk).enumerate() {
        let rows: Vec<Row> =
            ids.iter().enumerate().map(|(i, &id)| Row::causal(id, (n * chunk + i) as u32, 0)).collect();
        let asking: Vec<u32> = (0..rows.len() as u32).collect();
        let submission = Submission {
            entries: Entries::Rows(&rows),
            logit_rows: &asking,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        device.replay(*loaded.replays.prefill(), submission).unwrap();
        device.wait().unwrap();
        let mut values = vec![0.0f32; rows.len() * vocab];
        let buffer = loaded.buffers[table.io.logits.index()];
        device.download(buffer, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        all.extend(values.chunks(vocab).map(<[f32]>::to_vec));
    }
    all
}

/// The largest difference over the largest logit, or the reason why the model did not run.
fn try_worst(folder: &Path, chunk: usize) -> Result<f64, String> {
    let model = open_model(folder).map_err(|error| error.to_string())?;
    let exact = ReferenceDevice::new();
    let options = PlanOptions { slots: 1, ..common::options() };
    plan(&*model, exact.capabilities(), &options).map_err(|error| error.to_string())?;
    Ok(worst(&*model, &folder.join("golden.json"), chunk, KvType::F32))
}

/// The largest difference over the largest logit.
fn worst(model: &dyn WeightProvider, golden: &Path, chunk: usize, kv: KvType) -> f64 {
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let mut worst = 0.0f64;
    for (ids, expected) in
        golden["sequences"].as_array().unwrap().iter().zip(golden["logits"].as_array().unwrap())
    {
        let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let found = logits(model, &ids, chunk, kv);
        let expected: Vec<Vec<f64>> = expected
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect())
            .collect();
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            let difference = (f64::from(*found) - expected).abs();
            assert!(difference.is_finite());
            worst = worst.max(difference / largest);
        }
    }
    worst
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

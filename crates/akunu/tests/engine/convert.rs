//! A Hugging Face folder converted to GGUF has the same logits.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::common::{DEVICES, checked_in, checked_in_models, exact, ids, json};
use akunu::{DeviceChoice, Engine, Model};
use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{GgufModel, RopeScaling, WeightProvider, open_model};
use akunu_format::DType;
use akunu_format::quantise::Mix;
use akunu_testing::fewest_or;

fn convert(weights: &dyn WeightProvider, mix: &str, file: &Path) {
    let recipe =
        ConvertOptions { mix: Mix::find(mix).unwrap(), pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(weights, &recipe).unwrap();
    let (bytes, mut told) = (conversion.bytes(), 0);
    let out = std::fs::File::create(file).unwrap();
    conversion.write(out, 3, &AtomicBool::new(false), &mut |done| told = done).unwrap();
    assert_eq!(told, bytes, "all bytes were reported");
}

/// Logits of both golden sequences.
fn logits(model: &Path, sequences: &[Vec<u32>], device: DeviceChoice) -> Vec<f32> {
    let model = Arc::new(Model::open(model).unwrap());
    let mut engine = Engine::new(model, &exact(device)).unwrap();
    sequences.iter().flat_map(|ids| engine.logits(ids, true, None).unwrap()).collect()
}

#[test]
fn folders_as_f32_gguf_give_the_same_logits() {
    let dir = tempfile::tempdir().unwrap();
    for (name, folder) in checked_in_models() {
        let file = dir.path().join(format!("{name}.gguf"));
        convert(open_model(&folder).unwrap().as_ref(), "F32", &file);
        let golden = json(folder.join("golden.json"));
        let sequences: Vec<Vec<u32>> = golden["sequences"].as_array().unwrap().iter().map(ids).collect();
        // The reference takes most of the time, and what is compared are two files.
        for device in &DEVICES[fewest_or(1, 0, 0)..] {
            let device = *device;
            let (before, after) = (logits(&folder, &sequences, device), logits(&file, &sequences, device));
            assert_eq!(before.len(), after.len());
            let off = before.iter().zip(&after).map(|(b, a)| (b - a).abs()).fold(0.0, f32::max);
            // Rows of Q and K are permuted, which changes the order of sums; this model is the most sensitive.
            let most = if name == "smollm3-nope" { 2.5e-5 } else { 1e-5 };
            println!("{name:<28} {device:<10} {off:.1e}");
            assert!(off <= most, "{name} on {device}: {off:e}");
        }
    }
}

#[test]
fn the_metadata_of_a_folder_is_converted() {
    let dir = tempfile::tempdir().unwrap();
    for (name, folder) in checked_in_models() {
        let file = dir.path().join("model.gguf");
        let before = open_model(&folder).unwrap();
        convert(before.as_ref(), "F16", &file);
        let after = GgufModel::open(&file).unwrap();
        let (b, a) = (before.config(), after.config());
        assert_eq!(a.name, b.name, "{name}");
        assert_eq!(
            (a.vocab_size, a.context_length, a.hidden_size, a.layer_count, a.ffn_size),
            (b.vocab_size, b.context_length, b.hidden_size, b.layer_count, b.ffn_size),
            "{name}"
        );
        assert_eq!((a.head_count, a.kv_head_count, a.head_dim), (b.head_count, b.kv_head_count, b.head_dim));
        assert_eq!((&a.eos_ids, a.bos_id), (&b.eos_ids, b.bos_id), "{name}");
        assert_eq!(a.window.as_ref().map(|w| w.size), b.window.as_ref().map(|w| w.size), "{name}");
        if let RopeScaling::Llama3 { .. } = b.rope.scaling {
            assert!(after.tensor("rope_freqs.weight").is_some(), "{name}");
        }
        assert_eq!(after.tensor("output.weight").is_some(), before.tensor("output.weight").is_some());
    }
}

/// Files of every type can be run, and types with more bits have smaller errors.
#[test]
fn fewer_bits_have_larger_errors() {
    let dir = tempfile::tempdir().unwrap();
    // Rows of 256, as k-quants require.
    let source = checked_in("gguf/mixed-k.gguf");
    let golden = json(checked_in("gguf/mixed-k.golden.json"));
    let sequences = vec![ids(&golden["sequences"][0])];
    let original = logits(&source, &sequences, DeviceChoice::Cpu);
    let weights = open_model(&source).unwrap();
    let mut last = 0.0;
    for mix in ["F32", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"] {
        let file = dir.path().join(format!("{mix}.gguf"));
        convert(weights.as_ref(), mix, &file);
        let found = logits(&file, &sequences, DeviceChoice::Cpu);
        let squares: f64 = found.iter().zip(&original).map(|(f, o)| f64::from(f - o).powi(2)).sum();
        let error = (squares / found.len() as f64).sqrt();
        println!("{mix:<7} {error:.2e}");
        assert!(error.is_finite() && error > 0.5 * last, "{mix}: {error} after {last}");
        last = error;
    }
}

#[test]
fn tensors_of_the_target_type_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("again.gguf");
    let before = Model::embedded().unwrap();
    convert(before.weights(), "Q8_0", &file);
    let after = GgufModel::open(&file).unwrap();
    for tensor in before.weights().tensors() {
        let copy = after.tensor(&tensor.name).unwrap();
        assert_eq!(copy.shape, tensor.shape);
        if tensor.dtype == DType::Q8_0 && copy.dtype == DType::Q8_0 {
            let (a, b) = (after.tensor_bytes(copy), before.weights().tensor_bytes(tensor));
            assert!(a == b, "{}", tensor.name);
        }
    }
}

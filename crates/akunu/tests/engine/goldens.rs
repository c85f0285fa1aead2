//! Logits against float64 ones from Hugging Face transformers, at every position, on every device.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;

use crate::common::rounding::unrounded;
use crate::common::{
    DEVICES, checked_in, checked_in_models, exact, floats, ids, json, packed_folders, relative_error, shared,
};
use akunu::{Engine, EngineOptions, KvType, Model};
use akunu_testing::fewest_or;

/// One model's golden sequences: `{"sequences": [[id]], "logits": [[[f64]]]}`.
struct Golden {
    name: String,
    model: Arc<Model>,
    sequences: Vec<(Vec<u32>, Vec<Vec<f64>>)>,
}

impl Golden {
    fn new(name: &str, model: &Path, golden: &Path) -> Golden {
        let golden = json(golden);
        let list = |key: &str| golden[key].as_array().unwrap().clone();
        let sequence =
            |(s, l): (_, &serde_json::Value)| (ids(s), l.as_array().unwrap().iter().map(floats).collect());
        let sequences = list("sequences").iter().zip(&list("logits")).map(sequence).collect();
        let model = Model::open(model).unwrap_or_else(|e| panic!("{name}: {e}"));
        Golden { name: name.into(), model: Arc::new(model), sequences }
    }

    /// The largest relative error over all sequences, with passes of at most `chunk` rows.
    fn worst(&self, options: &EngineOptions, chunk: usize) -> f64 {
        let engine = Engine::new(self.model.clone(), options);
        self.worst_on(&mut engine.unwrap_or_else(|e| panic!("{}: {e}", self.name)), chunk)
    }

    fn worst_on(&self, engine: &mut Engine, chunk: usize) -> f64 {
        let errors = self.sequences.iter().map(|(ids, golden)| {
            let found = engine.logits(ids, true, Some(chunk)).unwrap();
            relative_error(&found, golden)
        });
        errors.fold(0.0, f64::max)
    }

    /// F32 weights: 1e-5 with an F32 cache, 2e-3 with an F16 one, fed at once and one by one, fused and not.
    fn holds(&self) {
        for device in DEVICES {
            let f16 = EngineOptions { kv: KvType::F16, ..exact(device) };
            let apart = EngineOptions { fuse: false, ..exact(device) };
            let f32 =
                self.worst(&exact(device), 64).max(self.worst(&exact(device), 1)).max(self.worst(&apart, 5));
            let f16 = self.worst(&f16, 64);
            println!("{:<24} {device:<10} kv f32 {f32:.1e}  kv f16 {f16:.1e}", self.name);
            assert!(f32 <= 1e-5, "{} on {device}: {f32:e} with an F32 cache", self.name);
            // The error is that of the type: the reference's f64 loops over an F16 cache have the same.
            let most = if self.name == "smollm3-nope" { 3e-3 } else { 2e-3 };
            assert!(f16 <= most, "{} on {device}: {f16:e} with an F16 cache", self.name);
        }
    }
}

#[test]
fn pico_models_agree_with_float64() {
    for name in ["llama", "qwen3", "gemma", "gemma3"] {
        let Some(weights) = shared(&format!("golden/tiny_{name}.safetensors")) else { continue };
        // A folder as Hugging Face lays it out.
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(&weights, folder.path().join("model.safetensors")).unwrap();
        let config = weights.with_file_name(format!("tiny_{name}_config.json"));
        std::fs::copy(config, folder.path().join("config.json")).unwrap();
        let golden = weights.with_file_name(format!("tiny_{name}_logits.json"));
        Golden::new(&format!("pico {name}"), folder.path(), &golden).holds();
    }
}

#[test]
fn the_gguf_form_agrees_with_float64() {
    let Some(gguf) = shared("golden/tiny_llama_f32.gguf") else { return };
    let logits = gguf.with_file_name("tiny_llama_logits.json");
    Golden::new("pico llama GGUF", &gguf, &logits).holds();
    // The goldens are of the weights before they were rounded to f16, by up to 2⁻¹² of themselves each: all of them
    // together move the logits by several times that.
    let f16 = Golden::new("pico llama GGUF F16", &gguf.with_file_name("tiny_llama_f16.gguf"), &logits);
    for device in DEVICES {
        let error = f16.worst(&exact(device), 64);
        println!("{:<24} {device:<10} kv f32 {error:.1e}", f16.name);
        assert!(error <= 5e-3, "F16 weights on {device}: {error:e}");
    }
}

/// Head sizes, groups, windows, scalings and feed-forward sizes that are difficult for kernels.
#[test]
fn kernel_shaped_models_agree_with_float64() {
    // With the fewest cases every third: the plan's tests compare each with these by the reference.
    for (name, folder) in checked_in_models().into_iter().step_by(fewest_or(3, 1, 1)) {
        Golden::new(&name, &folder, &folder.join("golden.json")).holds();
    }
}

/// Files of mixed block types: to float64 of the same blocks where activations are not rounded, and as near as rounding
/// lets them (see `common::rounding`) where they are.
#[test]
fn mixed_block_types_agree_with_float64() {
    let entries = std::fs::read_dir(checked_in("gguf")).unwrap();
    let mut files: Vec<_> =
        entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let golden = Golden::new(&name, &file, &file.with_extension("golden.json"));
        let unrounded = golden.worst_on(&mut unrounded(&golden.model), 64);
        assert!(unrounded <= 1e-5, "{name}, unrounded: {unrounded:e}");
        for device in DEVICES {
            let rounded = golden.worst(&exact(device), 64).max(golden.worst(&exact(device), 1));
            println!("{name:<24} {device:<10} unrounded {unrounded:.1e}  rounded {rounded:.1e}");
            // The largest of thousands of differences, four times their root mean square or so: that is up to 3 % of the
            // logits' own, which is about a third of the largest logit.
            assert!(rounded <= 0.05, "{name} on {device}: {rounded:e}");
        }
    }
}

/// Weights in FP8 meet activations that are not rounded.
#[test]
fn fp8_folders_agree_with_float64_on_every_device() {
    let folders = packed_folders().into_iter().filter(|folder| folder.to_string_lossy().contains("fp8"));
    let mut tried = 0;
    for folder in folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        Golden::new(name, &folder, &folder.join("golden.json")).holds();
        tried += 1;
    }
    assert_eq!(tried, 7);
}

/// Folders that mlx-lm and the libraries of GPTQ and AWQ packed: to float64 where activations are not rounded. Rounding
/// moves the logits of these narrow models by 5 % of the largest, on the reference too, which would say little: instead
/// each command is held to the reference's, which rounds as the device does. (What rounding does to a trained model is in
/// `mlx.rs`.)
#[test]
fn packed_folders_agree_with_float64() {
    for folder in packed_folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let golden = Golden::new(name, &folder, &folder.join("golden.json"));
        let worst = golden.worst_on(&mut unrounded(&golden.model), 64);
        println!("{name:<24} unrounded {worst:.1e}");
        assert!(worst <= 1e-5, "{name}: {worst:e}");
        for (ids, _) in &golden.sequences {
            for device in DEVICES {
                for fuse in [true, false] {
                    let options = EngineOptions { fuse, ..exact(device) };
                    let report = akunu::verify(&golden.model, &options, ids, &mut |_, _| {}).unwrap();
                    assert!(report.first_bad().is_none(), "{name} on {device}: {:?}", report.first_bad());
                    assert!(report.differences.len() > 20);
                }
            }
        }
    }
}

//! Shared by the engine's tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

pub mod rounding;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use akunu::{BackendOptions, DeviceChoice, Engine, EngineOptions, GenerateOptions, Generated, KvType, Model};
use serde_json::Value;

/// The devices on which every model is tested.
pub const DEVICES: [DeviceChoice; 2] = [DeviceChoice::Reference, DeviceChoice::Cpu];

/// A file or folder of the test data; see [`akunu_testing::data`].
pub fn shared(name: &str) -> Option<PathBuf> {
    let thread = std::thread::current();
    akunu_testing::data(thread.name().unwrap_or("a test"), name)
}

/// A file or folder in the repository.
pub fn checked_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// Folders in testdata/mlx.
pub const MLX_MODELS: [&str; 3] = ["llama-mixed", "gemma3-tied", "phi3-stacked"];

/// Folders whose weights are packed in parts: MLX's, and those of testdata/quantised.
pub fn packed_folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(checked_in("quantised")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "testdata/quantised is empty");
    MLX_MODELS.iter().map(|name| checked_in("mlx").join(name)).chain(folders).collect()
}

/// The models in Hugging Face's format in the repository, by name.
pub fn checked_in_models() -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(checked_in("models")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    folders.retain(|folder| folder.join("config.json").exists());
    folders.sort();
    assert!(!folders.is_empty(), "testdata/models is empty");
    folders.into_iter().map(|f| (f.file_name().unwrap().to_string_lossy().into_owned(), f)).collect()
}

pub fn json(path: impl AsRef<Path>) -> Value {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

pub fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The embedded trained model.
pub fn tales() -> Arc<Model> {
    Arc::new(Model::embedded().unwrap())
}

pub fn options(device: DeviceChoice) -> EngineOptions {
    // Tests can select an instruction set (`AKUNU_ISA`) or options of a GPU.
    let backends = BackendOptions::from_variables(|name| std::env::var_os(name));
    EngineOptions { device, threads: Some(1), backends, ..EngineOptions::default() }
}

pub fn exact(device: DeviceChoice) -> EngineOptions {
    EngineOptions { kv: KvType::F32, logit_rows: 64, ..options(device) }
}

/// A CPU engine for the embedded model, with a short context.
pub fn tales_engine(change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = EngineOptions { context: Some(256), ..options(DeviceChoice::Cpu) };
    change(&mut options);
    Engine::new(tales(), &options).unwrap()
}

/// Generates and collects the text.
pub fn generate(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions) -> (String, Generated) {
    let mut session = engine.session().unwrap();
    let mut text = String::new();
    let generated = engine
        .generate(&mut session, prompt, options, &mut |piece| {
            text.push_str(piece.text);
            ControlFlow::Continue(())
        })
        .unwrap();
    (text, generated)
}

/// The largest difference, relative to the largest golden logit of the sequence.
pub fn relative_error(found: &[f32], golden: &[Vec<f64>]) -> f64 {
    let golden: Vec<f64> = golden.iter().flatten().copied().collect();
    assert_eq!(found.len(), golden.len(), "logits at every position");
    let largest = golden.iter().fold(0.0, |m: f64, g| m.max(g.abs()));
    let worst = found.iter().zip(&golden).map(|(&f, &g)| {
        assert!(f.is_finite(), "a logit is {f}");
        (f64::from(f) - g).abs()
    });
    worst.fold(0.0, f64::max) / largest
}

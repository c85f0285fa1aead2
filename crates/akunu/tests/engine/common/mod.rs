//! Shared by the engine's tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

pub mod rounding;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use akunu::schedule::{Event, Request, Scheduler, SchedulerOptions};
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

pub fn prompt(kind: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 10 + (kind * 97 + i * 7) % 1000).collect()
}

pub fn bits(engine: &mut Engine) -> Vec<u32> {
    engine.last_logits().unwrap().iter().map(|logit| logit.to_bits()).collect()
}

/// The ids of each request, or why it failed.
pub fn together(engine: Engine, requests: &[Request]) -> (Vec<Result<Vec<u32>, String>>, Engine) {
    let options = SchedulerOptions { queue: requests.len(), ..SchedulerOptions::default() };
    let (scheduler, handle) = Scheduler::new(engine, &options).unwrap();
    let found = Arc::new(Mutex::new(vec![Ok(vec![]); requests.len()]));
    for (number, request) in requests.iter().enumerate() {
        let found = found.clone();
        let listener = move |event: Event<'_>| {
            let found = &mut found.lock().unwrap()[number];
            match (event, &mut *found) {
                (Event::Piece { ids: more, .. }, Ok(ids)) => ids.extend_from_slice(more),
                (Event::Failed(error), _) => *found = Err(error.to_string()),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        handle.submit(request.clone(), Box::new(listener)).unwrap();
    }
    handle.close();
    let engine = scheduler.run();
    let found = found.lock().unwrap().clone();
    (found, engine)
}

/// Two sessions of an engine of at least two slots: a shared prefix, and tokens that are forgotten, leave the same bits.
pub fn shares_and_forgets_prefixes(engine: &mut Engine) {
    let ids = prompt(3, 100);
    let mut first = engine.session().unwrap();
    engine.prefill(&mut first, &ids).unwrap();
    let expected = bits(engine);
    let mut second = engine.session().unwrap();
    engine.copy_prefix(&first, &mut second, 70).unwrap();
    engine.prefill(&mut second, &ids).unwrap();
    assert_eq!(bits(engine), expected);
    first.truncate(33);
    engine.prefill(&mut first, &ids).unwrap();
    assert_eq!(bits(engine), expected);
}

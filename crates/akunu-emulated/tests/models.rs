//! Whole models on the emulator: against float64 logits, command by command against the reference, and in chains.

#![cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use akunu_emulated::{EmulatedDevice, skipped};
use akunu_format::{WeightProvider, open_model};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::verify::verify;
use akunu_plan::{
    Device, KvType, Loaded, ModelPlan, Outcome, PlanOptions, ReplayId, Row, Submission, load, plan,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What lies in a folder of testdata, in order.
fn testdata(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("testdata").join(folder)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.join("config.json").exists() || path.extension().is_some_and(|e| e == "gguf"));
    paths.sort();
    assert!(!paths.is_empty(), "testdata/{folder} is empty");
    paths
}

fn options(kv: KvType, context: usize, rows: usize) -> PlanOptions {
    PlanOptions { context, slots: 1, kv, prefill_rows: rows, prefill_logit_rows: rows, chain: 8, fuse: true }
}

/// A model on a device.
struct Running {
    device: Box<dyn Device>,
    plan: ModelPlan,
    loaded: Loaded,
}

impl Running {
    fn new(model: &dyn WeightProvider, mut device: Box<dyn Device>, options: &PlanOptions) -> Running {
        let plan = plan(model, device.capabilities(), options).unwrap();
        let loaded = load(&plan, model, &mut *device).unwrap();
        Running { device, plan, loaded }
    }

    fn run(&mut self, replay: ReplayId, rows: &[Row], steps: usize, stop: &[u32]) -> Outcome {
        let asking: Vec<u32> = (0..rows.len() as u32).collect();
        let submission = Submission { rows, logit_rows: &asking, steps, stop, cancel: None };
        self.device.replay(replay, submission).unwrap();
        self.device.wait().unwrap()
    }

    fn prefill(&mut self, ids: &[u32], first: usize) -> Vec<f32> {
        let rows: Vec<Row> =
            ids.iter().enumerate().map(|(i, id)| Row::causal(*id, (first + i) as u32, 0)).collect();
        self.run(self.loaded.prefill, &rows, 1, &[]);
        let mut logits = vec![0.0f32; rows.len() * self.plan.config.vocab_size];
        let buffer = self.loaded.buffers[self.plan.tables.prefill.io.logits.index()];
        self.device.download(buffer, 0, bytemuck::cast_slice_mut(&mut logits)).unwrap();
        logits
    }

    /// Ids that a chain finds after a row.
    fn chain(&mut self, row: Row, steps: usize, stop: &[u32]) -> (usize, Vec<u32>) {
        let found = self.run(self.loaded.decode, &[row], steps, stop).steps;
        let table = Arc::clone(&self.plan.tables.decode);
        let mut tokens = vec![0_u32; table.steps + 1];
        let buffer = self.loaded.buffers[table.io.tokens.index()];
        self.device.download(buffer, 0, bytemuck::cast_slice_mut(&mut tokens)).unwrap();
        (found, tokens[1..=found].to_vec())
    }
}

/// The largest difference over the largest logit, over all of a golden's sequences, fed in chunks.
fn worst(folder: &Path, kv: KvType, chunk: usize) -> f64 {
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let model = open_model(folder).unwrap();
    let list = |key: &str| golden[key].as_array().unwrap().clone();
    let mut worst = 0.0f64;
    for (ids, expected) in list("sequences").iter().zip(list("logits")) {
        let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let rows = expected.as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap().clone());
        let expected: Vec<f64> = rows.map(|v| v.as_f64().unwrap()).collect();
        let device = Box::new(EmulatedDevice::new().unwrap());
        let mut running = Running::new(&*model, device, &options(kv, ids.len(), chunk));
        let found: Vec<f32> =
            ids.chunks(chunk).enumerate().flat_map(|(n, ids)| running.prefill(ids, n * chunk)).collect();
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.is_finite());
            worst = worst.max((f64::from(*found) - expected).abs() / largest);
        }
    }
    worst
}

#[test]
fn models_that_are_not_quantised_match_float64_goldens() {
    if skipped() {
        return;
    }
    for (i, folder) in testdata("models").iter().enumerate() {
        // Chunks of 20 are many rows and then a few.
        let chunk = [20, 1, 64][i % 3];
        let f32 = worst(folder, KvType::F32, chunk);
        let f16 = worst(folder, KvType::F16, 20);
        println!("{}: kv f32 {f32:.1e}, kv f16 {f16:.1e}", folder.display());
        assert!(f32 <= 1e-5, "{}: {f32:e} in chunks of {chunk}", folder.display());
        assert!(f16 <= 2e-3, "{}: {f16:e} with an F16 cache", folder.display());
    }
}

#[test]
fn every_command_of_quantised_models_is_near_the_reference() {
    if skipped() {
        return;
    }
    let paths: Vec<PathBuf> = testdata("gguf").into_iter().chain(testdata("mlx")).collect();
    for (i, path) in paths.iter().enumerate() {
        let model = open_model(path).unwrap();
        let ids: Vec<u32> = (0..25).map(|t| (t * 7 + 3) % model.config().vocab_size as u32).collect();
        for (rows, fuse) in [(5, true), (24, false)] {
            let kv = [KvType::Q8_0, KvType::F16][(i + rows) % 2];
            let mut device = EmulatedDevice::new().unwrap();
            if i % 2 == 0 {
                device = device.with_tensor_cores();
            }
            let options = PlanOptions { fuse, prefill_logit_rows: 1, ..options(kv, 64, rows) };
            let plan = plan(&*model, device.capabilities(), &options).unwrap();
            let report = verify(&plan, &*model, &mut device, &ids, &mut |_, _| {}).unwrap();
            assert!(report.first_bad().is_none(), "{}: {:?}", path.display(), report.first_bad());
            assert!(report.differences.len() > 10);
        }
    }
}

#[test]
fn a_chain_finds_what_the_reference_finds_and_ends_where_it_should() {
    if skipped() {
        return;
    }
    let model = open_model(&root().join("crates/akunu/embedded/akunu-tales.gguf")).unwrap();
    let prompt: Vec<u32> = vec![0, 312, 40, 77, 9];
    let start = |device: Box<dyn Device>| {
        let mut running = Running::new(&*model, device, &options(KvType::F16, 64, 8));
        running.prefill(&prompt, 0);
        running
    };
    let row = Row::causal(11, prompt.len() as u32, 0);
    let expected = start(Box::new(ReferenceDevice::new())).chain(row, 8, &[]);
    assert_eq!(expected.0, 8);
    let mut running = start(Box::new(EmulatedDevice::new().unwrap()));
    assert_eq!(running.chain(row, 8, &[]), expected);

    let stop = expected.1[4];
    let first = expected.1.iter().position(|id| *id == stop).unwrap() + 1;
    assert_eq!(running.chain(row, 8, &[u32::MAX - 1, stop]), (first, expected.1[..first].to_vec()));
}

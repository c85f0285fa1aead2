//! An encoder of audio and the decoder that attends to its states, compared with float64 values from Hugging Face
//! transformers.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{capabilities, config, model, options};
use akunu_arch::{ModelConfig, WeightProvider, open_model};
use akunu_format::{Region, TensorInfo};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::verify::verify;
use akunu_plan::{
    BufferId, Capabilities, DType, Device, Entries, FewRows, KvType, ModelPlan, PassKind, PlanError,
    PlanOptions, Row, Submission, load, plan, unwatched,
};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn worst(found: &[f32], wanted: &[f64]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let largest = wanted.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let differences = found.iter().zip(wanted).map(|(found, wanted)| (f64::from(*found) - wanted).abs());
    differences.fold(
        0.0,
        |most, difference| if difference > most || difference.is_nan() { difference } else { most },
    ) / largest
}

/// A model with two windows of frames, the encoder's states, and a sequence of tokens with its logits for each.
struct Golden {
    model: Box<dyn WeightProvider>,
    /// `[window][frame][band]`
    frames: Vec<f32>,
    states: Vec<f64>,
    ids: [Vec<u32>; 2],
    logits: [Vec<f64>; 2],
    /// Of each layer, `[head][token][position]`, after softmax; not in all goldens.
    attention: [Vec<Vec<f64>>; 2],
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

/// Of `training/whisper_goldens.py`.
fn own(name: &str) -> Golden {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/whisper").join(name);
    let golden: Value = serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    Golden {
        model: open_model(&folder).unwrap(),
        frames: numbers(&golden["frames"]).into_iter().map(|value| value as f32).collect(),
        states: numbers(&golden["states"]),
        ids: [0, 1].map(|window| ids(&golden["ids"][window])),
        logits: [0, 1].map(|window| numbers(&golden["logits"][window])),
        attention: [0, 1].map(|window| {
            golden["attention"][window].as_array().unwrap().iter().map(numbers).collect::<Vec<_>>()
        }),
    }
}

/// The same model as a file of whisper.cpp, with weights in F16 at addresses that are not aligned.
fn ggml(name: &str) -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/whisper/{name}.bin"));
    Golden { model: open_model(&path).unwrap(), ..own(name) }
}

/// Of the test data; its frames are `[window][band][frame]`, and its encoder's positions are not in the file.
fn tiny() -> Option<Golden> {
    let folder = akunu_testing::data("tiny_whisper", "golden")?;
    let model = open_model(&folder.join("tiny_whisper.safetensors")).unwrap();
    let golden: Value =
        serde_json::from_slice(&std::fs::read(folder.join("tiny_whisper_logits.json")).unwrap()).unwrap();
    let encoder = model.config().encoder.unwrap();
    let mut frames = vec![];
    for mel in golden["mel_inputs"].as_array().unwrap() {
        let (mel, count) = (numbers(mel), 2 * encoder.positions);
        assert_eq!(mel.len(), encoder.bands * count);
        let of = |frame: usize| (0..encoder.bands).map(move |band| band * count + frame);
        frames.extend((0..count).flat_map(of).map(|at| mel[at] as f32));
    }
    Some(Golden {
        model,
        frames,
        states: numbers(&golden["enc_hidden"]),
        ids: [0, 1].map(|window| ids(&golden["dec_sequences"][window])),
        logits: [0, 1].map(|window| numbers(&golden["logits"][window])),
        attention: [vec![], vec![]],
    })
}

/// What F32 differs by, and inputs of products that are rounded to F16: with 11 bits, through all layers.
const F32: f64 = 1e-5;
const F16: f64 = 4e-3;

/// Both windows in one pass of the encoder; each sequence in two slots, which share a window, in chunks of `chunk` rows.
/// With `half_products`, passes of more rows have products in F16.
fn compare(golden: &Golden, kind: PassKind, chunk: usize, folds: bool, half_products: Option<usize>) {
    let model = &*golden.model;
    let allowed = if half_products.is_some() { F16 } else { F32 };
    let mut device = ReferenceDevice::like(&Capabilities {
        folds,
        half_products: half_products.map(FewRows::all),
        ..ReferenceDevice::new().capabilities().clone()
    });
    let options = PlanOptions {
        context: 12,
        slots: 4,
        kv: KvType::F32,
        kv_bytes: None,
        prefill_rows: 8,
        prefill_logit_rows: 8,
        chain: 1,
        windows: 2,
        beams: 2,
        word_times: kind == PassKind::Align,
        fuse: true,
        keep_inputs: false,
        host: akunu_plan::OnHost::default(),
        stages: Vec::new(),
        stream_rows: None,
    };
    let plan = plan(model, device.capabilities(), &options).unwrap();
    let loaded = load(&plan, model, &mut device, &mut unwatched).unwrap();
    let positions = plan.config.encoder.unwrap().positions;
    let mut run = |kind: PassKind, rows: &[Row], frames: Option<&[f32]>| {
        let io = plan.tables.get(kind).unwrap().io;
        if let Some(frames) = frames {
            let buffer = loaded.buffers[io.frames.unwrap().index()];
            device.upload(buffer, 0, bytemuck::cast_slice(frames)).unwrap();
        }
        let asking: Vec<u32> = (0..rows.len() as u32).collect();
        let submission = Submission {
            entries: Entries::Rows(rows),
            logit_rows: &asking,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        device.replay(loaded.replays[kind], submission).unwrap();
        device.wait().unwrap();
        let width = if kind == PassKind::Encode { plan.config.hidden_size } else { plan.config.vocab_size };
        let mut read = |from: BufferId, width: usize| {
            let mut values = vec![0.0f32; rows.len() * width];
            device.download(loaded.buffers[from.index()], 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
            values
        };
        let scores = io.scores.map_or(vec![], |from| read(from, plan.aligned_heads * positions));
        (read(io.logits, width), scores)
    };

    let rows: Vec<Row> = (0..2).flat_map(|window| plan.window_rows(window)).collect();
    let (states, _) = run(PassKind::Encode, &rows, Some(&golden.frames));
    let difference = worst(&states, &golden.states);
    assert!(difference < allowed, "states: {difference:.2e}");

    for slot in [3, 0, 2, 1] {
        let start = plan.slot_start(slot as u32);
        let row = |(i, &id): (usize, &u32)| Row::causal(id, i as u32, start);
        let rows: Vec<Row> = golden.ids[slot / 2].iter().enumerate().map(row).collect();
        let (logits, scores): (Vec<_>, Vec<_>) = rows.chunks(chunk).map(|rows| run(kind, rows, None)).unzip();
        let difference = worst(&logits.concat(), &golden.logits[slot / 2]);
        assert!(difference < allowed, "slot {slot}, {kind:?} in chunks of {chunk}: {difference:.2e}");
        let attention = &golden.attention[slot / 2];
        if kind == PassKind::Align && !attention.is_empty() {
            let weights: Vec<f32> = scores.concat().chunks(positions).flat_map(softmax).collect();
            let difference = worst(&weights, &of_heads(attention, rows.len(), positions));
            assert!(difference < allowed, "slot {slot}, attention in chunks of {chunk}: {difference:.2e}");
        }
    }
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let total: f64 = scores.iter().map(|score| f64::from(*score).exp()).sum();
    scores.iter().map(|score| (f64::from(*score).exp() / total) as f32).collect()
}

/// `[token][head][position]` of all heads in the last half of the layers.
fn of_heads(attention: &[Vec<f64>], tokens: usize, positions: usize) -> Vec<f64> {
    let heads =
        || attention[attention.len() / 2..].iter().flat_map(|layer| layer.chunks_exact(tokens * positions));
    let of = |token: usize| heads().flat_map(move |head| &head[token * positions..][..positions]).copied();
    (0..tokens).flat_map(of).collect()
}

#[test]
fn whispers_match_float64_goldens() {
    let own = ["whisper-80", "whisper-128-turbo"].map(own);
    for golden in own.iter().chain(&[ggml("whisper-128-turbo")]).chain(&tiny()) {
        for (kind, chunk, folds) in [
            (PassKind::Prefill, 8, false),
            (PassKind::Prefill, 4, false),
            (PassKind::Align, 8, false),
            (PassKind::Align, 3, true),
            (PassKind::Decode, 1, false),
            (PassKind::Decode, 1, true),
        ] {
            compare(golden, kind, chunk, folds, None);
        }
        for (kind, chunk) in [(PassKind::Prefill, 8), (PassKind::Align, 8), (PassKind::Decode, 1)] {
            compare(golden, kind, chunk, true, Some(4));
        }
    }
}

/// A model whose files say which heads follow what is said.
#[derive(Debug)]
struct WithHeads {
    model: Box<dyn WeightProvider>,
    config: ModelConfig,
}

impl WithHeads {
    fn new(heads: &[[usize; 2]]) -> WithHeads {
        let model = own("whisper-80").model;
        let config = ModelConfig { alignment_heads: heads.to_vec(), ..model.config().clone() };
        WithHeads { model, config }
    }

    fn plan(&self, options: &PlanOptions) -> Result<ModelPlan, PlanError> {
        plan(self, &capabilities(), options)
    }
}

impl WeightProvider for WithHeads {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.model.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.model.tensor(name)
    }

    fn regions(&self) -> &[Region] {
        self.model.regions()
    }
}

#[test]
fn only_heads_that_the_file_names_have_scores_and_only_where_word_times_are_wanted() {
    let options = PlanOptions { word_times: true, prefill_rows: 100, prefill_logit_rows: 70, ..options() };
    let wanted = WithHeads::new(&[[1, 0], [0, 1], [1, 1]]).plan(&options).unwrap();
    let table = wanted.tables.get(PassKind::Align).unwrap();
    insta::assert_snapshot!("whisper_align", table.render(&wanted.buffers));
    assert_eq!((wanted.aligned_heads, table.rows, table.logit_rows), (3, 64, 64));
    let scores = &wanted.buffers[table.io.scores.unwrap().index()];
    assert_eq!(scores.bytes, 64 * 3 * 24 * 4);

    let all = WithHeads::new(&[]).plan(&options).unwrap();
    assert_eq!(all.aligned_heads, 2, "the last half of the layers");
    let without = WithHeads::new(&[]).plan(&PlanOptions { word_times: false, ..options.clone() }).unwrap();
    assert!(without.tables.get(PassKind::Align).is_none() && without.aligned_heads == 0);
    assert!(without.memory.allocated() + scores.bytes / 3 * 2 < all.memory.allocated());
    for wrong in [[2, 0], [0, 2]] {
        let error = WithHeads::new(&[[0, 0], wrong]).plan(&options).unwrap_err().to_string();
        let [layer, head] = wrong;
        assert_eq!(
            error,
            format!(
                "the file names head {head} of layer {layer} for alignment, of 2 layers with 2 heads each"
            )
        );
    }
    // Models that do not hear have no such table.
    let deaf = plan(&model(config("llama"), |_| DType::F16), &capabilities(), &options).unwrap();
    assert!(deaf.tables.get(PassKind::Align).is_none());
}

#[test]
fn the_pass_for_word_times_verifies() {
    let options = PlanOptions { context: 16, word_times: true, ..options() };
    let model = WithHeads::new(&[[0, 0], [1, 1]]);
    let plan = model.plan(&options).unwrap();
    let mut device = ReferenceDevice::like(&capabilities());
    let report = verify(&plan, &model, &mut device, &[3, 1, 4, 1, 5], &mut |_, _| {}).unwrap();
    let scores = report.differences.iter().filter(|d| d.table == "align" && d.kernel == "head_scores_f16");
    assert_eq!(scores.count(), 2);
    assert_eq!(report.first_bad(), None);
}

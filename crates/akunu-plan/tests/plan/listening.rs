//! An encoder of audio and the decoder that attends to its states, compared with float64 values from Hugging Face
//! transformers.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use akunu_arch::{WeightProvider, open_model};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{
    Capabilities, Device, Entries, KvType, PassKind, PlanOptions, Row, Submission, load, plan, unwatched,
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
    }
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
    })
}

/// Both windows in one pass of the encoder; each sequence in two slots, which share a window, in chunks of `chunk` rows.
fn compare(golden: &Golden, chunk: usize, folds: bool) {
    let model = &*golden.model;
    let mut device =
        ReferenceDevice::like(&Capabilities { folds, ..ReferenceDevice::new().capabilities().clone() });
    let options = PlanOptions {
        context: 12,
        slots: 4,
        kv: KvType::F32,
        prefill_rows: 8,
        prefill_logit_rows: 8,
        chain: 1,
        windows: 2,
        beams: 2,
        fuse: true,
        keep_inputs: false,
    };
    let plan = plan(model, device.capabilities(), &options).unwrap();
    let loaded = load(&plan, model, &mut device, &mut unwatched).unwrap();
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
        let mut values = vec![0.0f32; rows.len() * width];
        device.download(loaded.buffers[io.logits.index()], 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    };

    let rows: Vec<Row> = (0..2).flat_map(|window| plan.window_rows(window)).collect();
    let states = run(PassKind::Encode, &rows, Some(&golden.frames));
    let difference = worst(&states, &golden.states);
    assert!(difference < 1e-5, "states: {difference:.2e}");

    for slot in [3, 0, 2, 1] {
        let start = plan.slot_start(slot as u32);
        let row = |(i, &id): (usize, &u32)| Row::causal(id, i as u32, start);
        let rows: Vec<Row> = golden.ids[slot / 2].iter().enumerate().map(row).collect();
        let kind = if chunk == 1 { PassKind::Decode } else { PassKind::Prefill };
        let logits: Vec<f32> = rows.chunks(chunk).flat_map(|rows| run(kind, rows, None)).collect();
        let difference = worst(&logits, &golden.logits[slot / 2]);
        assert!(difference < 1e-5, "slot {slot}, chunks of {chunk}: {difference:.2e}");
    }
}

#[test]
fn whispers_match_float64_goldens() {
    for golden in ["whisper-80", "whisper-128-turbo"].map(own).iter().chain(&tiny()) {
        for (chunk, folds) in [(8, false), (4, false), (1, false), (1, true)] {
            compare(golden, chunk, folds);
        }
    }
}

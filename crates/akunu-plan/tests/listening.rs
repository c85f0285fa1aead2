//! An encoder of audio and the decoder that attends to its states, compared with float64 values from Hugging Face
//! transformers.

#![allow(clippy::unwrap_used)]

use akunu_arch::open_model;
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

/// Both windows in one pass of the encoder; each sequence in two slots, which share a window, in chunks of `chunk` rows.
fn compare(chunk: usize, folds: bool) {
    let Some(golden) = akunu_testing::data("tiny_whisper", "golden") else { return };
    let model = open_model(&golden.join("tiny_whisper.safetensors")).unwrap();
    let oracle: Value =
        serde_json::from_slice(&std::fs::read(golden.join("tiny_whisper_logits.json")).unwrap()).unwrap();
    let encoder = model.config().encoder.unwrap();
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
    let plan = plan(&*model, device.capabilities(), &options).unwrap();
    let loaded = load(&plan, &*model, &mut device, &mut unwatched).unwrap();
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

    let mels = oracle["mel_inputs"].as_array().unwrap();
    let mut frames = vec![];
    for mel in mels {
        let (mel, count) = (numbers(mel), 2 * encoder.positions);
        assert_eq!(mel.len(), encoder.bands * count);
        frames.extend((0..count).flat_map(|frame| {
            let band = |band: usize| mel[band * count + frame] as f32;
            (0..encoder.bands).map(band).collect::<Vec<_>>()
        }));
    }
    let rows: Vec<Row> = (0..2).flat_map(|window| plan.window_rows(window)).collect();
    let states = run(PassKind::Encode, &rows, Some(&frames));
    let wanted = numbers(&oracle["enc_hidden"]);
    let difference = worst(&states, &wanted);
    assert!(difference < 1e-5, "states: {difference:.2e}");

    for slot in [3, 0, 2, 1] {
        let ids = numbers(&oracle["dec_sequences"][slot / 2]);
        let wanted = numbers(&oracle["logits"][slot / 2]);
        let start = plan.slot_start(slot as u32);
        let rows: Vec<Row> =
            ids.iter().enumerate().map(|(i, &id)| Row::causal(id as u32, i as u32, start)).collect();
        let kind = if chunk == 1 { PassKind::Decode } else { PassKind::Prefill };
        let logits: Vec<f32> = rows.chunks(chunk).flat_map(|rows| run(kind, rows, None)).collect();
        let difference = worst(&logits, &wanted);
        assert!(difference < 1e-5, "slot {slot}, chunks of {chunk}: {difference:.2e}");
    }
}

#[test]
fn a_tiny_whisper_matches_float64_goldens() {
    for (chunk, folds) in [(8, false), (4, false), (1, false), (1, true)] {
        compare(chunk, folds);
    }
}

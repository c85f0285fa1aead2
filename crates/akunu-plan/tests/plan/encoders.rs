//! Embeddings and scores of whole texts on the reference device, compared with float64 results from Hugging Face
//! transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};

use akunu_arch::{Pooling, WeightProvider, open_model};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{
    Capabilities, Device, EncodeOptions, EncodeOutput, Entries, FewRows, KvType, Row, Submission,
    load_buffers, plan_encoder, unwatched,
};
use serde_json::Value;

struct Text {
    ids: Vec<u32>,
    segments: Vec<u32>,
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn texts(golden: &Value) -> Vec<Text> {
    let list = |value: &Value| numbers(value).into_iter().map(|v| v as u32).collect::<Vec<_>>();
    let text = |text: &Value| {
        let ids = list(&text["ids"]);
        let segments = text.get("segments").map_or(vec![0; ids.len()], list);
        Text { ids, segments }
    };
    golden["texts"].as_array().unwrap().iter().map(text).collect()
}

/// The results for all texts of one pass, concatenated. With `half_products`, passes of more rows have products in F16.
fn encode(
    model: &dyn WeightProvider,
    texts: &[Text],
    output: EncodeOutput,
    half_products: Option<usize>,
) -> Result<Vec<f32>, String> {
    let half_products = half_products.map(FewRows::all);
    let capabilities = Capabilities { half_products, ..ReferenceDevice::new().capabilities().clone() };
    let mut device = ReferenceDevice::like(&capabilities);
    let rows: usize = texts.iter().map(|text| text.ids.len()).sum();
    let every_row = output == EncodeOutput::Vectors(Pooling::None);
    let options = EncodeOptions {
        longest: texts.iter().map(|text| text.ids.len()).max().unwrap(),
        rows,
        texts: if every_row { rows } else { texts.len() },
        kv: KvType::F32,
        output,
        fuse: true,
    };
    let plan = plan_encoder(model, device.capabilities(), &options).map_err(|error| error.to_string())?;
    let buffers = load_buffers(&plan.buffers, model, &mut device, &mut unwatched).unwrap();
    let replay = device.prepare(&plan.table, &buffers).unwrap();
    let first = matches!(output, EncodeOutput::Vectors(Pooling::First))
        || output == EncodeOutput::Scores
            && model.config().bidirectional
            && model.config().embedding.classifier_pooling.is_none_or(|pooling| pooling == Pooling::First);
    let (mut pass, mut asking, mut segments) = (vec![], vec![], vec![]);
    for text in texts {
        let (start, len) = (pass.len() as u32, text.ids.len() as u32);
        for (&token, position) in text.ids.iter().zip(0..) {
            let kv_len = if plan.config.bidirectional { len } else { position + 1 };
            pass.push(Row { token, position, kv_len, start });
        }
        match (every_row, first) {
            (true, _) => asking.extend(start..start + len),
            (false, true) => asking.push(start),
            (false, false) => asking.push(start + len - 1),
        }
        segments.extend_from_slice(&text.segments);
    }
    if let Some(buffer) = plan.table.io.segments {
        device.upload(buffers[buffer.index()], 0, bytemuck::cast_slice(&segments)).unwrap();
    }
    let submission =
        Submission { entries: Entries::Rows(&pass), logit_rows: &asking, steps: 1, stop: &[], cancel: None };
    device.replay(replay, submission).unwrap();
    device.wait().unwrap();
    let mut found = vec![0.0f32; asking.len() * plan.width];
    let output = buffers[plan.table.io.logits.index()];
    device.download(output, 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
    Ok(found)
}

/// The largest difference over the largest number.
fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    let differences = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).abs());
    differences.fold(0.0, |a, b| if b.is_nan() { b } else { a.max(b) }) / largest
}

fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(all) => all.iter().flat_map(flat).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn folders() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/encoders");
    let mut folders: Vec<_> = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// Several texts of different lengths in one pass.
#[test]
fn encoders_match_float64_goldens() {
    let mut wrong = Vec::new();
    for folder in folders() {
        let golden: Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let model = match open_model(&folder) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let texts = texts(&golden);
        let pooling = model.config().embedding.pooling;
        for (key, output) in [
            ("states", Some(EncodeOutput::Vectors(Pooling::None))),
            ("pooled", pooling.map(EncodeOutput::Vectors)),
            ("scores", golden.get("logits").is_none().then_some(EncodeOutput::Scores)),
        ] {
            let (Some(expected), Some(output)) = (golden.get(key), output) else { continue };
            // The golden states are those before the dense modules after pooling.
            if key == "states" && model.tensor("dense_2.weight").is_some() {
                continue;
            }
            // Inputs of products in F16 have 11 bits, through all layers.
            for (half_products, allowed) in [(None, 1e-5), (Some(4), 5e-3)] {
                let found = encode(&*model, &texts, output, half_products);
                match found.map(|found| error(&found, &flat(expected))) {
                    Ok(error) if error < allowed => println!("{name} {key} {half_products:?}: {error:.1e}"),
                    other => wrong.push(format!("{name} {key} {half_products:?}: {other:?}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

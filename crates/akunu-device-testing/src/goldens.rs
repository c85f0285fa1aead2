//! Whole models on a device, compared with the logits that other programs computed.

use std::path::Path;
use std::sync::Arc;

use akunu_arch::WeightProvider;
use akunu_plan::{
    Device, Entries, KvType, OnHost, PassKind, PlanOptions, Row, Submission, load, plan, unwatched,
};

/// How a model is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Division {
    pub host: OnHost,
    /// As in [`PlanOptions`].
    pub stream_rows: Option<usize>,
    /// Devices that share out the layers; 0 and 1: one has all.
    pub devices: usize,
}

impl From<OnHost> for Division {
    fn from(host: OnHost) -> Division {
        Division { host, ..Division::default() }
    }
}

/// Options of a plan for one sequence, whose rows may all have logits.
pub fn options(context: usize, chunk: usize, kv: KvType, division: impl Into<Division>) -> PlanOptions {
    let Division { host, stream_rows, .. } = division.into();
    PlanOptions {
        context,
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
        host,
        stages: Vec::new(),
        stream_rows,
    }
}

/// The logits of every position of one sequence, processed in chunks, in a divided model, too. An error says why a model cannot be planned.
pub fn logits(
    model: &dyn WeightProvider,
    device: &mut dyn Device,
    ids: &[u32],
    (chunk, kv, division): (usize, KvType, impl Into<Division>),
) -> Result<Vec<Vec<f32>>, String> {
    let division = division.into();
    let stages = akunu_plan::even_stages(model, &vec![1; division.devices.max(1)]);
    let stages = stages.map_err(|error| error.to_string())?;
    let options = PlanOptions { stages, ..options(ids.len(), chunk, kv, division) };
    let plan = plan(model, device.capabilities(), &options).map_err(|error| error.to_string())?;
    let loaded = load(&plan, model, device, &mut unwatched).unwrap();
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
        let kind = match plan.tables.kind_for(rows.len()) {
            PassKind::StreamedPrefill => PassKind::StreamedPrefill,
            _ => PassKind::Prefill,
        };
        device.replay(loaded.replays[kind], submission).unwrap();
        device.wait().unwrap();
        let mut values = vec![0.0f32; rows.len() * vocab];
        let buffer = loaded.buffers[table.io.logits.index()];
        device.download(buffer, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        all.extend(values.chunks(vocab).map(<[f32]>::to_vec));
    }
    Ok(all)
}

/// The sequences of a file of goldens, with their logits.
pub fn goldens(file: &Path) -> Vec<(Vec<u32>, Vec<Vec<f64>>)> {
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let list = |value: &serde_json::Value| value.as_array().unwrap().clone();
    let numbers = |row: &serde_json::Value| list(row).iter().map(|v| v.as_f64().unwrap()).collect();
    list(&golden["sequences"])
        .iter()
        .zip(list(&golden["logits"]))
        .map(|(ids, logits)| {
            let ids = list(ids).iter().map(|v| v.as_u64().unwrap() as u32).collect();
            (ids, list(&logits).iter().map(numbers).collect())
        })
        .collect()
}

/// The largest difference over the largest logit; `open` opens a device for each sequence.
pub fn worst(
    model: &dyn WeightProvider,
    open: &mut dyn FnMut() -> Box<dyn Device>,
    file: &Path,
    (chunk, kv, division): (usize, KvType, impl Into<Division>),
) -> Result<f64, String> {
    let pass = (chunk, kv, division.into());
    let mut worst = 0.0f64;
    for (ids, expected) in goldens(file) {
        let found = logits(model, &mut *open(), &ids, pass)?;
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            let difference = (f64::from(*found) - expected).abs();
            assert!(difference.is_finite());
            worst = worst.max(difference / largest);
        }
    }
    Ok(worst)
}

//! Importance matrices: the sums are those of an independent forward pass, for every family, and the inputs are read
//! before they are rounded.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;

use crate::common::{DEVICES, checked_in, checked_in_models, exact, ids, json, tales};
use akunu::{DeviceChoice, EngineOptions, Model};
use akunu_arch::convert::{Conversion, ConvertOptions, ImatrixFile};
use akunu_format::Imatrix;
use akunu_format::blocks::dequantize_nth;
use akunu_format::quantise::Mix;

fn collect(model: &Path, device: DeviceChoice, window: usize, ids: &[u32]) -> Imatrix {
    let model = Model::open(model).unwrap();
    let options = EngineOptions { context: Some(window), chunk: Some(10), ..exact(device) };
    let (mut told, mut all) = (0, 0);
    let imatrix = akunu::importance(&model, &options, ids, &mut |done, of| {
        (told, all) = (done, of);
        ControlFlow::Continue(())
    });
    assert_eq!((told, all), (ids.len(), ids.len()), "all tokens were reported");
    imatrix.unwrap()
}

/// Asserts that the sums differ by a small part of the largest one of each matrix.
#[track_caller]
fn alike(found: &Imatrix, expected: &Imatrix, part: f32) {
    assert!(found.entries.keys().eq(expected.entries.keys()));
    for (name, expected) in &expected.entries {
        let found = &found.entries[name];
        assert_eq!((&found.counts, found.columns()), (&expected.counts, expected.columns()), "{name}");
        let largest = expected.sums.iter().copied().fold(0.0, f32::max);
        for (column, (a, b)) in found.sums.iter().zip(&expected.sums).enumerate() {
            assert!((a - b).abs() <= part * largest, "{name}, column {column}: {a}, expected {b}");
        }
    }
}

#[test]
fn the_sums_are_those_of_a_forward_pass_in_numpy() {
    // As in testdata/imatrix/make.py.
    let ids: Vec<u32> = (0..40).map(|i| (7 * i * i + 3 * i + 1) % 64).collect();
    let expected = Imatrix::open(&checked_in("imatrix/llama-hd64-gqa2.gguf")).unwrap();
    for device in DEVICES {
        let found = collect(&checked_in("models/llama-hd64-gqa2"), device, 24, &ids);
        alike(&found, &expected, 1e-5);
        assert_eq!((found.chunks, found.chunk_size), (expected.chunks, expected.chunk_size));
    }
}

#[test]
fn every_matrix_of_every_family_has_the_sums_of_the_reference() {
    let recipe =
        ConvertOptions { mix: Mix::find("Q4_0").unwrap(), pure: true, vocabulary: None, imatrix: None };
    for (name, folder) in checked_in_models() {
        let sequence = ids(&json(folder.join("golden.json"))["sequences"][0]);
        let found = collect(&folder, DeviceChoice::Cpu, sequence.len(), &sequence);
        let weights = akunu_arch::open_model(&folder).unwrap();
        let file = ImatrixFile { imatrix: &found, name: "" };
        let with = ConvertOptions { imatrix: Some(file), ..recipe };
        let conversion = Conversion::new(weights.as_ref(), &with).unwrap();
        let without: Vec<&str> =
            conversion.importance().1.iter().map(|planned| &*planned.spec.name).collect();
        assert!(without.is_empty(), "{name}: {without:?}");
        let tensors = Conversion::new(weights.as_ref(), &recipe).unwrap();
        let is_tensor =
            |entry: &&String| tensors.tensors().iter().any(|planned| planned.spec.name == **entry);
        assert!(found.entries.keys().all(|entry| is_tensor(&entry)), "{name}");
        alike(&found, &collect(&folder, DeviceChoice::Reference, sequence.len(), &sequence), 1e-3);
    }
}

/// Of files with quantised weights, whose products read int8 blocks on the CPU. The last one stores the columns of its
/// matrices in another order.
#[test]
fn inputs_are_read_before_they_are_rounded() {
    for file in ["gguf/mixed-k.gguf", "gguf/mixed-legacy.gguf", "quantised/gptq-ordered"] {
        let path = checked_in(file);
        let model = akunu_arch::open_model(&path).unwrap();
        let sequence = [5, 9, 2, 40, 17].map(|id| id % model.config().vocab_size as u32);
        let cols = model.config().hidden_size;
        let values = |name: &str, row: usize| {
            let tensor = model.tensor(name).unwrap();
            let mut values = vec![0.0; cols];
            dequantize_nth(tensor.dtype, model.plane_bytes(tensor), row, &mut values).unwrap();
            values
        };
        let weight = values("blk.0.attn_norm.weight", 0);
        let mut sums = vec![0.0; cols];
        for id in sequence {
            let x: Vec<f64> = values("token_embd.weight", id as usize).into_iter().map(f64::from).collect();
            let mean = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
            let scale = 1.0 / (mean + f64::from(model.config().norm_epsilon)).sqrt();
            let squares = x.iter().zip(&weight).map(|(x, w)| (x * scale * f64::from(*w)).powi(2));
            sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
        }
        let found = collect(&path, DeviceChoice::Cpu, 8, &sequence);
        for name in ["attn_q", "attn_k", "attn_v"] {
            let entry = &found.entries[&format!("blk.0.{name}.weight")];
            for (column, (&a, b)) in entry.sums.iter().zip(&sums).enumerate() {
                assert!(
                    (f64::from(a) - b).abs() <= 1e-6 * b,
                    "{file}, {name}, column {column}: {a}, expected {b}"
                );
            }
        }
    }
}

#[test]
fn a_break_keeps_what_was_collected() {
    let model = tales();
    let options = EngineOptions { context: Some(16), ..exact(DeviceChoice::Cpu) };
    let ids: Vec<u32> = (1..50).collect();
    let run = |ids: &[u32], most: usize| {
        akunu::importance(&model, &options, ids, &mut |done, _| match done < most {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    };
    let (stopped, short) = (run(&ids, 32).unwrap(), run(&ids[..32], 99).unwrap());
    assert_eq!(stopped, short);
    assert_eq!((stopped.chunks, &*stopped.entries["blk.0.attn_q.weight"].counts), (2, &[32.0][..]));
    let outside = model.config().vocab_size as u32;
    assert!(run(&[1, outside], 99).is_err() && run(&[], 99).is_err());
}

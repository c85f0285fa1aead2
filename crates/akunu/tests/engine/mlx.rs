//! Folders with packed weights: memory use, conversion, and a trained model quantised as MLX does in the test.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::common::rounding::{best, follow, unrounded};
use crate::common::{DEVICES, ids, json, options, packed_folders, shared};
use akunu::{Engine, Model};
use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_format::blocks::{dequantize_row, quantize_row};
use akunu_format::quantise::Mix;
use akunu_format::{Affine, DType, ScaleType, TensorInfo};
use serde_json::{Value, json};

#[test]
fn weights_stay_packed_and_the_plan_matches_the_allocation() {
    for folder in packed_folders() {
        let name = folder.display();
        let model = Arc::new(Model::open(&folder).unwrap());
        let is_matrix = |t: &&TensorInfo| t.shape.len() >= 2 && !t.name.ends_with(".bias");
        let matrices = model.weights().tensors().iter().filter(is_matrix);
        let packed: usize = matrices.map(|t| t.stored_bytes()).sum();
        for device in DEVICES {
            let mut engine = Engine::new(model.clone(), &options(device)).unwrap();
            engine.logits(&[1, 2, 3], true, None).unwrap();
            let memory = engine.plan().memory;
            assert_eq!(memory.weights_in_place, packed as u64, "{name} on {device}");
            assert_eq!(memory.allocated(), engine.device().allocated_bytes(), "{name} on {device}");
        }
    }
}

#[test]
fn a_converted_gguf_file_has_the_same_logits() {
    let dir = tempfile::tempdir().unwrap();
    for folder in packed_folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let model = Arc::new(Model::open(&folder).unwrap());
        let recipe =
            ConvertOptions { mix: Mix::find("F32").unwrap(), pure: false, vocabulary: None, imatrix: None };
        let file = dir.path().join(format!("{name}.gguf"));
        let conversion = Conversion::new(model.weights(), &recipe).unwrap();
        let out = std::fs::File::create(&file).unwrap();
        conversion.write(out, 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let sequence = ids(&json(folder.join("golden.json"))["sequences"][0]);
        let before = unrounded(&model).logits(&sequence, true, None).unwrap();
        let after = unrounded(&Arc::new(Model::open(&file).unwrap())).logits(&sequence, true, None).unwrap();
        let off = before.iter().zip(&after).map(|(b, a)| (b - a).abs()).fold(0.0, f32::max);
        assert!(off <= 1e-5, "{name}: {off:e}");
    }
}

/// Quantises the matrices of a Hugging Face model whose rows are whole groups, and writes them twice: in MLX's format, and as
/// dequantised F32.
fn quantised(source: &Path, affine: Affine, folders: [&Path; 2]) {
    let file = std::fs::read(source.join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
    let (mut mlx, mut plain) = (Writer::default(), Writer::default());
    for (name, about) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        assert_eq!(about["dtype"], "F32");
        let shape: Vec<usize> = ids(&about["shape"]).into_iter().map(|n| n as usize).collect();
        let range = ids(&about["data_offsets"]);
        let bytes = &file[start + range[0] as usize..start + range[1] as usize];
        let cols = *shape.last().unwrap();
        let dtype = DType::Affine(affine);
        let Some(sizes) = dtype.plane_bytes(cols).filter(|_| shape.len() == 2) else {
            mlx.put(name, "F32", &shape, bytes.to_vec());
            plain.put(name, "F32", &shape, bytes.to_vec());
            continue;
        };
        let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let (mut planes, mut widened): ([Vec<u8>; 3], Vec<u8>) = Default::default();
        for values in values.chunks_exact(cols) {
            let (mut row, mut back) = (vec![0; sizes.iter().sum()], vec![0.0; cols]);
            quantize_row(dtype, values, None, &mut row).unwrap();
            dequantize_row(dtype, &row, &mut back).unwrap();
            widened.extend(back.iter().flat_map(|v| v.to_le_bytes()));
            planes[0].extend(&row[..sizes[0]]);
            planes[1].extend(&row[sizes[0]..][..sizes[1]]);
            planes[2].extend(&row[sizes[0] + sizes[1]..]);
        }
        plain.put(name, "F32", &shape, widened);
        let path = name.strip_suffix(".weight").unwrap();
        let [quants, scales, offsets] = planes;
        let kind = format!("{:?}", affine.scales());
        let groups = [shape[0], cols / affine.group()];
        mlx.put(name, "U32", &[shape[0], sizes[0] / 4], quants);
        mlx.put(&format!("{path}.scales"), &kind, &groups, scales);
        mlx.put(&format!("{path}.biases"), &kind, &groups, offsets);
    }
    let mut config = json(source.join("config.json"));
    plain.finish(folders[1], &config);
    config["quantization"] = json!({"bits": affine.bits(), "group_size": affine.group(), "mode": "affine"});
    mlx.finish(folders[0], &config);
}

#[derive(Default)]
struct Writer {
    header: serde_json::Map<String, Value>,
    data: Vec<u8>,
}

impl Writer {
    fn put(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) {
        let end = self.data.len() + bytes.len();
        let about = json!({"dtype": dtype, "shape": shape, "data_offsets": [self.data.len(), end]});
        self.header.insert(name.into(), about);
        self.data.extend(bytes);
    }

    fn finish(self, folder: &Path, config: &Value) {
        let header = serde_json::to_vec(&self.header).unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat();
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }
}

#[test]
fn a_quantised_model_matches_its_dequantised_weights() {
    let Some(source) = shared("stories260K/hf") else { return };
    let golden = ids(&json(source.with_file_name("golden.json"))["cases"][0]["greedy_ids"]);
    for (bits, group, scales) in [
        (8, 64, ScaleType::BF16),
        (6, 32, ScaleType::F32),
        (5, 64, ScaleType::F16),
        (4, 32, ScaleType::F16),
        (4, 64, ScaleType::BF16),
        (3, 32, ScaleType::BF16),
    ] {
        let affine = Affine::new(bits, group, scales).unwrap();
        let [mlx, plain] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        quantised(&source, affine, [mlx.path(), plain.path()]);
        let [mlx, plain] = [mlx.path(), plain.path()].map(|folder| Arc::new(Model::open(folder).unwrap()));
        let sequence = &golden[..64];
        let expected = unrounded(&plain).logits(sequence, true, None).unwrap();
        let found = unrounded(&mlx).logits(sequence, true, None).unwrap();
        let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let off = expected.iter().zip(&found).map(|(e, f)| (e - f).abs()).fold(0.0, f32::max) / largest;
        println!("{} unrounded: {off:.1e}", DType::Affine(affine));
        assert!(off <= 1e-5, "{}: {off:e}", DType::Affine(affine));

        let next: Vec<u32> = expected.chunks_exact(expected.len() / 64).map(best).collect();
        follow(&mlx, sequence, &next, &DEVICES, &format!("stories260K {}", DType::Affine(affine)));
    }
}

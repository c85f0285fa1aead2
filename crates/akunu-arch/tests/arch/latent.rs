//! Latent attention: its sizes in both kinds of files, and the matrix of keys and values taken apart.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{GgufModel, GroupRank, LatentFacts, Scores, WeightProvider, open_model};
use akunu_format::blocks::{dequantize_row, quantize_row};
use akunu_format::quantise::Mix;
use akunu_format::{DType, Gguf, GgufWriter, Metadata, Region, TensorSpec, Value};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

fn convert(model: &dyn WeightProvider) -> GgufModel {
    let options =
        ConvertOptions { mix: Mix::find("F32").unwrap(), pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(model, &options).unwrap();
    let bytes = conversion.write(Vec::new(), 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
    open(bytes).unwrap()
}

fn open(bytes: Vec<u8>) -> Result<GgufModel, akunu_format::FormatError> {
    GgufModel::from_gguf(Gguf::from_region(Region::from_vec(bytes))?)
}

fn values(model: &dyn WeightProvider, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.shape.iter().product()];
    let row = tensor.dtype.row_bytes(tensor.cols()).unwrap();
    let rows = model.tensor_bytes(tensor).chunks_exact(row);
    for (bytes, values) in rows.zip(values.chunks_exact_mut(tensor.cols())) {
        dequantize_row(tensor.dtype, bytes, values).unwrap();
    }
    values
}

#[test]
fn folders_state_sizes_and_routers() {
    let lite = open_model(&folder("deepseek-v2-lite")).unwrap();
    let config = lite.config();
    let sizes = LatentFacts { size: 20, plain: 12, values: 10, query_rank: None, growth: 0.707 };
    assert_eq!(config.latent, Some(sizes));
    assert_eq!((config.kv_head_count, config.head_dim, config.rope.dims), (1, 28, 8));
    let grown = 0.0707 * 4f64.ln() + 1.0;
    assert!((f64::from(config.score_scale()) - grown * grown / 20f64.sqrt()).abs() < 1e-7);
    let v2 = open_model(&folder("deepseek-v2")).unwrap();
    let experts = v2.config().experts.unwrap();
    assert_eq!(v2.config().latent.unwrap().query_rank, Some(18));
    assert_eq!((experts.groups, experts.router.scores), ([3, 2], Scores::Softmax));
    assert_eq!((experts.router.rank, experts.scale, experts.normalised), (GroupRank::Best, 16.0, false));
    for (name, groups) in [("deepseek-v3", [4, 2]), ("kimi-k2", [1, 1])] {
        let experts = open_model(&folder(name)).unwrap().config().experts.unwrap();
        assert_eq!((experts.groups, experts.normalised), (groups, true), "{name}");
        assert_eq!((experts.router.scores, experts.router.rank), (Scores::Sigmoid, GroupRank::TwoBest));
    }
    let v3 = open_model(&folder("deepseek-v3")).unwrap();
    assert_eq!(v3.config().left_out.as_deref(), Some("layers that predict further tokens"));
}

/// The keys that llama.cpp reads.
#[test]
fn converted_files_have_the_keys_of_the_format() {
    for (name, scores, growth) in
        [("deepseek-v2-lite", 1, Some(0.0707)), ("deepseek-v2", 1, None), ("kimi-k2", 2, Some(0.1))]
    {
        let model = open_model(&folder(name)).unwrap();
        let (config, latent) = (model.config(), model.config().latent.unwrap());
        let converted = convert(&*model);
        let metadata = converted.metadata().unwrap();
        let number = |key: &str| metadata.u32(&format!("deepseek2.{key}")).unwrap().map(|n| n as usize);
        assert_eq!(number("attention.head_count_kv"), Some(1));
        assert_eq!(number("attention.key_length"), Some(latent.size + config.rope.dims));
        assert_eq!(number("attention.value_length"), Some(latent.size));
        assert_eq!(number("attention.key_length_mla"), Some(latent.plain + config.rope.dims));
        assert_eq!(number("attention.value_length_mla"), Some(latent.values));
        assert_eq!(number("attention.kv_lora_rank"), Some(latent.size));
        assert_eq!(number("attention.q_lora_rank"), latent.query_rank);
        assert_eq!(number("rope.dimension_count"), Some(config.rope.dims));
        assert_eq!(number("leading_dense_block_count"), Some(1));
        assert_eq!(number("expert_gating_func"), Some(scores));
        let multiplier = metadata.f32("deepseek2.rope.scaling.yarn_log_multiplier").unwrap();
        assert_eq!(multiplier, growth, "{name}");
        assert_eq!(converted.config().score_scale(), config.score_scale(), "{name}");
        assert_eq!(converted.tensor("blk.0.attn_kv_b.weight"), None);
    }
}

/// A file as llama.cpp wrote it before it had a latent cache: with one matrix of keys and values, and their sizes under
/// other keys.
fn old(model: &dyn WeightProvider, dtype: DType) -> Vec<u8> {
    let (config, latent) = (model.config(), model.config().latent.unwrap());
    let now = convert(model);
    let mut metadata = Metadata::default();
    for (key, value) in now.metadata().unwrap().iter().filter(|(key, _)| !key.ends_with("_mla")) {
        let size = match key {
            "deepseek2.attention.key_length" => Some(latent.plain + config.rope.dims),
            "deepseek2.attention.value_length" => Some(latent.values),
            "deepseek2.attention.head_count_kv" => Some(config.head_count),
            _ => None,
        };
        metadata.insert(key, size.map_or(value.clone(), |size| Value::U32(size as u32)));
    }
    let mut specs = vec![];
    let mut contents = vec![];
    for tensor in now.tensors() {
        if tensor.name.ends_with("attn_v_b.weight") {
            continue;
        }
        if !tensor.name.ends_with("attn_k_b.weight") {
            specs.push(TensorSpec::new(tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
            contents.push(now.tensor_bytes(tensor).to_vec());
            continue;
        }
        let values_name = tensor.name.replace("attn_k_b", "attn_v_b");
        let (keys, made) = (values(&now, &tensor.name), values(&now, &values_name));
        let LatentFacts { size, plain, values, .. } = latent;
        let mut rows = vec![];
        for head in 0..config.head_count {
            for key in 0..plain {
                rows.extend((0..size).map(|at| keys[(head * size + at) * plain + key]));
            }
            rows.extend(&made[head * values * size..][..values * size]);
        }
        let all = config.head_count * (plain + values);
        let row = dtype.row_bytes(size).unwrap();
        let mut bytes = vec![0; all * row];
        for (from, to) in rows.chunks_exact(size).zip(bytes.chunks_exact_mut(row)) {
            quantize_row(dtype, from, None, to).unwrap();
        }
        specs.push(TensorSpec::new(tensor.name.replace("attn_k_b", "attn_kv_b"), dtype, [all, size]));
        contents.push(bytes);
    }
    let mut writer = GgufWriter::new(Vec::new(), &metadata, specs).unwrap();
    for bytes in contents {
        writer.tensor(|out| out.write_all(&bytes)).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn older_files_have_one_matrix_of_keys_and_values() {
    for (name, dtype) in [
        ("deepseek-v2-lite", DType::F32),
        ("deepseek-v2", DType::F16),
        ("kimi-k2", DType::BF16),
        ("deepseek-v3-hd32", DType::F32),
        ("deepseek-v3-hd32", DType::Q8_0),
    ] {
        let model = open_model(&folder(name)).unwrap();
        let old = open(old(&*model, dtype)).unwrap();
        assert_eq!(old.config().latent.unwrap().plain, model.config().latent.unwrap().plain);
        assert_eq!((old.config().kv_head_count, old.config().head_dim), (1, model.config().head_dim));
        for part in ["attn_k_b", "attn_v_b"] {
            let tensor = format!("blk.1.{part}.weight");
            let found = old.tensor(&tensor).unwrap();
            assert_eq!(found.shape, model.tensor(&tensor).unwrap().shape);
            // The part that is transposed has no type with blocks.
            let kept = part == "attn_v_b" || !dtype.is_quantised();
            assert_eq!(found.dtype, if kept { dtype } else { DType::F32 }, "{name} {part}");
            let (found, expected) = (values(&old, &tensor), values(&*model, &tensor));
            let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let allowed = if dtype.is_quantised() { most / 127.0 } else { 0.0 };
            let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= allowed);
            assert!(close, "{name} {part} {dtype}");
        }
    }
}

#[test]
fn wrong_matrices_of_keys_and_values_are_refused() {
    let model = open_model(&folder("deepseek-v2-lite")).unwrap();
    let bytes = old(&*model, DType::F32);
    let key = b"deepseek2.attention.value_length";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    let with = |size: u32| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&size.to_le_bytes());
        open(bytes).unwrap_err().to_string()
    };
    assert_eq!(with(11), "tensor blk.0.attn_kv_b.weight: its shape is [66, 20], but 3 heads need [69, 20]");
    assert_eq!(with(0), "size of values in the GGUF metadata: 0 is out of range");
    assert_eq!(with(u32::MAX), "size of values in the GGUF metadata: 4294967295 is out of range");
}

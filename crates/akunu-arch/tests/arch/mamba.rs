//! Layers with a state: their sizes in both kinds of files, and what conversion makes of their tensors.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{GgufModel, MambaFacts, ModelConfig, SafeTensorsModel, WeightProvider, open_model};
use akunu_format::quantise::Mix;
use akunu_format::{Array, DType, Gguf, GgufWriter, Metadata, Region, TensorSpec, Value};
use serde_json::{Value as Json, json};

const MODELS: [&str; 2] = ["granite4-h-dense", "granite4-h-moe"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

fn written(model: &dyn WeightProvider) -> Gguf {
    let options =
        ConvertOptions { mix: Mix::find("Q8_0").unwrap(), pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(model, &options).unwrap();
    let bytes = conversion.write(Vec::new(), 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
    Gguf::from_region(Region::from_vec(bytes)).unwrap()
}

fn floats(model: &dyn WeightProvider, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap();
    assert_eq!(tensor.dtype, DType::F32, "{name}");
    let bytes = model.tensor_bytes(tensor).as_chunks::<4>().0;
    bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn both_kinds_of_files_state_the_same_sizes() {
    let sizes = [
        MambaFacts { taps: 4, state_size: 10, groups: 2, heads: 8, head_dim: 16 },
        MambaFacts { taps: 3, state_size: 7, groups: 1, heads: 6, head_dim: 24 },
    ];
    let recurrent: [&[bool]; 2] = [&[true, false, true], &[true, true, false, true]];
    for ((name, sizes), recurrent) in MODELS.into_iter().zip(sizes).zip(recurrent) {
        let model = open_model(&folder(name)).unwrap();
        let config = model.config();
        assert_eq!((config.mamba, &config.recurrent[..]), (Some(sizes), recurrent), "{name}");
        assert_eq!(config.architecture, "granitehybrid");
        let gguf = GgufModel::from_gguf(written(&*model)).unwrap();
        let ModelConfig { mamba, kv_head_count, ffn_size, experts, unrotated, .. } = gguf.config();
        assert_eq!((*mamba, &gguf.config().recurrent[..]), (Some(sizes), recurrent), "{name}");
        assert_eq!((*kv_head_count, *ffn_size), (config.kv_head_count, config.ffn_size), "{name}");
        assert_eq!((experts, unrotated), (&config.experts, &config.unrotated), "{name}");
    }
}

/// The names, types and keys that llama.cpp reads.
#[test]
fn converted_files_are_as_those_of_other_programs() {
    for name in MODELS {
        let model = open_model(&folder(name)).unwrap();
        let gguf = written(&*model);
        let (mamba, metadata) = (model.config().mamba.unwrap(), gguf.metadata());
        let number = |key: &str| metadata.u32(&format!("granitehybrid.{key}")).unwrap().map(|n| n as usize);
        assert_eq!(number("ssm.conv_kernel"), Some(mamba.taps));
        assert_eq!(number("ssm.state_size"), Some(mamba.state_size));
        assert_eq!(number("ssm.group_count"), Some(mamba.groups));
        assert_eq!(number("ssm.time_step_rank"), Some(mamba.heads));
        assert_eq!(number("ssm.inner_size"), Some(mamba.inner()));
        let counts = metadata.i32s("granitehybrid.attention.head_count_kv").unwrap().unwrap();
        let is_zero: Vec<bool> = counts.iter().map(|count| *count == 0).collect();
        assert_eq!(is_zero, model.config().recurrent);
        assert_eq!(metadata.bool("granitehybrid.rope.scaling.finetuned").unwrap(), Some(false));
        for (part, dtype) in [
            ("ssm_a", DType::F32),
            ("ssm_d", DType::F32),
            ("ssm_dt.bias", DType::F32),
            ("ssm_conv1d.weight", DType::F32),
            ("ssm_conv1d.bias", DType::F32),
            ("ssm_norm.weight", DType::F32),
        ] {
            assert_eq!(gguf.tensor(&format!("blk.0.{part}")).unwrap().dtype, dtype, "{name} {part}");
        }
        assert_eq!(gguf.tensor("blk.0.ssm_a").unwrap().shape, [mamba.heads, 1]);
        let norm = &gguf.tensor("blk.0.ssm_norm.weight").unwrap().shape;
        let of_groups = [mamba.groups, mamba.inner() / mamba.groups];
        assert_eq!(norm[..], of_groups[usize::from(mamba.groups == 1)..]);
        assert_eq!(gguf.tensor("blk.0.ssm_in.weight").unwrap().shape[0], mamba.mixed());
        assert!(gguf.tensor("blk.0.ssm_a.weight").is_none());
        let shared = if name == MODELS[0] { "ffn_gate" } else { "ffn_gate_shexp" };
        assert!(gguf.tensor(&format!("blk.1.{shared}.weight")).is_some(), "{name}");
    }
}

#[test]
fn rates_are_negative_and_the_same_after_conversion() {
    for name in MODELS {
        let model = open_model(&folder(name)).unwrap();
        let gguf = GgufModel::from_gguf(written(&*model)).unwrap();
        let rates = floats(&*model, "blk.0.ssm_a.weight");
        assert!(rates.iter().all(|rate| *rate < 0.0 && rate.is_finite()), "{rates:?}");
        assert_eq!(rates, floats(&gguf, "blk.0.ssm_a.weight"), "{name}");
    }
}

/// What a folder with changed fields is refused with.
fn problem(name: &str, change: impl FnOnce(&mut Json)) -> String {
    let from = folder(name);
    let mut config: Json = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    let region = Region::from_vec(fs::read(from.join("model.safetensors")).unwrap());
    let opened = SafeTensorsModel::from_region(region, &config.to_string());
    opened.map(|model| format!("{:?}", model.config().mamba)).unwrap_or_else(|error| error.to_string())
}

#[test]
fn contradictions_are_reported() {
    let set = |key: &'static str, value: Json| problem(MODELS[1], |config| config[key] = value);
    for (key, value, part) in [
        ("mamba_d_head", json!(25), "6 heads of 25 are not 2 times the hidden size 72"),
        ("mamba_n_heads", json!(7), "7 heads of 24 are not 2 times"),
        ("mamba_n_groups", json!(4), "6 heads are not a multiple of 4 groups"),
        ("mamba_n_groups", json!(0), "out of range"),
        ("mamba_d_state", json!(0), "out of range"),
        ("mamba_d_state", json!(1_000_000_000_000_u64), "out of range"),
        ("mamba_d_conv", json!(1), "a convolution over 1 positions"),
        ("mamba_d_conv", json!(9), "a convolution over 9 positions"),
        ("mamba_proj_bias", json!(true), "mamba_proj_bias"),
        ("time_step_limit", json!([0.001, 0.1]), "time_step_limit"),
        ("time_step_limit", json!([0.0, "abc"]), "time_step_limit"),
        ("time_step_limit", json!(0.0), "time_step_limit"),
        ("time_step_limit", json!([0.0, {"__float__": "Infinity"}]), "head_dim: 24"),
        ("layer_types", json!(["mamba"]), "it has 1 entries for 4 layers"),
        ("layer_types", json!(["mamba", "mamba", "rwkv", "mamba"]), "asks for rwkv layers"),
    ] {
        let found = set(key, value.clone());
        assert!(found.contains(part), "{key} {value}: {found}");
    }
    let found = set("mamba_d_head", json!("auto"));
    assert!(found.contains("head_dim: 24"), "{found}");
}

#[test]
fn contradictions_of_keys_are_reported() {
    let model = open_model(&folder(MODELS[0])).unwrap();
    let gguf = written(&*model);
    let open = |key: &str, value: Value| {
        let mut metadata = Metadata::default();
        for (key, value) in gguf.metadata().iter() {
            metadata.insert(key, value.clone());
        }
        metadata.insert(format!("granitehybrid.{key}"), value);
        let all = gguf.tensors().iter();
        let specs =
            all.map(|tensor| TensorSpec::new(tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
        let mut writer = GgufWriter::new(Vec::new(), &metadata, specs.collect()).unwrap();
        for tensor in gguf.tensors() {
            writer.tensor(|out| out.write_all(gguf.tensor_bytes(tensor))).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let opened = Gguf::from_region(Region::from_vec(bytes)).and_then(GgufModel::from_gguf);
        opened.map(|_| "opened".to_string()).unwrap_or_else(|error| error.to_string())
    };
    let counts = |counts: [i32; 3]| Value::Array(Array::I32(counts.to_vec()));
    for (key, value, part) in [
        ("attention.head_count_kv", counts([0, 2, 0]), "opened"),
        ("attention.head_count_kv", counts([1, 2, 0]), "differs from layer to layer"),
        ("attention.head_count_kv", counts([0, -2, 0]), "out of range"),
        ("attention.head_count_kv", Value::Array(Array::I32(vec![0, 2])), "it has 2 entries for 3 layers"),
        ("ssm.inner_size", Value::U32(129), "129 elements of 8 heads"),
        ("ssm.time_step_rank", Value::U32(0), "elements of 0 heads"),
        ("ssm.group_count", Value::U32(3), "8 heads are not a multiple of 3 groups"),
        ("ssm.conv_kernel", Value::U32(u32::MAX), "out of range"),
    ] {
        let found = open(key, value.clone());
        assert!(found.contains(part), "{key} {value:?}: {found}");
    }
}

//! Matrices of all experts in one tensor, as gpt-oss has them: floats with inputs outermost, and MXFP4.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{
    GgufModel, RopeScaling, SafeTensorsModel, WeightProvider, Window, WindowPattern, open_model,
};
use akunu_format::quantise::Mix;
use akunu_format::{DType, Gguf, Region, Value as Key};
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn convert(model: &dyn WeightProvider, mix: &str) -> GgufModel {
    let options =
        ConvertOptions { mix: Mix::find(mix).unwrap(), pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(model, &options).unwrap();
    let bytes = conversion.write(Vec::new(), 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
    GgufModel::from_gguf(Gguf::from_region(Region::from_vec(bytes)).unwrap()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Rows of blocks as the `gguf` package makes them, in the folder and in a file that is converted from it.
#[test]
fn mxfp4_of_transformers_becomes_the_blocks_of_gguf() {
    let model = open_model(&folder("quantised/gpt-oss-mxfp4")).unwrap();
    let table = std::fs::read(folder("quantised/gpt-oss-mxfp4").join("blocks.json")).unwrap();
    let table: Value = serde_json::from_slice(&table).unwrap();
    let converted = convert(&*model, "MXFP4_MOE");
    let mut checked = 0;
    for (name, rows) in table["rows"].as_object().unwrap() {
        for model in [&*model, &converted] {
            let tensor = model.tensor(name).unwrap();
            assert_eq!(tensor.dtype, DType::MXFP4);
            let row_bytes = tensor.dtype.row_bytes(tensor.cols()).unwrap();
            for (row, expected) in rows.as_object().unwrap() {
                let from = row.parse::<usize>().unwrap() * row_bytes;
                let found = &model.tensor_bytes(tensor)[from..from + row_bytes];
                assert_eq!(hex(found), expected.as_str().unwrap(), "{name}, row {row}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 2 * 3 * 4 * 3);
    assert_eq!(model.config().packed_as, Some("MXFP4"));
}

#[test]
fn a_mix_for_experts_keeps_mxfp4_for_them_alone() {
    let model = open_model(&folder("models/gpt-oss")).unwrap();
    let converted = convert(&*model, "MXFP4_MOE");
    let dtype = |name: &str| converted.tensor(name).unwrap().dtype;
    // Its experts have 24 inputs in the second product, which are not whole blocks.
    assert_eq!(
        (dtype("blk.0.ffn_gate_exps.weight"), dtype("blk.0.ffn_down_exps.weight")),
        (DType::MXFP4, DType::F16)
    );
    for name in ["blk.1.attn_q.weight", "token_embd.weight", "output.weight"] {
        assert_eq!(dtype(name), DType::Q8_0, "{name}");
    }
    for name in ["blk.1.attn_sinks.weight", "blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_exps.bias"] {
        assert_eq!(dtype(name), DType::F32, "{name}");
    }
    assert_eq!(converted.gguf().metadata().u32("general.file_type").unwrap(), Some(38));
}

/// A checkpoint in memory, of two experts with 32 inputs and outputs.
struct Checkpoint {
    config: Value,
    tensors: Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>,
}

const SETTINGS: &str = "quantization_config";
const GATE_UP: &str = "model.layers.0.mlp.experts.gate_up_proj";

fn checkpoint(tensors: Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>) -> Checkpoint {
    let config = json!({
        "model_type": "gpt_oss", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1,
    });
    let embedding = ("model.embed_tokens.weight", "F32", vec![5, 32], vec![0; 5 * 32 * 4]);
    Checkpoint { config, tensors: [embedding].into_iter().chain(tensors).collect() }
}

impl Checkpoint {
    fn set(mut self, key: &str, value: Value) -> Checkpoint {
        self.config[key] = value;
        self
    }

    fn open(&self) -> Result<SafeTensorsModel, String> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
        for (name, dtype, shape, bytes) in &self.tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(
                (*name).to_string(),
                json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
            );
            data.extend(bytes);
        }
        let header = serde_json::to_string(&header).unwrap();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        let model = SafeTensorsModel::from_region(Region::from_vec(file), &self.config.to_string());
        model.map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(&self, expected: &str) {
        let error = self.open().unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

fn f32s(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

/// The number says where it is: expert, input, and its place in the row of gates and ups.
#[test]
fn gates_and_ups_alternate_and_inputs_are_outermost() {
    let (experts, inputs, outputs) = (2, 32, 35);
    let number = |expert: usize, input: usize, place: usize| (expert * 10_000 + input * 100 + place) as f32;
    let all = (0..experts).flat_map(|e| (0..inputs).map(move |i| (e, i)));
    let all = all.flat_map(|(e, i)| (0..2 * outputs).map(move |place| number(e, i, place)));
    let bias = (0..experts).flat_map(|e| (0..2 * outputs).map(move |place| number(e, 0, place)));
    let model = checkpoint(vec![
        (GATE_UP, "F32", vec![experts, inputs, 2 * outputs], f32s(all)),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", "F32", vec![experts, 2 * outputs], f32s(bias)),
    ]);
    let model = model.open().unwrap();
    let values = |name: &str| -> Vec<f32> {
        let bytes = model.tensor_bytes(model.tensor(name).unwrap());
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    for (part, first) in [("gate", 0), ("up", 1)] {
        let (name, bias) = (format!("blk.0.ffn_{part}_exps.weight"), format!("blk.0.ffn_{part}_exps.bias"));
        assert_eq!(model.tensor(&name).unwrap().shape, [experts, outputs, inputs]);
        assert_eq!(model.tensor(&bias).unwrap().shape, [experts, outputs]);
        let (matrices, biases) = (values(&name), values(&bias));
        for (at, value) in matrices.into_iter().enumerate() {
            let (row, input) = (at / inputs, at % inputs);
            let (expert, output) = (row / outputs, row % outputs);
            assert_eq!(value, number(expert, input, 2 * output + first), "{name}: {at}");
            assert_eq!(biases[row], number(expert, 0, 2 * output + first), "{bias}: {row}");
        }
    }
}

#[test]
fn stacks_of_other_shapes_are_refused() {
    let one = |shape: &[usize]| {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        checkpoint(vec![(GATE_UP, "F32", shape.to_vec(), bytes)])
    };
    one(&[2, 64])
        .refused("gate_up_proj: it is F32 of the shape [2, 64], and should be [experts, inputs, outputs]");
    one(&[2, 32, 63]).refused("its 63 outputs should be those of 2 matrices");
    let bias = "model.layers.0.mlp.experts.gate_up_proj_bias";
    checkpoint(vec![(bias, "F32", vec![2, 1, 64], vec![0; 512])])
        .refused("gate_up_proj_bias: it is F32 of the shape [2, 1, 64], and should be [experts, outputs]");
}

fn packed(codes: &[usize], scales: &[usize]) -> Checkpoint {
    let zeros = |shape: &[usize]| vec![0; shape.iter().product()];
    checkpoint(vec![
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", codes.to_vec(), zeros(codes)),
        ("model.layers.0.mlp.experts.gate_up_proj_scales", "U8", scales.to_vec(), zeros(scales)),
    ])
    .set(SETTINGS, json!({"quant_method": "mxfp4"}))
}

#[test]
fn damaged_mxfp4_is_refused_by_the_name_of_the_tensor() {
    let whole = packed(&[2, 64, 1, 16], &[2, 64, 1]).open().unwrap();
    let tensor = whole.tensor("blk.0.ffn_up_exps.weight").unwrap();
    assert_eq!((tensor.dtype, &tensor.shape[..]), (DType::MXFP4, &[2, 32, 32][..]));

    packed(&[2, 64, 1, 16], &[2, 64, 2])
        .refused("gate_up_proj_blocks: the shape of its scales is [2, 64, 2], and should be [2, 64, 1]");
    packed(&[2, 64, 16], &[2, 64])
        .refused("its shape is [2, 64, 16], and should be [experts, outputs, blocks, 16]");
    packed(&[2, 64, 1, 8], &[2, 64, 1]).refused("should be [experts, outputs, blocks, 16]");
    packed(&[2, 63, 1, 16], &[2, 63, 1]).refused("its 63 outputs should be those of 2 matrices");
    for (gone, missing) in [(1, "gate_up_proj_blocks"), (2, "gate_up_proj_scales")] {
        let mut without = packed(&[2, 64, 1, 16], &[2, 64, 1]);
        without.tensors.remove(gone);
        without.refused(missing);
    }
    let mut floats = packed(&[2, 64, 1, 16], &[2, 64, 1]);
    (floats.tensors[2].1, floats.tensors[2].3) = ("F32", vec![0; 512]);
    floats.refused("its scales are F32, and should be U8");
    let mut other = packed(&[2, 64, 1, 16], &[2, 64, 1]);
    other.tensors[1].0 = "model.layers.0.self_attn.q_proj_blocks";
    other.tensors[2].0 = "model.layers.0.self_attn.q_proj_scales";
    other.refused("only matrices of experts can be MXFP4");
    // Without its settings, and in a family that has no such experts.
    let mut unsaid = packed(&[2, 64, 1, 16], &[2, 64, 1]);
    unsaid.config.as_object_mut().unwrap().remove(SETTINGS);
    unsaid.refused("U8");
    packed(&[2, 64, 1, 16], &[2, 64, 1])
        .set("model_type", json!("llama"))
        .refused("asks for MXFP4 in a family");
}

#[test]
fn settings_that_would_change_the_computation_are_refused() {
    let refused = |key: &str, value: Value, expected: &str| {
        checkpoint(vec![]).set(key, value).refused(expected);
    };
    refused("swiglu_limit", json!(5.5), "`swiglu_limit` is 5.5 (and not 7), which is not supported");
    refused("hidden_act", json!("gelu"), "`hidden_act` is gelu (and not silu), which is not supported");
    refused("num_local_experts", json!(1025), "at most 1024 experts are supported");
}

#[test]
fn absent_settings_are_those_of_published_models() {
    let config = checkpoint(vec![]).open().unwrap().config().clone();
    assert_eq!((config.rope.base, config.context_length), (150_000.0, 131_072));
    let yarn = RopeScaling::Yarn {
        factor: 32.0,
        original_context: 4096,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        exact_ramp: true,
    };
    assert_eq!(config.rope.scaling, yarn);
    assert_eq!(config.window, Some(Window { size: 128, pattern: WindowPattern::FullEvery(2) }));
    let experts = config.experts.unwrap();
    assert!(experts.normalised && (experts.count, experts.used, experts.ffn_size) == (2, 1, 32));
}

/// Files of other converters state neither which layers have a window nor that the ramp of YaRN is exact.
#[test]
fn keys_that_gguf_files_leave_out_are_those_of_the_family() {
    let model = open_model(&folder("models/gpt-oss")).unwrap();
    let converted = convert(&*model, "F32");
    let metadata = converted.gguf().metadata();
    assert_eq!(metadata.get("gpt-oss.rope.scaling.yarn_exact_ramp"), None);
    assert_eq!(metadata.get("gpt-oss.expert_weights_norm"), None);
    assert_eq!(metadata.get("gpt-oss.expert_feed_forward_length"), Some(&Key::U32(24)));
    assert_eq!(metadata.get("gpt-oss.rope.scaling.original_context_length"), Some(&Key::U32(1024)));
    assert_eq!(metadata.get("gpt-oss.attention.sliding_window"), Some(&Key::U32(8)));
    for name in ["blk.0.attn_sinks.weight", "blk.0.post_attention_norm.weight", "blk.1.ffn_down_exps.bias"] {
        assert!(converted.tensor(name).is_some(), "{name}");
    }
}

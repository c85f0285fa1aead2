//! Folders with quantised matrices of experts, one by one: joined, compared with what the libraries that packed them
//! unpack, converted, and refused where a matrix is damaged.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{GgufModel, SafeTensorsModel, WeightProvider, open_model};
use akunu_format::blocks::dequantize_nth;
use akunu_format::quantise::Mix;
use akunu_format::{Gguf, Region};
use serde_json::{Value, json};

fn checked_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised").join(name)
}

/// Each with the type of its experts.
const FOLDERS: [(&str, &str); 6] = [
    // One block is a whole matrix.
    ("experts-fp8-deepseek", "FP8_ROW"),
    ("experts-fp8-minimax", "FP8_G128"),
    ("experts-fp8-llama4", "FP8_ROW"),
    ("experts-awq-qwen3", "MLX4_G32_F32"),
    ("experts-gptq-mixtral", "MLX4_G32_F16"),
    ("experts-integers-kimi", "MLX4_G32_BF16"),
];

/// Endings of modules, with the names of the tensors here.
const NAMES: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("shared_experts.gate_proj", "ffn_gate_shexp"),
    ("shared_experts.up_proj", "ffn_up_shexp"),
    ("shared_experts.down_proj", "ffn_down_shexp"),
    ("shared_expert.gate_proj", "ffn_gate_shexp"),
    ("shared_expert.up_proj", "ffn_up_shexp"),
    ("shared_expert.down_proj", "ffn_down_shexp"),
    (".gate_proj", "ffn_gate_exps"),
    (".up_proj", "ffn_up_exps"),
    (".down_proj", "ffn_down_exps"),
    (".w1", "ffn_gate_exps"),
    (".w3", "ffn_up_exps"),
    (".w2", "ffn_down_exps"),
];

/// The name of a packed matrix here, and its expert.
fn canonical(theirs: &str) -> (String, usize) {
    let module =
        theirs.strip_prefix("model.layers.0.").and_then(|rest| rest.strip_suffix(".weight")).unwrap();
    let ours = NAMES.iter().find(|(ending, _)| module.ends_with(ending)).unwrap().1;
    let expert = module.split_once(".experts.").map_or("0", |(_, rest)| rest.split('.').next().unwrap());
    (format!("blk.0.{ours}.weight"), expert.parse().unwrap())
}

/// The rows of a tensor as f32.
fn rows(model: &dyn WeightProvider, name: &str) -> Vec<Vec<f32>> {
    let tensor = model.tensor(name).unwrap();
    let planes = model.plane_bytes(tensor);
    let row = |index| {
        let mut row = vec![0.0; tensor.cols()];
        dequantize_nth(tensor.dtype, planes, index, &mut row).unwrap();
        row
    };
    (0..tensor.rows()).map(row).collect()
}

/// The matrix of an expert, or of the layer.
fn matrix(model: &dyn WeightProvider, name: &str, expert: usize) -> Vec<Vec<f32>> {
    let outputs = match model.tensor(name).unwrap().shape[..] {
        [_, outputs, _] => outputs,
        ref shape => shape[0],
    };
    rows(model, name)[expert * outputs..][..outputs].to_vec()
}

/// The matrix of keys and values, of what it was taken apart into.
fn keys_values(model: &dyn WeightProvider) -> Vec<Vec<f32>> {
    let latent = model.config().latent.unwrap();
    let (keys, values) = (rows(model, "blk.0.attn_k_b.weight"), rows(model, "blk.0.attn_v_b.weight"));
    let heads = keys.chunks_exact(latent.size).zip(values.chunks_exact(latent.values));
    heads
        .flat_map(|(keys, values)| {
            let column = |at: usize| keys.iter().map(|row| row[at]).collect::<Vec<f32>>();
            (0..latent.plain).map(column).chain(values.iter().cloned()).collect::<Vec<_>>()
        })
        .collect()
}

fn hash(rows: &[Vec<f32>]) -> String {
    let bytes = rows.iter().flatten().flat_map(|value| value.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn golden(folder: &str) -> serde_json::Map<String, Value> {
    let file = std::fs::read(checked_in(folder).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&file).unwrap();
    golden["weights"].as_object().unwrap().clone()
}

/// Compares all packed matrices with those that the libraries unpack.
fn unpacks(folder: &str, model: &dyn WeightProvider) {
    let weights = golden(folder);
    let experts = weights.keys().filter(|name| name.contains(".experts.")).count();
    assert_eq!(experts, 3 * model.config().experts.unwrap().count, "{folder}");
    for (theirs, expected) in &weights {
        let found = if theirs.contains("kv_b_proj") {
            hash(&keys_values(model))
        } else {
            let (ours, expert) = canonical(theirs);
            hash(&matrix(model, &ours, expert))
        };
        assert_eq!(found, expected.as_str().unwrap(), "{folder}: {theirs}");
    }
}

#[test]
fn experts_unpack_to_the_bits_of_their_libraries() {
    for (folder, dtype) in FOLDERS {
        let model = open_model(&checked_in(folder)).unwrap();
        for name in ["gate", "up", "down"] {
            let tensor = model.tensor(&format!("blk.0.ffn_{name}_exps.weight")).unwrap();
            assert_eq!((tensor.dtype.name(), tensor.shape.len()), (dtype, 3), "{folder}");
            // Nothing is copied before it is read.
            for place in tensor.places() {
                let region = format!("{:?}", model.regions()[place.region]);
                assert!(region.starts_with("Region(derived"), "{folder}: {region}");
            }
        }
        unpacks(folder, &*model);
    }
}

#[test]
fn converted_experts_are_the_same_numbers() {
    for (folder, _) in FOLDERS {
        let model = open_model(&checked_in(folder)).unwrap();
        let recipe =
            ConvertOptions { mix: Mix::find("F32").unwrap(), pure: true, vocabulary: None, imatrix: None };
        let conversion = Conversion::new(&*model, &recipe).unwrap();
        let bytes = conversion.write(Vec::new(), 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let gguf = GgufModel::from_gguf(Gguf::from_region(Region::from_vec(bytes)).unwrap()).unwrap();
        for name in
            ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].map(|part| format!("blk.0.{part}.weight"))
        {
            assert_eq!(rows(&gguf, &name), rows(&*model, &name), "{folder}: {name}");
        }
        if model.config().latent.is_some() {
            assert!(keys_values(&gguf) == keys_values(&*model), "{folder}");
        }
    }
}

/// A folder in memory.
struct Folder {
    config: Value,
    tensors: Vec<(String, String, Vec<usize>, Vec<u8>)>,
}

impl Folder {
    fn read(name: &str) -> Folder {
        let config = std::fs::read(checked_in(name).join("config.json")).unwrap();
        let file = std::fs::read(checked_in(name).join("model.safetensors")).unwrap();
        let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
        let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let tensors = tensors.map(|(name, info)| {
            let shape = info["shape"].as_array().unwrap().iter().map(number).collect();
            let [from, to] = [0, 1].map(|end| start + number(&info["data_offsets"][end]));
            (name.clone(), info["dtype"].as_str().unwrap().to_string(), shape, file[from..to].to_vec())
        });
        Folder { config: serde_json::from_slice(&config).unwrap(), tensors: tensors.collect() }
    }

    /// The only tensor whose name ends so.
    fn tensor(&mut self, ending: &str) -> &mut (String, String, Vec<usize>, Vec<u8>) {
        let mut found = self.tensors.iter_mut().filter(|tensor| tensor.0.ends_with(ending));
        let only = found.next().unwrap();
        assert!(found.next().is_none(), "{ending}");
        only
    }

    fn without(mut self, ending: &str) -> Folder {
        let name = self.tensor(ending).0.clone();
        self.tensors.retain(|tensor| tensor.0 != name);
        self
    }

    fn with(mut self, ending: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) -> Folder {
        let tensor = self.tensor(ending);
        (tensor.1, tensor.2, tensor.3) = (dtype.to_string(), shape.to_vec(), bytes);
        self
    }

    fn open(&self) -> Result<SafeTensorsModel, String> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
        for (name, dtype, shape, bytes) in &self.tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend(bytes);
        }
        let header = serde_json::to_string(&header).unwrap();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        let model = SafeTensorsModel::from_region(Region::from_vec(file), &self.config.to_string());
        model.map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(&self, expected: &[&str]) {
        let error = self.open().unwrap_err();
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_matrix_of_one_expert_that_is_damaged_is_named() {
    let read = || Folder::read("experts-fp8-minimax");
    let up = "block_sparse_moe.experts.1.w3";
    let scale = "experts.1.w3.weight_scale_inv";
    read().without(scale).refused(&[up, "its weight_scale is missing"]);
    read().without("experts.1.w3.weight").refused(&[up, "weight"]);
    read().with(scale, "F32", &[2, 2], f32s(&[1.0; 4])).refused(&[up, "the shape of its scales is [2, 2]"]);
    read().with(scale, "F32", &[1, 2], f32s(&[1.0, f32::NAN])).refused(&[up, "its scale 1 is NaN"]);
    read().with(scale, "F32", &[1, 2], f32s(&[f32::INFINITY, 1.0])).refused(&[up, "its scale 0 is inf"]);
    read().with(scale, "I32", &[1, 2], f32s(&[1.0, 1.0])).refused(&[up, "its scales are I32"]);
    // One that was left as it was, beside others that are packed.
    let plain = read().without(scale).with("experts.1.w3.weight", "BF16", &[8, 136], vec![0; 2 * 8 * 136]);
    plain.refused(&[up, "it is BF16 of the shape [8, 136]", "FP8_G128 of [8, 136]"]);
    // A scale for the whole matrix, where others have one for each block.
    let other = read().with(scale, "F32", &[1], f32s(&[1.0]));
    other.refused(&[up, "it is FP8_ROW of the shape [8, 136]", "FP8_G128 of [8, 136]"]);
    let small = read().with(scale, "F32", &[1, 2], f32s(&[1.0; 2]));
    let small = small.with("experts.1.w3.weight", "F8_E4M3", &[4, 136], vec![0; 4 * 136]);
    small.refused(&[up, "it is FP8_G128 of the shape [4, 136]"]);
    let missing = read().without(scale).without("experts.1.w3.weight");
    missing.refused(&["block_sparse_moe.experts.w3", "that of expert 1 is missing"]);
}

#[test]
fn packed_matrices_of_one_expert_that_are_damaged_are_named() {
    let read = || Folder::read("experts-gptq-mixtral");
    let up = "block_sparse_moe.experts.2.w3";
    read().without("experts.2.w3.scales").refused(&[up, "its scales are missing"]);
    read().without("experts.2.w3.qzeros").refused(&[up, "its qzeros are missing"]);
    let nan = read().with("experts.2.w3.scales", "F16", &[2, 32], [0, 0x7e].repeat(64));
    nan.refused(&[up, "is NaN: the file is damaged"]);
    let order: Vec<u8> = (0..64_i32).flat_map(|input| (input % 2).to_le_bytes()).collect();
    read().with("experts.2.w3.g_idx", "I32", &[64], order).refused(&[up, "desc_act"]);
    let read = || Folder::read("experts-integers-kimi");
    let up = "mlp.experts.2.up_proj";
    read().without("experts.2.up_proj.weight_scale").refused(&[up, "its weight_scale is missing"]);
    read().without("experts.2.up_proj.weight_packed").refused(&[up, "weight_packed"]);
}

/// Where offsets of some experts are exact in F16 and those of others are not, all scales become F32.
#[test]
fn scales_of_experts_are_of_the_widest_type() {
    let mut folder = Folder::read("experts-gptq-mixtral");
    let before = folder.open().unwrap();
    // The zero points of expert 1 become 6, which are stored less one, of 8.
    folder.tensor("experts.1.w3.qzeros").3.fill(0x55);
    let scales = &mut folder.tensor("experts.1.w3.scales").3;
    let scales: Vec<f32> =
        scales.as_chunks::<2>().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect();
    let after = folder.open().unwrap();
    let name = "blk.0.ffn_up_exps.weight";
    let dtype = |model: &SafeTensorsModel| model.tensor(name).unwrap().dtype.name();
    assert_eq!((dtype(&before), dtype(&after)), ("MLX4_G32_F16", "MLX4_G32_F32"));
    // Gate and up are alike.
    assert_eq!(after.tensor("blk.0.ffn_gate_exps.weight").unwrap().dtype.name(), "MLX4_G32_F32");
    for expert in [0, 2] {
        assert_eq!(matrix(&before, name, expert), matrix(&after, name, expert));
    }
    let (before, after) = (matrix(&before, name, 1), matrix(&after, name, 1));
    for (output, (before, after)) in before.iter().zip(&after).enumerate() {
        for (input, (before, after)) in before.iter().zip(after).enumerate() {
            assert_eq!(before + 2.0 * scales[input / 32 * 32 + output], *after, "{output}, {input}");
        }
    }
}

/// Where all keys of a head have one scale for an input, they keep their codes.
#[test]
fn keys_of_latent_attention_stay_fp8_where_a_row_has_one_scale() {
    let read = || Folder::read("experts-fp8-deepseek");
    let codes = read().tensor("kv_b_proj.weight").3.clone();
    let dtype = |model: &SafeTensorsModel| model.tensor("blk.0.attn_k_b.weight").unwrap().dtype.name();
    assert_eq!(dtype(&read().open().unwrap()), "F32");
    let cases: [(&[usize], &[f32]); 3] =
        [(&[1], &[0.375]), (&[2, 2], &[0.375, 0.1, 0.375, 0.1]), (&[2, 2], &[0.375, 0.1, 0.5, 0.1])];
    for (shape, scales) in cases {
        let model = read().with("kv_b_proj.weight_scale_inv", "F32", shape, f32s(scales)).open().unwrap();
        let expected = if scales.contains(&0.5) { "F32" } else { "FP8_ROW" };
        assert_eq!(dtype(&model), expected);
        let scale = |row: usize, col: usize| scales[(row / 128 * 2 + col / 128).min(scales.len() - 1)];
        let value =
            |row: usize, col: usize| akunu_format::e4m3_to_f32(codes[row * 152 + col]) * scale(row, col);
        let plain: Vec<Vec<f32>> =
            (0..160).map(|row| (0..152).map(|col| value(row, col)).collect()).collect();
        assert!(keys_values(&model) == plain, "{shape:?} {scales:?}");
    }
}

//! MLX folders: blocks compared with MLX's own dequantisation, and what is rejected.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};

use akunu_arch::{SafeTensorsModel, WeightProvider, open_model};
use akunu_format::blocks::{dequantize_nth, dequantize_planes};
use akunu_format::{Affine, DType, Region, ScaleType};
use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::{Value, json};

fn checked_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mlx").join(name)
}

fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn scale_type(name: &str) -> ScaleType {
    ScaleType::ALL.into_iter().find(|t| format!("{t:?}") == name).unwrap()
}

#[test]
fn every_type_dequantises_as_mlx_does() {
    let file = std::fs::read(checked_in("blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let golden: Value = serde_json::from_slice(&std::fs::read(checked_in("blocks.json")).unwrap()).unwrap();
    let golden = golden.as_array().unwrap();
    assert_eq!(golden.len(), Affine::all().count());
    for expected in golden {
        let size = |key: &str| expected[key].as_u64().unwrap() as usize;
        let scales = expected["scales"].as_str().unwrap();
        let affine = Affine::new(size("bits"), size("group"), scale_type(scales)).unwrap();
        let key = format!("{}.{}.{scales}", affine.bits(), affine.group());
        let planes = ["weight", "scales", "biases"]
            .map(|plane| tensors.tensor(&format!("{key}.{plane}")).unwrap().data());
        let mut values = vec![0.0f32; 2 * 384];
        for (row, values) in values.chunks_exact_mut(384).enumerate() {
            dequantize_nth(DType::Affine(affine), planes, row, values).unwrap();
        }
        // f32s as decimals: the parser may be off by the last bit of an f64.
        let golden = expected["first"].as_array().unwrap().iter();
        let golden: Vec<f32> = golden.map(|v| v.as_f64().unwrap() as f32).collect();
        assert_eq!(values[..4], golden, "{key}");
        let hash = format!("{:016x}", fnv(values.iter().flat_map(|v| v.to_le_bytes())));
        assert_eq!(hash, expected["hash"].as_str().unwrap(), "{key}");
    }
}

#[test]
fn a_folder_opens_with_each_module_as_the_configuration_has_it() {
    let model = open_model(&checked_in("llama-mixed")).unwrap();
    let dtype = |name: &str| model.tensor(name).unwrap().dtype;
    let affine = |bits, group| DType::Affine(Affine::new(bits, group, ScaleType::BF16).unwrap());
    for (name, expected) in [
        ("token_embd.weight", affine(6, 64)),
        ("output.weight", affine(8, 32)),
        ("blk.0.attn_q.weight", affine(4, 32)),
        ("blk.0.attn_v.weight", affine(6, 32)),
        ("blk.0.ffn_down.weight", affine(5, 128)),
        ("blk.1.attn_output.weight", affine(3, 64)),
        ("blk.1.ffn_gate.weight", affine(8, 64)),
        ("blk.1.ffn_up.weight", affine(2, 32)),
        ("blk.1.attn_q.weight", DType::BF16),
        ("blk.0.attn_norm.weight", DType::BF16),
    ] {
        assert_eq!(dtype(name), expected, "{name}");
    }
    let down = model.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.shape.as_slice(), down.stored_bytes()), ([64, 128].as_slice(), 64 * (80 + 2 + 2)));
    assert_eq!(model.config().vocab_size, 32);
}

#[test]
fn weights_stay_where_the_mapping_put_them() {
    for folder in ["llama-mixed", "gemma3-tied", "phi3-stacked"] {
        let folder = checked_in(folder);
        let model = open_model(&folder).unwrap();
        let file = std::fs::metadata(folder.join("model.safetensors")).unwrap().len() as usize;
        assert_eq!(model.regions().len(), 1);
        let region = model.regions()[0].bytes();
        assert_eq!(region.len(), file);
        // Every byte after the header belongs to one tensor.
        let header = 8 + u64::from_le_bytes(region[..8].try_into().unwrap()) as usize;
        let stored: usize = model.tensors().iter().map(|tensor| tensor.stored_bytes()).sum();
        assert_eq!(header + stored, file);
        for tensor in model.tensors() {
            for (plane, place) in model.plane_bytes(tensor).iter().zip(tensor.places()) {
                assert_eq!(plane.as_ptr().addr(), region.as_ptr().addr() + place.offset);
            }
            if let DType::Affine(affine) = tensor.dtype {
                let mut row = vec![0.0; tensor.cols()];
                dequantize_nth(tensor.dtype, model.plane_bytes(tensor), tensor.rows() - 1, &mut row).unwrap();
                assert!(row.iter().all(|v| v.is_finite() && v.abs() < 4.0), "{}", tensor.name);
                assert!(dequantize_planes(affine, model.plane_bytes(tensor), &mut row).is_err());
            }
        }
    }
}

#[test]
fn unaligned_data_opens() {
    // MLX does not pad headers; this one gets every possible alignment.
    for padding in 0..4 {
        let (bytes, config) = Fake::default().file(padding);
        assert!(SafeTensorsModel::from_region(Region::from_vec(bytes), &config).is_ok());
    }
}

/// A model with a single matrix, the embedding: 4 rows of 128 weights of 4 bits in groups of 64.
struct Fake {
    tensors: Vec<(&'static str, &'static str, Vec<usize>)>,
    quantization: Value,
}

impl Default for Fake {
    fn default() -> Fake {
        Fake {
            tensors: vec![
                ("model.embed_tokens.weight", "U32", vec![4, 16]),
                ("model.embed_tokens.scales", "F16", vec![4, 2]),
                ("model.embed_tokens.biases", "F16", vec![4, 2]),
                ("model.norm.weight", "F16", vec![128]),
            ],
            quantization: json!({"bits": 4, "group_size": 64}),
        }
    }
}

impl Fake {
    fn file(&self, padding: usize) -> (Vec<u8>, String) {
        let mut header = serde_json::Map::new();
        let mut end = 0usize;
        for (name, dtype, shape) in &self.tensors {
            let start = end;
            let size = match *dtype {
                "U32" | "F32" => 4,
                "U8" => 1,
                _ => 2,
            };
            end += shape.iter().fold(size, |all, n| usize::saturating_mul(all, *n)).min(1 << 20);
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert((*name).to_string(), entry);
        }
        let header = serde_json::to_string(&header).unwrap() + &" ".repeat(padding);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + end, 0);
        let config = json!({
            "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 1,
            "intermediate_size": 128, "quantization": self.quantization,
        });
        (bytes, config.to_string())
    }

    fn open(&self) -> Result<SafeTensorsModel, String> {
        let (bytes, config) = self.file(0);
        SafeTensorsModel::from_region(Region::from_vec(bytes), &config).map_err(|error| error.to_string())
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Fake), expected: &str) {
    let mut fake = Fake::default();
    change(&mut fake);
    assert_eq!(fake.open().unwrap_err(), expected);
}

const TENSOR: &str = "tensor model.embed_tokens.weight: ";

#[test]
fn other_modes_bits_and_groups_are_refused_by_the_tensor() {
    assert!(Fake::default().open().is_ok());
    for mode in ["mxfp4", "mxfp8", "nvfp4"] {
        refused(
            |fake| fake.quantization["mode"] = json!(mode),
            &format!(
                "{TENSOR}it is quantised in the mode {mode}, but only affine is supported: take a GGUF file of the model"
            ),
        );
    }
    for (bits, group) in [(7, 64), (4, 16), (0, 0), (1u64 << 40, 64), (4, 256)] {
        refused(
            |fake| fake.quantization = json!({"bits": bits, "group_size": group}),
            &format!(
                "{TENSOR}{bits} bits in groups of {group}: only 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128 are supported"
            ),
        );
    }
    let own = |value: Value| move |fake: &mut Fake| fake.quantization["model.embed_tokens"] = value;
    refused(
        own(json!({"bits": 9})),
        &format!(
            "{TENSOR}9 bits in groups of 64: only 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128 are supported"
        ),
    );
    refused(
        own(json!({"mode": "mxfp4"})),
        &format!(
            "{TENSOR}it is quantised in the mode mxfp4, but only affine is supported: take a GGUF file of the model"
        ),
    );
    refused(
        own(json!(false)),
        &format!("{TENSOR}it is stored as quantised, but config.json says that it is not"),
    );
    refused(own(json!(3)), "key `quantization.model.embed_tokens` should be an object, but is 3");
    refused(
        |fake| fake.quantization = json!({"bits": 4}),
        "`quantization.group_size` is missing from the config.json: take the config.json that was published with the weights",
    );
    refused(
        |fake| fake.quantization = json!({"bits": "four", "group_size": 64}),
        "key `quantization.bits` should be a whole number, but is a string",
    );
    refused(
        |fake| fake.quantization = Value::Null,
        &format!(
            "{TENSOR}it is packed (U32), but config.json has no `quantization` or `quantization_config`"
        ),
    );
}

#[test]
fn planes_that_are_missing_or_disagree_are_refused_by_the_tensor() {
    let without = |i: usize| move |fake: &mut Fake| drop(fake.tensors.remove(i));
    refused(without(1), &format!("{TENSOR}it is quantised, but its scales are missing"));
    refused(without(2), &format!("{TENSOR}it is quantised, but its biases are missing"));
    refused(
        without(0),
        "tensor model.embed_tokens.weight is missing: this file cannot be run, convert the original model again",
    );
    refused(
        |fake| {
            fake.tensors.truncate(1);
            fake.tensors[0].1 = "F16";
            fake.quantization["model.embed_tokens"] = json!({"bits": 4, "group_size": 64});
        },
        &format!("{TENSOR}it is quantised, but its scales are missing"),
    );
    let dtype = |i: usize, dtype: &'static str| move |fake: &mut Fake| fake.tensors[i].1 = dtype;
    refused(
        dtype(0, "F16"),
        &format!("{TENSOR}it has scales and biases, but is F16: packed weights are U32"),
    );
    refused(dtype(1, "U8"), &format!("{TENSOR}its scales are U8: only F16, BF16 and F32 are supported"));
    refused(dtype(2, "F32"), &format!("{TENSOR}its scales are F16 and its biases F32"));
    let shape = |i: usize, shape: &'static [usize]| move |fake: &mut Fake| fake.tensors[i].2 = shape.to_vec();
    refused(shape(0, &[64]), &format!("{TENSOR}it should be a matrix, and its shape is [64]"));
    refused(shape(0, &[2, 2, 16]), &format!("{TENSOR}it should be a matrix, and its shape is [2, 2, 16]"));
    refused(
        shape(0, &[4, 12]),
        &format!("{TENSOR}rows of 12 words are not whole groups of 64 weights of 4 bits"),
    );
    refused(
        shape(1, &[4, 3]),
        &format!(
            "{TENSOR}the shape of its scales is [4, 3], but should be [4, 2] for rows of 16 words at 4 bits in groups of 64"
        ),
    );
    refused(
        shape(2, &[8]),
        &format!(
            "{TENSOR}the shape of its biases is [8], but should be [4, 2] for rows of 16 words at 4 bits in groups of 64"
        ),
    );
    // Fewer bits make longer rows, which contradict the sizes in the configuration.
    refused(
        |fake| fake.quantization["bits"] = json!(2),
        &format!(
            "{TENSOR}the shape of its scales is [4, 2], but should be [4, 4] for rows of 16 words at 2 bits in groups of 64"
        ),
    );
    refused(
        |fake| {
            fake.quantization["bits"] = json!(2);
            (fake.tensors[1].2, fake.tensors[2].2) = (vec![4, 4], vec![4, 4]);
        },
        "hidden size in the config.json: it is 128, but token_embd.weight has 256 columns",
    );
}

#[test]
fn other_quantisation_methods_are_rejected_by_name() {
    let (bytes, config) = Fake::default().file(0);
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["quantization"].take();
    config["quantization_config"] = json!({"quant_method": "bitsandbytes", "bits": 4, "group_size": 64});
    let open = |config: &Value| {
        let region = Region::from_vec(bytes.clone());
        SafeTensorsModel::from_region(region, &config.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(
        open(&config).unwrap_err(),
        "`quantization_config.quant_method` is bitsandbytes (take the original, or a GGUF file), which is not supported"
    );
    // MLX writes the same twice, also under Hugging Face's name: either is accepted.
    config["quantization_config"] = json!({"bits": 4, "group_size": 64});
    assert!(open(&config).is_ok());
}

proptest! {
    #[test]
    fn arbitrary_shapes_and_configurations_never_panic(
        shapes in prop::collection::vec(prop::collection::vec(prop_oneof![0usize..20, Just(usize::MAX / 7)], 0..4), 4),
        dtypes in prop::collection::vec(prop::sample::select(vec!["U32", "F16", "BF16", "F32", "U8"]), 4),
        bits in prop_oneof![0u64..10, Just(u64::MAX)],
        group in prop::sample::select(vec![0u64, 1, 32, 64, 128, u64::MAX]),
        own in prop::sample::select(vec![json!(null), json!(true), json!(false), json!([]), json!({"bits": 3})]),
    ) {
        let mut fake = Fake::default();
        for ((tensor, shape), dtype) in fake.tensors.iter_mut().zip(shapes).zip(dtypes) {
            (tensor.1, tensor.2) = (dtype, shape);
        }
        fake.quantization = json!({"bits": bits, "group_size": group, "model.embed_tokens": own});
        if let Ok(model) = fake.open() {
            for tensor in model.tensors() {
                prop_assert_eq!(tensor.stored_bytes(), tensor.rows() * tensor.dtype.row_bytes(tensor.cols()).unwrap());
            }
        }
    }
}

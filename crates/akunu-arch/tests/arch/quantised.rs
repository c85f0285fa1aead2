//! Folders of GPTQ, AWQ, FP8 and compressed-tensors: weights compared with what the libraries that packed them unpack.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{GgufModel, WeightProvider, open_model};
use akunu_format::blocks::dequantize_nth;
use akunu_format::quantise::Mix;
use akunu_format::{Affine, DType, Loading, ScaleType};
use serde_json::Value;

fn checked_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised").join(name)
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(checked_in(name).join("golden.json")).unwrap()).unwrap()
}

fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The matrices of the goldens, which have one layer.
const NAMES: [(&str, &str); 7] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

fn canonical(name: &str) -> String {
    let part = name.strip_prefix("model.layers.0.").and_then(|rest| rest.strip_suffix(".weight")).unwrap();
    let ours = NAMES.iter().find(|(theirs, _)| *theirs == part).unwrap().1;
    format!("blk.0.{ours}.weight")
}

fn hugging_face(name: &str) -> String {
    let part = name.strip_prefix("blk.0.").and_then(|rest| rest.strip_suffix(".weight")).unwrap();
    let theirs = NAMES.iter().find(|(_, ours)| *ours == part).unwrap().0;
    format!("model.layers.0.{theirs}.weight")
}

/// The hash of a tensor's weights as f32.
fn hash(model: &dyn WeightProvider, name: &str) -> String {
    let tensor = model.tensor(name).unwrap();
    let (planes, mut row) = (model.plane_bytes(tensor), vec![0.0f32; tensor.cols()]);
    let mut bytes = Vec::new();
    for index in 0..tensor.rows() {
        dequantize_nth(tensor.dtype, planes, index, &mut row).unwrap();
        tensor.restore_order(&mut row);
        bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
    }
    format!("{:016x}", fnv(bytes))
}

#[track_caller]
fn unpacks(name: &str) {
    let (model, golden) = (open_model(&checked_in(name)).unwrap(), golden(name));
    let weights = golden["weights"].as_object().unwrap();
    assert!(weights.len() >= 5, "{} packed matrices", weights.len());
    for (theirs, expected) in weights {
        let ours = canonical(theirs);
        assert!(model.tensor(&ours).unwrap().dtype.planes() > 1, "{ours} is not packed");
        assert_eq!(hash(&*model, &ours), expected.as_str().unwrap(), "{name}: {ours}");
    }
}

#[test]
fn gptq_unpacks_to_the_bits_of_its_libraries() {
    for name in ["gptq-asymmetric", "gptq-ordered", "gptq-v2", "gptq-2-bits", "gptq-3-bits", "gptq-8-bits"] {
        unpacks(name);
    }
}

#[test]
fn awq_unpacks_to_the_bits_of_its_library() {
    unpacks("awq");
}

#[test]
fn integers_of_compressed_tensors_unpack_to_the_bits_of_their_library() {
    for (folder, dtype) in [
        // Constant zero points, and such of their own: 8-bit ones are one group for a row.
        ("integers-4-bits", "MLX4_G64_BF16"),
        ("integers-asymmetric", "MLX4_G32_F32"),
        ("integers-8-bits", "MLX8_G64_BF16"),
    ] {
        unpacks(folder);
        let model = open_model(&checked_in(folder)).unwrap();
        assert_eq!(model.config().packed_as, Some("compressed-tensors"));
        let tensor = model.tensor("blk.0.attn_q.weight").unwrap();
        assert_eq!(tensor.dtype.name(), dtype);
        // Quants stay in the file.
        assert!(model.regions()[tensor.region].len() > 2 * tensor.bytes);
    }
}

#[test]
fn scales_keep_their_type_where_offsets_are_exact_in_it() {
    for (folder, bits, group, scales) in [
        // A constant zero point, a power of two; and zero points 1 and 2.
        ("gptq-3-bits", 3, 64, ScaleType::F16),
        ("gptq-2-bits", 2, 64, ScaleType::F16),
        ("gptq-asymmetric", 4, 32, ScaleType::F32),
        // One group for a row of 64.
        ("gptq-8-bits", 8, 64, ScaleType::F32),
        ("awq", 4, 64, ScaleType::F32),
    ] {
        let model = open_model(&checked_in(folder)).unwrap();
        let expected = DType::Affine(Affine::new(bits, group, scales).unwrap());
        assert_eq!(model.tensor("blk.0.attn_q.weight").unwrap().dtype, expected, "{folder}");
        assert_eq!(model.tensor("blk.0.attn_norm.weight").unwrap().dtype, DType::F16);
        assert_eq!(model.tensor("output.weight").unwrap().dtype, DType::F16);
    }
    // Rows of 96 are not whole groups of 64, so groups are repeated more finely.
    let model = open_model(&checked_in("gptq-8-bits")).unwrap();
    let down = model.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!(down.dtype, DType::Affine(Affine::new(8, 32, ScaleType::F32).unwrap()));
    assert_eq!(down.stored_bytes(), 64 * (96 + 3 * 8));
}

/// A GGUF file of the folder, in one type.
fn converted(folder: &str, mix: &str, file: &Path) -> GgufModel {
    let model = open_model(&checked_in(folder)).unwrap();
    let recipe = ConvertOptions { mix: Mix::find(mix).unwrap(), pure: true, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(&*model, &recipe).unwrap();
    let out = std::fs::File::create(file).unwrap();
    conversion.write(out, 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
    GgufModel::load(file, Loading::Map).unwrap()
}

#[test]
fn conversion_keeps_every_weight_where_the_type_can() {
    let dir = tempfile::tempdir().unwrap();
    for (folder, mix, exact) in [
        ("gptq-asymmetric", "Q5_0", true),
        ("gptq-asymmetric", "Q8_0", true),
        ("gptq-asymmetric", "Q4_0", false),
        ("gptq-v2", "Q5_0", true),
        ("gptq-2-bits", "Q4_0", true),
        ("gptq-3-bits", "Q4_0", true),
        ("awq", "Q5_0", true),
        ("integers-asymmetric", "Q5_0", true),
        // Columns of several groups are in a block.
        ("gptq-ordered", "Q8_0", false),
        ("gptq-ordered", "F32", true),
        ("fp8-block", "F32", true),
    ] {
        let gguf = converted(folder, mix, &dir.path().join(format!("{folder}-{mix}.gguf")));
        // Rows of Q and K are in another order in files of some families.
        for name in ["attn_v", "ffn_gate", "ffn_up", "ffn_down"].map(|part| format!("blk.0.{part}.weight")) {
            assert_eq!(gguf.tensor(&name).unwrap().dtype.name(), mix);
            let expected = golden(folder)["weights"][hugging_face(&name)].as_str().unwrap().to_string();
            assert_eq!(hash(&gguf, &name) == expected, exact, "{folder} as {mix}: {name}");
        }
    }
}

/// A copy of a folder whose `config.json` is changed.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(checked_in(name)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
    dir
}

#[test]
fn settings_of_gptq_in_a_file_of_their_own_are_read() {
    let mut settings = Value::Null;
    let dir = changed("gptq-asymmetric", |config| {
        settings = config.as_object_mut().unwrap().remove("quantization_config").unwrap();
    });
    let error = open_model(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json has no `quantization` or `quantization_config`"), "{error}");
    // As AutoGPTQ wrote them first.
    settings.as_object_mut().unwrap().remove("quant_method");
    std::fs::write(dir.path().join("quantize_config.json"), settings.to_string()).unwrap();
    let (model, original) =
        (open_model(dir.path()).unwrap(), open_model(&checked_in("gptq-asymmetric")).unwrap());
    assert_eq!(model.config().packed_as, Some("GPTQ"));
    assert_eq!(hash(&*model, "blk.0.ffn_down.weight"), hash(&*original, "blk.0.ffn_down.weight"));
    // What config.json says comes first.
    std::fs::write(dir.path().join("quantize_config.json"), "{}").unwrap();
    assert!(open_model(dir.path()).unwrap_err().to_string().contains("quantization_config.bits"));
    let config = checked_in("gptq-asymmetric").join("config.json");
    std::fs::copy(config, dir.path().join("config.json")).unwrap();
    assert!(open_model(dir.path()).is_ok());
}

#[test]
fn plain_fp8_folders_say_that_their_scales_of_the_cache_are_left_out() {
    for (scheme, expected) in [
        (serde_json::json!("static"), Some("scales of a quantised cache")),
        (serde_json::json!({"num_bits": 8, "type": "float"}), Some("scales of a quantised cache")),
        (Value::Null, None),
    ] {
        let dir =
            changed("fp8-qwen3", |config| config["quantization_config"]["kv_cache_scheme"] = scheme.clone());
        let model = open_model(dir.path()).unwrap();
        assert_eq!(
            (model.config().packed_as, model.config().left_out.as_deref()),
            (Some("FP8"), expected),
            "{scheme}"
        );
    }
}

#[test]
fn fp8_folders_say_whether_they_ask_for_fp8_activations() {
    for (folder, expected) in [
        ("fp8-tensor", true),
        ("fp8-channel", true),
        ("fp8-block", true),
        ("fp8-qwen3", true),
        ("awq", false),
    ] {
        assert_eq!(open_model(&checked_in(folder)).unwrap().config().fp8_activations, expected, "{folder}");
    }
    for (scheme, expected) in [
        (Value::Null, false),
        (serde_json::json!({"num_bits": 8, "type": "int"}), false),
        (serde_json::json!({"num_bits": 4, "type": "float"}), false),
        (serde_json::json!({"num_bits": 8, "type": "float", "dynamic": true}), true),
    ] {
        let dir = changed("fp8-channel", |config| {
            config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = scheme.clone();
        });
        assert_eq!(open_model(dir.path()).unwrap().config().fp8_activations, expected, "{scheme}");
    }
}

#[test]
fn fp8_unpacks_to_the_bits_of_its_libraries() {
    for (folder, name) in [
        ("fp8-tensor", "FP8_ROW"),
        ("fp8-channel", "FP8_ROW"),
        ("fp8-block", "FP8_G128"),
        ("fp8-qwen3", "FP8_G128"),
    ] {
        unpacks(folder);
        let model = open_model(&checked_in(folder)).unwrap();
        assert_eq!(model.config().packed_as, Some("FP8"));
        assert_eq!(model.tensor("blk.0.ffn_down.weight").unwrap().dtype.name(), name, "{folder}");
    }
    // Excluded by a pattern, and too few rows for a block.
    let plain =
        |folder: &str, name: &str| open_model(&checked_in(folder)).unwrap().tensor(name).unwrap().dtype;
    assert_eq!(plain("fp8-tensor", "blk.0.attn_output.weight"), DType::BF16);
    assert_eq!(plain("fp8-qwen3", "blk.0.attn_k.weight"), DType::BF16);
    // The file has scales for the cache too.
    let left_out = |folder: &str| open_model(&checked_in(folder)).unwrap().config().left_out.clone();
    assert_eq!(
        (left_out("fp8-tensor"), left_out("fp8-channel")),
        (Some("scales of a quantised cache".to_string()), None)
    );
}

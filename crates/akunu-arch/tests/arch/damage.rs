//! Damaged files never make a reader panic, neither in the container nor in the configuration.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_arch::{GgufModel, SafeTensorsModel, WeightProvider};
use akunu_format::blocks::{Rng, random_row};
use akunu_format::{Array, DType, Gguf, GgufWriter, Metadata, Region, Strings, TensorSpec, Value};
use proptest::collection::vec;
use proptest::prelude::*;

fn data_of(spec: &TensorSpec, seed: u64) -> Vec<u8> {
    let mut data = vec![0; spec.bytes().unwrap()];
    random_row(spec.dtype, &mut Rng::new(seed), 1.0, &mut data).unwrap();
    data
}

fn write(metadata: &Metadata, specs: &[TensorSpec]) -> Vec<u8> {
    let mut writer = GgufWriter::new(Vec::new(), metadata, specs.to_vec()).unwrap();
    for (i, spec) in specs.iter().enumerate() {
        // In pieces, as data of a large file is written.
        writer
            .tensor(|out| data_of(spec, i as u64).chunks(7).try_for_each(|piece| out.write_all(piece)))
            .unwrap();
    }
    writer.finish().unwrap()
}

/// A whole small model, so that corruption reaches the configuration too.
fn tiny_model() -> Vec<u8> {
    let mut metadata = Metadata::default();
    for (key, value) in [
        ("context_length", 64u32),
        ("embedding_length", 32),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.sliding_window", 8),
    ] {
        metadata.insert(format!("gemma3.{key}"), Value::U32(value));
    }
    metadata.insert("general.architecture", Value::String("gemma3".into()));
    metadata.insert("gemma3.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    metadata.insert("gemma3.rope.scaling.type", Value::String("yarn".into()));
    metadata.insert("gemma3.rope.scaling.factor", Value::F32(4.0));
    metadata.insert("gemma3.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true])));
    let tokens: Strings = ["<s>", "a", "ö"].into_iter().collect();
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Strings(tokens)));
    let specs = [
        TensorSpec::new("token_embd.weight", DType::Q8_0, [3, 32]),
        TensorSpec::new("blk.0.attn_q.weight", DType::Q4_0, [32, 32]),
        TensorSpec::new("output_norm.weight", DType::F32, [32]),
    ];
    write(&metadata, &specs)
}

/// Calls everything that can be called on a container that opened.
fn exercise(bytes: Vec<u8>) {
    let Ok(gguf) = Gguf::from_region(Region::from_vec(bytes)) else { return };
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor_bytes(tensor).len(), tensor.bytes);
        assert!(gguf.tensor(&tensor.name).is_some());
        let _ = (tensor.rows(), tensor.cols());
    }
    for (key, value) in gguf.metadata().iter() {
        let _ = format!("{key} {value:?}");
        let _ = (gguf.metadata().u32(key), gguf.metadata().strings(key), gguf.metadata().i32s(key));
    }
    if let Ok(model) = GgufModel::from_gguf(gguf) {
        let _ = format!("{:?}", model.config());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_gguf_never_panics(
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut bytes = tiny_model();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        exercise(bytes);
    }

    #[test]
    fn damaged_safetensors_never_panic(
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        json_changes in vec((any::<proptest::sample::Index>(), 32u8..127), 0..4),
    ) {
        let (mut bytes, config) = tiny_safetensors();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut config = config.into_bytes();
        for (at, value) in json_changes {
            let at = at.index(config.len());
            config[at] = value;
        }
        let config = String::from_utf8(config).unwrap();
        if let Ok(model) = SafeTensorsModel::from_region(Region::from_vec(bytes), &config) {
            for tensor in model.tensors() {
                prop_assert_eq!(model.tensor_bytes(tensor).len(), tensor.bytes);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        exercise([b"GGUF\x03\0\0\0".to_vec(), bytes.clone()].concat());
        let _ = SafeTensorsModel::from_region(Region::from_vec(bytes), "{}");
    }
}

fn tiny_safetensors() -> (Vec<u8>, String) {
    let header = concat!(
        r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[3,8],"data_offsets":[0,96]},"#,
        r#""model.layers.0.self_attn.q_proj.weight":{"dtype":"BF16","shape":[8,8],"data_offsets":[96,224]},"#,
        r#""model.norm.weight":{"dtype":"F16","shape":[8],"data_offsets":[224,240]}}"#
    );
    let mut padded = header.to_string();
    while !padded.len().is_multiple_of(8) {
        padded.push(' ');
    }
    let mut bytes = (padded.len() as u64).to_le_bytes().to_vec();
    bytes.extend(padded.as_bytes());
    bytes.extend([0; 240]);
    let config = r#"{"model_type":"gemma3_text","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,
        "num_key_value_heads":1,"head_dim":4,"intermediate_size":8,"sliding_window":4,"layer_types":["full_attention"],
        "rope_parameters":{"full_attention":{"rope_type":"yarn","factor":2.0,"rope_theta":1e6},
        "sliding_attention":{"rope_theta":1e4}},"eos_token_id":[1,2]}"#;
    (bytes, config.to_string())
}

#[test]
fn the_tiny_models_are_valid() {
    let bytes = tiny_model();
    GgufModel::from_region(Region::from_vec(bytes)).unwrap();
    let (bytes, config) = tiny_safetensors();
    SafeTensorsModel::from_region(Region::from_vec(bytes), &config).unwrap();
}

#[test]
fn any_changed_byte_never_panics() {
    let good = tiny_model();
    for at in 0..good.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, good[at] ^ 0x10] {
            let mut bytes = good.clone();
            bytes[at] = value;
            exercise(bytes);
        }
    }
}

#[test]
fn any_truncated_model_is_an_error() {
    let good = tiny_model();
    let data_end = {
        let gguf = Gguf::from_region(Region::from_vec(good.clone())).unwrap();
        gguf.tensors().iter().map(|tensor| tensor.offset + tensor.bytes).max().unwrap()
    };
    for len in 0..data_end {
        assert!(Gguf::from_region(Region::from_vec(good[..len].to_vec())).is_err(), "{len}");
    }
    let (good, config) = tiny_safetensors();
    for len in 0..good.len() {
        let region = Region::from_vec(good[..len].to_vec());
        assert!(SafeTensorsModel::from_region(region, &config).is_err(), "{len}");
    }
}

//! What the writer writes, the reader reads; and no damage to a good file makes the reader panic.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_format::blocks::{Rng, random_row};
use akunu_format::{
    Array, DType, Gguf, GgufModel, GgufWriter, Metadata, Region, SafeTensorsModel, Strings, TensorSpec,
    Value, WeightProvider,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(".{0,9}", 0..9).prop_map(|all| Array::Strings(all.into_iter().collect::<Strings>())),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| vec(inner, 0..4).prop_map(Array::Arrays))
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let value = prop_oneof![scalar(), array().prop_map(Value::Array)];
    (vec(("[a-z.]{1,12}", value), 0..10), 0u32..9).prop_map(|(pairs, power)| {
        let mut metadata = Metadata::default();
        for (key, value) in pairs {
            metadata.insert(key, value);
        }
        metadata.insert("general.alignment", Value::U32(1 << power));
        metadata
    })
}

fn spec() -> impl Strategy<Value = TensorSpec> {
    (0..DType::ALL.len(), 1usize..3, vec(1usize..4, 0..4), "[a-z.0-9]{1,9}").prop_map(
        |(dtype, blocks, outer, name)| {
            let dtype = DType::ALL[dtype];
            let mut shape = outer;
            shape.push(blocks * dtype.block_len());
            TensorSpec::new(name, dtype, shape)
        },
    )
}

fn specs() -> impl Strategy<Value = Vec<TensorSpec>> {
    vec(spec(), 0..6).prop_map(|mut specs| {
        for (i, spec) in specs.iter_mut().enumerate() {
            spec.name.push_str(&format!("#{i}"));
        }
        specs
    })
}

fn data_of(spec: &TensorSpec, seed: u64) -> Vec<u8> {
    let mut data = vec![0; spec.bytes().unwrap()];
    random_row(spec.dtype, &mut Rng::new(seed), 1.0, &mut data).unwrap();
    data
}

fn write(metadata: &Metadata, specs: &[TensorSpec]) -> Vec<u8> {
    let mut writer = GgufWriter::new(Vec::new(), metadata, specs.to_vec()).unwrap();
    for (i, spec) in specs.iter().enumerate() {
        // In pieces, as a large file would come.
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

/// Everything that a caller can do with a container that opened.
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
    fn gguf_comes_back_as_it_was_written(metadata in metadata(), specs in specs()) {
        let gguf = Gguf::from_region(Region::from_vec(write(&metadata, &specs))).unwrap();
        // By their text, which tells NaN from numbers and counts it equal to itself.
        let show = |metadata: &Metadata| {
            metadata.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>()
        };
        prop_assert_eq!(show(gguf.metadata()), show(&metadata));
        prop_assert_eq!(gguf.tensors().len(), specs.len());
        for (i, (tensor, spec)) in gguf.tensors().iter().zip(&specs).enumerate() {
            prop_assert_eq!(&tensor.name, &spec.name);
            prop_assert_eq!(&tensor.shape, &spec.shape);
            prop_assert_eq!(tensor.dtype, spec.dtype);
            prop_assert_eq!(gguf.tensor_bytes(tensor), &data_of(spec, i as u64)[..]);
        }
    }

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
fn the_tiny_models_are_good() {
    let bytes = tiny_model();
    GgufModel::from_region(Region::from_vec(bytes)).unwrap();
    let (bytes, config) = tiny_safetensors();
    SafeTensorsModel::from_region(Region::from_vec(bytes), &config).unwrap();
}

#[test]
fn every_single_byte_of_a_model_may_be_wrong() {
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
fn a_model_cut_anywhere_is_an_error() {
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

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let new = |specs: Vec<TensorSpec>| GgufWriter::new(Vec::new(), &Metadata::default(), specs);
    let message = |specs| new(specs).unwrap_err().to_string();
    let x = |shape: &[usize]| TensorSpec::new("x", DType::Q4_0, shape);
    assert_eq!(message(vec![x(&[32]), x(&[32])]), "tensor x: it occurs twice");
    assert_eq!(message(vec![x(&[33])]), "tensor x: rows of 33 elements are not whole Q4_0 blocks of 32");
    assert_eq!(message(vec![x(&[0, 32])]), "tensor x: a dimension of [0, 32] is zero");
    assert_eq!(message(vec![x(&[])]), "tensor x: it has 0 dimensions, and 1 to 4 are possible");

    let mut writer = new(vec![x(&[32])]).unwrap();
    let error = writer.tensor(|out| out.write_all(&[0; 17])).unwrap_err();
    assert_eq!(error.to_string(), "tensor x: 1 of its 18 bytes were not written");
    let mut writer = new(vec![x(&[32])]).unwrap();
    let error = writer.tensor(|out| out.write_all(&[0; 19])).unwrap_err().to_string();
    assert_eq!(error, "cannot write the file: a tensor has more data than its type and shape take");
    let error = new(vec![x(&[32])]).unwrap().finish().unwrap_err().to_string();
    assert_eq!(error, "tensor x: it was announced and not written");
    let error = new(vec![]).unwrap().tensor(|_| Ok(())).unwrap_err().to_string();
    assert_eq!(error, "damaged header: more tensors were written than announced");
}

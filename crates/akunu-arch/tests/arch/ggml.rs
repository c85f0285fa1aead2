//! Files of whisper.cpp: the same model as the folder that they were made from, and what is rejected.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{GgmlModel, GgufModel, ModelConfig, Source, WeightProvider, open_model};
use akunu_format::blocks::{dequantize_row, quantize_row};
use akunu_format::quantise::Mix;
use akunu_format::{DType, FormatError, Region, TensorInfo};
use proptest::collection::vec;
use proptest::prelude::*;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/whisper").join(name)
}

fn real() -> Vec<u8> {
    std::fs::read(testdata("whisper-128-turbo.bin")).unwrap()
}

fn open(bytes: Vec<u8>) -> Result<GgmlModel, FormatError> {
    GgmlModel::from_region(Region::from_vec(bytes))
}

fn values(model: &dyn WeightProvider, tensor: &TensorInfo) -> Vec<f32> {
    let mut values = vec![0.0; tensor.shape.iter().product()];
    dequantize_row(tensor.dtype, model.tensor_bytes(tensor), &mut values).unwrap();
    values
}

#[test]
fn a_file_is_the_model_that_it_was_made_from() {
    let (folder, file) = (open_model(&testdata("whisper-128-turbo")).unwrap(), open(real()).unwrap());
    let expected = ModelConfig {
        source: Source::Ggml,
        name: None,
        activation: None,
        eos_ids: Vec::new(),
        bos_id: None,
        ..folder.config().clone()
    };
    assert_eq!(file.config(), &expected);
    let named = |model: &dyn WeightProvider| {
        let mut names: Vec<String> = model.tensors().iter().map(|tensor| tensor.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(named(&file), named(folder.as_ref()));
    for theirs in folder.tensors() {
        let own = file.tensor(&theirs.name).unwrap();
        assert_eq!(own.shape, theirs.shape, "{}", own.name);
        let pairs = values(&file, own).into_iter().zip(values(folder.as_ref(), theirs));
        for (own, theirs) in pairs {
            // The folder has BF16, whose small values are rounded in F16.
            assert!((own - theirs).abs() < 1e-7, "{own} {theirs}");
        }
    }
    let address = |tensor: &TensorInfo| file.tensor_bytes(tensor).as_ptr().addr();
    assert!(file.tensors().iter().any(|tensor| !address(tensor).is_multiple_of(2)));
    let tokens = file.ranked_tokens().unwrap();
    assert_eq!(
        (tokens.len(), tokens[65], tokens[256], tokens[299]),
        (300, &b"A"[..], &b"10"[..], &b"<|0.02|>"[..])
    );
    assert!(file.metadata().is_none() && folder.ranked_tokens().is_none());
}

#[test]
fn a_file_becomes_gguf() {
    let file = open(real()).unwrap();
    let mix = Mix::find("F32").unwrap();
    let options = ConvertOptions { mix, pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(&file, &options).unwrap();
    let bytes = conversion.write(Vec::new(), 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let gguf = GgufModel::from_region(Region::from_vec(bytes)).unwrap();
    assert_eq!((gguf.config().encoder.unwrap().ffn_size, gguf.config().ffn_size), (128, 128));
    assert_eq!(gguf.tensors().len(), file.tensors().len());
    for tensor in file.tensors() {
        let again = gguf.tensor(&tensor.name).unwrap();
        assert!(values(&file, tensor) == values(&gguf, again), "{}", tensor.name);
    }
}

fn number(value: usize) -> [u8; 4] {
    (value as u32).to_le_bytes()
}

/// A tensor as it stands in a file. `shape`: outermost first.
fn tensor(name: &str, type_id: usize, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let mut out = [number(shape.len()), number(name.len()), number(type_id)].concat();
    shape.iter().rev().for_each(|n| out.extend(number(*n)));
    [&out, name.as_bytes(), data].concat()
}

/// Everything before the tensors, of a model of 32 dimensions with one layer in each tower.
fn start(version: usize) -> Vec<u8> {
    let header = [2, 5, 32, 1, 1, 4, 32, 1, 1, 3, 1000 * version + 1];
    let filters = [3, 1, 0, 0, 0];
    let vocabulary = [2, 1];
    let numbers = header.iter().chain(&filters).chain(&vocabulary);
    let mut out = b"lmgg".to_vec();
    numbers.for_each(|value| out.extend(number(*value)));
    out.push(b'a');
    out.extend([number(2).as_slice(), b"bc"].concat());
    out
}

/// The smallest model whose matrices have a type, with all values 0.5.
fn of_type(dtype: DType, version: usize) -> Vec<u8> {
    let cols = dtype.block_len().max(32);
    let mut row = vec![0; dtype.row_bytes(cols).unwrap()];
    quantize_row(dtype, &vec![0.5; cols], None, &mut row).unwrap();
    let id = dtype.gguf_id().unwrap() as usize;
    let floats = |count: usize| 0.5f32.to_le_bytes().repeat(count);
    let mut out = start(version);
    out.extend(tensor("decoder.token_embedding.weight", 0, &[2, 32], &floats(64)));
    for tower in ["encoder", "decoder"] {
        out.extend(tensor(&format!("{tower}.blocks.0.mlp.0.weight"), id, &[2, cols], &row.repeat(2)));
        out.extend(tensor(&format!("{tower}.blocks.0.mlp.0.bias"), 0, &[2], &floats(2)));
    }
    out
}

#[test]
fn weights_of_all_types_are_read_in_place() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.gguf_id().is_some() && !dtype.is_lattice()) {
        let model = open(of_type(dtype, 2)).unwrap_or_else(|error| panic!("{dtype}: {error}"));
        let matrix = model.tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!(matrix.dtype, dtype);
        let values = values(&model, matrix);
        assert!(values.iter().all(|value| (value - 0.5).abs() < 0.02), "{dtype}: {values:?}");
        assert_eq!(model.config().ffn_size, 2);
    }
}

#[track_caller]
fn refused(bytes: Vec<u8>, expected: &str) {
    let error = open(bytes).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn files_that_are_not_sound_are_rejected() {
    let with = |at: usize, value: usize| {
        let mut bytes = of_type(DType::F16, 0);
        bytes[4 * at..4 * at + 4].copy_from_slice(&number(value));
        bytes
    };
    refused(with(0, 0), "it does not begin with the letters lmgg");
    refused(with(1, 3), "vocabulary size in the header of the GGML file: 3, but the embedding has 2 rows");
    refused(
        with(3, 64),
        "hidden size in the header of the GGML file: 64 in the encoder, and 32 in the decoder",
    );
    refused(with(4, 0), "encoder head count");
    refused(with(4, 5), "encoder head count");
    refused(with(5, 1 << 30), "encoder layer count");
    refused(with(5, 0), "encoder layer count");
    refused(with(9, 1 << 30), "layer count");
    refused(with(10, 1 << 30), "the number of mel bands is 1073741824, and at most 1024 are allowed");
    refused(with(12, 4), "filters of 4 mel bands in a model of 3");
    refused(with(13, 1 << 30), "the number of a filter's frequencies is 1073741824");
    refused(with(13, 1 << 16), "the file ends inside the mel filters");
    refused(with(17, 1 << 30), "the number of tokens is 1073741824");
    refused(with(17, 1 << 20), "it claims 1048576 tokens with");
    refused(with(18, 1 << 30), "the length of a token is 1073741824");

    let extended = |more: Vec<u8>| [of_type(DType::F16, 0), more].concat();
    let name = "decoder.ln.weight";
    let zeros = [0; 128];
    assert!(open(extended(tensor(name, 0, &[32], &zeros))).is_ok());
    refused(extended(vec![0; 12]), "a tensor has 0 dimensions");
    refused(extended(tensor(name, 0, &[1, 1, 1, 1, 32], &zeros)), "a tensor has 5 dimensions");
    refused(extended(tensor(name, 0, &[0], &[])), "a dimension of [0] is zero");
    refused(extended(tensor(name, 0, &[1 << 31, 1 << 31], &[])), "is too large");
    refused(
        extended(tensor(name, 0, &[33], &zeros)),
        "the file ends inside the data of tensor decoder.ln.weight: 132",
    );
    refused(extended(tensor(name, 9, &[32], &zeros)), "is Q8_1, which is not supported");
    refused(extended(tensor(name, 777, &[32], &zeros)), "is of unknown type 777");
    refused(extended(tensor("decoder.ln.scale", 0, &[32], &zeros)), "tensor decoder.ln.scale is not part of");
    refused(extended(tensor("decoder.blocks.7.mlp.0.bias", 0, &[32], &zeros)), "is not part of");
    refused(
        extended([tensor(name, 0, &[32], &zeros), tensor(name, 0, &[32], &zeros)].concat()),
        "it occurs twice",
    );
    let mut long = number(1).to_vec();
    long.extend([number(1 << 20), number(0), number(1)].concat());
    refused(extended(long), "the length of a tensor's name is 1048576");
    let mut not_text = tensor("aaaa", 0, &[1], &[0; 4]);
    not_text[16] = 0xff;
    refused(extended(not_text), "a tensor's name is not UTF-8");

    refused(of_type(DType::Q4_0, 1), "its blocks have the layout 1, and 2 is supported: quantise it again");
    refused(start(0), "a GGML file without tensors");
    refused([start(0), tensor(name, 0, &[32], &zeros)].concat(), "tensor blk.0.ffn_up.weight is missing");
}

/// Every prefix is an error, unless it ends between two tensors.
#[test]
fn truncated_files_are_rejected() {
    let whole = of_type(DType::Q5_1, 2);
    let mut opened = 0;
    for len in 0..whole.len() {
        match open(whole[..len].to_vec()) {
            Ok(_) => opened += 1,
            Err(error) => drop(error.to_string()),
        }
    }
    // Only the last bias may be absent.
    assert_eq!(opened, 1);
}

#[test]
fn a_file_with_a_vocabulary_only_is_no_model() {
    let test = "a_file_with_a_vocabulary_only_is_no_model";
    let Some(path) = akunu_testing::data(test, "whisper/for-tests-ggml-tiny.bin") else { return };
    let error = open_model(&path).unwrap_err().to_string();
    assert!(error.contains("this is a GGML file without tensors, not a model that can be run"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_never_panic(
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut bytes = of_type(DType::Q5_1, 2);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(model) = open(bytes) {
            for tensor in model.tensors() {
                prop_assert_eq!(model.tensor_bytes(tensor).len(), tensor.bytes);
            }
            prop_assert!(model.ranked_tokens().is_some());
        }
    }
}

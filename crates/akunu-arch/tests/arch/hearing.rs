//! What models that transcribe state beside their shape: whether they are multilingual, and their alignment heads.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::Path;
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::{GgufModel, ModelConfig, WeightProvider, open_model};
use akunu_format::quantise::Mix;
use akunu_format::{Array, FormatError, Gguf, GgufWriter, Metadata, Region, TensorSpec, Value};

/// The model of the test data, with a `generation_config.json`. Its decoder has 2 layers of 2 heads.
fn folder(generation: &str) -> Result<Box<dyn WeightProvider>, FormatError> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/whisper/whisper-80");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(own.join(file), folder.path().join(file)).unwrap();
    }
    std::fs::write(folder.path().join("generation_config.json"), generation).unwrap();
    open_model(folder.path())
}

fn bytes(model: &dyn WeightProvider) -> Vec<u8> {
    let mix = Mix::find("F32").unwrap();
    let options = ConvertOptions { mix, pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(model, &options).unwrap();
    conversion.write(Vec::new(), 2, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn converted(model: &dyn WeightProvider) -> GgufModel {
    GgufModel::from_region(Region::from_vec(bytes(model))).unwrap()
}

fn problem(generation: &str) -> String {
    folder(generation).unwrap_err().kind().to_string()
}

#[test]
fn facts_of_the_generation_config_survive_conversion() {
    let model = folder(r#"{"is_multilingual": true, "alignment_heads": [[1, 0], [0, 1]]}"#).unwrap();
    let config = model.config();
    assert_eq!(config.alignment_heads, [[1, 0], [0, 1]]);
    assert_eq!(config.encoder.unwrap().multilingual, Some(true));
    assert!(config.multilingual());
    let gguf = converted(model.as_ref());
    assert_eq!(
        (gguf.config().encoder, &gguf.config().alignment_heads),
        (config.encoder, &config.alignment_heads)
    );
    let metadata = gguf.gguf().metadata();
    let heads = Value::Array(Array::U32(vec![1, 0, 0, 1]));
    assert_eq!(metadata.get("whisper.alignment_heads"), Some(&heads));
    assert_eq!(metadata.get("whisper.multilingual"), Some(&Value::Bool(true)));
}

#[test]
fn the_vocabulary_decides_if_nothing_is_stated() {
    let model = folder("{}").unwrap();
    let config = model.config();
    assert_eq!((config.alignment_heads.len(), config.encoder.unwrap().multilingual), (0, None));
    let of = |vocab_size| ModelConfig { vocab_size, ..config.clone() }.multilingual();
    assert_eq!([300, 51_864, 51_865, 51_866].map(of), [false, false, true, true]);
    let gguf = converted(model.as_ref());
    assert_eq!(gguf.config().encoder.unwrap().multilingual, Some(false));
    assert_eq!(gguf.gguf().metadata().get("whisper.alignment_heads"), None);
}

#[test]
fn heads_of_another_model_are_forgotten_and_other_lists_rejected() {
    for heads in ["[[1, 1], [2, 0]]", "[[0, 2]]"] {
        let model = folder(&format!(r#"{{"alignment_heads": {heads}}}"#)).unwrap();
        assert!(model.config().alignment_heads.is_empty(), "{heads}");
    }
    for heads in ["[[1]]", "[1, 0]", "[[1, 0, 0]]", "[[-1, 0]]", "true", "[[0.5, 0]]"] {
        let problem = problem(&format!(r#"{{"alignment_heads": {heads}}}"#));
        let expected =
            "alignment_heads in the generation_config.json: it should be a list of pairs of layer and head";
        assert_eq!(problem, expected, "{heads}");
    }
    assert_eq!(
        problem(r#"{"is_multilingual": 1}"#),
        "key `is_multilingual` should be true or false, but is 1"
    );
}

#[test]
fn gguf_keys_are_checked() {
    let model = folder("{}").unwrap();
    let gguf = Gguf::from_region(Region::from_vec(bytes(model.as_ref()))).unwrap();
    let with = |heads: Value| {
        let mut metadata: Metadata = gguf.metadata().clone();
        metadata.insert("whisper.alignment_heads", heads);
        let specs = gguf.tensors().iter().map(|t| TensorSpec::new(t.name.clone(), t.dtype, t.shape.clone()));
        let mut writer = GgufWriter::new(Vec::new(), &metadata, specs.collect()).unwrap();
        for tensor in gguf.tensors() {
            writer.tensor(|out| std::io::Write::write_all(out, gguf.tensor_bytes(tensor))).unwrap();
        }
        GgufModel::from_region(Region::from_vec(writer.finish().unwrap()))
    };
    let heads = |numbers: &[i32]| Value::Array(Array::I32(numbers.to_vec()));
    assert_eq!(with(heads(&[1, 1, 0, 0])).unwrap().config().alignment_heads, [[1, 1], [0, 0]]);
    let problem = |value: Value| with(value).unwrap_err().to_string();
    assert!(with(heads(&[1, 1, 2, 0])).unwrap().config().alignment_heads.is_empty());
    let key = "metadata key `whisper.alignment_heads`";
    assert_eq!(
        problem(heads(&[1, 0, 1])),
        format!("{key}: it has 3 numbers, which are not pairs of layer and head")
    );
    assert_eq!(problem(heads(&[1, -1])), format!("{key}: -1 in the array is out of range"));
    assert_eq!(
        problem(Value::U32(1)),
        "key `whisper.alignment_heads` should be an array of integers, but is u32"
    );
}

//! Blocks of the shared test data dequantise to exactly the same numbers as with gguf-py.

use akunu_format::blocks::dequantize_row;
use akunu_format::{DType, Gguf};

#[test]
fn k_quant_blocks_dequantise_exactly() {
    let test = "k_quant_blocks_dequantise_exactly";
    let Some(path) = akunu_testing::data(test, "golden/tiny_kquant.gguf") else { return };
    let Some(reference) = akunu_testing::data(test, "golden/tiny_kquant_ref.json") else { return };
    let gguf = Gguf::open(&path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(reference).unwrap()).unwrap();
    let mut compared = 0;
    for (name, expected) in json["dequant"].as_object().unwrap() {
        let tensor = gguf
            .tensors()
            .iter()
            .find(|t| t.name == *name || t.dtype.name() == name || t.name.contains(name));
        let tensor = tensor.unwrap_or_else(|| panic!("no tensor for {name}"));
        assert_ne!(tensor.dtype, DType::F32);
        let mut values = vec![0.0; tensor.rows() * tensor.cols()];
        dequantize_row(tensor.dtype, gguf.tensor_bytes(tensor), &mut values).unwrap();
        for (i, (ours, theirs)) in values.iter().zip(expected.as_array().unwrap()).enumerate() {
            assert_eq!(*ours, theirs.as_f64().unwrap() as f32, "{name} element {i}");
        }
        compared += 1;
    }
    assert_eq!(compared, 4);
}

/// The quantised files were made from the F32 one.
#[test]
fn quantisers_make_the_quantised_stories() {
    let test = "quantisers_make_the_quantised_stories";
    let Some(source) = akunu_testing::data(test, "stories260K/stories260K.gguf") else { return };
    let source = Gguf::open(&source).unwrap();
    for name in ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"] {
        let Some(path) = akunu_testing::data(test, &format!("stories260K/stories260K-{name}.gguf")) else {
            return;
        };
        let gguf = Gguf::open(&path).unwrap();
        let mut compared = 0;
        for tensor in gguf.tensors().iter().filter(|tensor| tensor.dtype != DType::F32) {
            let Some(original) = source.tensor(&tensor.name) else { continue };
            let mut values = vec![0.0; original.rows() * original.cols()];
            dequantize_row(original.dtype, source.tensor_bytes(original), &mut values).unwrap();
            let mut bytes = vec![0; tensor.bytes];
            akunu_format::blocks::quantize_row(tensor.dtype, &values, None, &mut bytes).unwrap();
            assert!(bytes == gguf.tensor_bytes(tensor), "{name} {}", tensor.name);
            compared += 1;
        }
        assert!(compared > 20, "{name}: {compared} tensors");
    }
}

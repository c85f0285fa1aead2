//! Blocks of the shared test data dequantise to the very numbers that gguf-py gets.

mod common;

use akunu_format::blocks::dequantize_row;
use akunu_format::{DType, Gguf};

#[test]
fn k_quant_blocks_dequantise_exactly() {
    let test = "k_quant_blocks_dequantise_exactly";
    let Some(path) = common::data(test, "golden/tiny_kquant.gguf") else { return };
    let Some(reference) = common::data(test, "golden/tiny_kquant_ref.json") else { return };
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

//! The bytes of a SafeTensors file with one tensor.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, TensorView};

use crate::failure::Failure;

/// A tensor of f32 in rows of `width` numbers.
pub fn tensor_file(name: &str, width: usize, numbers: impl Iterator<Item = f32>) -> Result<Vec<u8>, Failure> {
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    let shape = vec![bytes.len() / 4 / width, width];
    let about: Option<HashMap<String, String>> = None;
    let file = TensorView::new(Dtype::F32, shape, &bytes)
        .and_then(|view| safetensors::serialize([(name, view)], about));
    file.map_err(|error| Failure::new(format!("cannot make a SafeTensors file: {error}")))
}

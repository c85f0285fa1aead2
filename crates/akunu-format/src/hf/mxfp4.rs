//! MXFP4 of transformers: `X_blocks` is `[experts][outputs][inputs / 32][16]`, where a byte has the codes of two inputs,
//! the first one in its low bits, and `X_scales` has an exponent for each 16 bytes.
//!
//! Codes and exponents are those of [`DType::MXFP4`], whose blocks begin with the exponent and have input `i` beside input
//! `i + 16` in a byte.

use safetensors::tensor::Dtype;

use super::packed::REMEDY;
use super::quantisation::{Files, info, plain};
use super::tensors::Stored;
use crate::{DType, FormatError, TensorInfo};

/// Bytes of the codes of a block.
const CODES: usize = 16;
const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";

/// Combines codes with their exponents under the name of the weight. They stay where the file has them: the tensor's
/// plane of scales has the exponents, and [`mxfp4_row`] makes blocks of both.
pub(super) fn join(files: &Files) -> Result<Vec<TensorInfo>, FormatError> {
    let mut tensors = Vec::with_capacity(files.stored.len());
    for tensor in &files.stored {
        if let Some(name) = tensor.name.strip_suffix(SCALES) {
            files.named(&format!("{name}{BLOCKS}"))?;
            continue;
        }
        let Some(name) = tensor.name.strip_suffix(BLOCKS) else {
            tensors.push(plain(tensor)?);
            continue;
        };
        let scales = files.named(&format!("{name}{SCALES}"))?;
        let shape = shape(tensor, scales).map_err(|problem| FormatError::tensor(&tensor.name, problem))?;
        let joined = info(tensor, DType::MXFP4, shape, [Some(scales.place), None]);
        tensors.push(TensorInfo { name: name.to_string(), ..joined });
    }
    Ok(tensors)
}

/// The shape of the weight: experts, outputs, inputs.
fn shape(codes: &Stored, scales: &Stored) -> Result<Vec<usize>, String> {
    for (what, tensor) in [("it is", codes), ("its scales are", scales)] {
        if tensor.dtype != Dtype::U8 {
            return Err(format!("{what} {:?}, and should be U8: {REMEDY}", tensor.dtype));
        }
    }
    let [experts, outputs, blocks, CODES] = codes.shape[..] else {
        return Err(format!(
            "its shape is {:?}, and should be [experts, outputs, blocks, {CODES}]",
            codes.shape
        ));
    };
    if scales.shape != codes.shape[..3] {
        let expected = &codes.shape[..3];
        return Err(format!("the shape of its scales is {:?}, and should be {expected:?}", scales.shape));
    }
    let inputs = blocks.checked_mul(2 * CODES).ok_or("it has too many inputs")?;
    Ok(vec![experts, outputs, inputs])
}

/// Writes a row of blocks from its codes and exponents.
pub fn mxfp4_row(codes: &[u8], exponents: &[u8], row: &mut [u8]) {
    let (codes, row) = (codes.as_chunks::<CODES>().0, row.as_chunks_mut::<{ CODES + 1 }>().0);
    for ((codes, exponent), block) in codes.iter().zip(exponents).zip(row) {
        block[0] = *exponent;
        for pair in 0..CODES / 2 {
            let (first, second) = (codes[pair], codes[pair + CODES / 2]);
            block[1 + 2 * pair] = first & 15 | second << 4;
            block[2 + 2 * pair] = first >> 4 | second & 0xf0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_keep_their_places() {
        // Input i has the code i modulo 16.
        let codes: Vec<u8> = (0..16).map(|pair| (2 * pair % 16) | (((2 * pair + 1) % 16) << 4)).collect();
        let mut row = [0; 17];
        mxfp4_row(&codes, &[120], &mut row);
        let mut values = [0.0; 32];
        crate::blocks::dequantize_row(DType::MXFP4, &row, &mut values).unwrap();
        let of_code = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (input, value) in values.into_iter().enumerate() {
            let magnitude: f32 = of_code[input % 8] / 128.0;
            assert_eq!(value, if input % 16 < 8 { magnitude } else { -magnitude }, "{input}");
        }
    }
}

//! f16 and FP8 products as a device's library computes them, including rows that are not live.

use akunu_kernels::LibraryProduct;
use akunu_plan::{eights, halves};

use crate::device::Shared;

/// `bound`: the command's bindings.
pub(crate) fn multiply(product: &LibraryProduct, bound: &[(Shared, usize)]) -> Result<(), String> {
    let [rows, inputs, outputs, stride] =
        [product.rows, product.inputs, product.outputs, product.out_stride].map(|n| n as usize);
    let bytes = |binding: usize, bytes: usize| -> Result<Vec<u8>, String> {
        let (memory, offset) = bound.get(binding).ok_or("a product whose bindings are not bound")?;
        let memory = memory.borrow();
        let part = memory.bytes().get(*offset..*offset + bytes);
        part.map(<[u8]>::to_vec).ok_or_else(|| "a product past a buffer's end".into())
    };
    let numbers = |binding: usize, count: usize| match product.scales {
        None => Ok(halves::load(&bytes(binding, count * 2)?)),
        Some(_) => bytes(binding, count).map(|codes| eights::load(&codes)),
    };
    let (x, weights) = (numbers(product.x, rows * inputs)?, numbers(product.weight, outputs * inputs)?);
    let scales = |of: usize, count: usize| match product.scales {
        None => Ok(vec![1.0; count]),
        Some(scales) => bytes(scales[of], count * 4).map(|all| all.chunks_exact(4).map(float).collect()),
    };
    let [x_scales, weight_scales] = [scales(0, rows)?, scales(1, outputs)?];
    let size = if product.out_f16 { 2 } else { 4 };
    let out_bytes = ((rows - 1) * stride + outputs) * size;
    let bias = product.bias.map(|binding| bytes(binding, outputs * 4)).transpose()?;
    let residual = product.residual.map(|binding| bytes(binding, out_bytes)).transpose()?;
    let mut out = bytes(product.out, out_bytes)?;
    for (row, x) in x.chunks_exact(inputs).enumerate() {
        for (o, w) in weights.chunks_exact(inputs).enumerate() {
            let at = (row * stride + o) * size;
            let added = residual.as_ref().map_or(0.0, |bytes| float(&bytes[at..]))
                + bias.as_ref().map_or(0.0, |bytes| float(&bytes[o * 4..]));
            let sum = x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w);
            let sum = sum * x_scales[row] * weight_scales[o] + added;
            match product.out_f16 {
                true => halves::store(&[sum], 1.0, &mut out[at..at + size]),
                false => out[at..at + size].copy_from_slice(&sum.to_le_bytes()),
            }
        }
    }
    let (memory, offset) = &bound[product.out];
    memory.borrow_mut().bytes_mut()[*offset..*offset + out_bytes].copy_from_slice(&out);
    Ok(())
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

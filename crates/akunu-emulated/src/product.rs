//! Products of f16 as a device's library has them: rows that are not live too.

use akunu_kernels::HalfProduct;
use akunu_plan::{DeviceBuffer, halves};

use crate::memory::Memory;

/// `bound`: the command's bindings, as buffers and offsets.
pub(crate) fn multiply<'m>(
    product: &HalfProduct,
    bound: &[(DeviceBuffer, usize)],
    memory: impl Fn(DeviceBuffer) -> &'m Memory,
) -> Vec<u8> {
    let [rows, inputs, outputs, stride] =
        [product.rows, product.inputs, product.outputs, product.out_stride].map(|n| n as usize);
    let bytes = |binding: usize| {
        let (buffer, offset) = bound[binding];
        &memory(buffer).bytes()[offset..]
    };
    let (x, weights) = (
        halves::load(&bytes(product.x)[..rows * inputs * 2]),
        halves::load(&bytes(product.weight)[..outputs * inputs * 2]),
    );
    let residual = product.residual.map(bytes);
    let mut out = bytes(product.out)[..((rows - 1) * stride + outputs) * 4].to_vec();
    for (row, x) in x.chunks_exact(inputs).enumerate() {
        for (o, w) in weights.chunks_exact(inputs).enumerate() {
            let at = (row * stride + o) * 4;
            let added = residual.map_or(0.0, |bytes| float(&bytes[at..]));
            let sum = x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w) + added;
            out[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    out
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

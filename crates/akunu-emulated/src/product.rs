//! What a device's library does: f16 and FP8 products, including rows that are not live, and exchanges with other ranks.

use akunu_kernels::{Gathering, LibraryProduct};
use akunu_plan::{Member, eights, halves};

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

/// `bound`: the command's bindings, and the memory to which the numbers of all ranks go.
pub(crate) fn gather(
    gathering: &Gathering,
    member: &Member,
    bound: &[(Shared, usize)],
) -> Result<(), String> {
    let [first, count] = [gathering.first, gathering.count].map(|number| number as usize * 4);
    let (x, to) = (bound.get(gathering.x), bound.last());
    let ((x, offset), (to, start)) = x.zip(to).ok_or("an exchange whose bindings are not bound")?;
    let own = x.borrow().bytes().get(offset + first..offset + first + count).map(<[u8]>::to_vec);
    let own: Vec<f32> = own.ok_or("an exchange past a buffer's end")?.chunks_exact(4).map(float).collect();
    // The device finds out that the group is broken after the submission.
    let Ok(parts) = member.exchange(&own) else { return Ok(()) };
    let mut to = to.borrow_mut();
    for (part, place) in parts.iter().zip(to.bytes_mut()[*start..].chunks_exact_mut(count)) {
        for (number, place) in part.iter().zip(place.chunks_exact_mut(4)) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }
    Ok(())
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

//! Matrices of experts that Hugging Face files have in one tensor. They are taken apart when they are first read.

use akunu_format::hf::{in_parts, mxfp4_row};
use akunu_format::{DType, FormatError, Place, Region, TensorInfo};

use crate::{Card, StackedExperts};

/// Outputs that are brought into rows at once.
const TILE: usize = 16;

/// Replaces the tensors of [`Card::stacked_experts`] by the matrices, and their biases, in them.
pub(super) fn take_apart(
    tensors: &mut Vec<TensorInfo>,
    regions: &mut Vec<Region>,
    card: &Card,
) -> Result<(), FormatError> {
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors.drain(..) {
        let of_module = |suffix: &str| {
            let module = tensor.name.strip_suffix(suffix)?;
            let find = |stack: &'static StackedExperts| Some((module.strip_suffix(stack.name)?, stack));
            card.stacked_experts.iter().find_map(find)
        };
        let (kind, found) = match (of_module(""), of_module("_bias")) {
            (Some(found), _) => ("weight", found),
            (None, Some(found)) => ("bias", found),
            (None, None) => {
                refuse_codes(&tensor)?;
                all.push(tensor);
                continue;
            }
        };
        let (before, StackedExperts { parts, alternate, .. }) = found;
        let fail = |problem| FormatError::tensor(&tensor.name, problem);
        let stack = Stack::of(&tensor, kind == "bias", (parts.len(), *alternate)).map_err(fail)?;
        for (index, part) in parts.iter().enumerate() {
            let (bytes, region) = stack.part(index, regions).map_err(fail)?;
            all.push(TensorInfo {
                name: format!("{before}{part}.{kind}"),
                shape: stack.shape(),
                region: regions.len(),
                offset: 0,
                bytes,
                scales_offsets: [None; 2],
                ..tensor.clone()
            });
            regions.push(region);
        }
    }
    *tensors = all;
    Ok(())
}

/// Only the matrices of experts are made into blocks here.
fn refuse_codes(tensor: &TensorInfo) -> Result<(), FormatError> {
    match tensor.dtype {
        DType::MXFP4 => Err(FormatError::tensor(&tensor.name, "only matrices of experts can be MXFP4")),
        _ => Ok(()),
    }
}

/// A tensor with the outputs of `parts` matrices of each expert.
struct Stack<'a> {
    tensor: &'a TensorInfo,
    is_bias: bool,
    experts: usize,
    /// Of one expert in one matrix.
    outputs: usize,
    /// 1 for a bias.
    inputs: usize,
    parts: usize,
    alternate: bool,
}

impl Stack<'_> {
    fn of(
        tensor: &TensorInfo,
        is_bias: bool,
        (parts, alternate): (usize, bool),
    ) -> Result<Stack<'_>, String> {
        let in_rows = tensor.dtype == DType::MXFP4;
        let is_float = matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16);
        let (experts, outputs, inputs) = match tensor.shape[..] {
            [experts, outputs] if is_bias && is_float => (experts, outputs, 1),
            [experts, outputs, inputs] if !is_bias && in_rows => (experts, outputs, inputs),
            [experts, inputs, outputs] if !is_bias && is_float => (experts, outputs, inputs),
            _ => {
                let wanted = if is_bias { "[experts, outputs]" } else { "[experts, inputs, outputs]" };
                return Err(format!(
                    "it is {} of the shape {:?}, and should be {wanted}",
                    tensor.dtype, tensor.shape
                ));
            }
        };
        if !outputs.is_multiple_of(parts) {
            return Err(format!("its {outputs} outputs should be those of {parts} matrices"));
        }
        Ok(Stack { tensor, is_bias, experts, outputs: outputs / parts, inputs, parts, alternate })
    }

    /// Of one of the matrices.
    fn shape(&self) -> Vec<usize> {
        let shape = [self.experts, self.outputs, self.inputs];
        shape[..if self.is_bias { 2 } else { 3 }].to_vec()
    }

    /// Matrix `index`: the number of its bytes, and the bytes.
    fn part(&self, index: usize, regions: &[Region]) -> Result<(usize, Region), String> {
        let too_long = || format!("its rows have {} inputs, which are not whole blocks", self.inputs);
        let (rows, row) =
            (self.experts * self.outputs, self.tensor.dtype.row_bytes(self.inputs).ok_or_else(too_long)?);
        let source = |place: Place| Source { region: regions[place.region].clone(), place };
        let (stride, first) = match self.alternate {
            true => (self.parts, index),
            false => (1, index * self.outputs),
        };
        let all = self.outputs * self.parts;
        let from = Outputs { outputs: self.outputs, inputs: self.inputs, all, stride, first };
        let (values, exponents) = (source(self.tensor.place()), self.tensor.scales_offsets[0].map(source));
        let size = self.tensor.dtype.block_bytes();
        let region = Region::derived(rows * row, move |out| {
            in_parts(out, row, rows, |first, out| match (&exponents, size) {
                (Some(exponents), _) => from.blocks(values.bytes(), exponents.bytes(), first, out),
                (None, 2) => from.transposed::<2>(values.bytes(), first, out),
                (None, _) => from.transposed::<4>(values.bytes(), first, out),
            });
        });
        Ok((rows * row, region))
    }
}

/// Bytes of a file.
struct Source {
    region: Region,
    place: Place,
}

impl Source {
    fn bytes(&self) -> &[u8] {
        &self.region.bytes()[self.place.offset..self.place.offset + self.place.bytes]
    }
}

/// The outputs of one matrix of each expert, in a tensor with `all` outputs of an expert.
#[derive(Clone, Copy)]
struct Outputs {
    outputs: usize,
    inputs: usize,
    all: usize,
    /// The distance between outputs of the matrix, and where its first one is.
    stride: usize,
    first: usize,
}

impl Outputs {
    /// Where an output of an expert is.
    fn place(self, output: usize) -> usize {
        self.first + output * self.stride
    }

    /// Writes rows from row `first` on, of a tensor with outputs in rows.
    fn blocks(self, codes: &[u8], exponents: &[u8], first: usize, out: &mut [u8]) {
        let count = self.inputs / DType::MXFP4.block_len();
        let row = count * DType::MXFP4.block_bytes();
        for (place, out) in out.chunks_exact_mut(row).enumerate() {
            let (expert, output) = ((first + place) / self.outputs, (first + place) % self.outputs);
            let from = (expert * self.all + self.place(output)) * count;
            mxfp4_row(&codes[from * 16..][..count * 16], &exponents[from..][..count], out);
        }
    }

    /// Writes rows from row `first` on, of a tensor with outputs in columns and elements of `SIZE` bytes.
    fn transposed<const SIZE: usize>(self, values: &[u8], first: usize, out: &mut [u8]) {
        let (values, out) = (values.as_chunks::<SIZE>().0, out.as_chunks_mut::<SIZE>().0);
        let rows = out.len() / self.inputs;
        let mut row = 0;
        while row < rows {
            let (expert, output) = ((first + row) / self.outputs, (first + row) % self.outputs);
            let count = TILE.min(rows - row).min(self.outputs - output);
            for input in 0..self.inputs {
                let line = (expert * self.inputs + input) * self.all + self.place(output);
                for (place, value) in values[line..].iter().step_by(self.stride).take(count).enumerate() {
                    out[(row + place) * self.inputs + input] = *value;
                }
            }
            row += count;
        }
    }
}

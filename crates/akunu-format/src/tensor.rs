//! Positions of tensors in the mapped regions of a file.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{DType, FormatError, Region};

/// A range of bytes in one of a model's regions; checked against its length when the file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub region: usize,
    pub offset: usize,
    pub bytes: usize,
}

impl Place {
    /// `count` rows from row `first` on, of a range that contains `all` rows.
    pub fn rows(self, first: usize, count: usize, all: usize) -> Place {
        let row = self.bytes / all;
        Place { offset: self.offset + first * row, bytes: count * row, ..self }
    }
}

/// A tensor and the position of its bytes. Names are canonical: GGUF's (`blk.3.attn_q.weight`), whatever the file uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: DType,
    /// Outermost first: a matrix of `rows` outputs and `cols` inputs is `[rows, cols]`, a vector `[n]`.
    pub shape: Vec<usize>,
    /// As in [`Place`]. For a type with several planes: the position of the quants.
    pub region: usize,
    pub offset: usize,
    pub bytes: usize,
    /// Scales and offsets, as far as the type has planes of them.
    pub scales_offsets: [Option<Place>; 2],
    /// The column of the model that is stored at each place of a row; `None` if they are in order.
    pub order: Option<Arc<[u32]>>,
}

impl TensorInfo {
    /// Number of elements in the innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions except the innermost.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Brings a row as it is stored into the order of the model.
    pub fn restore_order(&self, row: &mut [f32]) {
        if let Some(order) = &self.order {
            let stored = row.to_vec();
            for (value, &column) in stored.into_iter().zip(order.iter()) {
                row[column as usize] = value;
            }
        }
    }

    /// The position of its first plane.
    pub fn place(&self) -> Place {
        Place { region: self.region, offset: self.offset, bytes: self.bytes }
    }

    /// The positions of all planes, in order.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        std::iter::once(self.place()).chain(self.scales_offsets.into_iter().flatten())
    }

    /// Size of all planes in bytes.
    pub fn stored_bytes(&self) -> usize {
        self.places().map(|place| place.bytes).sum()
    }
}

/// Indices of tensors by name; a duplicate name is an error.
pub fn index_names(tensors: &[TensorInfo]) -> Result<HashMap<String, usize>, FormatError> {
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (i, tensor) in tensors.iter().enumerate() {
        if by_name.insert(tensor.name.clone(), i).is_some() {
            return Err(FormatError::tensor(&tensor.name, "it occurs twice"));
        }
    }
    Ok(by_name)
}

/// Tensors of one region may not overlap: no correct writer makes such files.
pub(crate) fn refuse_overlaps<'a>(
    tensors: impl Iterator<Item = (&'a str, Place)>,
) -> Result<(), FormatError> {
    let mut order: Vec<(&str, Place)> = tensors.collect();
    order.sort_by_key(|(_, place)| place.offset);
    for pair in order.windows(2) {
        let [(before, first), (name, second)] = [pair[0], pair[1]];
        if first.offset + first.bytes > second.offset {
            let problem = format!("its data overlaps that of tensor {}", crate::error::printable(before));
            return Err(FormatError::tensor(name, problem));
        }
    }
    Ok(())
}

/// Rejects GGUF files with tensors that are not aligned for their type, so that later code can rely on the alignment.
pub fn refuse_misaligned(tensors: &[TensorInfo], regions: &[Region]) -> Result<(), FormatError> {
    for tensor in tensors {
        let align = match tensor.dtype {
            DType::F32 => 4,
            // Blocks have 17 bytes.
            DType::MXFP4 => 1,
            // Other blocks begin with half-precision scales or bytes, and have even sizes.
            _ => 2,
        };
        let start = regions[tensor.region].bytes().as_ptr().addr() + tensor.offset;
        if !start.is_multiple_of(align) {
            let problem =
                format!("its data does not start at a multiple of {align} bytes: write the file again");
            return Err(FormatError::tensor(&tensor.name, problem));
        }
    }
    Ok(())
}

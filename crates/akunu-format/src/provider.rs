//! The one face that every weight file shows.

use std::collections::HashMap;

use crate::gguf::Metadata;
use crate::{DType, FormatError, ModelConfig, Region};

/// Where a tensor's bytes are. Names are canonical: GGUF's (`blk.3.attn_q.weight`), whatever the file calls them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: DType,
    /// Outermost first: a matrix of `rows` outputs and `cols` inputs is `[rows, cols]`, a vector `[n]`.
    pub shape: Vec<usize>,
    /// Index into [`WeightProvider::regions`].
    pub region: usize,
    /// Byte range within that region; checked against its length when the file was opened.
    pub offset: usize,
    pub bytes: usize,
}

impl TensorInfo {
    /// Elements in the innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all but the innermost dimension.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

pub trait WeightProvider: std::fmt::Debug + Send + Sync {
    fn config(&self) -> &ModelConfig;

    /// In file order.
    fn tensors(&self) -> &[TensorInfo];

    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// What the file has instead of [`WeightProvider::tensors`], where it stacks some of them (`attn_qkv`) or keeps
    /// facts of the configuration as tensors.
    fn stored(&self) -> &[TensorInfo] {
        self.tensors()
    }

    fn regions(&self) -> &[Region];

    /// GGUF metadata (the vocabulary is in there), where the file is GGUF.
    fn metadata(&self) -> Option<&Metadata> {
        None
    }

    /// F32 tensors start at a multiple of 4 bytes in memory, all others but MXFP4's at a multiple of 2.
    fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.regions()[tensor.region].bytes()[tensor.offset..tensor.offset + tensor.bytes]
    }
}

/// Names to places in the list; a name that occurs twice is an error.
pub(crate) fn index_names(tensors: &[TensorInfo]) -> Result<HashMap<String, usize>, FormatError> {
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (i, tensor) in tensors.iter().enumerate() {
        if by_name.insert(tensor.name.clone(), i).is_some() {
            return Err(FormatError::tensor(&tensor.name, "it occurs twice"));
        }
    }
    Ok(by_name)
}

/// Tensors of one region may not share bytes: no sound writer makes such files.
pub(crate) fn refuse_overlaps(tensors: &[TensorInfo]) -> Result<(), FormatError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let problem =
                format!("its data overlaps that of tensor {}", crate::error::printable(&pair[0].name));
            return Err(FormatError::tensor(&pair[1].name, problem));
        }
    }
    Ok(())
}

/// Files whose numbers lie across their natural places are refused here, so that nobody has to wonder later.
pub(crate) fn refuse_misaligned(tensors: &[TensorInfo], regions: &[Region]) -> Result<(), FormatError> {
    for tensor in tensors {
        let align = match tensor.dtype {
            DType::F32 => 4,
            // Blocks of 17 bytes.
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

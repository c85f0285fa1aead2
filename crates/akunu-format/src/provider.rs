//! The one face that every weight file shows.

use crate::{DType, ModelConfig, Region};

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

    fn regions(&self) -> &[Region];

    fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.regions()[tensor.region].bytes()[tensor.offset..tensor.offset + tensor.bytes]
    }
}

//! GGUF, versions 2 and 3, little-endian: reading (memory-mapped, also split files) and writing.

mod header;
mod listing;
mod metadata;
mod split;
mod types;
mod writer;

use std::collections::HashMap;
use std::path::Path;

pub use listing::{ListedTensor, Listing};
pub use metadata::{Array, Metadata, Strings, Value};
pub use types::tensor_type_name;
pub use writer::{GgufWriter, TensorSpec};

pub(crate) use header::{MAGIC, measure};

use crate::{FormatError, Loading, Region, TensorInfo};

/// The types recommended when another type is rejected.
pub(crate) const SUPPORTED: &str =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ1_S to IQ4_XS or MXFP4";

/// A parsed GGUF container: metadata, and tensors if it has any. `akunu-arch` interprets it as a model.
#[derive(Debug)]
pub struct Gguf {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    regions: Vec<Region>,
}

impl Gguf {
    /// Maps a file and, if the model is split, the other parts (any part may be given).
    pub fn open(path: &Path) -> Result<Gguf, FormatError> {
        Gguf::load(path, Loading::Map)
    }

    /// As [`Gguf::open`], mapped or read.
    pub fn load(path: &Path, loading: Loading) -> Result<Gguf, FormatError> {
        split::open(path, loading)
    }

    /// Reads a container from memory, such as one embedded in a binary. It must be complete.
    pub fn from_region(region: Region) -> Result<Gguf, FormatError> {
        let part = header::read_part(&region, 0)?;
        split::refuse_part(&part.metadata)?;
        Gguf::assemble(part.metadata, part.tensors, vec![region])
    }

    fn assemble(
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
        regions: Vec<Region>,
    ) -> Result<Gguf, FormatError> {
        let by_name = crate::tensor::index_names(&tensors)?;
        Ok(Gguf { metadata, tensors, by_name, regions })
    }

    /// Removes tensors that are not wanted from the list.
    pub fn retain(&mut self, wanted: impl Fn(&TensorInfo) -> bool) -> Result<(), FormatError> {
        self.tensors.retain(wanted);
        self.by_name = crate::tensor::index_names(&self.tensors)?;
        Ok(())
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// In file order; the parts of a split model one after the other.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// One per file.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.regions[tensor.region].bytes()[tensor.offset..tensor.offset + tensor.bytes]
    }
}

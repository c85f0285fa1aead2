//! What the header of one GGUF file says, for listings: also of files that cannot be run.

use std::path::Path;

use super::header::{RawEntry, measure, read_header};
use super::{Metadata, tensor_type_name};
use crate::map::load_file;
use crate::{DType, FormatError, Loading, Region};

/// The header of one file, which may have tensors of types that are not supported, lack some of its data, or be one part
/// of a split model.
#[derive(Debug)]
pub struct Listing {
    pub metadata: Metadata,
    /// In file order.
    pub tensors: Vec<ListedTensor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTensor {
    pub name: String,
    pub type_name: String,
    /// Outermost first.
    pub shape: Vec<u64>,
    /// `None` if the size of the type's blocks is not known, or the shape has none.
    pub bytes: Option<u64>,
}

impl Listing {
    pub fn open(path: &Path) -> Result<Listing, FormatError> {
        let region = load_file(path, Loading::Map)?;
        Listing::from_region(&region).map_err(|error| error.in_file(path))
    }

    pub fn from_region(region: &Region) -> Result<Listing, FormatError> {
        let header = read_header(region)?;
        Ok(Listing { metadata: header.metadata, tensors: header.tensors.into_iter().map(listed).collect() })
    }
}

fn listed(raw: RawEntry<'_>) -> ListedTensor {
    let RawEntry { name, shape, type_id, .. } = raw;
    let type_name = tensor_type_name(type_id).map_or_else(|| format!("type {type_id}"), str::to_string);
    let bytes = DType::from_gguf_id(type_id).and_then(|dtype| Some(measure(dtype, &shape).ok()?.1 as u64));
    ListedTensor { name: name.to_string(), type_name, shape, bytes }
}

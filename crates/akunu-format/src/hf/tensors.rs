//! A SafeTensors header: parsed by the `safetensors` crate, with additional checks of tensor positions.

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

use crate::error::printable;
use crate::{DType, FormatError, Place, Region, tensor};

/// Bytes of the length field before the header.
const LENGTH: usize = 8;

/// A tensor as stored in its file.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) place: Place,
}

/// All tensors of one file, in file order, under the names in the file.
pub(super) fn read(region: &Region, index: usize) -> Result<Vec<Stored>, FormatError> {
    let bytes = region.bytes();
    let (header, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|error| FormatError::header(format!("{error}. The file is cut short or damaged")))?;
    let data_start = LENGTH + header;
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        if info.shape.contains(&0) {
            return Err(FormatError::tensor(&name, format!("a dimension of {:?} is zero", info.shape)));
        }
        let (from, to) = info.data_offsets;
        // The parser has checked this already; it is cheap to check untrusted bytes again.
        let sound = from <= to && to <= bytes.len() - data_start;
        let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |all, &n| all.checked_mul(n));
        let size = bits.filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8);
        if !sound || size != Some(to - from) {
            return Err(FormatError::tensor(&name, "its size does not match its shape"));
        }
        let place = Place { region: index, offset: data_start + from, bytes: to - from };
        tensors.push(Stored { name, dtype: info.dtype, shape: info.shape.clone(), place });
    }
    tensors.sort_by(|a, b| (a.place.offset, &a.name).cmp(&(b.place.offset, &b.name)));
    tensor::refuse_overlaps(tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.place)))?;
    Ok(tensors)
}

pub(super) fn unsupported_type(stored: &Stored) -> FormatError {
    FormatError::TensorType {
        name: printable(&stored.name),
        type_name: format!("{:?}", stored.dtype),
        supported: super::SUPPORTED,
    }
}

pub(super) fn float_dtype(stored: Dtype) -> Option<DType> {
    match stored {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}

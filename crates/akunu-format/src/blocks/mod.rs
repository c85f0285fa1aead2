//! Block layouts (to come): byte layout of every dtype, scalar conversion both ways.

/// Why a row could not be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    #[error("a row of {elements} elements in {bytes} bytes is not {dtype}")]
    Length { dtype: crate::DType, elements: usize, bytes: usize },
    #[error("quantising to {dtype} is not supported")]
    NoQuantiser { dtype: crate::DType },
}

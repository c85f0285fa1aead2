//! Quantisation of rows to blocks, and the choice of a type for each tensor: docs/quantise.md.

mod exact;
pub(crate) mod k;
pub(crate) mod lattices;
mod mix;
pub(crate) mod search;
pub(crate) mod tables;

pub use exact::convert_exactly;
pub use mix::{MIXES, Mix, Proportions};

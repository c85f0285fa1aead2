//! Numbers to blocks, and whole models to smaller ones: docs/quantise.md.

mod convert;
pub(crate) mod k;
mod metadata;
mod mix;
mod search;
pub(crate) mod tables;

pub use convert::{Conversion, Planned, Recipe};
pub use mix::{MIXES, Mix, Proportions};

//! Numbers to blocks, and which tensor of a model gets which blocks: docs/quantise.md.

pub(crate) mod k;
mod mix;
mod search;
pub(crate) mod tables;

pub use mix::{MIXES, Mix, Proportions};

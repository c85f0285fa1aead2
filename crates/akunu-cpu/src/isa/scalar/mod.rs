//! The scalar implementation: the definition that every other instruction set is tested against, bit for bit.

mod dots;
pub(crate) mod lanes;
mod panels;

//! GPU kernels as text: what a device compiles and launches for each command of a table.
//!
//! [`launches`] turns a command into launches of [`Function`]s; [`cuda_text`] and [`metal_text`] are the whole text of one, ready
//! to compile.
//! docs/kernels.md describes the dialect.

mod cover;
mod function;
mod launch;
mod pass;
mod types;
mod weights;

pub use cover::Cover;
pub use function::{Function, METAL_ENTRY, Source, cuda_text, emulated_text, metal_text};
pub use launch::{Chip, HalfProduct, Launch, MissingKernel, SCRATCH_BYTES, Work, launches};
pub use pass::{Pass, advances};
pub use weights::{Held, Weight, repack, unlaid, weights};

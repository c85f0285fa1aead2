//! GPU kernels as text: what a device compiles and launches for each command of a table.
//!
//! [`launches`] turns a command into launches of [`Function`]s; [`cuda_text`] is the whole text of one, ready to compile.
//! docs/kernels.md describes the dialect.

mod function;
mod launch;
mod pass;
mod types;
mod weights;

pub use function::{Function, Source, cuda_text, emulated_text};
pub use launch::{Chip, HalfProduct, Launch, MissingKernel, SCRATCH_BYTES, Work, launches};
pub use pass::Pass;
pub use weights::{Weight, repack, weights};

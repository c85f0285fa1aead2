//! GPU kernels as source text: what a device compiles and launches for each command of a table.
//!
//! [`launches`] maps a command to launches of [`Function`]s; [`cuda_text`] and [`metal_text`] give the complete source
//! of one, ready to compile. docs/kernels.md describes the dialect.

mod cover;
mod function;
mod launch;
mod pass;
mod types;
mod weights;

/// Positions of a block of the cache: a multiple of what the attention kernels read at once.
pub const BLOCK: usize = 64;

pub use cover::Cover;
pub use function::{Function, METAL_ENTRY, Source, cuda_text, emulated_text, metal_text};
pub use launch::{
    Chip, Exchange, FEWEST_PACKED_ROWS, GATHERED_BYTES, Gathering, Launch, LibraryProduct, MissingKernel,
    SCRATCH_BYTES, Work, exchange_bytes, launches,
};
pub use pass::Pass;
pub use weights::{Held, Weight, repack, unlaid, weights};

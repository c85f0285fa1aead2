//! The CPU device: prepared tables, executed by a persistent thread pool.
//!
//! Its arithmetic is canonical: the bits of every output are the same for every instruction set, number of threads,
//! split of a prompt into chunks and composition of a batch. `tile` defines matrix products, `kernels::attention`
//! attention, `math` the elementary functions; all other instruction sets are tested against the scalar implementation
//! of `isa`.
#![allow(
    unsafe_code,
    reason = "kernels go through pointers whose extents `prepare` has checked, and through intrinsics that `isa` has detected"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "rows, outputs and blocks are numbered across several arrays of registers at once"
)]
#![cfg_attr(
    any(not(target_arch = "x86_64"), fuzzing),
    allow(dead_code, reason = "what only the x86 instruction sets ask of panels and types")
)]
#![cfg_attr(fuzzing, allow(unused_imports, reason = "of the instruction sets that fuzz targets do without"))]

mod available;
pub mod ceilings;
mod command;
mod control_groups;
mod device;
mod execution;
mod floats;
mod formats;
mod groups;
mod host;
mod isa;
mod kernels;
mod limits;
mod math;
mod memory;
mod paging;
mod panel;
mod planes;
mod prepare;
mod read_pattern;
mod tile;

pub use available::available_memory;
pub use control_groups::{Controller, control_groups, memory_limit, processor_limit};
pub use device::{CpuDevice, CpuOptions, capabilities};
pub use host::{features, physical_cores};
pub use isa::{Isa, IsaError};
pub use paging::read_rate;
pub use read_pattern::ReadPattern;

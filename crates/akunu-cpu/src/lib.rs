//! The CPU device: prepared tables, walked by a persistent pool.
//!
//! Its arithmetic is canonical: the bits of every output are the same for every instruction set, number of threads,
//! cut of a prompt into chunks and mix of a batch. `tile` defines matrix products, `kernels::attention` attention,
//! `math` the elementary functions; the scalar implementation of `isa` is what all others are tested against.
#![allow(
    unsafe_code,
    reason = "kernels go through pointers whose extents `prepare` has checked, and through intrinsics that `isa` has detected"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "rows, outputs and blocks are numbered across several arrays of registers at once"
)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "what only the x86 instruction sets ask of panels and types")
)]

#[cfg(not(loom))]
pub mod ceilings;
#[cfg(not(loom))]
mod command;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod floats;
#[cfg(not(loom))]
mod groups;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod isa;
#[cfg(not(loom))]
mod kernels;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
mod math;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod panel;
#[cfg(not(loom))]
mod planes;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod prepare;
#[cfg(not(loom))]
mod quants;
#[cfg(not(loom))]
mod reading;
mod shares;
mod stages;
#[cfg(not(loom))]
mod tile;
#[cfg(not(loom))]
mod walk;

#[cfg(not(loom))]
pub use device::{CpuDevice, CpuOptions};
#[cfg(not(loom))]
pub use host::physical_cores;
#[cfg(not(loom))]
pub use isa::{Isa, IsaError};
#[cfg(not(loom))]
pub use reading::Reading;

//! The host side of a GPU device, written once for CUDA, Metal and the emulator.
//!
//! [`TableDevice`] is the device: buffers, repacked weights, hazards, launches, prepared tables, submissions. It is
//! built on the trait [`Gpu`], which each GPU's crate implements with calls to its API and nothing else. docs/gpu-host.md
//! describes it.

mod bind;
mod buffers;
mod device;
mod encoder;
mod gpu;
mod hazards;
mod planes;
mod program;

pub use device::{TableDevice, WORKSPACE_BYTES};
pub use encoder::{Commands, Encoder, Recording, Word};
pub use gpu::{During, Gpu, Part, Repack, Tuning};
pub use program::{BoundLaunch, Program, Variant};

//! The host's side of a GPU device, written once for CUDA, Metal and the emulator.
//!
//! [`TableDevice`] is the device: buffers, weights in planes, hazards, launches, prepared tables, submissions. It stands on the trait [`Gpu`],
//! which a GPU's crate implements with calls to its interface and nothing else. docs/gpu.md says how it works.

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
pub use gpu::{During, Gpu, Repack, Tuning};
pub use program::{BoundLaunch, Program, Variant};

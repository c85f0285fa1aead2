//! The Metal device: tables as command buffers.
//!
//! All but the calls to Metal is written against two traits, [`Gpu`] and [`Encoder`], and runs anywhere: on the emulator of `akunu-emulated`
//! whole models run through it. docs/metal.md says what that proves.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(any(target_vendor = "apple", test))]
mod bell;
mod bind;
mod chip;
mod device;
mod encoder;
#[cfg(any(target_vendor = "apple", test))]
mod error;
mod gpu;
mod hazards;
mod planes;
mod prepared;

#[cfg(target_vendor = "apple")]
pub use apple::{MetalDevice, MetalGpu, MetalOptions, open, probe, report};
pub use chip::{FAMILIES, Family, FamilyRow};
pub use device::{TableDevice, WORKSPACE_BYTES};
pub use encoder::{Commands, Encoder, Recording, Word};
#[cfg(target_vendor = "apple")]
pub use error::MetalError;
pub use gpu::{Gpu, Tuning};
pub use prepared::{BoundLaunch, Program, Variant};

//! The Metal device: tables as command buffers.
//!
//! Everything but the calls to Metal is in `akunu-gpu`, written against its traits `Gpu` and `Encoder`, and runs
//! anywhere: on the emulator of `akunu-emulated` it executes whole models. docs/metal.md says what that proves.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(any(target_vendor = "apple", test))]
mod bell;
mod chip;
#[cfg(any(target_vendor = "apple", test))]
mod error;

#[cfg(target_vendor = "apple")]
pub use apple::{MetalDevice, MetalGpu, MetalOptions, open, probe, report};
pub use chip::{CHIPS, ChipRow, Family, MetalChip, Size};
#[cfg(target_vendor = "apple")]
pub use error::MetalError;

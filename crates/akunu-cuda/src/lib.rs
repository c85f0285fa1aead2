//! The CUDA device: NVIDIA's driver, NVRTC and cuBLASLt, found when the program runs; tables captured into graphs.

#![allow(
    unsafe_code,
    reason = "the driver, NVRTC and cuBLASLt are called through pointers found in their libraries"
)]

mod blas;
mod cache;
mod context;
mod device;
mod driver;
mod error;
mod library;
mod memory;
mod module;
mod nvrtc;
mod prepare;
mod repack;
mod report;
mod staging;
mod stream;

pub use context::Card;
pub use device::{CudaDevice, CudaOptions, probe};
pub use error::CudaError;
pub use library::CudaFolders;
pub use report::report;

pub(crate) const NAME: &str = "cuda";

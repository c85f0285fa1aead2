//! The CUDA device: NVIDIA's driver, NVRTC and cuBLASLt, loaded at run time; tables are captured into graphs.
//! Everything that is not a call to CUDA is in `akunu-gpu`, which is also tested on the emulator of `akunu-emulated`.

#![allow(
    unsafe_code,
    reason = "the driver, NVRTC and cuBLASLt are called through pointers found in their libraries"
)]

mod blas;
mod cache;
mod choices;
mod context;
mod driver;
mod error;
mod gpu;
mod graph;
mod library;
mod memory;
mod module;
mod nvrtc;
mod reader;
mod report;
mod staging;
mod stream;

pub use choices::{CHIPS, CudaChip, Products, capabilities, tuning};
pub use context::Card;
pub use error::CudaError;
pub use gpu::{CudaGpu, CudaOptions, probe};
pub use library::CudaFolders;
pub use report::report;

/// The CUDA device.
pub type CudaDevice = akunu_gpu::TableDevice<CudaGpu>;

/// Uses the card with this number of those that `CUDA_VISIBLE_DEVICES` exposes.
pub fn open(options: CudaOptions, card: u32) -> Result<CudaDevice, akunu_plan::DeviceError> {
    akunu_gpu::TableDevice::on(CudaGpu::new(options, card, &[])?)
}

/// The device of a rank: `cards` are those of all ranks, by their numbers.
pub fn open_rank(
    options: CudaOptions,
    cards: &[u32],
    member: &akunu_plan::Member,
) -> Result<CudaDevice, akunu_plan::DeviceError> {
    akunu_gpu::TableDevice::in_group(CudaGpu::new(options, cards[member.rank()], cards)?, member)
}

pub(crate) const NAME: &str = "cuda";

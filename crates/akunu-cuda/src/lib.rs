//! The CUDA device: NVIDIA's driver, NVRTC, cuBLASLt and NCCL, loaded at run time; tables are captured into graphs.
//! Everything that is not a call to CUDA is in `akunu-gpu`, which is also tested on the emulator of `akunu-emulated`.

#![allow(
    unsafe_code,
    reason = "the driver, NVRTC, cuBLASLt and NCCL are called through pointers found in their libraries"
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
mod nccl;
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

/// What the ranks of several processes need to find each other.
pub fn rank_token(options: &CudaOptions) -> Result<Vec<u8>, CudaError> {
    Ok(nccl::Library::get(&options.folders)?.unique_id()?.to_vec())
}

/// The device of a rank in a process of its own, which exchanges numbers with the others through NCCL.
pub fn open_remote(
    options: CudaOptions,
    card: u32,
    member: &akunu_plan::Member,
    token: &[u8],
) -> Result<CudaDevice, akunu_plan::DeviceError> {
    let gpu = CudaGpu::new(options, card, &[])?.connected(member, token)?;
    akunu_gpu::TableDevice::in_group(gpu, member)
}

/// Why a process cannot have one of several ranks, as far as that shows without the others.
pub fn probe_remote(folders: &CudaFolders) -> Result<(), CudaError> {
    nccl::Library::get(folders).map(drop)
}

pub(crate) const NAME: &str = "cuda";

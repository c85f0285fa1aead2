//! The calls to Metal, through objc2-metal. Everything else is in other modules and crates.

#![allow(
    unsafe_code,
    reason = "Metal's methods that take pointers, ranges or what the compiler cannot check"
)]

mod archive;
mod code;
mod commands;
mod cores;
mod gpu;
mod indirect;
mod report;

use akunu_gpu::TableDevice;
use akunu_plan::DeviceError;

pub use gpu::{MetalGpu, MetalOptions};
pub use report::{probe, report};

/// The Metal device.
pub type MetalDevice = TableDevice<MetalGpu>;

/// Uses the system's default GPU.
pub fn open(options: MetalOptions) -> Result<MetalDevice, DeviceError> {
    TableDevice::on(MetalGpu::new(options)?)
}

// Metal returns no device to command-line programs that do not link CoreGraphics.
#[cfg(target_os = "macos")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

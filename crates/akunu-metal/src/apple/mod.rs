//! Metal itself, through objc2-metal. What is decided about tables is decided elsewhere: here are only calls.

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

/// Takes the system's default GPU.
pub fn open(options: MetalOptions) -> Result<MetalDevice, DeviceError> {
    TableDevice::on(MetalGpu::new(options)?)
}

// Metal gives out no device to command-line programs that do not link it.
#[cfg(target_os = "macos")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

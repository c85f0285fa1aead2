//! What `akunu doctor` tells of Metal.

use objc2::rc::autoreleasepool;
use objc2_metal::MTLDevice;

use super::gpu::{MetalOptions, describe, find};
use crate::cache::folder;
use crate::error::MetalError;

/// Whether there is a GPU that tables run on.
pub fn probe() -> Result<(), MetalError> {
    autoreleasepool(|_| find(MetalOptions::from_environment()).map(drop))
}

/// Facts as (name, value).
pub fn report() -> Vec<(&'static str, String)> {
    const MIB: u64 = 1 << 20;
    autoreleasepool(|_| {
        let (device, family) = match find(MetalOptions::from_environment()) {
            Ok(found) => found,
            Err(error) => return vec![("metal device", error.to_string())],
        };
        let memory = format!(
            "{} MiB for a process, {} MiB a buffer, {} KiB a threadgroup",
            device.recommendedMaxWorkingSetSize() / MIB,
            device.maxBufferLength() as u64 / MIB,
            device.maxThreadgroupMemoryLength() / 1024
        );
        let kernels = folder(|name| std::env::var_os(name))
            .map_or_else(|| "not kept".into(), |folder| format!("kept in {}", folder.display()));
        vec![
            ("metal device", describe(&device, family)),
            ("metal memory", memory),
            ("metal kernels", kernels),
        ]
    })
}

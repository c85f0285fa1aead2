//! What `akunu doctor` reports about Metal.

use objc2::rc::autoreleasepool;
use objc2_metal::MTLDevice;

use super::gpu::{MetalOptions, describe, find};
use crate::error::MetalError;

/// Whether there is a supported GPU.
pub fn probe(options: &MetalOptions) -> Result<(), MetalError> {
    autoreleasepool(|_| find(options).map(drop))
}

/// Facts as (name, value).
pub fn report(options: &MetalOptions) -> Vec<(&'static str, String)> {
    const MIB: u64 = 1 << 20;
    autoreleasepool(|_| {
        let (device, chip) = match find(options) {
            Ok(found) => found,
            Err(error) => return vec![("metal device", error.to_string())],
        };
        let memory = format!(
            "{} MiB for a process, {} MiB a buffer, {} KiB a threadgroup",
            device.recommendedMaxWorkingSetSize() / MIB,
            device.maxBufferLength() as u64 / MIB,
            device.maxThreadgroupMemoryLength() / 1024
        );
        let kernels = options
            .pipelines
            .as_ref()
            .map_or_else(|| "not kept".into(), |folder| format!("kept in {}", folder.display()));
        vec![("metal device", describe(&device, chip)), ("metal memory", memory), ("metal kernels", kernels)]
    })
}

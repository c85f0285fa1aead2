//! The devices under test.
#![allow(clippy::unwrap_used)]

use akunu_cpu::{CpuDevice, CpuOptions, Isa};

pub fn cpu(isa: Isa, threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() }).unwrap()
}

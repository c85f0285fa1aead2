//! The devices under test.
#![allow(clippy::unwrap_used)]

use akunu_cpu::{CpuDevice, CpuOptions, Isa};

pub fn cpu(isa: Isa, threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() }).unwrap()
}

/// The scalar instruction set and those to compare with it. With `cfg(few_kernels)` the best one has all kernels that the
/// others have.
pub fn isas() -> Vec<Isa> {
    let mut isas = Isa::available();
    if cfg!(few_kernels) {
        isas.drain(1..isas.len() - 1);
    }
    isas
}

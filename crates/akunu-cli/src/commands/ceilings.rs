//! Performance ceilings of a pass, for commands that measure one.

use akunu::devices::ceilings::{Ceilings, CeilingsError, DRAM_BYTES};
use akunu::{BackendOptions, DeviceChoice};
use serde::Serialize;

use crate::failure::Failure;

/// Rounds before the measurement, and again after it.
pub const ROUNDS: usize = 3;

#[derive(Clone, Debug, Serialize)]
pub struct CeilingsReport {
    pub isa: &'static str,
    pub threads: usize,
    /// Size of the memory that was read, in bytes.
    pub working_set: u64,
    pub read_gb_s: f64,
    pub int8_gop_s: f64,
    pub f32_gop_s: f64,
}

impl CeilingsReport {
    pub fn new(ceilings: &Ceilings) -> CeilingsReport {
        CeilingsReport {
            isa: ceilings.isa().name(),
            threads: ceilings.threads(),
            working_set: ceilings.working_set(),
            read_gb_s: ceilings.read().median / 1e9,
            int8_gop_s: ceilings.int8().median / 1e9,
            f32_gop_s: ceilings.f32().median / 1e9,
        }
    }

    pub fn line(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("ceilings ({}, {} thread{plural}): {}", self.isa, self.threads, self.text())
    }

    pub fn text(&self) -> String {
        let CeilingsReport { read_gb_s, int8_gop_s, f32_gop_s, .. } = self;
        format!(
            "{read_gb_s:.1} GB/s of {}, {int8_gop_s:.0} int8 and {f32_gop_s:.0} f32 GOP/s",
            akunu::human(self.working_set)
        )
    }
}

/// The ceilings of the CPU, measured with as many bytes as a pass reads, so that caches have the same effect. `None`
/// for devices whose limits are not known.
pub fn of(
    device: DeviceChoice,
    backends: &BackendOptions,
    threads: usize,
    bytes: u64,
) -> Result<Option<Ceilings>, Failure> {
    match device.resolve(backends) {
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            const MIN_BYTES: u64 = 64 << 10;
            let isa = backends.cpu_isa().map_err(CeilingsError::from)?;
            Ok(Some(Ceilings::new(isa, threads, bytes.clamp(MIN_BYTES, DRAM_BYTES))?))
        }
        _ => Ok(None),
    }
}

//! What to expect of experts that are read from the file when they are needed.

use akunu::{Model, human};
use akunu_plan::Paging;
use serde::Serialize;

use crate::failure::Failure;

#[derive(Debug, Serialize)]
pub struct PagingReport {
    /// Bytes of all experts that are paged.
    experts: u64,
    /// Of those that are kept in memory.
    kept: u64,
    /// Memory for these, and for others that pass through.
    slots: u64,
    /// Bytes that a token reads from the file, if each expert is chosen equally often.
    read_by_token: u64,
    /// Bytes that a pass of many rows reads.
    read_by_pass: u64,
    /// With --speed: GB/s at which the file was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_gb_s: Option<f64>,
}

impl PagingReport {
    pub fn new(paging: &Paging) -> PagingReport {
        PagingReport {
            experts: paging.expert_bytes(),
            kept: paging.kept_bytes(),
            slots: paging.memory(),
            read_by_token: paging.read_by_token(),
            read_by_pass: paging.expert_bytes() - paging.kept_bytes(),
            read_gb_s: None,
        }
    }

    /// Reads a part of the experts.
    pub fn measure(&mut self, model: &Model, paging: &Paging) -> Result<(), Failure> {
        self.read_gb_s = Some(akunu::expert_read_rate(model, paging)? / 1e9);
        Ok(())
    }

    /// Seconds that a token and a pass of many rows wait for the file; 0 without a measured rate.
    pub fn seconds(&self) -> [f64; 2] {
        let rate = self.read_gb_s.map_or(f64::INFINITY, |rate| 1e9 * rate);
        [self.read_by_token, self.read_by_pass].map(|bytes| bytes as f64 / rate)
    }

    pub fn lines(&self) -> [String; 2] {
        let part = 100.0 * self.kept as f64 / self.experts.max(1) as f64;
        let rate = self.read_gb_s.map(|rate| format!(" It was read at {rate:.2} GB/s."));
        [
            format!(
                "Of the experts ({}), those that are used most are kept in memory: {} ({part:.0}%).",
                human(self.experts),
                human(self.kept)
            ),
            format!(
                "A token reads {} of others from the file if all are chosen equally often, and less otherwise; \
                 a pass of many rows {}.{}",
                human(self.read_by_token),
                human(self.read_by_pass),
                rate.unwrap_or_default()
            ),
        ]
    }
}

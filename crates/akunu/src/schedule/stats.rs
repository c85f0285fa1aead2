//! What a scheduler has done so far, and what it is doing.

use std::time::Duration;

/// A snapshot; totals are since the scheduler was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests without a slot.
    pub waiting: usize,
    /// Requests whose prompts are being read.
    pub reading: usize,
    /// Requests that tokens are generated for.
    pub running: usize,
    pub slots: usize,
    /// Positions of the KV cache that hold tokens of requests at work.
    pub kv_tokens: usize,
    /// Positions that hold tokens of requests that are over, for prompts that begin like them.
    pub kv_kept: usize,
    /// All slots' together.
    pub kv_capacity: usize,
    /// Requests that have had a slot.
    pub started: u64,
    /// Requests that ended, with a slot or without, for whatever reason but an error.
    pub finished: u64,
    /// Those that ended with an error.
    pub failed: u64,
    /// Tokens of prompts that went through the model.
    pub prompt_tokens: u64,
    /// Tokens of prompts that stood in the cache already.
    pub reused_tokens: u64,
    /// Prompts of which at least 16 tokens stood in the cache.
    pub prefix_hits: u64,
    pub generated_tokens: u64,
    /// Submissions to the device: passes and chains.
    pub steps: u64,
    /// Rows of the last pass; of a chain, 1.
    pub rows: usize,
    /// The longest time between two tokens of a running request, or two chains of one.
    pub longest_stall: Duration,
}

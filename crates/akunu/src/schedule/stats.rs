//! Statistics of a scheduler.

use std::time::Duration;

use akunu_plan::ExpertReads;

use crate::TierStats;

/// A snapshot. Totals count from the creation of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests without a slot.
    pub waiting: usize,
    /// Requests whose prompts are being prefilled.
    pub reading: usize,
    /// Requests that are being decoded.
    pub running: usize,
    /// Of these, requests that the KV cache has no blocks for at the moment.
    pub paused: usize,
    pub slots: usize,
    /// Positions of the blocks of the KV cache that requests in slots use.
    pub kv_tokens: usize,
    /// Positions with tokens of finished requests, kept for reuse as prefixes.
    pub kv_kept: usize,
    /// Positions of all blocks.
    pub kv_capacity: usize,
    /// Positions of a block.
    pub kv_block: usize,
    /// Full blocks that prompts may share, in use or kept.
    pub kv_known_blocks: usize,
    /// Requests that got a slot.
    pub started: u64,
    /// Requests that ended without an error.
    pub finished: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Tokens of prompts that were processed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were found in the cache.
    pub reused_tokens: u64,
    /// Prompts of which at least 16 tokens were found in the cache.
    pub prefix_hits: u64,
    pub generated_tokens: u64,
    /// Submissions to the device: passes and chains.
    pub steps: u64,
    /// Rows of the last pass; 1 for a chain.
    pub rows: usize,
    /// The longest time between two tokens of a running request, or between its chains.
    pub longest_stall: Duration,
    /// The cache outside of the device.
    pub tiers: TierStats,
    /// The experts that passes have read, if the device counts that.
    pub experts: ExpertReads,
}

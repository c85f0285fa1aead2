//! One token of one sequence: the only thing that changes between replays of a table.

use bytemuck::{Pod, Zeroable};

/// All rows of a pass write their K and V before any of them attends. The key and value of position p of a row's sequence lie at
/// position `start + p` of the cache.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Row {
    pub token: u32,
    /// Where in its sequence the token stands: its RoPE angle and, counted from `start`, its place in the cache.
    pub position: u32,
    /// How many positions of its sequence the row attends to, its own included: `position + 1` for causal decoding.
    pub kv_len: u32,
    /// The position of the cache at which the sequence begins.
    pub start: u32,
}

impl Row {
    pub const BYTES: usize = size_of::<Row>();

    /// A causal row: it sees everything up to itself.
    pub fn causal(token: u32, position: u32, start: u32) -> Row {
        Row { token, position, kv_len: position + 1, start }
    }

    /// The row that decodes `token` after this one.
    pub fn next(self, token: u32) -> Row {
        Row { token, position: self.position + 1, kv_len: self.kv_len + 1, start: self.start }
    }
}

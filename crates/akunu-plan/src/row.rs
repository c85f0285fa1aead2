//! One token of one sequence: the only input that changes between replays of a table.

use bytemuck::{Pod, Zeroable};

/// All rows of a pass write their K and V before attention. The key and value of position p of a row's sequence are at
/// logical position `start + p` of the cache ([`crate::blocks`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Row {
    pub token: u32,
    /// Position of the token in its sequence: determines its RoPE angle and, relative to `start`, its cache position.
    pub position: u32,
    /// Number of positions of its sequence that the row attends to, including its own: `position + 1` for causal
    /// decoding.
    pub kv_len: u32,
    /// The logical cache position at which the sequence begins.
    pub start: u32,
}

impl Row {
    pub const BYTES: usize = size_of::<Row>();

    /// A causal row: it attends to all positions up to its own.
    pub fn causal(token: u32, position: u32, start: u32) -> Row {
        Row { token, position, kv_len: position + 1, start }
    }

    /// The row that decodes `token` after this one.
    pub fn next(self, token: u32) -> Row {
        Row { token, position: self.position + 1, kv_len: self.kv_len + 1, start: self.start }
    }
}

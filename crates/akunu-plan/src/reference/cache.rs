//! Keys and values of one layer, `[kv head][position][head dim]`, and RoPE.

use crate::{KvType, RopeStyle};

/// Byte offsets in one layer's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    pub(crate) kv_heads: usize,
    positions: usize,
    row_bytes: usize,
}

impl Cache {
    pub(crate) fn new(kv: KvType, kv_heads: u32, positions: u32, head_dim: u32) -> Cache {
        Cache {
            kv_heads: kv_heads as usize,
            positions: positions as usize,
            row_bytes: kv.row_bytes(head_dim as usize).unwrap_or(0),
        }
    }

    /// The byte range of position `position` of the sequence that begins at `start`.
    pub(crate) fn row(&self, start: u32, head: usize, position: usize) -> std::ops::Range<usize> {
        let byte = (head * self.positions + start as usize + position) * self.row_bytes;
        byte..byte + self.row_bytes
    }
}

/// The two elements of RoPE pair `i`.
fn pair(style: RopeStyle, i: usize, dims: usize) -> (usize, usize) {
    match style {
        RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        RopeStyle::HalfSplit => (i, i + dims / 2),
    }
}

pub(crate) fn rotate(head: &mut [f32], style: RopeStyle, dims: usize, angle: impl Fn(usize) -> (f64, f64)) {
    for i in 0..dims / 2 {
        let (a, b) = pair(style, i, dims);
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        let (cos, sin) = angle(i);
        head[a] = (x * cos - y * sin) as f32;
        head[b] = (x * sin + y * cos) as f32;
    }
}

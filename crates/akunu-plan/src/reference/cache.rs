//! Keys and values of one layer, `[kv head][position][head dim]`, and RoPE.

use super::Bound;
use crate::ops::Blocks;
use crate::table::Binding;
use crate::{KvType, RopeStyle, blocks};

/// Byte offsets in one layer's cache.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) kv_heads: usize,
    positions: u32,
    row_bytes: usize,
    /// The table of its blocks, and the positions of a block, if it is in blocks.
    blocks: Option<(Vec<u32>, u32)>,
}

impl Cache {
    pub(crate) fn new(kv: KvType, [kv_heads, head_dim]: [u32; 2], positions: u32) -> Cache {
        Cache {
            kv_heads: kv_heads as usize,
            positions,
            row_bytes: kv.row_bytes(head_dim as usize).unwrap_or(0),
            blocks: None,
        }
    }

    /// The same in blocks of `block` positions, if there is a table of them.
    pub(crate) fn paged(self, bound: &Bound<'_>, table: Option<Blocks<Binding>>, block: u32) -> Cache {
        let table = table.map(|table| bytemuck::cast_slice(bound.bytes(table.0)).to_vec());
        Cache { blocks: table.map(|table| (table, block)), ..self }
    }

    /// The byte range of position `position` of the sequence that begins at `start`.
    pub(crate) fn row(&self, start: u32, head: usize, position: usize) -> std::ops::Range<usize> {
        let at = start as usize + position;
        let place = match &self.blocks {
            Some((table, block)) => blocks::place(table, at, [self.positions, *block]),
            None => at,
        };
        let byte = (head * self.positions as usize + place) * self.row_bytes;
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

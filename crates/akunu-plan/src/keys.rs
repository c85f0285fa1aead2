//! The layout of keys in a layer's KV cache. Values are always `[kv head][position][head dim]`.

use crate::KvType;

/// Number of positions in a group of the transposed layout.
pub const KEY_GROUP: usize = 16;

/// The layout of a device's keys. The reference device uses position-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// As values: `[kv head][position][head dim]`
    PositionMajor,
    /// `[kv head][group of 16 positions][head dim][position within the group]`, for devices that process one position
    /// per SIMD lane. In [`KvType::Q8_0`] each block has 16 scales, then its quants.
    GroupsOf16,
}

impl KeyOrder {
    /// Sequences begin at multiples of this many positions of the cache.
    pub fn alignment(self) -> usize {
        match self {
            KeyOrder::PositionMajor => 1,
            KeyOrder::GroupsOf16 => KEY_GROUP,
        }
    }

    /// Number of positions of the cache that a sequence of up to `context` tokens occupies.
    pub fn positions(self, context: usize) -> usize {
        context.next_multiple_of(self.alignment())
    }

    /// Converts keys from position-major order to this order. `None` if they are not whole groups of 16 positions.
    pub fn from_positions(self, kv: KvType, head_dim: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        self.reorder(kv, head_dim, bytes, |to, from| (to, from))
    }

    /// The inverse of [`KeyOrder::from_positions`].
    pub fn to_positions(self, kv: KvType, head_dim: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        self.reorder(kv, head_dim, bytes, |to, from| (from, to))
    }

    /// `places` returns the destination and source offset of a field, given its index in the transposed and in
    /// position-major order.
    fn reorder(
        self,
        kv: KvType,
        head_dim: usize,
        bytes: &[u8],
        places: impl Fn(usize, usize) -> (usize, usize),
    ) -> Option<Vec<u8>> {
        if self == KeyOrder::PositionMajor {
            return Some(bytes.to_vec());
        }
        let row =
            kv.row_bytes(head_dim).filter(|&row| row > 0 && bytes.len().is_multiple_of(row * KEY_GROUP))?;
        let mut reordered = vec![0; bytes.len()];
        for sixteen in (0..bytes.len()).step_by(row * KEY_GROUP) {
            let mut at = 0;
            while at < row {
                let size = field_bytes(kv, at);
                for position in 0..KEY_GROUP {
                    let together = sixteen + at * KEY_GROUP + position * size;
                    let (to, from) = places(together, sixteen + position * row + at);
                    reordered[to..to + size].copy_from_slice(&bytes[from..from + size]);
                }
                at += size;
            }
        }
        Some(reordered)
    }
}

/// Size of the field (scale or element) at byte offset `at` of a head.
fn field_bytes(kv: KvType, at: usize) -> usize {
    match kv {
        KvType::F32 => 4,
        KvType::F16 => 2,
        KvType::Q8_0 if at.is_multiple_of(kv.dtype().block_bytes()) => 2,
        KvType::Q8_0 => 1,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn elements_of_sixteen_positions_are_adjacent() {
        let heads: Vec<u8> =
            (0..32_u16).flat_map(|p| [p * 2, p * 2 + 1]).flat_map(u16::to_le_bytes).collect();
        let found = KeyOrder::GroupsOf16.from_positions(KvType::F16, 2, &heads).unwrap();
        let found: Vec<u16> = found.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        let sixteen = |first: u16, element: u16| (first..first + 16).map(move |p| p * 2 + element);
        let expected: Vec<u16> = [0, 16]
            .into_iter()
            .flat_map(|first| [0, 1].into_iter().flat_map(move |e| sixteen(first, e)))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_block_has_sixteen_scales_before_its_quants() {
        let block = |p: u8| [vec![p, 100 + p], vec![p; 32]].concat();
        let heads: Vec<u8> = (0..16).flat_map(|p| [block(p), block(p + 16)].concat()).collect();
        let found = KeyOrder::GroupsOf16.from_positions(KvType::Q8_0, 64, &heads).unwrap();
        let scales: Vec<u8> = (16..32).flat_map(|p| [p, 100 + p]).collect();
        assert_eq!(found[34 * 16..35 * 16 + 16], scales);
        assert_eq!(found[36 * 16..37 * 16], (16..32).collect::<Vec<u8>>());
        assert_eq!(KeyOrder::GroupsOf16.to_positions(KvType::Q8_0, 64, &found).unwrap(), heads);
    }

    #[test]
    fn incomplete_groups_are_rejected() {
        assert_eq!(KeyOrder::GroupsOf16.from_positions(KvType::F32, 2, &[0; 8 * 15]), None);
        assert_eq!(KeyOrder::GroupsOf16.to_positions(KvType::Q8_0, 31, &[0; 34 * 16]), None);
        assert_eq!(KeyOrder::GroupsOf16.from_positions(KvType::F32, 0, &[]), None);
        assert_eq!(KeyOrder::PositionMajor.to_positions(KvType::F32, 2, &[7; 3]).unwrap(), [7; 3]);
    }

    #[test]
    fn a_sequence_takes_whole_groups() {
        assert_eq!([1, 16, 17].map(|n| KeyOrder::GroupsOf16.positions(n)), [16, 16, 32]);
        assert_eq!(KeyOrder::PositionMajor.positions(17), 17);
    }
}

//! Products of one row whose weights stream through threadgroup memory.

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Launch, Source};

use super::{Product, Shape};

static COPIES: Source = source!("cuda/copies.h");
static GEMV_STREAM: Source = source!("cuda/gemv_stream.h");

/// SIMD groups of a group.
const SIMDS: u32 = 8;
/// Of a group's threadgroup memory: two groups, of a kernel and of the next one, lie beside each other.
const RING_BYTES: u32 = 96 << 10;
/// Words of inputs that a lane may have in registers.
const INPUT_WORDS: u32 = 48;
/// Bytes worth a piece.
const PIECE_BYTES: u32 = 2048;
const MOST_SLOTS: u32 = 16;

/// How a row's inputs are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    count: u32,
    /// Blocks of each, but for the last one.
    blocks: u32,
}

impl Parts {
    /// As few as inputs fit registers with. `None`: they never do.
    fn new(of: &TypeSources, blocks: u32) -> Option<Parts> {
        let part = |count: u32| match count {
            1 => blocks,
            _ => blocks.div_ceil(count).next_multiple_of(8),
        };
        let fits = |count: &u32| {
            let words = part(*count).div_ceil(32) * of.input_words;
            words <= INPUT_WORDS && part(*count) * (count - 1) < blocks
        };
        let count = [1, 2, 4, 8].into_iter().find(fits)?;
        Some(Parts { count, blocks: part(count) })
    }
}

impl Shape<'_> {
    /// `None`: not for this chip or shape.
    pub(super) fn gemv_stream(&self, product: &Product, rows: u32) -> Option<Launch> {
        let of = type_sources(product.weight, product.inputs, true);
        if !self.chip.copies || rows != 1 || of.block == 1 {
            return None;
        }
        let blocks = product.inputs / of.block;
        let parts = Parts::new(&of, blocks)?;
        let sets = SIMDS / parts.count;
        // Whole blocks of 32 outputs are rounded together; otherwise, what spreads best.
        let time = |unit: &u32| (product.outputs.div_ceil(*unit).div_ceil(self.chip.units) * unit, 32 - unit);
        let units = [32, 16, 8].into_iter().filter(|unit| *unit >= sets);
        let unit = if product.out.q8() { 32 } else { units.min_by_key(time)? };
        let own = unit / sets;
        let line_bytes: u32 = of.planes.iter().map(|bytes| parts.blocks * bytes / 8).sum();
        let divides = |lines: u32| product.splits.iter().all(|outputs| outputs.is_multiple_of(lines));
        let suits = |lines: &u32| *lines == 1 || (parts.count == 1 && own.is_multiple_of(*lines) && divides(*lines));
        let worth = |lines: &u32| *lines == 1 || lines / 2 * line_bytes < PIECE_BYTES;
        let lines = [4, 2, 1].into_iter().find(|lines| suits(lines) && worth(lines))?;
        // Copies are of whole 16 bytes, and none may reach beyond a matrix.
        let whole = |outputs: u32| {
            let blocks = u64::from(outputs) * u64::from(blocks);
            of.planes.iter().all(|bytes| (blocks * u64::from(*bytes)).is_multiple_of(128))
        };
        let aligned = |bytes: &u32| {
            (blocks * bytes).is_multiple_of(128) && (parts.count == 1 || (parts.blocks * bytes).is_multiple_of(128))
        };
        if !product.splits.iter().all(|outputs| whole(*outputs)) {
            return None;
        }
        let aligned = of.planes.iter().all(aligned);
        let slack = if aligned { 0 } else { 16 };
        let slot: u32 =
            of.planes.iter().map(|bytes| (lines * parts.blocks * bytes / 8).next_multiple_of(16) + slack).sum();
        let slots = (RING_BYTES / (SIMDS * slot)).min(MOST_SLOTS);
        let sums = 2 * unit * product.streams() * parts.count * 4;
        let shared = sums.next_multiple_of(128) + SIMDS * slots * slot;
        if slots < 2 || shared > self.chip.shared_bytes {
            return None;
        }
        let groups = product.outputs.div_ceil(unit).min(self.chip.units);
        let launch = self
            .product_launch("gemv_stream", &[&COPIES, &GEMV_STREAM], product, of)
            .variant([("STREAMED", 1), ("PARTS", parts.count), ("PART_BLOCKS", parts.blocks), ("LINES", lines)])
            .variant([("SLOTS", slots), ("UNIT", unit), ("ALIGNED", u32::from(aligned))])
            .constants([("GROUPS", groups), ("SLOT_BYTES", slot)])
            .shared(shared);
        Some(launch.over([groups, 1, 1], SIMDS * 32))
    }
}

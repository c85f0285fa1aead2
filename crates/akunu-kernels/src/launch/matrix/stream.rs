//! Products of one row whose weights stream through threadgroup memory.

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Chip, Launch, Source};

use super::{Product, Shape};

static COPIES: Source = source!("cuda/copies.h");
static GEMV_STREAM: Source = source!("cuda/gemv_stream.h");

/// SIMD groups of a group.
const SIMDS: u32 = 8;
/// Of a group's threadgroup memory: two groups, of a kernel and of the next one, lie beside each other.
const SHARED_BYTES: u32 = 112 << 10;
/// A piece has about as many.
const PIECE_BYTES: u32 = 4608;
const MOST_SLOTS: u32 = 16;
/// Scales in several small planes are many small loads, which is what streaming makes cheap. Types with fewer planes read faster with more
/// SIMD groups on the chip.
const FEWEST_PLANES: usize = 3;
/// Times that a group may come back for more outputs: longer products fill the chip by themselves.
const MOST_UNITS: u32 = 8;

/// How a group goes through its outputs, as the kernel has it.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Outputs of a group at a time, and of a SIMD group.
    unit: u32,
    own: u32,
    /// Blocks of a line that are a piece's.
    chunk: u32,
    slots: u32,
    slot_bytes: u32,
    /// Copies that a lane makes of a plane's part.
    copy_iterations: u32,
    shared_bytes: u32,
}

impl Stream {
    /// `None`: not in these sizes.
    fn new(product: &Product, of: &TypeSources, chip: &Chip, unit: u32, chunk: u32) -> Option<Stream> {
        let blocks = product.inputs / of.block;
        let own = unit / SIMDS;
        let lines = own * product.streams();
        // Copies are of whole 16 bytes: every line has to be, and every part of one. A SIMD group's lines are of one matrix.
        let whole = |blocks: u32| of.planes.iter().all(|bytes| (blocks * bytes).is_multiple_of(128));
        let splits = product.splits.iter().all(|outputs| outputs.is_multiple_of(own));
        if !whole(blocks) || !whole(chunk) || !splits || (chunk > 32 && chunk >= 2 * blocks) {
            return None;
        }
        let parts = of.planes.iter().map(|bytes| lines * chunk * bytes / 128);
        let slot_bytes = parts.clone().sum::<u32>() * 16;
        // The sums of two units, and a row of q8, which is of whole 16 bytes where lines of weights are.
        let fixed = 2 * unit * product.streams() * 4 + product.input_bytes();
        let room = SHARED_BYTES.min(chip.shared_bytes).checked_sub(fixed)?;
        let slots = (room / (SIMDS * slot_bytes)).min(MOST_SLOTS);
        let shared_bytes = fixed + SIMDS * slots * slot_bytes;
        let copy_iterations = parts.max()?.div_ceil(32);
        (slots >= 2).then_some(Stream { unit, own, chunk, slots, slot_bytes, copy_iterations, shared_bytes })
    }

    /// The best way, if there is one.
    fn find(product: &Product, of: &TypeSources, chip: &Chip) -> Option<Stream> {
        // A group finishes whole blocks of 32 outputs together where it finishes any.
        let units: &[u32] = if product.in_blocks() { &[32] } else { &[32, 16, 8] };
        let chunks = [32, 64, 128, 256];
        let all =
            units.iter().flat_map(|unit| chunks.map(|chunk| Stream::new(product, of, chip, *unit, chunk)));
        // Few slots are few copies under way; then, outputs are to spread over the chip; then, pieces are to be worth their work.
        all.flatten().min_by_key(|stream| {
            let longest = product.outputs.div_ceil(stream.unit).div_ceil(chip.units) * stream.unit;
            (stream.slots < 3, longest, 32 - stream.unit, stream.slot_bytes.abs_diff(PIECE_BYTES))
        })
    }
}

impl Shape<'_> {
    /// `None`: not for this chip or shape.
    pub(super) fn gemv_stream(&self, product: &Product) -> Option<Launch> {
        let of = type_sources(product.weight, product.inputs, true);
        if !self.chip.copies {
            return None;
        }
        if of.planes.len() < FEWEST_PLANES || product.outputs.div_ceil(32) > self.chip.units * MOST_UNITS {
            return None;
        }
        let Stream { unit, own, chunk, slots, slot_bytes, copy_iterations, shared_bytes } =
            Stream::find(product, &of, self.chip)?;
        let groups = product.outputs.div_ceil(unit).min(self.chip.units);
        let launch = self
            .product_launch("gemv_stream", &[&COPIES, &GEMV_STREAM], product, of)
            .variant([("STREAMED", 1), ("UNIT", unit), ("OWN", own), ("CHUNK", chunk), ("SLOTS", slots)])
            .variant([("MAX_COPY_ITERATIONS", copy_iterations)])
            .variant([("INPUT_PIECES", (product.input_bytes() / 16).div_ceil(SIMDS * 32))])
            .constants([("GROUPS", groups), ("SLOT_BYTES", slot_bytes)])
            .shared(shared_bytes);
        Some(launch.over([groups, 1, 1], SIMDS * 32))
    }
}

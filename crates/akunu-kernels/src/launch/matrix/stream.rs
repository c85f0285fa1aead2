//! Products of one row whose weights stream through threadgroup memory.

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Chip, Launch, Source};

use super::{Product, Shape};

static COPIES: Source = source!("cuda/copies.h");
static GEMV_STREAM: Source = source!("cuda/gemv_stream.h");

/// SIMD groups per threadgroup.
const SIMDS: u32 = 8;
/// Threadgroup memory per threadgroup: one of this kernel and one of the next are resident together.
const SHARED_BYTES: u32 = 112 << 10;
/// The approximate size of a piece.
const PIECE_BYTES: u32 = 4608;
const MOST_SLOTS: u32 = 16;
/// Several small planes of scales mean many small loads, which streaming makes cheap. Types with fewer planes are
/// faster with more resident SIMD groups.
const FEWEST_PLANES: usize = 3;
/// The most units of outputs per threadgroup: longer products fill the GPU without streaming.
const MOST_UNITS: u32 = 8;

/// How a threadgroup iterates over its outputs, as the kernel defines it.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Outputs of a unit, and of a SIMD group in it.
    unit: u32,
    own: u32,
    /// Blocks of a line in a piece.
    chunk: u32,
    slots: u32,
    slot_bytes: u32,
    /// Copies that a lane issues for a plane's part of a piece.
    copy_iterations: u32,
    shared_bytes: u32,
}

impl Stream {
    /// `None`: these sizes are not possible.
    fn new(product: &Product, of: &TypeSources, chip: &Chip, unit: u32, chunk: u32) -> Option<Stream> {
        let blocks = product.inputs / of.block;
        let own = unit / SIMDS;
        let lines = own * product.streams();
        // Copies are 16 bytes, so every line and every part of one must be a multiple of that. A SIMD group's lines
        // belong to one matrix.
        let whole = |blocks: u32| of.planes.iter().all(|bytes| (blocks * bytes).is_multiple_of(128));
        let splits = product.splits.iter().all(|outputs| outputs.is_multiple_of(own));
        if !whole(blocks) || !whole(chunk) || !splits || (chunk > 32 && chunk >= 2 * blocks) {
            return None;
        }
        let parts = of.planes.iter().map(|bytes| lines * chunk * bytes / 128);
        let slot_bytes = parts.clone().sum::<u32>() * 16;
        // The sums of two units, and a q8 row, which is a multiple of 16 bytes if the lines of weights are.
        let fixed = 2 * unit * product.streams() * 4 + product.input_bytes();
        let room = SHARED_BYTES.min(chip.shared_bytes).checked_sub(fixed)?;
        let slots = (room / (SIMDS * slot_bytes)).min(MOST_SLOTS);
        let shared_bytes = fixed + SIMDS * slots * slot_bytes;
        let copy_iterations = parts.max()?.div_ceil(32);
        (slots >= 2).then_some(Stream { unit, own, chunk, slots, slot_bytes, copy_iterations, shared_bytes })
    }

    /// The best configuration, if there is one.
    fn find(product: &Product, of: &TypeSources, chip: &Chip) -> Option<Stream> {
        // Outputs that are stored in blocks need whole blocks of 32 per threadgroup.
        let units: &[u32] = if product.in_blocks() { &[32] } else { &[32, 16, 8] };
        let chunks = [32, 64, 128, 256];
        let all =
            units.iter().flat_map(|unit| chunks.map(|chunk| Stream::new(product, of, chip, *unit, chunk)));
        // Preference: enough slots, so that enough copies are in flight; then outputs spread over the GPU; then large
        // pieces.
        all.flatten().min_by_key(|stream| {
            let longest = product.outputs.div_ceil(stream.unit).div_ceil(chip.units) * stream.unit;
            (stream.slots < 3, longest, 32 - stream.unit, stream.slot_bytes.abs_diff(PIECE_BYTES))
        })
    }
}

impl Shape<'_> {
    /// `None`: this chip or shape is not supported.
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

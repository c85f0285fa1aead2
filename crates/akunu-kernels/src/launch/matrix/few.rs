//! Products of few rows of q8 on tensor cores.

use std::ops::RangeInclusive;

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Launch, Source};

use super::tensor::PRODUCTS;
use super::{Product, Shape};

static COPIES: Source = source!("cuda/copies.h");
static TENSOR: Source = source!("cuda/tensor.h");
static GEMM_FEW: Source = source!("cuda/gemm_few.h");

/// Rows that tensor cores are worth.
const ROWS: RangeInclusive<u32> = 3..=64;

/// What a group has, as the kernel has it.
#[derive(Clone, Copy, Debug)]
struct Few {
    /// Tiles of 8 rows.
    row_tiles: u32,
    /// Tiles of 16 lines that a SIMD group has: of gate and up, one each.
    out_tiles: u32,
    /// SIMD groups that lie beside each other.
    across: u32,
    /// SIMD groups that share lines, and have a part of the inputs each.
    slices: u32,
    /// Blocks of both sides that are multiplied at a time.
    deep: u32,
}

impl Few {
    /// Where lines are few, a group has few of them and many SIMD groups: all of the chip is to be at work.
    fn new(product: &Product, rows: u32, units: u32) -> Few {
        let row_tiles = rows.div_ceil(8).next_power_of_two();
        let lines = product.outputs * product.streams();
        let [out_tiles, across, slices, deep] = match lines / units {
            // 32 outputs are finished together.
            ..128 if product.streams() == 2 => [2, 2, 8, 16],
            // Sums of many rows leave no registers for two tiles.
            ..128 if row_tiles == 8 => [1, 2, 8, 16],
            ..128 => [2, 1, 16, 32],
            // More rows are to be read for more lines.
            256.. if row_tiles == 8 => [2, 4, 2, 8],
            _ => [2, 2, 4, 8],
        };
        Few { row_tiles, out_tiles, across, slices, deep }
    }

    fn lines(self) -> u32 {
        16 * self.out_tiles * self.across
    }

    fn shared_bytes(self, of: &TypeSources) -> u32 {
        let (lines, rows) = (self.lines(), 8 * self.row_tiles);
        let (codes, scales) = ((of.raw_words - 2) * 4, (of.block_words - 8) * 4);
        let block = rows * 32 + (lines + 1) * codes + (lines + 8) * scales + (rows + 4) * 4;
        let stage = (self.deep * block).next_multiple_of(16);
        let sums = self.slices * rows * (lines + 4) * 4;
        (2 * stage).max(sums)
    }
}

impl Shape<'_> {
    /// `None`: not for this chip, type or number of rows.
    pub(super) fn gemm_few(&self, product: &Product, rows: u32) -> Option<Launch> {
        let of = type_sources(product.weight, product.inputs, true);
        // Blocks of a matrix are counted in 32 bits.
        let countable = product.outputs.checked_mul(product.inputs / of.block).is_some();
        let suits = product.weight.is_quantised() && ROWS.contains(&rows) && !product.in_norms();
        if !self.chip.tensor_cores || !suits || !countable {
            return None;
        }
        let mut few = Few::new(product, rows, self.chip.units);
        while few.deep > 4 && few.shared_bytes(&of) > self.chip.shared_bytes {
            few.deep /= 2;
            few.slices = few.slices.min(few.deep);
        }
        let Few { row_tiles, out_tiles, across, slices, deep } = few;
        let (shared, groups) =
            (few.shared_bytes(&of), (product.outputs * product.streams()).div_ceil(few.lines()));
        let launch = self.product_launch("gemm_few", &[&COPIES, &TENSOR, &PRODUCTS, &GEMM_FEW], product, of);
        Some(
            launch
                .variant([("ROW_TILES", row_tiles), ("OUT_TILES", out_tiles)])
                .variant([("ACROSS", across), ("SLICES", slices), ("DEEP", deep)])
                .shared(shared)
                .over([groups, 1, 1], across * slices * 32),
        )
    }
}

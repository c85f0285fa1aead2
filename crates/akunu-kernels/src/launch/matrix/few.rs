//! Products of a few q8 rows on tensor cores.

use std::ops::RangeInclusive;

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Launch, Source};

use super::tensor::PRODUCTS;
use super::{Product, Shape};

pub(super) static COPIES: Source = source!("cuda/copies.h");
pub(super) static TENSOR: Source = source!("cuda/tensor.h");
static GEMM_FEW: Source = source!("cuda/gemm_few.h");

/// The numbers of rows for which this kernel is the fastest.
const ROWS: RangeInclusive<u32> = 3..=128;

/// The tile of a threadgroup, as the kernel defines it.
#[derive(Clone, Copy, Debug)]
struct Few {
    /// Tiles of 8 rows.
    row_tiles: u32,
    /// Tiles of 16 lines per SIMD group; with gate and up, one of each.
    out_tiles: u32,
    /// SIMD groups that cover different lines.
    across: u32,
    /// SIMD groups that share lines and split the inputs (split-K).
    slices: u32,
    /// Blocks along the inputs per iteration.
    deep: u32,
}

impl Few {
    /// With few lines, a threadgroup gets few lines and many SIMD groups, so that the whole GPU is busy.
    fn new(product: &Product, rows: u32, units: u32) -> Few {
        let row_tiles = product.rows_together(rows).div_ceil(8).next_power_of_two();
        let lines = (product.outputs * product.streams()).saturating_mul(product.tiles(rows, 8 * row_tiles));
        let [out_tiles, across, slices, deep] = match lines / units {
            // 32 outputs are stored together.
            ..128 if product.streams() == 2 => [2, 2, 8, 16],
            // The accumulators of many rows leave no registers for two tiles.
            ..128 if row_tiles == 16 => [1, 2, 8, 16],
            ..40 if row_tiles < 8 => [2, 1, 16, 32],
            ..128 => [2, 1, 8, 16],
            // With more rows, each SIMD group covers more lines, so that the rows are read less often.
            _ if row_tiles == 16 && product.streams() == 2 => [2, 4, 2, 8],
            _ if row_tiles == 16 => [2, 2, 4, 8],
            _ if row_tiles < 4 => [2, 4, 2, 8],
            _ => [4, 1, 4, 8],
        };
        Few { row_tiles, out_tiles, across, slices, deep }
    }

    fn lines(self) -> u32 {
        16 * self.out_tiles * self.across
    }

    fn shared_bytes(self, of: &TypeSources) -> u32 {
        let (lines, rows) = (self.lines(), 8 * self.row_tiles);
        let (codes, scales) = (of.code_words * 4, (of.block_words - 8) * 4);
        let block = rows * 32 + (lines + 1) * codes + (lines + 8) * scales + (rows + 4) * 4;
        let stage = (self.deep * block).next_multiple_of(16);
        let sums = self.slices * rows * (lines + 4) * 4;
        (2 * stage).max(sums)
    }
}

impl Shape<'_> {
    /// Threadgroup memory with which SMs get the same number of `groups`, if there are few. They begin while the kernel before
    /// ends, and would otherwise crowd on the SMs that are free first.
    fn spreading_bytes(&self, groups: u32) -> u32 {
        match groups.div_ceil(self.chip.units) {
            each @ 1..=2 => self.chip.shared_bytes / (each + 1) + 1024,
            _ => 0,
        }
    }

    /// `None`: this chip, type or number of rows is not supported.
    pub(super) fn gemm_few(&self, product: &Product, rows: u32) -> Option<Launch> {
        let of = type_sources(product.weight, product.inputs, true);
        // The kernel counts the blocks of a matrix in 32 bits.
        let countable =
            product.matrix_rows().and_then(|rows| rows.checked_mul(product.inputs / of.block)).is_some();
        let suits = product.weight.is_quantised()
            && ROWS.contains(&product.rows_together(rows))
            && !product.in_norms();
        if !self.chip.tensor_cores || !suits || !countable {
            return None;
        }
        let mut few = Few::new(product, rows, self.chip.units);
        while few.deep > 4 && few.shared_bytes(&of) > self.chip.shared_bytes {
            few.deep /= 2;
            few.slices = few.slices.min(few.deep);
        }
        let Few { row_tiles, out_tiles, across, slices, deep } = few;
        let groups = (product.outputs * product.streams()).div_ceil(few.lines());
        let spread = if product.routed.is_none() { self.spreading_bytes(groups) } else { 0 };
        let shared = few.shared_bytes(&of).max(spread);
        let launch = self.product_launch("gemm_few", &[&COPIES, &TENSOR, &PRODUCTS, &GEMM_FEW], product, of);
        Some(
            launch
                .variant([("ROW_TILES", row_tiles), ("OUT_TILES", out_tiles)])
                .variant([("ACROSS", across), ("SLICES", slices), ("DEEP", deep)])
                .shared(shared)
                .over([groups, product.tiles(rows, 8 * row_tiles), 1], across * slices * 32),
        )
    }
}

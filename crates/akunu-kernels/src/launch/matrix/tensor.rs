//! Products of many rows on tensor cores.

use akunu_plan::DType;

use crate::function::source;
use crate::types::type_sources;
use crate::{Launch, Source};

use super::{LaunchBuilder, Product, Shape};

static COPIES: Source = source!("cuda/copies.h");
static TENSOR: Source = source!("cuda/tensor.h");
static TILE: Source = source!("cuda/tile.h");
static GEMM_TF32: Source = source!("cuda/gemm_tf32.h");
static GEMM_MMA: Source = source!("cuda/gemm_mma.h");

/// Numbers of both sides that are multiplied at a time where they are not quantised, as the kernel has it.
const DEEP_NUMBERS: u32 = 16;

/// What a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    /// Tiles of 16 rows, and of 8 columns, that a SIMD group has.
    row_tiles: u32,
    column_tiles: u32,
    /// SIMD groups below and beside each other.
    down: u32,
    across: u32,
    /// SIMD groups that share rows and columns, and have a part of the inputs each.
    slices: u32,
    /// Blocks of both sides that are multiplied at a time.
    deep: u32,
    /// Work of a group, in a measure of its own: smaller tiles bring more for each product.
    work: u32,
}

const TILES: [Tile; 3] = [
    Tile { row_tiles: 4, column_tiles: 8, down: 2, across: 2, slices: 1, deep: 2, work: 100 },
    Tile { row_tiles: 4, column_tiles: 4, down: 2, across: 2, slices: 1, deep: 2, work: 55 },
    Tile { row_tiles: 2, column_tiles: 4, down: 2, across: 2, slices: 1, deep: 2, work: 32 },
];

/// Most rows that one tile has all of: then weights are all that there is to wait for, so many are under way at once.
const ONE_TILE_ROWS: u32 = 64;

impl Tile {
    fn of(product: &Product, rows: u32, units: u32) -> Tile {
        if rows > ONE_TILE_ROWS {
            let time = |tile: &Tile| tile.time(product, rows, units);
            return TILES.into_iter().min_by_key(time).unwrap_or(TILES[0]);
        }
        let row_tiles = rows.div_ceil(16).next_power_of_two();
        // Gate and up lie side by side, 32 outputs of each.
        let narrow = product.streams() == 1 && product.outputs < 64 * 2 * units;
        let (across, slices, deep) = if narrow { (2, 4, 16) } else { (4, 2, 8) };
        Tile { row_tiles, column_tiles: 2, down: 1, across, slices, deep, work: 0 }
    }

    fn rows(self) -> u32 {
        16 * self.row_tiles * self.down
    }

    fn columns(self) -> u32 {
        8 * self.column_tiles * self.across
    }

    /// Row tiles vary first, so that groups of the same weights run beside each other.
    fn groups(self, product: &Product, rows: u32) -> [u32; 3] {
        let columns = product.outputs * product.streams();
        [rows.div_ceil(self.rows()), columns.div_ceil(self.columns()), 1]
    }

    /// Of the unit with the most groups. One alone has nothing else to do while it waits, so it takes longer than half of two.
    fn time(self, product: &Product, rows: u32, units: u32) -> u32 {
        let [down, across, _] = self.groups(product, rows);
        let groups = (down * across).div_ceil(units);
        if groups == 1 { self.work * 7 / 5 } else { groups * self.work }
    }
}

impl LaunchBuilder {
    /// `turn`: bytes of both sides that are multiplied at a time; as many are on their way.
    fn tile(self, tile: Tile, product: &Product, rows: u32, turn: u32) -> Launch {
        // Where sums meet on their way out.
        let together = 16 * tile.down * (tile.columns() + 8) * 4;
        self.variant([("ROW_TILES", tile.row_tiles), ("COLUMN_TILES", tile.column_tiles)])
            .variant([("DOWN", tile.down), ("ACROSS", tile.across), ("SLICES", tile.slices)])
            .shared((2 * turn).max(together))
            .over(tile.groups(product, rows), tile.down * tile.across * tile.slices * 32)
    }
}

impl Shape<'_> {
    /// `None`: not for this chip or type.
    pub(super) fn gemm_tensor(&self, product: &Product, rows: u32) -> Option<Launch> {
        if !self.chip.tensor_cores {
            return None;
        }
        let of = type_sources(product.weight, product.inputs, true);
        if product.weight.is_quantised() {
            // Quants and a scale of both, and of weights a second number for each scale; offsets.
            let halves = (of.block_words - 8) / 2;
            let mut tile = Tile::of(product, rows, self.chip.units);
            let block = tile.rows() * (32 + 4) + tile.columns() * (32 + 8 * halves + 4 * halves);
            while tile.deep > 2 && 2 * tile.deep * block > self.chip.shared_bytes {
                tile.deep /= 2;
                tile.slices = (tile.slices / 2).max(1);
            }
            let turn = tile.deep * block;
            let launch = self.product_launch("gemm_mma", &[&COPIES, &TENSOR, &TILE, &GEMM_MMA], product, of);
            return Some(launch.variant([("DEEP", tile.deep)]).tile(tile, product, rows, turn));
        }
        let halves = matches!(product.weight, DType::F16 | DType::BF16);
        if !halves || !product.inputs.is_multiple_of(8) {
            return None;
        }
        let time = |tile: &Tile| tile.time(product, rows, self.chip.units);
        let tile = TILES.into_iter().min_by_key(time).unwrap_or(TILES[0]);
        let turn = tile.rows() * (DEEP_NUMBERS * 4 + 32) + tile.columns() * (DEEP_NUMBERS * 2 + 16);
        let launch = self.product_launch("gemm_tf32", &[&COPIES, &TENSOR, &TILE, &GEMM_TF32], product, of);
        Some(launch.tile(tile, product, rows, turn))
    }
}

//! Products of many rows on tensor cores.

use akunu_plan::{DType, MatmulForm};

use crate::function::source;
use crate::types::type_sources;
use crate::{Launch, Source};

use super::{LaunchBuilder, Product, Shape};

static COPIES: Source = source!("cuda/copies.h");
static TENSOR: Source = source!("cuda/tensor.h");
pub(super) static PRODUCTS: Source = source!("cuda/products.h");
static TILE: Source = source!("cuda/tile.h");
static GEMM_TF32: Source = source!("cuda/gemm_tf32.h");
static GEMM_MMA: Source = source!("cuda/gemm_mma.h");

/// Blocks along the inputs per iteration.
const DEEP: u32 = 2;
/// Inputs per iteration for unquantised weights, as in the kernel.
const DEEP_NUMBERS: u32 = 16;
/// Threadgroup memory for the data of several iterations, at least two and at most four: those of small tiles are short.
const STAGED_BYTES: u32 = 48 << 10;

/// The tile of a threadgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    /// Tiles of 16 rows, and of 8 columns, per SIMD group.
    row_tiles: u32,
    column_tiles: u32,
    /// SIMD groups along the rows and along the columns.
    down: u32,
    across: u32,
    /// The relative cost of a threadgroup; smaller tiles load more per product.
    work: u32,
}

const TILES: [Tile; 3] = [
    Tile { row_tiles: 4, column_tiles: 8, down: 2, across: 2, work: 100 },
    Tile { row_tiles: 4, column_tiles: 4, down: 2, across: 2, work: 55 },
    Tile { row_tiles: 2, column_tiles: 4, down: 2, across: 2, work: 32 },
];
/// Those of f32 weights: the smallest is for products of few outputs, as of routers.
const TILES_OF_F32: [Tile; 4] =
    [TILES[0], TILES[1], TILES[2], Tile { row_tiles: 1, column_tiles: 4, down: 2, across: 2, work: 20 }];

impl Tile {
    fn of(product: &Product, rows: u32, units: u32) -> Tile {
        let tiles = if product.weight == DType::F32 { &TILES_OF_F32[..] } else { &TILES };
        tiles.iter().copied().min_by_key(|tile| tile.time(product, rows, units)).unwrap_or(tiles[0])
    }

    fn rows(self) -> u32 {
        16 * self.row_tiles * self.down
    }

    fn columns(self) -> u32 {
        8 * self.column_tiles * self.across
    }

    /// Row tiles vary fastest, so that threadgroups with the same weights run at the same time.
    fn groups(self, product: &Product, rows: u32) -> [u32; 3] {
        let columns = product.outputs * product.streams();
        [product.tiles(rows, self.rows()), columns.div_ceil(self.columns()), 1]
    }

    /// The estimated time of the SM with the most threadgroups. A single one cannot overlap its latency with another,
    /// so it takes longer than half of two.
    fn time(self, product: &Product, rows: u32, units: u32) -> u32 {
        let [down, across, _] = self.groups(product, rows);
        let groups = (down * across).div_ceil(units);
        if groups == 1 { self.work * 7 / 5 } else { groups * self.work }
    }
}

impl LaunchBuilder {
    /// `stages`: bytes of all stages of the pipeline.
    fn tile(self, tile: Tile, product: &Product, rows: u32, stages: u32) -> Launch {
        // The accumulators go through threadgroup memory in the epilogue.
        let together = 16 * tile.down * (tile.columns() + 8) * 4;
        self.variant([("ROW_TILES", tile.row_tiles), ("COLUMN_TILES", tile.column_tiles)])
            .variant([("DOWN", tile.down), ("ACROSS", tile.across)])
            .shared(stages.max(together))
            .over(tile.groups(product, rows), tile.down * tile.across * 32)
    }
}

impl Shape<'_> {
    /// `None`: this chip, type or number of rows is not supported.
    pub(super) fn gemm_tensor(&self, product: &Product, rows: u32) -> Option<Launch> {
        if !self.chip.tensor_cores || product.form != MatmulForm::Gemm {
            return None;
        }
        let of = type_sources(product.weight, product.inputs, true);
        if product.weight.is_quantised() {
            // Quants and a scale of both sides, a second number for each scale of the weights, and offsets.
            let halves = (of.block_words - 8) / 2;
            let tile = Tile::of(product, rows, self.chip.units);
            let stage = DEEP * (tile.rows() * (32 + 4) + tile.columns() * (32 + 8 * halves + 4 * halves));
            let sources = [&COPIES, &TENSOR, &PRODUCTS, &TILE, &GEMM_MMA];
            let launch = self.product_launch("gemm_mma", &sources, product, of);
            return Some(launch.variant([("DEEP", DEEP)]).tile(tile, product, rows, 2 * stage));
        }
        // Bytes of a weight, and between lines.
        let (bytes, padding) = match product.weight {
            DType::F32 => (4, 32),
            DType::F16 | DType::BF16 => (2, 16),
            _ => return None,
        };
        // Lines are copied in pieces of 16 bytes.
        if !product.inputs.is_multiple_of(16 / bytes) {
            return None;
        }
        let tile = Tile::of(product, rows, self.chip.units);
        // Few tiles of f32 weights take longer than a threadgroup for each output of each row.
        let [down, across, _] = tile.groups(product, rows);
        let columns = product.outputs * product.streams();
        if product.weight == DType::F32
            && (2 * down * across < self.chip.units || columns < tile.columns() / 2)
        {
            return None;
        }
        let stage = tile.rows() * (DEEP_NUMBERS * 4 + 32) + tile.columns() * (DEEP_NUMBERS * bytes + padding);
        let launch = self.product_launch("gemm_tf32", &[&COPIES, &TENSOR, &TILE, &GEMM_TF32], product, of);
        let stages = (STAGED_BYTES / stage).clamp(2, 4);
        Some(launch.variant([("STAGES", stages)]).tile(tile, product, rows, stages * stage))
    }
}

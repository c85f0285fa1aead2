//! Products of many rows with simdgroup matrices of 8 × 8.

use akunu_plan::{DType, MatmulForm};

use crate::function::source;
use crate::types::type_sources;
use crate::{Chip, Launch, Source};

use super::{Product, Shape};

pub(crate) static TILES: Source = source!("metal/tiles.h");
static GEMM_TILES: Source = source!("metal/gemm_tiles.h");

/// From this many rows on, tiles are faster than matrix-vector products.
const FEWEST_ROWS: u32 = 9;
/// Columns of a threadgroup: outputs, or half as many of gate and of up.
const COLUMNS: u32 = 64;
/// Inputs per iteration.
const DEEP: u32 = 32;
const THREADS: u32 = 128;

/// The tile of a threadgroup of four SIMD groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    /// Tiles of 8 rows, and of 8 columns, per SIMD group.
    row_tiles: u32,
    column_tiles: u32,
    down: u32,
    across: u32,
}

/// In increasing size.
const GROUPS: [Group; 3] = [
    Group { row_tiles: 2, column_tiles: 2, down: 1, across: 4 },
    Group { row_tiles: 2, column_tiles: 4, down: 2, across: 2 },
    Group { row_tiles: 4, column_tiles: 4, down: 2, across: 2 },
];

impl Group {
    /// The smallest that holds all rows, or the largest.
    fn of(rows: u32) -> Group {
        let holds = |group: &Group| rows <= group.rows();
        GROUPS.into_iter().find(holds).unwrap_or(GROUPS[GROUPS.len() - 1])
    }

    fn rows(self) -> u32 {
        8 * self.row_tiles * self.down
    }

    /// Bytes of threadgroup memory: inputs and weights, later the accumulators.
    fn shared_bytes(self, weight_bytes: u32) -> u32 {
        let stage = self.rows() * (DEEP + 4) * 4 + DEEP * (COLUMNS * weight_bytes + 16);
        stage.max(self.rows() * (COLUMNS + 4) * 4)
    }
}

/// WEIGHT_TILES of the kernel: weights that stay in their own type.
fn weight_tiles(weight: DType, inputs_in_blocks: bool, chip: &Chip) -> u32 {
    match weight {
        DType::F16 if inputs_in_blocks => 1,
        DType::BF16 if inputs_in_blocks && chip.bf16_tiles => 2,
        _ => 0,
    }
}

impl Shape<'_> {
    /// `None`: this chip or number of rows is not supported.
    pub(super) fn gemm_tiles(&self, product: &Product, rows: u32) -> Option<Launch> {
        let together = product.rows_together(rows);
        let many = product.form == MatmulForm::Gemm || together >= FEWEST_ROWS;
        if !self.chip.tiles || !many {
            return None;
        }
        let of = type_sources(product.weight, product.inputs, true);
        let group = Group::of(together);
        let tiles = weight_tiles(product.weight, of.block > 1, self.chip);
        let shared = group.shared_bytes(if tiles == 0 { 4 } else { 2 });
        let groups =
            [product.tiles(rows, group.rows()), (product.outputs * product.streams()).div_ceil(COLUMNS), 1];
        let launch = self.product_launch("gemm_tiles", &[&TILES, &GEMM_TILES], product, of);
        Some(
            launch
                .variant([("ROW_TILES", group.row_tiles), ("COLUMN_TILES", group.column_tiles)])
                .variant([("DOWN", group.down), ("ACROSS", group.across)])
                .variant([("WEIGHT_TILES", tiles), ("BF16_TILES", u32::from(tiles == 2))])
                .shared(shared)
                .over(groups, THREADS),
        )
    }
}

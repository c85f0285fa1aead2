//! Products of f16 rows with weights that are quantised or have 16 bits, on the tensor instructions of warpgroups.

use akunu_plan::ops::{HalfMatmul, HalfQkv};
use akunu_plan::{MatmulForm, OutputForms, halves};

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Chip, Launch, MissingKernel, Source};

use super::few::{COPIES, TENSOR};
use super::{Product, Shape};

pub(in crate::launch) static WARPGROUP: Source = source!("cuda/warpgroup.h");
static GEMM_PACKED: Source = source!("cuda/gemm_packed.h");

/// Lines of a warpgroup.
const WARPGROUP_LINES: u32 = 64;
/// The rows of the smallest tile: fewer take as long.
pub const FEWEST_PACKED_ROWS: usize = 64;

/// The tile of a threadgroup, as the kernel defines it.
#[derive(Clone, Copy, Debug)]
struct Packed {
    rows: u32,
    /// Warpgroups that cover different lines.
    across: u32,
    /// Warpgroups that share lines and split the inputs.
    slices: u32,
    /// Groups of 128 inputs of a stage.
    deep: u32,
    /// Stages that are copied before they are multiplied.
    ahead: u32,
    /// Its time on an H100: hundredths of a microsecond for 256 inputs.
    time: u32,
}

impl Packed {
    const TILES: [Packed; 4] = [
        Packed { rows: 64, across: 1, slices: 4, deep: 4, ahead: 1, time: 63 },
        Packed { rows: 64, across: 2, slices: 2, deep: 2, ahead: 2, time: 105 },
        Packed { rows: 128, across: 1, slices: 2, deep: 2, ahead: 1, time: 96 },
        Packed { rows: 128, across: 2, slices: 1, deep: 2, ahead: 1, time: 157 },
    ];

    /// The fastest of the tiles that fit into a threadgroup's memory. One threadgroup at a time is on an SM.
    fn of(outputs: u32, rows: u32, chip: &Chip) -> Option<Packed> {
        let time = |tile: &Packed| {
            let groups = outputs.div_ceil(tile.lines()) * rows.div_ceil(tile.rows);
            groups.div_ceil(chip.units) * tile.time
        };
        Packed::TILES.into_iter().filter(|tile| tile.shared_bytes() <= chip.shared_bytes).min_by_key(time)
    }

    fn lines(self) -> u32 {
        WARPGROUP_LINES * self.across
    }

    /// Stages of rows, as many as ROW_STAGES of the kernel; later sums, with SUM_STRIDE between rows.
    fn shared_bytes(self) -> u32 {
        let rows = (self.ahead + 2) * self.rows * self.deep * 256;
        let sums = self.slices * self.rows * (self.lines() + 4) * 4;
        rows.max(sums)
    }
}

impl Shape<'_> {
    pub(in crate::launch) fn packed_matmul(&self, op: HalfMatmul) -> Result<Launch, MissingKernel> {
        let HalfMatmul { weight, bias, residual, f16, rows } = op;
        let product = self.matmul_product((weight, MatmulForm::Gemm), [bias, residual]);
        self.packed(Product { rows, ..product }, f16)
    }

    pub(in crate::launch) fn packed_qkv(&self, HalfQkv { weight }: HalfQkv) -> Result<Launch, MissingKernel> {
        self.packed(self.qkv_product((weight, MatmulForm::Gemm), false), false)
    }

    fn packed(&self, product: Product, f16: bool) -> Result<Launch, MissingKernel> {
        let of = type_sources(product.weight, product.inputs, true);
        let blocks = product.outputs.checked_mul(product.inputs / of.block);
        let why = match Packed::of(product.outputs, self.count(product.rows), self.chip) {
            _ if !self.chip.warpgroups => "it is for the tensor instructions of warpgroups",
            _ if !product.inputs.is_multiple_of(halves::GROUP as u32) => {
                "its rows are not whole groups of lanes"
            }
            _ if blocks.is_none() => "it has too many weights",
            None => "a threadgroup has too little memory",
            Some(tile) => return Ok(self.packed_launch(product, of, tile, f16)),
        };
        Err(self.missing(why.into()))
    }

    fn packed_launch(&self, product: Product, of: TypeSources, tile: Packed, f16: bool) -> Launch {
        let Packed { rows, across, slices, deep, ahead, .. } = tile;
        let (shared, lines) = (tile.shared_bytes(), tile.lines());
        let groups = [product.outputs.div_ceil(lines), self.count(product.rows).div_ceil(rows), 1];
        let out = if f16 { OutputForms::F16 } else { OutputForms::F32 };
        let product = Product { out, ..product };
        self.product_launch("gemm_packed", &[&COPIES, &TENSOR, &WARPGROUP, &GEMM_PACKED], &product, of)
            .variant([
                ("ROWS", rows),
                ("ACROSS", across),
                ("SLICES", slices),
                ("DEEP", deep),
                ("AHEAD", ahead),
            ])
            .shared(shared)
            .over(groups, across * slices * 128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_the_kernel_expects() {
        for tile in Packed::TILES {
            let (threads, chunks) = (tile.across * tile.slices * 128, tile.deep * 16);
            assert!(
                threads <= 512 && tile.deep % tile.slices == 0 && matches!(tile.rows, 64 | 128),
                "{tile:?}"
            );
            // A thread copies the same chunk of rows that are a multiple of eight apart.
            assert!(threads % chunks == 0 && tile.rows % (threads / chunks) == 0, "{tile:?}");
            assert!((threads / chunks) % 8 == 0, "{tile:?}");
            // Of a card of compute capability 9.0.
            assert!(tile.shared_bytes() <= 227 << 10, "{tile:?}");
        }
        let fewest = Packed::TILES.iter().map(|tile| tile.rows as usize).min();
        assert_eq!(fewest, Some(FEWEST_PACKED_ROWS));
    }
}

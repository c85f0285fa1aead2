//! Products of f16 rows with weights that are quantised or have 16 bits, on the tensor instructions of warpgroups.

use akunu_plan::ops::{HalfExpertGlu, HalfExpertMatmul, HalfMatmul, HalfQkv};
use akunu_plan::{MatmulForm, OutputForms, halves};

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Chip, Launch, MissingKernel, SCRATCH_BYTES, Source};

use super::super::COUNTER_BYTES;
use super::super::rows::glu_number;
use super::few::{COPIES, TENSOR};
use super::{Kind, Product, Shape};

pub(in crate::launch) static WARPGROUP: Source = source!("cuda/warpgroup.h");
static GEMM_PACKED: Source = source!("cuda/gemm_packed.h");

/// Lines of a warpgroup.
const WARPGROUP_LINES: u32 = 64;
/// Threadgroups that may share an output tile and split the inputs.
const PARTS: [u32; 3] = [1, 2, 4];
/// The time for the beginning and the end of a threadgroup, as `Packed::time`.
const BEGINNING: u32 = 500;
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
    /// Its time on an H200 whose SMs all have one: hundredths of a microsecond for 256 inputs.
    time: u32,
}

impl Packed {
    const TILES: [Packed; 4] = [
        Packed { rows: 64, across: 1, slices: 4, deep: 4, ahead: 1, time: 81 },
        Packed { rows: 64, across: 2, slices: 2, deep: 2, ahead: 2, time: 160 },
        Packed { rows: 128, across: 1, slices: 2, deep: 2, ahead: 1, time: 104 },
        Packed { rows: 128, across: 2, slices: 1, deep: 2, ahead: 1, time: 175 },
    ];

    /// The fastest of the tiles that fit into a threadgroup's memory, and the number of threadgroups that split the inputs.
    /// One threadgroup at a time is on an SM. The matrices of gate and up have a warpgroup each.
    fn of(product: &Product, rows: u32, chip: &Chip) -> Option<(Packed, u32)> {
        let tiles = Packed::TILES.into_iter().filter(|tile| {
            tile.shared_bytes() <= chip.shared_bytes && (product.kind != Kind::Glu || tile.across == 2)
        });
        let split = tiles.flat_map(|tile| PARTS.map(|parts| (tile, parts)));
        let fits = |(tile, parts): &(Packed, u32)| *parts == 1 || tile.splits(product, rows, *parts);
        split.filter(fits).min_by_key(|(tile, parts)| {
            let groups = tile.groups(product, rows) * parts;
            let inputs = tile.time * (product.inputs / 256) / parts;
            // Sums of parts are written to memory and read again.
            let meeting = if *parts > 1 { 350 + tile.lines() * tile.rows / 64 } else { 0 };
            u64::from(groups.div_ceil(chip.units)) * u64::from(BEGINNING + inputs) + u64::from(meeting)
        })
    }

    /// Output tiles, if all experts have as many rows.
    fn groups(self, product: &Product, rows: u32) -> u32 {
        let tiles_of_rows = match product.routed {
            None => rows.div_ceil(self.rows),
            Some(routed) => {
                routed.experts.min(rows * routed.top) * routed.rows_each(rows).div_ceil(self.rows)
            }
        };
        product.outputs.div_ceil(self.outputs(product)) * tiles_of_rows
    }

    /// Outputs of a threadgroup.
    fn outputs(self, product: &Product) -> u32 {
        self.lines() / product.streams()
    }

    /// Whether parts of the inputs are whole groups and worth it, and there is scratch memory for their sums. Experts have
    /// enough tiles.
    fn splits(self, product: &Product, rows: u32, parts: u32) -> bool {
        if product.routed.is_some() {
            return false;
        }
        let tiles = u64::from(self.groups(product, rows));
        let bytes = tiles * u64::from(parts * self.lines() * self.rows * 4);
        let groups = product.inputs / halves::GROUP as u32;
        groups.is_multiple_of(parts)
            && groups / parts >= 2 * self.deep
            && tiles <= COUNTER_BYTES / 4
            && bytes <= SCRATCH_BYTES - COUNTER_BYTES
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

    pub(in crate::launch) fn packed_experts(&self, op: HalfExpertMatmul) -> Result<Launch, MissingKernel> {
        let constants = vec![("BIAS", 0), ("RESIDUAL", 0)];
        let p = self.command.params();
        self.packed(self.product_with_experts((Kind::Alone, op.weight), &p, false, constants), false)
    }

    pub(in crate::launch) fn packed_expert_glu(&self, op: HalfExpertGlu) -> Result<Launch, MissingKernel> {
        let constants = vec![("BIAS", 0), ("ACTIVATION", glu_number(op.glu))];
        let p = self.command.params();
        self.packed(self.product_with_experts((Kind::Glu, op.weight), &p, false, constants), false)
    }

    fn packed(&self, product: Product, f16: bool) -> Result<Launch, MissingKernel> {
        let of = type_sources(product.weight, product.inputs, true);
        let blocks = product.matrix_rows().and_then(|rows| rows.checked_mul(product.inputs / of.block));
        let why = match Packed::of(&product, self.count(product.rows), self.chip) {
            _ if !self.chip.warpgroups => "it is for the tensor instructions of warpgroups",
            _ if !product.inputs.is_multiple_of(halves::GROUP as u32) => {
                "its rows are not whole groups of lanes"
            }
            _ if blocks.is_none() => "it has too many weights",
            _ if product.routed.is_some() && !product.weight.is_quantised() => {
                "its weights are not quantised"
            }
            None => "a threadgroup has too little memory",
            Some(tile) => return Ok(self.packed_launch(product, of, tile, f16)),
        };
        Err(self.missing(why.into()))
    }

    fn packed_launch(
        &self,
        product: Product,
        of: TypeSources,
        (tile, parts): (Packed, u32),
        f16: bool,
    ) -> Launch {
        let Packed { rows, across, slices, deep, ahead, .. } = tile;
        let shared = tile.shared_bytes();
        let tiles = product.outputs.div_ceil(tile.outputs(&product));
        let groups = [tiles, product.tiles(self.count(product.rows), rows), parts];
        let out = if f16 { OutputForms::F16 } else { OutputForms::F32 };
        let product = Product { out, ..product };
        self.product_launch("gemm_packed", &[&COPIES, &TENSOR, &WARPGROUP, &GEMM_PACKED], &product, of)
            .variant([
                ("ROWS", rows),
                ("ACROSS", across),
                ("SLICES", slices),
                ("DEEP", deep),
                ("AHEAD", ahead),
                ("PARTS", parts),
            ])
            .constants([("TILES", tiles)])
            .shared(shared)
            .over(groups, across * slices * 128)
    }
}

#[cfg(test)]
mod tests {
    use akunu_plan::DType;

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

    #[test]
    fn few_outputs_of_many_inputs_are_split() {
        let chip = Chip { warpgroups: true, ..Chip::plain(132, 227 << 10) };
        let of = |rows, [inputs, outputs]: [u32; 2]| {
            let product =
                Product::new(Kind::Alone, (DType::Q4_0, MatmulForm::Gemm), [inputs, outputs], vec![]);
            Packed::of(&product, rows, &chip).map(|(tile, parts)| (tile.rows, tile.lines(), parts))
        };
        assert_eq!(of(64, [14336, 4096]), Some((64, 64, 2)));
        assert_eq!(of(128, [14336, 4096]), Some((128, 128, 4)));
        assert_eq!(of(64, [4096, 14336]), Some((64, 128, 1)));
        // Parts have whole groups, and the scratch memory has room for their sums.
        assert_eq!(of(64, [384, 4096]).map(|(.., parts)| parts), Some(1));
        assert_eq!(of(64, [4096, 128_256]).map(|(.., parts)| parts), Some(1));
    }
}

//! Products of f16 rows with quantised weights on the tensor instructions of warpgroups.

use akunu_plan::ops::{HalfMatmul, HalfQkv, MatmulParams, QkvParams};
use akunu_plan::{MatmulForm, OutputForms, halves};

use crate::function::source;
use crate::types::type_sources;
use crate::{Chip, Launch, MissingKernel, Source};

use super::few::{COPIES, TENSOR};
use super::{Kind, Product, Shape};

static WARPGROUP: Source = source!("cuda/warpgroup.h");
static GEMM_PACKED: Source = source!("cuda/gemm_packed.h");

/// Lines of a warpgroup.
const LINES: u32 = 64;

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
        LINES * self.across
    }

    fn shared_bytes(self) -> u32 {
        let rows = (self.ahead + 2) * self.rows * self.deep * 256;
        let sums = self.slices * self.rows * (self.lines() + 4) * 4;
        rows.max(sums)
    }
}

impl Shape<'_> {
    pub(in crate::launch) fn packed_matmul(&self, op: HalfMatmul) -> Result<Launch, MissingKernel> {
        let p: MatmulParams = self.command.params();
        let constants = vec![
            ("OUT_STRIDE", p.out_stride),
            ("BIAS", u32::from(op.bias)),
            ("RESIDUAL", u32::from(op.residual)),
        ];
        let product =
            Product::new(Kind::Alone, (op.weight, MatmulForm::Gemm), [p.inputs, p.outputs], constants);
        self.packed(product, op.f16)
    }

    pub(in crate::launch) fn packed_qkv(&self, op: HalfQkv) -> Result<Launch, MissingKernel> {
        let p: QkvParams = self.command.params();
        let outputs = p.q + p.k + p.v;
        let constants = vec![
            ("Q_OUTPUTS", p.q),
            ("K_OUTPUTS", p.k),
            ("V_OUTPUTS", p.v),
            ("OUT_STRIDE", outputs),
            ("BIAS", 0),
        ];
        let product = Product::new(Kind::Qkv, (op.weight, MatmulForm::Gemm), [p.inputs, outputs], constants);
        self.packed(product, op.f16)
    }

    fn packed(&self, product: Product, f16: bool) -> Result<Launch, MissingKernel> {
        let of = type_sources(product.weight, product.inputs, true);
        let countable = product.outputs.checked_mul(product.inputs / of.block).is_some();
        let suits = self.chip.warpgroups && product.inputs.is_multiple_of(halves::GROUP as u32) && countable;
        let tile = Packed::of(product.outputs, self.rows, self.chip).filter(|_| suits);
        let Some(tile) = tile else {
            return Err(self.missing("packed weights meet f16 rows on warpgroups only".into()));
        };
        let Packed { rows, across, slices, deep, ahead, .. } = tile;
        let nibbles = u32::from(of.nibbles);
        let (shared, lines) = (tile.shared_bytes(), tile.lines());
        let groups = [product.outputs.div_ceil(lines), self.rows.div_ceil(rows), 1];
        let out = if f16 { OutputForms::F16 } else { OutputForms::F32 };
        let bodies = [&COPIES, &TENSOR, &WARPGROUP, &GEMM_PACKED];
        Ok(self
            .product_launch("gemm_packed", &bodies, &Product { out, ..product }, of)
            .variant([("NIBBLES", nibbles)])
            .variant([
                ("ROWS", rows),
                ("ACROSS", across),
                ("SLICES", slices),
                ("DEEP", deep),
                ("AHEAD", ahead),
            ])
            .shared(shared)
            .over(groups, across * slices * 128))
    }
}

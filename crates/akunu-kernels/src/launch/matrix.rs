//! Matrix products with weights, and the embedding.

use akunu_plan::ops::{
    EmbedParams, ExpertGlu, ExpertMatmul, ExpertParams, ExpertSum, GluMatmulParams, Matmul, MatmulParams,
    QkvParams,
};
use akunu_plan::{Activation, DType, MatmulForm, OutputForms, RowSet};

use crate::function::source;
use crate::types::{TypeSources, type_sources};
use crate::{Launch, MissingKernel, Source};

use super::ranks::EXCHANGE;
use super::rows::{activation_number, glu_number};
use super::{LaunchBuilder, Shape};

mod few;
mod packed;
mod stream;
mod tensor;
mod tiles;

pub use packed::FEWEST_PACKED_ROWS;
pub(super) use packed::WARPGROUP;
pub(super) use tiles::TILES;

static ACTIVATION: Source = source!("activation.h");
static MATRIX: Source = source!("matrix.h");
static GEMV: Source = source!("gemv.h");
static GEMV_SUM: Source = source!("gemv_sum.h");
static GEMM: Source = source!("gemm.h");
static EMBED: Source = source!("embed.h");

/// From this many words of a raw block on, loads dominate the time of a lane's iteration.
const WIDE_WORDS: u32 = 10;
/// The fewest iterations per row for which staging the input in threadgroup memory pays: if the threadgroup
/// synchronises to store its outputs anyway, and otherwise.
const SHARED_ITERATIONS: [u32; 2] = [2, 4];

/// Rows and outputs of a tile of `gemm.h`.
const SIDE: u32 = 64;
/// SIMD groups of a matrix-vector product's threadgroup if outputs are stored one by one.
const GEMV_SIMDS: u32 = 8;

/// Why other products are missing.
const INPUT_FORM: &str = "quantised weights meet int8 activations, others f32";

/// KIND in `matrix.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Alone,
    Qkv,
    Glu,
}

/// A product: its weights and its epilogue.
struct Product {
    kind: Kind,
    weight: DType,
    form: MatmulForm,
    inputs: u32,
    outputs: u32,
    rows: RowSet,
    out: OutputForms,
    /// Its input's norm is deferred to it.
    scaled: bool,
    /// It starts the deferred norm of its output.
    norm: Option<OutputForms>,
    /// Whether its outputs are activated, or gated.
    activated: bool,
    constants: Vec<(&'static str, u32)>,
    /// Outputs of each matrix.
    splits: Vec<u32>,
    routed: Option<Routed>,
    /// Whether its outputs are sent to other ranks, too.
    sends: bool,
}

/// Rows have an expert each, and multiply with its matrices.
#[derive(Clone, Copy, Debug)]
struct Routed {
    experts: u32,
    /// Experts of a row.
    top: u32,
    /// Whether rows are in the order of picks. Otherwise they are sorted by expert.
    picked: bool,
}

impl Routed {
    /// Tiles of `size` rows of one expert each, at most, that `rows` rows have. Picks have a tile each.
    fn tiles(self, rows: u32, size: u32) -> u32 {
        let picked = rows * self.top;
        if self.picked {
            return picked;
        }
        let reached = picked.min(self.experts);
        reached + (picked - reached) / size
    }

    /// The rows of an expert, if all have as many. Picks are multiplied one by one.
    fn rows_each(self, rows: u32) -> u32 {
        if self.picked {
            return 1;
        }
        (rows * self.top).div_ceil(self.experts).min(rows)
    }
}

impl Product {
    /// A product of all rows with one set of matrices, whose output is f32.
    fn new(
        kind: Kind,
        (weight, form): (DType, MatmulForm),
        [inputs, outputs]: [u32; 2],
        constants: Vec<(&'static str, u32)>,
    ) -> Product {
        Product {
            kind,
            weight,
            form,
            inputs,
            outputs,
            rows: RowSet::All,
            out: OutputForms::F32,
            scaled: false,
            norm: None,
            activated: kind == Kind::Glu,
            constants,
            splits: vec![outputs],
            routed: None,
            sends: false,
        }
    }

    /// Whether it takes part in a deferred norm.
    fn in_norms(&self) -> bool {
        self.scaled || self.norm.is_some()
    }

    /// Whether outputs are stored in blocks of 32.
    fn in_blocks(&self) -> bool {
        self.out.q8() || self.norm.is_some()
    }

    /// Bytes of an input row.
    fn input_bytes(&self) -> u32 {
        if self.weight.is_quantised() { self.inputs / 4 * 5 } else { self.inputs * 4 }
    }

    /// The same where it is staged: `STAGED_PLACE` in floats.h has the pieces of blocks in planes.
    fn staged_bytes(&self, of: &TypeSources) -> u32 {
        let pieces = of.block / 4;
        match self.weight.is_quantised() || pieces < 2 {
            true => self.input_bytes(),
            false => pieces * ((self.inputs / of.block).next_multiple_of(8) + 8 / pieces) * 16,
        }
    }

    /// Tiles of up to `size` rows.
    fn tiles(&self, rows: u32, size: u32) -> u32 {
        self.routed.map_or(rows.div_ceil(size), |routed| routed.tiles(rows, size))
    }

    /// The rows for which a kernel is chosen: those that have the same matrices. With experts some have more rows than the
    /// average.
    fn rows_together(&self, rows: u32) -> u32 {
        self.routed.map_or(rows, |routed| match routed.rows_each(rows) {
            1 => 1,
            each => (2 * each).min(rows),
        })
    }

    fn picked(&self) -> bool {
        self.routed.is_some_and(|routed| routed.picked)
    }

    /// The number of rows in all matrices of a kind together.
    fn matrix_rows(&self) -> Option<u32> {
        self.outputs.checked_mul(self.routed.map_or(1, |routed| routed.experts))
    }

    /// Sums per output.
    fn streams(&self) -> u32 {
        if self.kind == Kind::Glu { 2 } else { 1 }
    }
}

impl LaunchBuilder {
    pub(super) fn of_type(mut self, of: TypeSources) -> LaunchBuilder {
        self.launch.function.variant.extend(of.variant);
        self.launch.function.constants.extend(of.constants);
        self
    }

    /// The variants of a product's part in deferred norms.
    fn norm(self, product: &Product) -> LaunchBuilder {
        let is = |form: fn(OutputForms) -> bool| u32::from(product.norm.is_some_and(form));
        // Sums of squares per lane.
        let squares = if product.scaled { product.inputs.div_ceil(32 * 32) } else { 0 };
        self.variant([("SQUARES", squares)]).constants([
            ("NORM", is(|_| true)),
            ("NORM_F32", is(OutputForms::f32)),
            ("NORM_Q8", is(OutputForms::q8)),
        ])
    }
}

impl Shape<'_> {
    pub(super) fn embed(&self, weight: DType) -> Launch {
        let p: EmbedParams = self.command.params();
        let of = type_sources(weight, p.cols, false);
        let sources = of.sources.iter().copied().chain([&EMBED]).collect();
        let threads = p.cols.next_multiple_of(32).min(256);
        self.launch("embed", sources, &format!("_{}", p.cols))
            .of_type(of)
            .constants([("INPUTS", p.cols)])
            .over([p.cols.div_ceil(threads), self.rows, 1], threads)
    }

    pub(super) fn matmul(&self, op: Matmul) -> Result<Launch, MissingKernel> {
        let Matmul { weight, form, q8, bias, residual, rows, scaled, norm, activation, out } = op;
        self.not_f16(out)?;
        self.not_f16(norm.unwrap_or(out))?;
        let mut product = self.matmul_product((weight, form), [bias, residual]);
        product.activated = activation.is_some();
        product.constants.extend(activation.map(|of| ("ACTIVATION", activation_number(of))));
        self.product(q8, Product { rows, scaled, norm, out, sends: self.is_sender(), ..product })
    }

    fn matmul_product(&self, of: (DType, MatmulForm), [bias, residual]: [bool; 2]) -> Product {
        let p: MatmulParams = self.command.params();
        let constants =
            vec![("OUT_STRIDE", p.out_stride), ("BIAS", u32::from(bias)), ("RESIDUAL", u32::from(residual))];
        Product::new(Kind::Alone, of, [p.inputs, p.outputs], constants)
    }

    pub(super) fn qkv(
        &self,
        (weight, form, q8): (DType, MatmulForm, bool),
        bias: bool,
        scaled: bool,
    ) -> Result<Launch, MissingKernel> {
        let product = self.qkv_product((weight, form), bias);
        self.product(q8, Product { scaled, ..product })
    }

    fn qkv_product(&self, of: (DType, MatmulForm), bias: bool) -> Product {
        let p: QkvParams = self.command.params();
        let outputs = p.q + p.k + p.v;
        let constants = vec![
            ("OUT_STRIDE", outputs),
            ("BIAS", u32::from(bias)),
            ("Q_OUTPUTS", p.q),
            ("K_OUTPUTS", p.k),
            ("V_OUTPUTS", p.v),
        ];
        let product = Product::new(Kind::Qkv, of, [p.inputs, outputs], constants);
        Product { splits: vec![p.q, p.k, p.v], ..product }
    }

    pub(super) fn glu_matmul(
        &self,
        (weight, form, q8): (DType, MatmulForm, bool),
        activation: Activation,
        out: OutputForms,
        scaled: bool,
    ) -> Result<Launch, MissingKernel> {
        let p: GluMatmulParams = self.command.params();
        self.not_f16(out)?;
        let constants = vec![("OUT_STRIDE", p.outputs), ("ACTIVATION", activation_number(activation))];
        let product = Product::new(Kind::Glu, (weight, form), [p.inputs, p.outputs], constants);
        self.product(q8, Product { out, scaled, ..product })
    }

    pub(super) fn expert_matmul(&self, op: ExpertMatmul) -> Result<Launch, MissingKernel> {
        let p: ExpertParams = self.command.params();
        let constants = vec![("BIAS", u32::from(op.bias)), ("RESIDUAL", 0)];
        self.routed((op.q8, false), (Kind::Alone, op.weight), &p, OutputForms::F32, constants)
    }

    pub(super) fn expert_glu(&self, op: ExpertGlu) -> Result<Launch, MissingKernel> {
        self.not_f16(op.out)?;
        let p: ExpertParams = self.command.params();
        let constants = vec![("BIAS", u32::from(op.bias)), ("ACTIVATION", glu_number(op.glu))];
        self.routed((op.q8, op.picked), (Kind::Glu, op.weight), &p, op.out, constants)
    }

    /// A SIMD group reads as many matrices as a row has experts.
    pub(super) fn expert_sum(&self, op: ExpertSum) -> Result<Launch, MissingKernel> {
        let p: ExpertParams = self.command.params();
        if op.q8 != op.weight.is_quantised() {
            return Err(self.missing(INPUT_FORM.into()));
        }
        let is = |option: bool| u32::from(option);
        let constants = vec![
            ("EXPERTS", p.experts),
            ("CHOSEN", p.top),
            ("OUT_STRIDE", p.outputs),
            ("BIAS", is(op.bias)),
            ("SHARED", is(op.shared)),
            ("GATED", is(op.gated)),
            ("RESIDUAL", is(op.residual)),
        ];
        let form = (op.weight, MatmulForm::Small);
        let product = Product::new(Kind::Alone, form, [p.inputs, p.outputs], constants);
        let routed = Routed { experts: p.experts, top: p.top, picked: true };
        let product = Product { routed: Some(routed), ..product };
        let of = type_sources(op.weight, p.inputs, true);
        // Lanes have the inputs of several experts, so fewer threadgroups are enough than of one matrix.
        let most = self.chip.gemv_outputs.max(2);
        let groups = p.outputs.div_ceil(GEMV_SIMDS * most);
        let outs = if 2 * groups >= 3 * self.chip.units { most } else { 1 };
        // Registers for prefetched blocks, and no more than a lane has.
        let lane_blocks = (p.inputs / of.block * p.top).div_ceil(32);
        let depth = (48 / (outs * of.raw_words)).clamp(1, 8).min(lane_blocks);
        let launch = self
            .product_launch("gemv_sum", &[&GEMV_SUM], &product, of)
            .variant([("OUTS", outs), ("DEPTH", 1 << depth.ilog2()), ("INPUT_PIECES", 0)])
            .over([p.outputs.div_ceil(GEMV_SIMDS * outs), self.rows, 1], GEMV_SIMDS * 32);
        Ok(launch)
    }

    fn routed(
        &self,
        (q8, picked): (bool, bool),
        of: (Kind, DType),
        p: &ExpertParams,
        out: OutputForms,
        constants: Vec<(&'static str, u32)>,
    ) -> Result<Launch, MissingKernel> {
        let product = self.product_with_experts(of, p, picked, constants);
        self.product(q8, Product { out, ..product })
    }

    fn product_with_experts(
        &self,
        (kind, weight): (Kind, DType),
        p: &ExpertParams,
        picked: bool,
        mut constants: Vec<(&'static str, u32)>,
    ) -> Product {
        constants.extend([("OUT_STRIDE", p.outputs), ("EXPERTS", p.experts), ("CHOSEN", p.top)]);
        let routed = Routed { experts: p.experts, top: p.top, picked };
        // What is best for the rows that an expert has on average.
        let form = match routed.rows_each(self.rows) {
            ..=16 => MatmulForm::Small,
            _ => MatmulForm::Gemm,
        };
        let product = Product::new(kind, (weight, form), [p.inputs, p.outputs], constants);
        Product { routed: Some(routed), ..product }
    }

    fn product(&self, q8: bool, product: Product) -> Result<Launch, MissingKernel> {
        if q8 != product.weight.is_quantised() {
            return Err(self.missing(INPUT_FORM.into()));
        }
        if product.form == MatmulForm::Gemm && product.in_norms() {
            return Err(self.missing("products of many rows have no part in norms".into()));
        }
        // The table may have more rows than request logits, and vice versa.
        let rows = self.count(product.rows);
        let special = match rows {
            _ if product.picked() => None,
            1 if product.routed.is_some() => None,
            1 => self.gemv_stream(&product),
            _ => self
                .gemm_few(&product, rows)
                .or_else(|| self.gemm_tensor(&product, rows))
                .or_else(|| self.gemm_tiles(&product, rows)),
        };
        // A few large tiles would leave most of the GPU idle, as for the router of a mixture of experts with few rows.
        let fills = product.outputs.div_ceil(SIDE) * product.tiles(rows, SIDE) >= self.chip.units;
        Ok(special.unwrap_or_else(|| match product.form {
            MatmulForm::Gemm if fills => self.gemm(&product, rows),
            _ => self.gemv(&product, rows),
        }))
    }

    fn product_launch(
        &self,
        entry: &'static str,
        bodies: &[&'static Source],
        product: &Product,
        of: TypeSources,
    ) -> LaunchBuilder {
        let mut sources = of.sources.clone();
        if product.activated {
            sources.push(&ACTIVATION);
        }
        if product.sends {
            sources.push(&EXCHANGE);
        }
        sources.push(&MATRIX);
        sources.extend(bodies);
        let mut builder = self
            .launch(entry, sources, &format!("_{}x{}", product.inputs, product.outputs))
            .of_type(of)
            .variant([("KIND", product.kind as u32), ("ACTIVATED", u32::from(product.activated))])
            .variant([("ROUTED", u32::from(product.routed.is_some()))])
            .variant([("PICKED", u32::from(product.picked())), ("SENDS", u32::from(product.sends))])
            .constants([("INPUTS", product.inputs), ("OUTPUTS", product.outputs)])
            .constants([("LOGITS", u32::from(product.rows == RowSet::Logits))])
            .norm(product)
            .out(product.out);
        builder.launch.function.constants.extend(product.constants.iter().copied());
        builder
    }

    /// Whether the threadgroups of a one-row product stage their input in threadgroup memory.
    fn shares_input(&self, product: &Product, of: &TypeSources) -> bool {
        let bytes = product.staged_bytes(of);
        // Leaves room for a threadgroup of the next kernel on the same SM.
        let fits = bytes <= self.chip.shared_bytes / 2;
        let early = product.in_blocks() && of.raw_words < WIDE_WORDS;
        let iterations = SHARED_ITERATIONS[usize::from(!early)];
        fits && bytes.is_multiple_of(16) && product.inputs / of.block >= iterations * 32
    }

    /// Outputs per SIMD group of a one-row product with one matrix: as many as the chip prefers, unless that leaves
    /// fewer than two threadgroups per SM.
    fn gemv_outputs(&self, product: &Product) -> u32 {
        let most = self.chip.gemv_outputs;
        let groups = product.outputs.div_ceil(GEMV_SIMDS * most);
        if groups >= 2 * self.chip.units { most } else { 1 }
    }

    fn gemv(&self, product: &Product, rows: u32) -> Launch {
        let tile = product.rows_together(rows).next_power_of_two().min(16);
        let streams = product.streams();
        let of = type_sources(product.weight, product.inputs, true);
        // Several outputs share the loads of the input.
        let wanted = match tile {
            1 if product.kind == Kind::Alone => self.gemv_outputs(product),
            1 if product.kind == Kind::Glu && !product.weight.is_quantised() => 1,
            1 => 2,
            2..=8 => 4 / streams,
            _ => 2 / streams,
        };
        let mut outs = 1 << wanted.ilog2();
        let mut simds = GEMV_SIMDS;
        if product.in_blocks() {
            // A threadgroup has one block of 32 outputs and at least as many SIMD groups as rows. It gets the largest
            // size if there is about one threadgroup per SM, or if there are fewer and each lane's blocks are wide.
            let fewest = if of.raw_words < WIDE_WORDS { self.chip.units * 7 / 8 } else { 0 };
            let one_each = (fewest..=self.chip.units).contains(&product.outputs.div_ceil(32));
            outs = if tile == 16 || one_each { 1 } else { outs.max(2) };
            simds = 32 / outs;
        }
        let width = simds * outs;
        // Registers for prefetched blocks, limited so that enough threadgroups are resident.
        let room = if tile == 1 && !product.out.q8() { 48 } else { 24 };
        let depth = (room / (outs * streams * of.raw_words)).clamp(1, 4);
        let sums = if product.in_blocks() { tile * width * streams * 4 } else { 0 };
        let is_shared = tile == 1 && self.shares_input(product, &of);
        let pieces = if is_shared { (product.input_bytes() / 16).div_ceil(simds * 32) } else { 0 };
        let input = if is_shared { product.staged_bytes(&of) } else { 0 };
        self.product_launch("gemv", &[&GEMV], product, of)
            .variant([("TILE", tile), ("OUTS", outs), ("DEPTH", 1 << depth.ilog2())])
            .variant([("INPUT_PIECES", pieces)])
            .shared(sums + input)
            .over([product.outputs.div_ceil(width), product.tiles(rows, tile), 1], simds * 32)
    }

    fn gemm(&self, product: &Product, rows: u32) -> Launch {
        let of = type_sources(product.weight, product.inputs, true);
        let deep = if of.block == 1 { 16 } else { 4 };
        let words = of.input_words + product.streams() * of.block_words;
        let together = if product.out.q8() { SIDE * SIDE * 4 } else { 0 };
        self.product_launch("gemm", &[&GEMM], product, of)
            .variant([("DEEP", deep)])
            .shared((deep * words * SIDE * 4).max(together))
            .over([product.outputs.div_ceil(SIDE), product.tiles(rows, SIDE), 1], 256)
    }
}

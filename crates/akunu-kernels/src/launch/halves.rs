//! Rows of f16 and FP8, weights unpacked to f16, and their products.

use akunu_plan::ops::{
    Activate, EightMatmul, ElementParams, Glu, HalfMatmul, InputForm, MatmulParams, Norm, NormParams, Round,
    RoundParams, UnpackParams,
};
use akunu_plan::{Activation, DType, OutputForms, RowSet};

use crate::function::source;
use crate::types::type_sources;
use crate::{Launch, LibraryProduct, MissingKernel, Source, Work};

use super::{LaunchBuilder, Shape};

static ACTIVATION: Source = source!("activation.h");
static HALVES: Source = source!("halves.h");
static HALF_FINISH: Source = source!("half_finish.h");
static UNPACK: Source = source!("unpack.h");

/// Threads of a threadgroup that unpacks weights or finishes a product.
const THREADS: u32 = 256;
/// Groups of four elements per thread: preferred, and at most.
const FOURS: u32 = 4;
const MOST_FOURS: u32 = 8;
/// Reductions with their own threadgroup memory of 32 values: squares, magnitudes, mean.
const SPACES: u32 = 3;

impl Shape<'_> {
    /// One threadgroup per row of `rows`.
    fn along_row(
        &self,
        entry: &'static str,
        sources: Vec<&'static Source>,
        [rows, cols]: [u32; 2],
        finish: impl Fn(LaunchBuilder) -> LaunchBuilder,
    ) -> Result<Launch, MissingKernel> {
        let fours = cols.div_ceil(4);
        let threads = fours.div_ceil(FOURS).next_multiple_of(32).clamp(32, 1024);
        let per_thread = fours.div_ceil(threads);
        if per_thread > MOST_FOURS {
            return Err(self.missing(format!("a row of {cols} is too long for one group")));
        }
        let builder = self
            .launch(entry, sources, &format!("_{cols}"))
            .variant([("PER_THREAD", per_thread)])
            .constants([("COLS", cols)]);
        Ok(finish(builder).shared(SPACES * 32 * 4).over([1, rows, 1], threads))
    }

    pub(super) fn norm_halves(&self, op: Norm) -> Result<Launch, MissingKernel> {
        let cols = self.command.params::<NormParams>().cols;
        self.along_row("norm_halves", vec![&HALVES], [self.count(op.rows), cols], |builder| {
            builder.of_norm(op)
        })
    }

    pub(super) fn glu_halves(&self, Glu { activation, out }: Glu) -> Result<Launch, MissingKernel> {
        self.activated_halves("glu_halves", (activation, RowSet::All), InputForm::F32, out)
    }

    pub(super) fn activate_halves(&self, op: Activate) -> Result<Launch, MissingKernel> {
        self.activated_halves("activate_halves", (op.activation, op.rows), op.input, op.out)
    }

    fn activated_halves(
        &self,
        entry: &'static str,
        (activation, set): (Activation, RowSet),
        input: InputForm,
        out: OutputForms,
    ) -> Result<Launch, MissingKernel> {
        let cols = self.command.params::<ElementParams>().cols;
        self.along_row(entry, vec![&ACTIVATION, &HALVES], [self.count(set), cols], |builder| {
            let builder = builder.of_activation(activation, set).out(out);
            builder
                .variant([("X_F16", u32::from(input.f16()))])
                .constants([("BIAS", u32::from(input.bias()))])
        })
    }

    pub(super) fn halve(&self, op: Round) -> Result<Launch, MissingKernel> {
        let RoundParams { cols, times } = self.command.params();
        self.along_row("halve", vec![&HALVES], [self.rows * times, cols], |builder| {
            let builder = builder.out(op.out).variant([("X_F16", u32::from(op.input.f16()))]);
            builder.constants([("BIAS", 0), ("TIMES", times)])
        })
    }

    pub(super) fn unpack(&self, weight: DType) -> Result<Launch, MissingKernel> {
        let p: UnpackParams = self.command.params();
        let of = type_sources(weight, p.inputs, true);
        let blocks = u64::from(p.outputs) * u64::from(p.inputs / of.block);
        if of.block < 8 || !p.inputs.is_multiple_of(of.block) || blocks > u64::from(u32::MAX - THREADS) {
            return Err(self.missing(format!("{} rows of {} are not unpacked to f16", p.outputs, p.inputs)));
        }
        let sources = of.sources.iter().copied().chain([&UNPACK]).collect();
        let shared = if of.block == 32 { THREADS * 5 * 16 } else { 0 };
        Ok(self
            .launch("unpack", sources, &format!("_{}x{}", p.inputs, p.outputs))
            .of_type(of)
            .constants([("INPUTS", p.inputs), ("OUTPUTS", p.outputs)])
            .shared(shared)
            .over([(blocks as u32).div_ceil(THREADS), 1, 1], THREADS))
    }

    /// The library's product, then the scales of the rows, unless the reader applies them.
    pub(super) fn half_matmul(&self, HalfMatmul { bias, residual, f16, .. }: HalfMatmul) -> Vec<Work> {
        let p: MatmulParams = self.command.params();
        let product = LibraryProduct {
            x: 0,
            weight: 2,
            scales: None,
            out: 3,
            bias: bias.then_some(4),
            residual: residual.then_some(4 + usize::from(bias)),
            rows: self.rows,
            inputs: p.inputs,
            outputs: p.outputs,
            out_stride: p.out_stride,
            out_f16: f16,
        };
        if f16 {
            return vec![Work::Product(product)];
        }
        vec![Work::Product(product), self.finish("half_finish", &p, [bias, residual])]
    }

    /// The library's product, then the bias, which it adds in half precision only.
    pub(super) fn eight_matmul(&self, EightMatmul { bias, residual }: EightMatmul) -> Vec<Work> {
        let p: MatmulParams = self.command.params();
        let product = Work::Product(LibraryProduct {
            x: 0,
            weight: 2,
            scales: Some([1, 3]),
            out: 4,
            bias: None,
            residual: residual.then_some(5 + usize::from(bias)),
            rows: self.rows,
            inputs: p.inputs,
            outputs: p.outputs,
            out_stride: p.out_stride,
            out_f16: false,
        });
        if !bias {
            return vec![product];
        }
        vec![product, self.finish("add_bias", &p, [bias, residual])]
    }

    /// What follows a library's product.
    fn finish(&self, entry: &'static str, p: &MatmulParams, [bias, residual]: [bool; 2]) -> Work {
        let suffix = format!("_finish_{}_{}", p.outputs, p.out_stride);
        let finish = self
            .launch(entry, vec![&HALF_FINISH], &suffix)
            .constants([("OUTPUTS", p.outputs), ("OUT_STRIDE", p.out_stride)])
            .constants([("BIAS", u32::from(bias)), ("RESIDUAL", u32::from(residual))])
            .over([1, self.rows.div_ceil(THREADS / 32), 1], THREADS);
        Work::Launch(finish)
    }
}

//! Norms, activations, quantisation, RoPE angles.

use akunu_plan::ops::{
    Activate, AddParams, AnglesParams, ElementParams, Glu, GluKind, HeadNorm, HeadNormParams, Norm,
    NormParams, NormPartParams, RoundParams, SumSquaresParams,
};
use akunu_plan::{Activation, NormKind, OutputForms, RowSet};

use crate::Source;
use crate::function::source;

use super::{Launch, LaunchBuilder, MissingKernel, Shape};

pub(super) static ROWS: Source = source!("rows.h");
static ACTIVATION: Source = source!("activation.h");
static RANGE_REDUCTION: Source = source!("range_reduction.h");
static ANGLES: Source = source!("angles.h");

/// Threads of an elementwise kernel's threadgroup.
const WIDE: u32 = 256;
/// Elements of a row that one thread of a norm may hold in registers.
const MOST_PER_THREAD: u32 = 32;

/// ACTIVATION in activation.h.
pub(super) fn activation_number(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::Tanh => 3,
        Activation::Relu => 4,
    }
}

/// The kinds of gated activations, after the activations.
pub(super) fn glu_number(glu: GluKind) -> u32 {
    match glu {
        GluKind::Plain(activation) => activation_number(activation),
        GluKind::Clamped => 5,
    }
}

/// The reductions of a norm: a layer norm needs a second one for the mean.
fn sums_of(kind: NormKind) -> u32 {
    if kind == NormKind::Layer { 2 } else { 1 }
}

impl LaunchBuilder {
    pub(super) fn out(self, out: OutputForms) -> LaunchBuilder {
        let [f32, q8, f16, lanes] = [out.f32(), out.q8(), out.f16(), out.lanes()].map(u32::from);
        self.constants([("OUT_F32", f32), ("OUT_Q8", q8), ("OUT_F16", f16), ("OUT_LANES", lanes)])
            .constants([("OUT_EIGHTS", u32::from(out.eights()))])
    }

    /// The variants of the activation kernels.
    pub(super) fn of_activation(self, activation: Activation, set: RowSet) -> LaunchBuilder {
        self.constants([
            ("ACTIVATION", activation_number(activation)),
            ("LOGITS", u32::from(set == RowSet::Logits)),
        ])
    }

    /// The variants of the norm kernels.
    pub(super) fn of_norm(self, op: Norm) -> LaunchBuilder {
        self.variant([("LAYER", u32::from(op.kind == NormKind::Layer))])
            .constants([("BIAS", u32::from(op.bias)), ("LOGITS", u32::from(op.rows == RowSet::Logits))])
            .constants([("PICK", u32::from(op.pick))])
            .out(op.out)
    }
}

impl Shape<'_> {
    pub(super) fn count(&self, set: RowSet) -> u32 {
        if set == RowSet::All { self.rows } else { self.logit_rows.min(self.rows) }
    }

    pub(super) fn rope_angles(&self) -> Launch {
        let p: AnglesParams = self.command.params();
        let threads = p.pairs.next_multiple_of(32).clamp(32, 128);
        self.launch("rope_angles", vec![&RANGE_REDUCTION, &ANGLES], &format!("_{}", p.pairs))
            .constants([("PAIRS", p.pairs)])
            .over([p.pairs.div_ceil(threads).max(1), self.rows, 1], threads)
    }

    pub(super) fn norm(&self, op: Norm) -> Result<Launch, MissingKernel> {
        let cols = self.command.params::<NormParams>().cols;
        let groups = [1, self.count(op.rows)];
        self.in_registers("norm_rows", groups, cols, sums_of(op.kind), |builder| builder.of_norm(op))
    }

    pub(super) fn norm_add(&self) -> Result<Launch, MissingKernel> {
        let cols = self.command.params::<NormParams>().cols;
        self.in_registers("norm_add", [1, self.rows], cols, 1, |builder| builder.out(OutputForms::F32))
    }

    pub(super) fn head_norm(&self, HeadNorm { kind, bias }: HeadNorm) -> Result<Launch, MissingKernel> {
        let p: HeadNormParams = self.command.params();
        let head = Norm { kind, bias, out: OutputForms::F32, rows: RowSet::All, pick: false };
        let groups = [p.heads, self.rows];
        self.in_registers("head_norm", groups, p.head_dim, sums_of(kind), |builder| builder.of_norm(head))
    }

    pub(super) fn sum_squares(&self) -> Result<Launch, MissingKernel> {
        let cols = self.command.params::<SumSquaresParams>().cols;
        self.in_registers("sum_squares", [1, self.rows], cols, 1, |builder| builder.out(OutputForms::F32))
    }

    pub(super) fn norm_part(&self) -> Launch {
        let cols = self.command.params::<NormPartParams>().cols;
        self.elementwise("norm_part", &[&ROWS], [self.rows, cols], |builder| {
            builder.out(OutputForms::F32).constants([("PART", 1)])
        })
    }

    /// A threadgroup per `cols` elements, held in registers. `sums`: reductions, each with its own threadgroup memory.
    fn in_registers(
        &self,
        entry: &'static str,
        groups: [u32; 2],
        cols: u32,
        sums: u32,
        finish: impl Fn(LaunchBuilder) -> LaunchBuilder,
    ) -> Result<Launch, MissingKernel> {
        let threads = cols.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
        let per_thread = cols.div_ceil(threads).next_power_of_two();
        if per_thread > MOST_PER_THREAD {
            return Err(self.missing(format!("a row of {cols} is too long for one group")));
        }
        let builder = self
            .launch(entry, vec![&ROWS], &format!("_{cols}"))
            .variant([("PER_THREAD", per_thread)])
            .constants([("COLS", cols)]);
        Ok(finish(builder).shared(sums * 32 * 4).over([groups[0], groups[1], 1], threads))
    }

    pub(super) fn glu(&self, Glu { activation, out }: Glu) -> Launch {
        self.activated("glu", activation, out, RowSet::All)
    }

    pub(super) fn activate(&self, Activate { activation, out, rows, .. }: Activate) -> Launch {
        self.activated("activate_rows", activation, out, rows)
    }

    fn activated(
        &self,
        entry: &'static str,
        activation: Activation,
        out: OutputForms,
        set: RowSet,
    ) -> Launch {
        let cols = self.command.params::<ElementParams>().cols;
        self.elementwise(entry, &[&ACTIVATION, &ROWS], [self.count(set), cols], |builder| {
            builder.of_activation(activation, set).out(out)
        })
    }

    pub(super) fn quantise(&self) -> Launch {
        let RoundParams { cols, times } = self.command.params();
        self.elementwise("quantise", &[&ROWS], [self.rows * times, cols], |builder| {
            builder.out(OutputForms::Q8).constants([("TIMES", times)])
        })
    }

    pub(super) fn add(&self) -> Launch {
        let cols = self.command.params::<AddParams>().cols;
        self.elementwise("add_rows", &[&ROWS], [self.rows, cols], |builder| builder.out(OutputForms::F32))
    }

    pub(super) fn reorder(&self) -> Launch {
        let cols = self.command.params::<ElementParams>().cols;
        self.elementwise("reorder", &[&ROWS], [self.rows, cols], |builder| {
            builder.out(OutputForms::F32).constants([("REORDER", 1)])
        })
    }

    /// One thread per element of `rows`.
    pub(super) fn elementwise(
        &self,
        entry: &'static str,
        sources: &[&'static Source],
        [rows, cols]: [u32; 2],
        finish: impl Fn(LaunchBuilder) -> LaunchBuilder,
    ) -> Launch {
        let builder = self.launch(entry, sources.to_vec(), &format!("_{cols}")).constants([("COLS", cols)]);
        finish(builder).over([cols.div_ceil(WIDE), rows, 1], WIDE)
    }
}

//! RMS norms and layer norms of rows.

use akunu_plan::ops::{self, F32, HeadNormParams, NormParams, NormPartParams, SumSquaresParams};
use akunu_plan::{Kernel, NormKind, RowSet};

use super::{OpKernel, RowValues, for_lanes, load, store, write_forms};
use crate::command::{Command, Context, f32s, u32s};
use crate::isa::Lanes;
use crate::isa::target::Target;

/// `1 / √(mean of squares + ε)`.
///
/// # Safety
/// `n` elements can be read at `x`.
#[inline(always)]
pub(crate) unsafe fn inverse_rms<V: Lanes>(x: *const f32, n: usize, epsilon: f32) -> f32 {
    // SAFETY: as the caller promises.
    1.0 / (unsafe { sum_squares::<V>(x, n) } / n as f32 + epsilon).sqrt()
}

/// The sum of squares, over the lanes of canonical arithmetic.
///
/// # Safety
/// `n` elements can be read at `x`.
#[inline(always)]
unsafe fn sum_squares<V: Lanes>(x: *const f32, n: usize) -> f32 {
    let mut acc = V::zero();
    // SAFETY: all elements are below `n`.
    unsafe {
        let mut at = 0;
        while at + 16 <= n {
            let v = V::load(x.add(at));
            acc = v.fma(v, acc);
            at += 16;
        }
        if at < n {
            let v = V::load_n(x.add(at), n - at);
            acc = v.fma(v, acc);
        }
    }
    acc.sum()
}

/// The mean, and `1 / √(variance + ε)`: two reductions over the lanes of canonical arithmetic, one after the other.
///
/// # Safety
/// `n` elements can be read at `x`.
#[inline(always)]
unsafe fn mean_and_inverse_deviation<V: Lanes>(x: *const f32, n: usize, epsilon: f32) -> (f32, f32) {
    let whole = n / 16 * 16;
    let mut acc = V::zero();
    // SAFETY: all elements are below `n`.
    unsafe {
        for at in (0..whole).step_by(16) {
            acc = acc.add(V::load(x.add(at)));
        }
        if whole < n {
            acc = acc.add(V::load_n(x.add(whole), n - whole));
        }
    }
    let mean = acc.sum() / n as f32;
    let mut acc = V::zero();
    // SAFETY: all elements are below `n`.
    unsafe {
        for at in (0..whole).step_by(16) {
            let v = V::load(x.add(at)).sub(V::splat(mean));
            acc = v.fma(v, acc);
        }
        if whole < n {
            // Lanes past the end of the row must stay 0, so the mean is not subtracted from them.
            let (means, count) = ([mean; 16], n - whole);
            let v = V::load_n(x.add(whole), count).sub(V::load_n(means.as_ptr(), count));
            acc = v.fma(v, acc);
        }
    }
    (mean, 1.0 / (acc.sum() / n as f32 + epsilon).sqrt())
}

/// `x · scale · weight`
///
/// # Safety
/// `n` ≤ 16 elements can be read at each place.
#[inline(always)]
pub(crate) unsafe fn normed<V: Lanes>(x: *const f32, weight: *const f32, scale: f32, n: usize) -> V {
    // SAFETY: as the caller promises.
    unsafe { load::<V>(x, n).mul(V::splat(scale)).mul(load::<V>(weight, n)) }
}

/// Normalises the elements of a row. The options are const generics, so that loops over a row do not test them.
struct Norming<const LAYER: bool, const BIAS: bool> {
    x: *const f32,
    weight: *const f32,
    /// Unused without BIAS.
    bias: *const f32,
    /// Unused without LAYER.
    mean: f32,
    scale: f32,
}

impl<const LAYER: bool, const BIAS: bool> Norming<LAYER, BIAS> {
    /// # Safety
    /// `cols` elements can be read at `x`, `weight` and (with BIAS) `bias` as long as the value is used.
    #[inline(always)]
    unsafe fn new<V: Lanes>(
        x: *const f32,
        cols: usize,
        epsilon: f32,
        [weight, bias]: [*const f32; 2],
    ) -> Self {
        // SAFETY: as the caller promises.
        let (mean, scale) = unsafe {
            match LAYER {
                true => mean_and_inverse_deviation::<V>(x, cols, epsilon),
                false => (0.0, inverse_rms::<V>(x, cols, epsilon)),
            }
        };
        Norming { x, weight, bias, mean, scale }
    }
}

impl<const LAYER: bool, const BIAS: bool> RowValues for Norming<LAYER, BIAS> {
    /// `(x − mean) · scale · weight`; a bias is added by a fused multiply-add.
    #[inline(always)]
    unsafe fn at<V: Lanes>(&self, at: usize, n: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            let x = load::<V>(self.x.add(at), n);
            let x = if LAYER { x.sub(V::splat(self.mean)) } else { x };
            let (x, weight) = (x.mul(V::splat(self.scale)), load::<V>(self.weight.add(at), n));
            if BIAS { x.fma(weight, load::<V>(self.bias.add(at), n)) } else { x.mul(weight) }
        }
    }
}

/// Calls a function with the kind of norm and the presence of a bias as const generics.
macro_rules! of_kind {
    ($op:ident, $function:ident::<$lanes:ident>($($argument:expr),*)) => {
        match ($op.kind, $op.bias) {
            (NormKind::Rms, false) => $function::<$lanes, false, false>($($argument),*),
            (NormKind::Rms, true) => $function::<$lanes, false, true>($($argument),*),
            (NormKind::Layer, false) => $function::<$lanes, true, false>($($argument),*),
            (NormKind::Layer, true) => $function::<$lanes, true, true>($($argument),*),
        }
    };
}

/// An optional operand; null if it is absent.
#[inline(always)]
fn bias_of(bias: Option<F32<*mut u8>>) -> *const f32 {
    bias.map_or(std::ptr::null(), |bias| f32s(bias).cast_const())
}

impl OpKernel for ops::Norm {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let Kernel::Norm(op) = command.kernel else { return };
        // SAFETY: as the caller promises.
        unsafe { of_kind!(op, norm_rows::<V>(op, command, context)) }
    }
}

#[inline(always)]
unsafe fn norm_rows<V: Lanes, const LAYER: bool, const BIAS: bool>(
    op: ops::Norm,
    command: &Command,
    context: &Context,
) {
    let p: NormParams = command.params();
    let o = command.operands(op);
    let cols = p.cols as usize;
    let total = if op.rows == RowSet::Logits { context.logit_rows } else { context.rows };
    let weights = [f32s(o.weight).cast_const(), bias_of(o.bias)];
    // SAFETY: rows and the rows that `logit_rows` names are within the table's; q8 rows are whole blocks; each row is
    // written by one worker.
    unsafe {
        for r in context.units(total) {
            let source = match o.logit_rows {
                None => r,
                Some(logit_rows) => *u32s(logit_rows).add(r) as usize,
            };
            let x = f32s(o.x).add(source * cols);
            let norming = Norming::<LAYER, BIAS>::new::<V>(x, cols, p.epsilon, weights);
            write_forms::<V>(&norming, &o.out, (r, cols), 0..cols);
        }
    }
}

impl OpKernel for ops::HeadNorm {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let Kernel::HeadNorm(op) = command.kernel else { return };
        // SAFETY: as the caller promises.
        unsafe { of_kind!(op, norm_heads::<V>(op, command, context)) }
    }
}

#[inline(always)]
unsafe fn norm_heads<V: Lanes, const LAYER: bool, const BIAS: bool>(
    op: ops::HeadNorm,
    command: &Command,
    context: &Context,
) {
    let p: HeadNormParams = command.params();
    let o = command.operands(op);
    let (heads, dim) = (p.heads as usize, p.head_dim as usize);
    // SAFETY: rows are within the table's, heads within their rows, and each head is written by one worker.
    unsafe {
        for unit in context.units(context.rows * heads) {
            let (r, head) = (unit / heads, unit % heads);
            let x = f32s(o.x).add(r * p.in_stride as usize + head * dim);
            let bias = if BIAS { bias_of(o.bias).add(head * dim) } else { std::ptr::null() };
            let weights = [f32s(o.weight).add(head * dim).cast_const(), bias];
            let norming = Norming::<LAYER, BIAS>::new::<V>(x, dim, p.epsilon, weights);
            let to = f32s(o.out).add(r * p.out_stride as usize + head * dim);
            for_lanes!(dim, |at, n| store(norming.at::<V>(at, n), to.add(at), n));
        }
    }
}

impl OpKernel for ops::SumSquares {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: SumSquaresParams = command.params();
        let o = command.operands(ops::SumSquares);
        let cols = p.cols as usize;
        // SAFETY: rows are within the table's, and each is read by one worker.
        unsafe {
            for r in context.units(context.rows) {
                *f32s(o.out).add(r * p.out_stride as usize) = sum_squares::<V>(f32s(o.x).add(r * cols), cols);
            }
        }
    }
}

impl OpKernel for ops::NormPart {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: NormPartParams = command.params();
        let o = command.operands(ops::NormPart);
        let cols = p.cols as usize;
        // SAFETY: rows are within the table's, and each is written by one worker.
        unsafe {
            for r in context.units(context.rows) {
                let sum = *f32s(o.squares).add(r * p.sum_stride as usize);
                let scale = 1.0 / (sum / p.summed as f32 + p.epsilon).sqrt();
                let (x, to) = (f32s(o.x).add(r * cols), f32s(o.out).add(r * p.out_stride as usize));
                for_lanes!(cols, |at, n| {
                    normed::<V>(x.add(at), f32s(o.weight).add(at), scale, n).store_n(to.add(at), n);
                });
            }
        }
    }
}

impl OpKernel for ops::NormAdd {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: NormParams = command.params();
        let o = command.operands(ops::NormAdd);
        let cols = p.cols as usize;
        // SAFETY: rows are within the table's, and each is written by one worker.
        unsafe {
            for r in context.units(context.rows) {
                let x = f32s(o.x).add(r * cols);
                let (weight, residual) = (f32s(o.weight), f32s(o.residual).add(r * cols));
                let to = f32s(o.out).add(r * cols);
                let scale = inverse_rms::<V>(x, cols, p.epsilon);
                for_lanes!(cols, |at, n| {
                    let v = normed::<V>(x.add(at), weight.add(at), scale, n);
                    V::load_n(residual.add(at), n).add(v).store_n(to.add(at), n);
                });
            }
        }
    }
}

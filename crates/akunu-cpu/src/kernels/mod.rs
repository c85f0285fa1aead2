//! All kernels, generic over the lanes. Each works on the part of the command that is dealt to its worker.

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod experts;
mod head_scores;
mod keys;
pub(crate) mod latent;
pub(crate) mod matrix;
pub(crate) mod norm;
pub(crate) mod ranks;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod state;
pub(crate) mod texts;

use std::ops::Range;

use akunu_plan::ops::Forms;
use akunu_plan::q8;

use crate::command::{Command, Context, f32s};
use crate::isa::Lanes;
use crate::isa::target::Target;

/// The kernel of an op.
pub(crate) trait OpKernel {
    /// # Safety
    /// As for [`Run`](crate::command::Run); the processor has the instruction set of `V`.
    unsafe fn run<V: Target>(command: &Command, context: &Context);
}

/// Runs `body` for each group of up to sixteen of `n` elements, with offset and count. A macro, because a closure
/// would not be compiled with the target features of the enclosing kernel.
macro_rules! for_lanes {
    ($n:expr, |$at:ident, $count:ident| $body:expr) => {{
        let mut $at = 0;
        while $at < $n {
            let $count = 16.min($n - $at);
            $body;
            $at += 16;
        }
    }};
}
pub(crate) use for_lanes;

/// Quantises the 32 elements at `x` to block `block` of a q8 row of `cols` elements.
///
/// # Safety
/// `row` has room for a q8 row of `cols` elements, `block` is one of its blocks, and 32 elements can be read at `x`.
#[inline(always)]
pub(crate) unsafe fn put_q8<V: Lanes>(row: *mut u8, cols: usize, block: usize, x: *const f32) {
    // SAFETY: as the caller promises.
    unsafe { put_q8_lanes([V::load(x), V::load(x.add(16))], row, cols, block) };
}

/// The same for the 32 numbers of `v`.
///
/// # Safety
/// `row` has room for a q8 row of `cols` elements, and `block` is one of its blocks.
#[inline(always)]
pub(crate) unsafe fn put_q8_lanes<V: Lanes>(v: [V; 2], row: *mut u8, cols: usize, block: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let (scale, sum) = V::quantise_lanes(v, row.add(block * q8::BLOCK).cast());
        *row.add(q8::scales_offset(cols)).cast::<f32>().add(block) = scale;
        *row.add(q8::sums_offset(cols)).cast::<i32>().add(block) = sum;
    }
}

/// Quantises a whole row.
///
/// # Safety
/// `cols` elements (whole blocks) can be read at `x`, and a q8 row of them written.
#[inline(always)]
pub(crate) unsafe fn put_q8_row<V: Lanes>(row: *mut u8, cols: usize, x: *const f32) {
    for block in 0..cols / q8::BLOCK {
        // SAFETY: `block` is below the row's number of blocks.
        unsafe { put_q8::<V>(row, cols, block, x.add(block * q8::BLOCK)) };
    }
}

/// Loads `n` ≤ 16 elements; the other lanes are 0.
///
/// # Safety
/// `n` elements can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn load<V: Lanes>(p: *const f32, n: usize) -> V {
    // SAFETY: as the caller promises.
    unsafe { if n == 16 { V::load(p) } else { V::load_n(p, n) } }
}

/// Stores the first `n` ≤ 16 lanes.
///
/// # Safety
/// `n` elements can be written at `p`.
#[inline(always)]
pub(crate) unsafe fn store<V: Lanes>(v: V, p: *mut f32, n: usize) {
    // SAFETY: as the caller promises.
    unsafe { if n == 16 { v.store(p) } else { v.store_n(p, n) } }
}

/// A row that a kernel computes sixteen elements at a time.
pub(crate) trait RowValues {
    /// The `n` ≤ 16 elements from `at` on; the other lanes are unspecified.
    ///
    /// # Safety
    /// `at .. at + n` are elements of the row.
    unsafe fn at<V: Lanes>(&self, at: usize, n: usize) -> V;
}

/// Writes elements `part` of row `r` in the requested forms; rows have `cols` elements.
///
/// # Safety
/// Row `r` has room in each requested form, and `part` is within it; for q8, `part` is whole blocks.
#[inline(always)]
pub(crate) unsafe fn write_forms<V: Lanes>(
    row: &impl RowValues,
    out: &Forms<*mut u8>,
    (r, cols): (usize, usize),
    part: Range<usize>,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let floats = match out.f32 {
            Some(out) => f32s(out).add(r * cols),
            None => std::ptr::null_mut(),
        };
        let Some(quants) = out.q8 else {
            for_lanes!(part.len(), |i, n| {
                store(row.at::<V>(part.start + i, n), floats.add(part.start + i), n);
            });
            return;
        };
        let quants = quants.0.add(r * q8::row_bytes(cols));
        for block in part.start / q8::BLOCK..part.end / q8::BLOCK {
            let at = block * q8::BLOCK;
            let v = [row.at::<V>(at, 16), row.at::<V>(at + 16, 16)];
            if !floats.is_null() {
                v[0].store(floats.add(at));
                v[1].store(floats.add(at + 16));
            }
            put_q8_lanes(v, quants, cols, block);
        }
    }
}

//! Kernels that work along rows: embeddings, elementwise ones, and the search for the best token.

use std::ops::Range;
use std::sync::atomic::Ordering;

use akunu_plan::ops::{self, AddParams, ArgmaxParams, ElementParams, EmbedParams, RoundParams, Weight};
use akunu_plan::{Activation, DType, Kernel, Row, RowSet, q8};

use super::{OpKernel, RowValues, for_lanes, load, put_q8, put_q8_row, store, write_forms};
use crate::command::{Command, Context, f32s, u32s};
use crate::isa::Lanes;
use crate::isa::target::Target;
use crate::math;
use crate::panel::PARTIAL_FLOATS;

impl OpKernel for ops::Embed {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: EmbedParams = command.params();
        let Kernel::Embed(op) = command.kernel else { return };
        let o = command.operands(op);
        let (cols, first) = (p.cols as usize, context.rank() as u32 * p.vocab);
        // SAFETY: tokens are below this rank's part of the vocabulary, and rows below the table's.
        unsafe {
            let rows = context.rows(o.rows);
            for r in context.units(context.rows) {
                let out = f32s(o.out).add(r * cols);
                let values = std::slice::from_raw_parts_mut(out, cols);
                let Some(token) = rows[r].token.checked_sub(first).filter(|token| *token < p.vocab) else {
                    values.fill(0.0);
                    continue;
                };
                embed_row(op.weight, o.embedding, token as usize, values);
                if p.scale != 1.0 {
                    for_lanes!(cols, |at, n| {
                        V::load_n(out.add(at), n).mul(V::splat(p.scale)).store_n(out.add(at), n)
                    });
                }
            }
        }
    }
}

/// One row of a table of any type, by the formats' own definition.
///
/// # Safety
/// The table has that row.
unsafe fn embed_row(dtype: DType, table: Weight<*mut u8>, row: usize, out: &mut [f32]) {
    let sizes = dtype.plane_bytes(out.len()).unwrap_or([0; 3]);
    let mut planes: [&[u8]; 3] = [&[]; 3];
    for ((plane, from), size) in planes.iter_mut().zip(table.planes()).zip(sizes) {
        // SAFETY: the table has that row, of as many bytes in each of its planes.
        *plane = unsafe { std::slice::from_raw_parts(from.add(row * size), size) };
    }
    if akunu_format::blocks::dequantize_nth(dtype, planes, 0, out).is_err() {
        // Row sizes were checked when the command was prepared.
        out.fill(f32::NAN);
    }
}

/// Columns of an elementwise kernel that are dealt out together: whole q8 blocks.
const COLUMNS: usize = 256;

/// Parts of `rows` rows, those that this worker has: the row and some of its columns.
#[inline(always)]
pub(super) fn parts_of_rows(
    context: &Context,
    rows: usize,
    cols: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let parts = cols.div_ceil(COLUMNS);
    context.units(rows * parts).map(move |unit| {
        let first = unit % parts * COLUMNS;
        (unit / parts, first..cols.min(first + COLUMNS))
    })
}

/// `activation(gate) · up`
struct Gated {
    activation: Activation,
    gate: *const f32,
    up: *const f32,
}

impl RowValues for Gated {
    #[inline(always)]
    unsafe fn at<V: Lanes>(&self, at: usize, n: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            let gate = math::activation(self.activation, load::<V>(self.gate.add(at), n));
            gate.mul(load::<V>(self.up.add(at), n))
        }
    }
}

impl OpKernel for ops::Glu {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ElementParams = command.params();
        let Kernel::Glu(op) = command.kernel else { return };
        let o = command.operands(op);
        let cols = p.cols as usize;
        // SAFETY: rows are within the table's; q8 rows are whole blocks.
        unsafe {
            for (r, part) in parts_of_rows(context, context.rows, cols) {
                let (gate, up) = (f32s(o.gate).add(r * cols), f32s(o.up).add(r * cols));
                let row = Gated { activation: op.activation, gate, up };
                write_forms::<V>(&row, &o.out, (r, cols), part);
            }
        }
    }
}

/// `activation(x)`
struct Activated {
    activation: Activation,
    x: *const f32,
}

impl RowValues for Activated {
    #[inline(always)]
    unsafe fn at<V: Lanes>(&self, at: usize, n: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { math::activation(self.activation, load::<V>(self.x.add(at), n)) }
    }
}

impl OpKernel for ops::Activate {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ElementParams = command.params();
        let Kernel::Activate(op) = command.kernel else { return };
        let o = command.operands(op);
        // `limits` has refused f16.
        let Some(x) = o.x else { return };
        let cols = p.cols as usize;
        let total = if op.rows == RowSet::Logits { context.logit_rows } else { context.rows };
        // SAFETY: rows are within the table's; q8 rows are whole blocks.
        unsafe {
            for (r, part) in parts_of_rows(context, total, cols) {
                let row = Activated { activation: op.activation, x: f32s(x).add(r * cols) };
                write_forms::<V>(&row, &o.out, (r, cols), part);
            }
        }
    }
}

/// `residual + scale · x`, rounded once.
impl OpKernel for ops::Add {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: AddParams = command.params();
        let o = command.operands(ops::Add);
        let cols = p.cols as usize;
        // SAFETY: rows are within the table's.
        unsafe {
            for (r, part) in parts_of_rows(context, context.rows, cols) {
                let first = r * cols + part.start;
                let (x, residual) = (f32s(o.x).add(first), f32s(o.residual).add(first));
                let to = f32s(o.out).add(first);
                for_lanes!(part.len(), |at, n| {
                    let sum = V::splat(p.scale).fma(load(x.add(at), n), load(residual.add(at), n));
                    store(sum, to.add(at), n);
                });
            }
        }
    }
}

impl OpKernel for ops::Reorder {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ElementParams = command.params();
        let o = command.operands(ops::Reorder);
        let (x, order, out) = (f32s(o.x), o.order.0.cast::<u32>(), f32s(o.out));
        // SAFETY: rows and columns are within the table's, and so is every column that `order` names, which is limited
        // to them.
        unsafe {
            for (r, columns) in parts_of_rows(context, context.rows, p.cols as usize) {
                let first = r * p.cols as usize;
                for column in columns {
                    let from = (*order.add(column)).min(p.cols - 1) as usize;
                    *out.add(first + column) = *x.add(first + from);
                }
            }
        }
    }
}

impl OpKernel for ops::Round {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: RoundParams = command.params();
        let Kernel::Round(op) = command.kernel else { return };
        let o = command.operands(op);
        let (Some(x), Some(out)) = (o.x, o.out.q8) else { return };
        let (cols, rows) = (p.cols as usize, context.rows * p.times as usize);
        // SAFETY: rows are within the table's, and whole blocks.
        unsafe {
            if rows >= context.parts {
                for r in context.units(rows) {
                    put_q8_row::<V>(out.0.add(r * q8::row_bytes(cols)), cols, f32s(x).add(r * cols));
                }
                return;
            }
            let blocks = cols / q8::BLOCK;
            for unit in context.units(rows * blocks) {
                let (r, block) = (unit / blocks, unit % blocks);
                let row = out.0.add(r * q8::row_bytes(cols));
                put_q8::<V>(row, cols, block, f32s(x).add(r * cols + block * q8::BLOCK));
            }
        }
    }
}

impl OpKernel for ops::Argmax {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ArgmaxParams = command.params();
        let (vocab, asked, parts) = (p.vocab as usize, context.logit_rows, context.parts);
        // SAFETY: asking rows are within the table's, and no two are the same. Each part has its own places among the
        // partial results; whoever is last sees all of them, and alone writes tokens and rows.
        unsafe {
            let logits = f32s(command.operands(ops::Argmax).logits);
            if asked >= parts || asked * parts * size_of::<Best>() > PARTIAL_FLOATS * size_of::<f32>() {
                for j in context.units(asked) {
                    found(command, context, p, j, best::<V>(logits.add(j * vocab), 0, vocab));
                }
                return;
            }
            // Few rows: each is shared, in whole sixteens.
            let share = context.share(vocab.div_ceil(16));
            let (first, end) = (vocab.min(share.start * 16), vocab.min(share.end * 16));
            let partials = (&raw mut (*context.shared).partials).cast::<Best>();
            for j in 0..asked {
                *partials.add(j * parts + context.part) =
                    best::<V>(logits.add(j * vocab + first), first, end - first);
            }
            let done = &(*context.shared).done[0];
            if done.fetch_add(1, Ordering::AcqRel) + 1 < parts {
                return;
            }
            done.store(0, Ordering::Relaxed);
            for j in 0..asked {
                let mut most = *partials.add(j * parts);
                for part in 1..parts {
                    most = most.or(*partials.add(j * parts + part));
                }
                found(command, context, p, j, most);
            }
        }
    }
}

/// Writes what asking row j found, and moves the row on to it where that is asked for.
unsafe fn found(command: &Command, context: &Context, p: ArgmaxParams, j: usize, best: Best) {
    let o = command.operands(ops::Argmax);
    // SAFETY: the tokens buffer has a place for each step, the rows buffer for each row that asks.
    unsafe {
        let tokens = u32s(o.tokens).add((context.step + 1) * command.logit_capacity);
        *tokens.add(j) = best.token;
        if p.advance == 1 && best.token != u32::MAX {
            let row = o.rows.0.cast::<Row>().add(*u32s(o.logit_rows).add(j) as usize);
            *row = (*row).next(best.token);
        }
    }
}

/// The best of some logits.
#[repr(C)]
#[derive(Clone, Copy)]
struct Best {
    logit: f32,
    /// The first of the largest; `u32::MAX` where there is a NaN.
    token: u32,
    /// Of how many.
    count: u32,
}

impl Best {
    /// Of both, where `next` comes after. A NaN's token wins over all others.
    fn or(self, next: Best) -> Best {
        let is_next = match (self.count, next.count) {
            (0, _) => true,
            (_, 0) => false,
            _ => self.token != u32::MAX && (next.token == u32::MAX || next.logit > self.logit),
        };
        Best { count: self.count + next.count, ..if is_next { next } else { self } }
    }
}

/// Of `n` logits, the first of which is token `first`'s.
#[inline(always)]
unsafe fn best<V: Lanes>(logits: *const f32, first: usize, n: usize) -> Best {
    let mut best = Best { logit: f32::NEG_INFINITY, token: u32::MAX, count: n as u32 };
    if n == 0 {
        return best;
    }
    // SAFETY: within the row.
    unsafe {
        let mut most = padded::<V>(logits, 0, n);
        let mut ordered = u32::from(u16::MAX);
        for_lanes!(n, |at, _count| {
            let v = padded::<V>(logits, at, n);
            ordered &= v.eq_mask(v);
            most = v.max(most);
        });
        if ordered != u32::from(u16::MAX) {
            return best;
        }
        best.logit = most.max_lane();
        let mut at = 0;
        while at < n {
            let found = padded::<V>(logits, at, n).eq_mask(V::splat(best.logit));
            if found != 0 {
                best.token = (first + at) as u32 + found.trailing_zeros();
                return best;
            }
            at += 16;
        }
        best
    }
}

/// Sixteen logits; past the end the first is repeated, which can neither win nor lose there.
#[inline(always)]
unsafe fn padded<V: Lanes>(logits: *const f32, at: usize, n: usize) -> V {
    // SAFETY: within the row.
    unsafe {
        if at + 16 <= n {
            return V::load(logits.add(at));
        }
        let mut v = [*logits; 16];
        logits.add(at).copy_to_nonoverlapping(v.as_mut_ptr(), n - at);
        V::load(v.as_ptr())
    }
}

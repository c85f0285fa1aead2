//! What models of whole texts and of audio do to rows: embeddings of positions and token types, pooling, the inputs of
//! convolutions.

use akunu_plan::Kernel;
use akunu_plan::Row;
use akunu_plan::ops::{self, AcrossRowsParams, AddPositionsParams, ElementParams, POOL_PART, UnfoldParams};

use super::{OpKernel, for_lanes, load, store};
use crate::command::{Command, Context, f32s, u32s};
use crate::isa::target::Target;

/// `(x + position) + type`, each sum rounded.
impl OpKernel for ops::AddPositions {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: AddPositionsParams = command.params();
        let Kernel::AddPositions(op) = command.kernel else { return };
        let o = command.operands(op);
        let cols = p.cols as usize;
        // SAFETY: positions are below the table's, which has as many embeddings, and kinds are kept below theirs; rows
        // are within the table's.
        unsafe {
            let rows = context.rows(o.rows);
            for r in context.units(context.rows) {
                let position = o.positions.map(|table| f32s(table).add(rows[r].position as usize * cols));
                let segment = o.segments.map_or(0, |segments| (*u32s(segments).add(r)).min(p.kinds - 1));
                let kind = o.types.map(|table| f32s(table).add(segment as usize * cols));
                let (x, out) = (f32s(o.x).add(r * cols), f32s(o.out).add(r * cols));
                for_lanes!(cols, |at, n| {
                    let mut v = load::<V>(x.add(at), n);
                    if let Some(position) = position {
                        v = v.add(load(position.add(at), n));
                    }
                    if let Some(kind) = kind {
                        v = v.add(load(kind.add(at), n));
                    }
                    store(v, out.add(at), n);
                });
            }
        }
    }
}

/// Sums of [`POOL_PART`] rows in order, those sums in order, and the result times `1 / rows`.
impl OpKernel for ops::Pool {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ElementParams = command.params();
        let Kernel::Pool(op) = command.kernel else { return };
        let o = command.operands(op);
        let cols = p.cols as usize;
        // SAFETY: rows that ask are rows of the pass, and a text's rows begin as far before them as their position
        // says.
        unsafe {
            for r in context.units(context.logit_rows) {
                let last = *u32s(o.logit_rows).add(r) as usize;
                let first = match o.rows {
                    Some(rows) => last.saturating_sub(context.rows(rows)[last].position as usize),
                    None => last,
                };
                let (x, out) = (f32s(o.x), f32s(o.out).add(r * cols));
                let share = V::splat(1.0 / (last - first + 1) as f32);
                for_lanes!(cols, |at, n| {
                    let mut total = V::splat(0.0);
                    for part in (first..=last).step_by(POOL_PART) {
                        let mut sum = load::<V>(x.add(part * cols + at), n);
                        for row in part + 1..(part + POOL_PART).min(last + 1) {
                            sum = sum.add(load(x.add(row * cols + at), n));
                        }
                        total = if part == first { sum } else { total.add(sum) };
                    }
                    let mean = if first == last { total } else { total.mul(share) };
                    store(mean, out.add(at), n);
                });
            }
        }
    }
}

impl OpKernel for ops::Unfold {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: UnfoldParams = command.params();
        let o = command.operands(ops::Unfold);
        let cols = p.cols as usize;
        // SAFETY: `frame` gives frames of the pass only, which are within the table's rows.
        unsafe {
            let rows = context.rows(o.rows);
            for r in context.units(context.rows) {
                let out = f32s(o.out).add(r * cols * 3);
                for tap in 0..3 {
                    match p.frame(&rows[r], r, rows.len(), tap as u32) {
                        Some(frame) => {
                            let x = f32s(o.x).add(frame * cols);
                            (0..cols).for_each(|i| *out.add(i * 3 + tap) = *x.add(i));
                        }
                        None => (0..cols).for_each(|i| *out.add(i * 3 + tap) = 0.0),
                    }
                }
            }
        }
    }
}

impl OpKernel for ops::AcrossRows {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: AcrossRowsParams = command.params();
        let o = command.operands(ops::AcrossRows);
        // SAFETY: the output has as many rows as the table.
        unsafe {
            let rows = context.rows(o.rows);
            for r in context.units(context.rows) {
                o.out.0.cast::<Row>().add(r).write_unaligned(p.row(&rows[r]));
            }
        }
    }
}

//! Grouped-query attention.
//!
//! # Canonical arithmetic
//! The query is multiplied by the scale (times its position's factor, where there are any). A score is `Σ query · key`, one
//! fused multiply-add after the other in the order of the head's elements, then soft-capped; a position bias is added. Positions come in segments of [`SEGMENT`] counted from the sequence's position 0. Within
//! a segment `m` is the largest score, `p = exp(score − m)`, `l = Σ p` (sixteen lanes, lane `position mod 16`, then the
//! fixed tree), and `acc = Σ p · value`, one fused multiply-add after the other in the order of positions. Segments are
//! merged in order. A window's start only masks: where segments lie never depends on the row, so a row's output does
//! not depend on which rows came with it.
//!
//! An element of sixteen positions' keys lies in one place, so that a lane is a position: both products are then the same small
//! loop over many rows and heads at once (`product.rs`).

mod job;
pub(crate) mod product;

use std::ops::Range;
use std::sync::atomic::Ordering;

use akunu_plan::ops::{Attention, AttentionOperands, AttentionParams};
use akunu_plan::{Kernel, Row};

use super::cache::Cache;
use crate::command::{Command, Context};
use crate::isa::Lanes;
use crate::panel::{MAX_SPLIT, MAX_STATES, PARTIAL_FLOATS, SEGMENT, STATE_FLOATS};
use job::Job;
use product::Products;

/// Parts of the work for each worker that are enough to even out.
const FINE: usize = 8;

#[inline(always)]
pub(crate) unsafe fn attention<V: Lanes>(command: &Command, context: &Context, products: Products) {
    let Kernel::Attention(op) = command.kernel else { return };
    let operands = command.operands(op);
    // SAFETY: the row buffer of the table.
    let all = unsafe { context.rows(operands.rows) };
    let Some(deal) = Deal::new((op, operands, command.params()), context, products, all) else { return };
    let mut run = deal.first_run();
    for unit in context.pieces(deal.units, 1).flatten() {
        if unit < run.unit {
            run = deal.first_run();
        }
        while unit >= run.unit + deal.units_of(&run) {
            run = deal.run_after(&run);
        }
        let place = unit - run.unit;
        if !deal.split {
            let job = deal.job(&run, place);
            // SAFETY: rows were checked against the cache; the scratch is this worker's.
            unsafe { job.run::<V>(&mut *context.scratch, run.segments.clone()) };
            continue;
        }
        let segments = run.segments.len();
        let (part, segment) = (place / segments, place % segments);
        let job = deal.job(&run, part);
        // SAFETY: as above; the partial is this segment's alone, and whoever is last sees all of them.
        unsafe {
            let partial = deal.partial(context, unit);
            job.partial::<V>(&mut *context.scratch, run.segments.start + segment, partial);
            let done = &(*context.shared).done[run.job + part];
            if done.fetch_add(1, Ordering::AcqRel) + 1 == segments {
                done.store(0, Ordering::Relaxed);
                let partials = deal.partial(context, unit - segment);
                job.join::<V>(&mut *context.scratch, partials, deal.stride, segments);
            }
        }
    }
}

/// How a command's work is cut: by runs of rows of one sequence, by kv heads (and parts of their query heads, where there are
/// very many), and where that is too coarse by segments.
struct Deal<'a> {
    operands: AttentionOperands<*mut u8>,
    products: Products,
    all: &'a [Row],
    p: AttentionParams,
    cache: Cache,
    /// Query heads of a kv head.
    group: usize,
    /// Of them in one job.
    heads: usize,
    /// Jobs of one run of rows.
    head_parts: usize,
    /// Most rows of a run.
    rows: usize,
    /// Whether segments are jobs of their own.
    split: bool,
    /// Jobs, or where these are split their segments.
    units: usize,
    /// Elements of one job's partial results.
    stride: usize,
}

/// Rows of one sequence that follow each other, and what they see.
struct Run {
    rows: Range<usize>,
    segments: Range<usize>,
    /// Its first unit and job.
    unit: usize,
    job: usize,
}

impl<'a> Deal<'a> {
    fn new(
        (op, operands, p): (Attention, AttentionOperands<*mut u8>, AttentionParams),
        context: &Context,
        products: Products,
        all: &'a [Row],
    ) -> Option<Deal<'a>> {
        if all.is_empty() {
            return None;
        }
        let cache = Cache::new(op.kv, p.head_dim, p.positions);
        let kv_heads = p.kv_heads as usize;
        let group = p.heads as usize / kv_heads;
        let states = (STATE_FLOATS / cache.padded()).min(MAX_STATES);
        // Multiples of 32 heads are whole q8 blocks.
        let heads = group.min(states / 32 * 32);
        let head_parts = kv_heads * group.div_ceil(heads);
        let rows = (all.len() * head_parts / (FINE * context.parts)).clamp(1, states / heads);
        let stride = rows * heads * (cache.padded() + 16);
        let mut deal = Deal {
            operands,
            products,
            all,
            p,
            cache,
            group,
            heads,
            head_parts,
            rows,
            split: true,
            units: 0,
            stride,
        };
        let mut run = deal.first_run();
        while run.rows.start > 0 {
            run = deal.run_after(&run);
        }
        let (jobs, segments) = (run.job + head_parts, run.unit + deal.units_of(&run));
        let uneven = jobs < FINE / 2 * context.parts && !jobs.is_multiple_of(context.parts);
        deal.split = uneven && segments > jobs && jobs <= MAX_SPLIT && segments * stride <= PARTIAL_FLOATS;
        deal.units = if deal.split { segments } else { jobs };
        Some(deal)
    }

    /// Runs come backwards, since later rows of a prompt see more, and the largest parts are best dealt first.
    fn first_run(&self) -> Run {
        self.run_before(self.all.len(), 0, 0)
    }

    /// The run that ends there.
    fn run_before(&self, end: usize, unit: usize, job: usize) -> Run {
        let rows = self.rows_before(end);
        Run { segments: self.segments(&rows), rows, unit, job }
    }

    fn run_after(&self, run: &Run) -> Run {
        self.run_before(run.rows.start, run.unit + self.units_of(run), run.job + self.head_parts)
    }

    fn units_of(&self, run: &Run) -> usize {
        self.head_parts * if self.split { run.segments.len() } else { 1 }
    }

    /// The run of rows that ends there.
    fn rows_before(&self, end: usize) -> Range<usize> {
        let start = self.all[end - 1].start;
        let rows = self.all[..end].iter().rev().take(self.rows);
        let count = rows.take_while(|row| row.start == start).count();
        end - count..end
    }

    /// The segments that any of the rows sees.
    fn segments(&self, rows: &Range<usize>) -> Range<usize> {
        let seen = rows.clone().map(|row| seen(&self.p, &self.all[row]));
        let (start, end) = seen.fold((usize::MAX, 0), |(a, b), seen| (a.min(seen.start), b.max(seen.end)));
        start / SEGMENT..end.div_ceil(SEGMENT)
    }

    fn job(&self, run: &Run, part: usize) -> Job<'a> {
        let parts = self.group.div_ceil(self.heads);
        let (kv_head, first) = (part / parts, part % parts * self.heads);
        let (start, count) = (kv_head * self.group + first, self.heads.min(self.group - first));
        let heads = start..start + count;
        Job {
            operands: self.operands,
            products: self.products,
            p: self.p,
            cache: self.cache,
            all: self.all,
            rows: run.rows.clone(),
            kv_head,
            heads,
        }
    }

    fn partial(&self, context: &Context, unit: usize) -> *mut f32 {
        // SAFETY: only the place is taken.
        let all = unsafe { &raw mut (*context.shared).partials };
        all.cast::<f32>().wrapping_add(unit * self.stride)
    }
}

/// The positions that a row sees.
#[inline(always)]
fn seen(p: &AttentionParams, row: &Row) -> Range<usize> {
    let seen = p.seen(row);
    seen.start as usize..seen.end as usize
}

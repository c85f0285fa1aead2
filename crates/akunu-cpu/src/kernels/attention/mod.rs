//! Grouped-query attention.
//!
//! # Canonical arithmetic
//! The query is multiplied by the scale (times its position's factor, if there are factors). A score is the sum of
//! query · key, one fused multiply-add after the other in the order of the head's elements, then soft-capped; then a
//! position bias is added. Positions are processed in segments of [`SEGMENT`] counted from the sequence's position 0.
//! Within a segment `m` is the maximum score, `p = exp(score − m)`, `l = Σ p` (sixteen lanes, lane `position mod 16`,
//! then the canonical reduction tree), and `acc = Σ p · value`, one fused multiply-add after the other in the order of
//! positions. Segments are merged in order, and after them the sink, if there are sinks: its `m` is the sink, its `l` is 1
//! and its `acc` is 0. A window's start only masks: segment boundaries never depend on the row,
//! so a row's output does not depend on the other rows of the batch.
//!
//! The keys of sixteen positions are interleaved by element, so that a lane is a position: both products are then the
//! same small loop over many rows and heads at once (`product.rs`).

mod job;
pub(crate) mod product;

use std::ops::Range;
use std::sync::atomic::Ordering;

use akunu_plan::ops::{Attention, AttentionOperands, AttentionParams};
use akunu_plan::{Kernel, Row};

use super::OpKernel;
use super::cache::Cache;
use crate::command::{Command, Context};
use crate::formats::floats::{F16W, F32W};
use crate::isa::target::Target;
use crate::panel::{MAX_SPLIT, MAX_STATES, PARTIAL_FLOATS, SEGMENT, STATE_FLOATS};
use job::Job;
use product::Products;

/// The parts of work per worker that suffice for load balancing.
const FINE: usize = 8;

impl OpKernel for Attention {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let products = Products {
            lean_scores: V::scores::<F16W>,
            scores: V::scores::<F32W>,
            values: V::values::<F32W>,
            lean_values: V::values::<F16W>,
        };
        let Kernel::Attention(op) = command.kernel else { return };
        let operands = command.operands(op);
        // SAFETY: `operands.rows` is the row buffer of the table.
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
                // SAFETY: the rows were checked against the cache when they were submitted; the scratch is used by this
                // worker only.
                unsafe { job.run::<V>(&mut *context.scratch, run.segments.clone()) };
                continue;
            }
            let segments = run.segments.len();
            let (part, segment) = (place / segments, place % segments);
            let job = deal.job(&run, part);
            // SAFETY: as above; each segment writes its own partial result, and the acquire-release counter makes all
            // of them visible to the worker that finishes last.
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
}

/// How a command's work is divided: by runs of rows of one sequence, by KV heads (and parts of their query heads, if
/// there are very many), and if that is too coarse by segments.
struct Deal<'a> {
    op: Attention,
    operands: AttentionOperands<*mut u8>,
    products: Products,
    all: &'a [Row],
    p: AttentionParams,
    cache: Cache,
    /// Query heads per KV head.
    group: usize,
    /// Query heads per job.
    heads: usize,
    /// Jobs of one run of rows.
    head_parts: usize,
    /// The most rows of a run.
    rows: usize,
    /// Whether segments are separate units.
    split: bool,
    /// The number of jobs, or of their segments if jobs are split.
    units: usize,
    /// Numbers of one partial result.
    stride: usize,
}

/// Consecutive rows of one sequence, and the segments visible to them.
struct Run {
    rows: Range<usize>,
    segments: Range<usize>,
    /// The end of the positions that are visible to any of the rows.
    end: usize,
    /// The indices of its first unit and job.
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
        let cache = Cache::new(op.kv, p.head_dim, p.positions).paged(operands.blocks, p.block);
        let kv_heads = p.kv_heads as usize;
        let group = p.heads as usize / kv_heads;
        let states = (STATE_FLOATS / cache.padded()).min(MAX_STATES);
        // Multiples of 32 heads are whole q8 blocks.
        let heads = group.min(states / 32 * 32);
        let head_parts = kv_heads * group.div_ceil(heads);
        let rows = (all.len() * head_parts / (FINE * context.parts)).clamp(1, states / heads);
        let stride = rows * heads * (cache.padded() + 16);
        let mut deal = Deal {
            op,
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

    /// Runs are enumerated backwards: later rows of a prompt see more positions, and the largest units should be dealt
    /// first.
    fn first_run(&self) -> Run {
        self.run_before(self.all.len(), 0, 0)
    }

    /// The run of rows that ends before row `end`.
    fn run_before(&self, end: usize, unit: usize, job: usize) -> Run {
        let rows = self.rows_before(end);
        let visible = self.visible(&rows);
        let segments = visible.start / SEGMENT..visible.end.div_ceil(SEGMENT);
        Run { segments, rows, end: visible.end, unit, job }
    }

    fn run_after(&self, run: &Run) -> Run {
        self.run_before(run.rows.start, run.unit + self.units_of(run), run.job + self.head_parts)
    }

    fn units_of(&self, run: &Run) -> usize {
        self.head_parts * if self.split { run.segments.len() } else { 1 }
    }

    /// The rows of the run that ends before row `end`.
    fn rows_before(&self, end: usize) -> Range<usize> {
        let start = self.all[end - 1].start;
        let rows = self.all[..end].iter().rev().take(self.rows);
        let count = rows.take_while(|row| row.start == start).count();
        end - count..end
    }

    /// The range of the positions that are visible to any of the rows.
    fn visible(&self, rows: &Range<usize>) -> Range<usize> {
        let seen = rows.clone().map(|row| seen(self.op, &self.p, &self.all[row]));
        let (start, end) = seen.fold((usize::MAX, 0), |(a, b), seen| (a.min(seen.start), b.max(seen.end)));
        start..end
    }

    fn job(&self, run: &Run, part: usize) -> Job<'a> {
        let parts = self.group.div_ceil(self.heads);
        let (kv_head, first) = (part / parts, part % parts * self.heads);
        let (start, count) = (kv_head * self.group + first, self.heads.min(self.group - first));
        let heads = start..start + count;
        Job {
            op: self.op,
            operands: self.operands,
            products: self.products,
            p: self.p,
            cache: self.cache,
            all: self.all,
            rows: run.rows.clone(),
            end: run.end,
            kv_head,
            heads,
        }
    }

    fn partial(&self, context: &Context, unit: usize) -> *mut f32 {
        // SAFETY: only the address is taken, nothing is read.
        let all = unsafe { &raw mut (*context.shared).partials };
        all.cast::<f32>().wrapping_add(unit * self.stride)
    }
}

/// The positions visible to a row.
#[inline(always)]
fn seen(op: Attention, p: &AttentionParams, row: &Row) -> Range<usize> {
    let seen = op.seen(p, row);
    seen.start as usize..seen.end as usize
}

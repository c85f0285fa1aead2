//! Causal grouped-query attention.
//!
//! # Canonical arithmetic
//! The query is multiplied by the scale. A score is `Σ query · key`, one fused multiply-add after the other in the order
//! of the head's elements, then soft-capped. Positions come in segments of [`SEGMENT`] counted from position 0. Within
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

use akunu_plan::params::AttentionParams;
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
    // SAFETY: the row buffer of the table.
    let all = unsafe { context.rows(command.bindings[3]) };
    let Some(deal) = Deal::new(command, context, products, all) else { return };
    let mut end = all.len();
    let (mut run, mut unit) = (0, 0);
    while end > 0 {
        // Backwards, since later rows of a prompt see more, and the largest parts are best dealt first.
        let rows = deal.rows_before(end);
        let segments = deal.segments(&rows);
        for part in 0..deal.head_parts {
            let job = deal.job(rows.clone(), part);
            if !deal.split {
                if context.has(unit) {
                    // SAFETY: rows were checked against the cache; the scratch is this worker's.
                    unsafe { job.run::<V>(&mut *context.scratch, segments.clone()) };
                }
                unit += 1;
                continue;
            }
            let first = unit;
            for segment in segments.clone() {
                if context.has(unit) {
                    let partials = deal.partial(context, first);
                    // SAFETY: as above; the partial is this segment's alone, and whoever is last sees all of them.
                    unsafe {
                        job.partial::<V>(&mut *context.scratch, segment, deal.partial(context, unit));
                        let done = &(*context.shared).done[run];
                        if done.fetch_add(1, Ordering::AcqRel) + 1 == segments.len() {
                            done.store(0, Ordering::Relaxed);
                            job.join::<V>(&mut *context.scratch, partials, deal.stride, segments.len());
                        }
                    }
                }
                unit += 1;
            }
            run += 1;
        }
        end = rows.start;
    }
}

/// How a command's work is cut: by runs of rows of one slot, by kv heads (and parts of their query heads, where there are
/// very many), and where that is too coarse by segments.
struct Deal<'a> {
    command: &'a Command,
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
    /// Elements of one job's partial results.
    stride: usize,
}

impl<'a> Deal<'a> {
    fn new(command: &'a Command, context: &Context, products: Products, all: &'a [Row]) -> Option<Deal<'a>> {
        let p: AttentionParams = command.params();
        let Kernel::Attention { kv, .. } = command.kernel else { return None };
        let cache = Cache::new(kv, p.kv_heads, p.head_dim, p.capacity);
        let kv_heads = p.kv_heads as usize;
        let group = p.heads as usize / kv_heads;
        let states = (STATE_FLOATS / cache.padded()).min(MAX_STATES);
        // Multiples of 32 heads are whole q8 blocks.
        let heads = group.min(states / 32 * 32);
        let head_parts = kv_heads * group.div_ceil(heads);
        let rows = (all.len() * head_parts / (FINE * context.parts)).clamp(1, states / heads);
        let stride = rows * heads * (cache.padded() + 16);
        let mut deal =
            Deal { command, products, all, p, cache, group, heads, head_parts, rows, split: false, stride };
        let (mut end, mut jobs, mut segments) = (all.len(), 0, 0);
        while end > 0 {
            let rows = deal.rows_before(end);
            jobs += head_parts;
            segments += head_parts * deal.segments(&rows).len();
            end = rows.start;
        }
        let uneven = jobs < FINE / 2 * context.parts && !jobs.is_multiple_of(context.parts);
        deal.split = uneven && segments > jobs && jobs <= MAX_SPLIT && segments * stride <= PARTIAL_FLOATS;
        Some(deal)
    }

    /// The run of rows that ends there.
    fn rows_before(&self, end: usize) -> Range<usize> {
        let slot = self.all[end - 1].slot;
        let count = self.all[..end].iter().rev().take(self.rows).take_while(|row| row.slot == slot).count();
        end - count..end
    }

    /// The segments that any of the rows sees.
    fn segments(&self, rows: &Range<usize>) -> Range<usize> {
        let seen = rows.clone().map(|row| seen(&self.p, &self.all[row]));
        let (start, end) = seen.fold((usize::MAX, 0), |(a, b), seen| (a.min(seen.start), b.max(seen.end)));
        start / SEGMENT..end.div_ceil(SEGMENT)
    }

    fn job(&self, rows: Range<usize>, part: usize) -> Job<'a> {
        let parts = self.group.div_ceil(self.heads);
        let (kv_head, first) = (part / parts, part % parts * self.heads);
        let (start, count) = (kv_head * self.group + first, self.heads.min(self.group - first));
        let heads = start..start + count;
        Job {
            command: self.command,
            products: self.products,
            p: self.p,
            cache: self.cache,
            all: self.all,
            rows,
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
    let start = match p.window {
        0 => 0,
        window => (row.position + 1).saturating_sub(window),
    };
    start as usize..row.kv_len as usize
}

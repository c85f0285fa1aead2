//! Latent attention, and the moves of heads around it.
//!
//! # Canonical arithmetic
//! The query is multiplied by the scale. A score is the sum of query · key in sixteen lanes: lane l takes elements l,
//! l + 16, … in order with fused multiply-add, and the canonical reduction tree adds the lanes. Segments, weights, sums
//! of values and merging are those of [attention](super::attention).

use std::ops::Range;

use akunu_plan::ops::{
    self, Forms, HeadsApartParams, HeadsTogetherParams, LatentAttentionParams, LatentKvParams,
    LatentQueriesParams,
};
use akunu_plan::{Kernel, Row};

use super::cache::Cache;
use super::norm::{inverse_rms, normed};
use super::rope::rotate;
use super::rows::parts_of_rows;
use super::{OpKernel, RowValues, load, write_forms};
use crate::command::{Command, Context, f32s};
use crate::isa::Lanes;
use crate::isa::target::Target;
use crate::math::exp;
use crate::panel::{LATENT_TILE, MAX_LATENT, SCORES, SEGMENT, STATE_FLOATS, Scratch, Softmax};

/// The most heads of a unit of work.
const HEADS: usize = 8;
/// The units per worker that suffice for load balancing.
const FINE: usize = 8;
const EMPTY: Softmax = Softmax { m: f32::NEG_INFINITY, l: 0.0 };

const _: () = assert!(HEADS * MAX_LATENT <= STATE_FLOATS);

impl OpKernel for ops::LatentKv {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: LatentKvParams = command.params();
        let Kernel::LatentKv(op) = command.kernel else { return };
        let o = command.operands(op);
        let (latent, dims) = (p.latent as usize, p.rope_dims as usize);
        let cache = Cache::new(op.kv, p.latent + p.rope_dims, p.positions).paged(o.blocks, p.block);
        // SAFETY: rows are within the table's and their positions within the cache, as checked at submission; each row is
        // handled by one worker, and `limits` has checked that one fits in the scratch.
        unsafe {
            let rows = context.rows(o.rows);
            let made = (&raw mut (*context.scratch).q).cast::<f32>();
            for r in context.units(context.rows) {
                let x = f32s(o.x).add(r * (latent + dims));
                let scale = inverse_rms::<V>(x, latent, p.epsilon);
                let mut at = 0;
                while at < latent {
                    let n = 16.min(latent - at);
                    normed::<V>(x.add(at), f32s(o.norm).add(at), scale, n).store_n(made.add(at), n);
                    at += 16;
                }
                let key = made.add(latent);
                x.add(latent).copy_to_nonoverlapping(key, dims);
                rotate::<V>(key, op.style, dims, f32s(o.angles).add(r * dims));
                let place = cache.place((rows[r].start + rows[r].position) as usize);
                cache.store::<V>(made, o.cache.0.add(cache.offset(0, place)));
            }
        }
    }
}

impl OpKernel for ops::LatentQueries {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: LatentQueriesParams = command.params();
        let Kernel::LatentQueries(op) = command.kernel else { return };
        let o = command.operands(op);
        let [heads, latent, plain, dims] = [p.heads, p.latent, p.plain, p.rope_dims].map(|n| n as usize);
        // SAFETY: rows and heads are within the table's; each head of a row is written by one worker.
        unsafe {
            for unit in context.units(context.rows * heads) {
                let (r, head) = (unit / heads, unit % heads);
                let to = f32s(o.out).add(unit * (latent + dims));
                let from = f32s(o.x).add((head * context.rows + r) * latent);
                from.copy_to_nonoverlapping(to, latent);
                let q = f32s(o.q).add(unit * (plain + dims) + plain);
                q.copy_to_nonoverlapping(to.add(latent), dims);
                rotate::<V>(to.add(latent), op.style, dims, f32s(o.angles).add(r * dims));
            }
        }
    }
}

/// Numbers as they are.
struct Plain(*const f32);

impl RowValues for Plain {
    #[inline(always)]
    unsafe fn at<V: Lanes>(&self, at: usize, n: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { load::<V>(self.0.add(at), n) }
    }
}

impl OpKernel for ops::HeadsApart {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: HeadsApartParams = command.params();
        let Kernel::HeadsApart(op) = command.kernel else { return };
        let o = command.operands(op);
        let [heads, stride, dim] = [p.heads, p.stride, p.dim].map(|n| n as usize);
        // SAFETY: rows and heads are within the table's; each head of a row is written by one worker; q8 rows are whole
        // blocks.
        unsafe {
            if context.part == 0 {
                for head in 0..=heads {
                    *o.starts.0.cast::<u32>().add(head) = (head * context.rows) as u32;
                }
            }
            for unit in context.units(context.rows * heads) {
                let (head, r) = (unit / context.rows, unit % context.rows);
                let row = Plain(f32s(o.x).add((r * heads + head) * stride));
                write_forms::<V>(&row, &o.out, (unit, dim), 0..dim);
            }
        }
    }
}

/// A row with all heads, of numbers that are sorted by head.
struct Together {
    x: *const f32,
    row: usize,
    rows: usize,
    dim: usize,
}

impl RowValues for Together {
    #[inline(always)]
    unsafe fn at<V: Lanes>(&self, at: usize, n: usize) -> V {
        let (head, first) = (at / self.dim, at % self.dim);
        // SAFETY: the elements are those of the row's heads, as the caller promises.
        unsafe {
            if first + n <= self.dim {
                return load::<V>(self.x.add((head * self.rows + self.row) * self.dim + first), n);
            }
            let mut numbers = [0.0_f32; 16];
            for (i, number) in numbers.iter_mut().enumerate().take(n) {
                let (head, first) = ((at + i) / self.dim, (at + i) % self.dim);
                *number = *self.x.add((head * self.rows + self.row) * self.dim + first);
            }
            V::load(numbers.as_ptr())
        }
    }
}

impl OpKernel for ops::HeadsTogether {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: HeadsTogetherParams = command.params();
        let Kernel::HeadsTogether(op) = command.kernel else { return };
        let o = command.operands(op);
        let cols = p.heads as usize * p.dim as usize;
        // SAFETY: rows are within the table's; q8 rows are whole blocks.
        unsafe {
            for (r, part) in parts_of_rows(context, context.rows, cols) {
                let row = Together { x: f32s(o.x), row: r, rows: context.rows, dim: p.dim as usize };
                write_forms::<V>(&row, &o.out, (r, cols), part);
            }
        }
    }
}

impl OpKernel for ops::LatentAttention {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: LatentAttentionParams = command.params();
        let Kernel::LatentAttention(op) = command.kernel else { return };
        let o = command.operands(op);
        let heads = p.heads as usize;
        let each = (heads * context.rows / (FINE * context.parts)).clamp(1, HEADS.min(heads));
        let units = heads.div_ceil(each);
        let cache = Cache::new(op.kv, p.latent + p.rope_dims, p.positions).paged(o.blocks, p.block);
        // SAFETY: the rows were checked against the cache when they were submitted; the scratch is used by this worker only,
        // and `limits` has checked that heads fit in it.
        unsafe {
            let rows = context.rows(o.rows);
            let total = context.rows * units;
            for unit in context.pieces(total, 1).flatten() {
                // Later rows of a prompt see more positions, and the largest units should be dealt first.
                let unit = total - 1 - unit;
                let (r, first) = (unit / units, unit % units * each);
                let job = Job {
                    q: f32s(o.q).add(r * heads * cache.head_dim),
                    cache,
                    rows: o.cache.0,
                    row: rows[r],
                    heads: first..heads.min(first + each),
                    p,
                };
                job.run::<V>(&mut *context.scratch);
                job.finish::<V>(&*context.scratch, &o.out, [r, context.rows]);
            }
        }
    }
}

/// Attention of some heads of a row.
struct Job {
    /// The row's queries.
    q: *const f32,
    cache: Cache,
    /// The cached rows.
    rows: *const u8,
    row: Row,
    heads: Range<usize>,
    p: LatentAttentionParams,
}

impl Job {
    /// Values of a head, padded to whole sixteens.
    fn values(&self) -> usize {
        (self.p.latent as usize).next_multiple_of(16)
    }

    /// Leaves the sums of all heads in `total`, and what they are to be divided by in `total_softmax`.
    ///
    /// # Safety
    /// The positions of the row are in the cache, and the heads fit in the scratch.
    #[inline(always)]
    unsafe fn run<V: Lanes>(&self, scratch: &mut Scratch) {
        let (dim, padded, len) = (self.cache.head_dim, self.cache.padded(), self.row.kv_len as usize);
        let scale = V::splat(self.p.scale);
        // SAFETY: the heads are those of the row, and positions are below its length.
        unsafe {
            let q = (&raw mut scratch.q).cast::<f32>();
            for (h, head) in self.heads.clone().enumerate() {
                for at in (0..dim).step_by(16) {
                    let from = self.q.add(head * dim + at);
                    load::<V>(from, 16.min(dim - at)).mul(scale).store(q.add(h * padded + at));
                }
                scratch.total_softmax[h] = EMPTY;
            }
            for start in (0..len).step_by(SEGMENT) {
                let end = len.min(start + SEGMENT);
                for first in (start..end).step_by(LATENT_TILE) {
                    let tile = first..end.min(first + LATENT_TILE);
                    self.stage::<V>(scratch, tile.clone());
                    self.scores::<V>(scratch, tile.start - start..tile.end - start);
                }
                self.weigh::<V>(scratch, end - start);
                for first in (start..end).step_by(LATENT_TILE) {
                    let tile = first..end.min(first + LATENT_TILE);
                    // A single tile is there still.
                    if start > 0 || end > LATENT_TILE {
                        self.stage::<V>(scratch, tile.clone());
                    }
                    self.add_values::<V>(scratch, tile.start - start..tile.end - start);
                }
                for h in 0..self.heads.len() {
                    self.merge::<V>(scratch, h);
                }
            }
        }
    }

    /// Loads rows of the cache as f32.
    ///
    /// # Safety
    /// As for [`Job::run`]; there are at most [`LATENT_TILE`] positions.
    #[inline(always)]
    unsafe fn stage<V: Lanes>(&self, scratch: &mut Scratch, positions: Range<usize>) {
        let to = (&raw mut scratch.v).cast::<f32>();
        let start = self.row.start as usize;
        for (i, position) in positions.enumerate() {
            // SAFETY: as the caller promises.
            unsafe {
                let from = self.rows.add(self.cache.offset(0, self.cache.place(start + position)));
                self.cache.load::<V>(from, to.add(i * self.cache.padded()));
            }
        }
    }

    /// The scores of staged positions; `part`: where they are in the segment.
    ///
    /// # Safety
    /// As for [`Job::run`].
    #[inline(always)]
    unsafe fn scores<V: Lanes>(&self, scratch: &mut Scratch, part: Range<usize>) {
        let (padded, heads) = (self.cache.padded(), self.heads.len());
        let (q, v) = ((&raw const scratch.q).cast::<f32>(), (&raw const scratch.v).cast::<f32>());
        let to = (&raw mut scratch.scores).cast::<f32>();
        // SAFETY: queries and rows are padded, and there is a score for each position of each head.
        unsafe {
            let to = to.add(part.start);
            match V::REGISTERS {
                32.. => score_tile::<V, 4, 4>((q, heads), (v, part.len()), padded, to),
                8.. => score_tile::<V, 2, 2>((q, heads), (v, part.len()), padded, to),
                _ => score_tile::<V, 1, 1>((q, heads), (v, part.len()), padded, to),
            }
        }
    }

    /// Turns the scores of a segment of `count` positions into weights, and clears the sums.
    ///
    /// # Safety
    /// As for [`Job::run`].
    #[inline(always)]
    unsafe fn weigh<V: Lanes>(&self, scratch: &mut Scratch, count: usize) {
        let last = count.next_multiple_of(16);
        for h in 0..self.heads.len() {
            let scores = &mut scratch.scores[h * SCORES..(h + 1) * SCORES];
            scores[count..last].fill(f32::NEG_INFINITY);
            let scores = scores.as_mut_ptr();
            // SAFETY: `last` scores are whole sixteens of this head, which has padded sums.
            unsafe {
                let mut most = V::splat(f32::NEG_INFINITY);
                for at in (0..last).step_by(16) {
                    most = V::load(scores.add(at)).max(most);
                }
                let m = most.max_lane();
                let mut sum = V::zero();
                for at in (0..last).step_by(16) {
                    let p = exp(V::load(scores.add(at)).sub(V::splat(m)));
                    p.store(scores.add(at));
                    sum = sum.add(p);
                }
                scratch.segment_softmax[h] = Softmax { m, l: sum.sum() };
                let sums = (&raw mut scratch.segment).cast::<f32>().add(h * self.values());
                for at in (0..self.values()).step_by(16) {
                    V::zero().store(sums.add(at));
                }
            }
        }
    }

    /// Adds weights · values of staged positions.
    ///
    /// # Safety
    /// As for [`Job::run`].
    #[inline(always)]
    unsafe fn add_values<V: Lanes>(&self, scratch: &mut Scratch, part: Range<usize>) {
        let (padded, heads, values) = (self.cache.padded(), self.heads.len(), self.values());
        let v = (&raw const scratch.v).cast::<f32>();
        // SAFETY: rows are padded, and there is a weight for each position of each head, and a padded sum.
        unsafe {
            let weights = (&raw const scratch.scores).cast::<f32>().add(part.start);
            let sums = (&raw mut scratch.segment).cast::<f32>();
            match V::REGISTERS {
                32.. => value_tile::<V, 4, 4>((weights, heads), (v, part.len()), padded, (sums, values)),
                8.. => value_tile::<V, 2, 2>((weights, heads), (v, part.len()), padded, (sums, values)),
                _ => value_tile::<V, 1, 1>((weights, heads), (v, part.len()), padded, (sums, values)),
            }
        }
    }

    /// Merges a segment's sums of a head into its total.
    ///
    /// # Safety
    /// As for [`Job::run`].
    #[inline(always)]
    unsafe fn merge<V: Lanes>(&self, scratch: &mut Scratch, h: usize) {
        let (s, t, values) = (scratch.segment_softmax[h], scratch.total_softmax[h], self.values());
        // SAFETY: the head has padded sums in both.
        unsafe {
            let from = (&raw const scratch.segment).cast::<f32>().add(h * values);
            let to = (&raw mut scratch.total).cast::<f32>().add(h * values);
            if !t.is_used() {
                from.copy_to_nonoverlapping(to, values);
                scratch.total_softmax[h] = s;
                return;
            }
            let m = if s.m > t.m { s.m } else { t.m };
            let (old, new) = (exp(V::splat(t.m - m)), exp(V::splat(s.m - m)));
            let mut l = [0.0_f32; 16];
            V::splat(s.l).fma(new, V::splat(t.l).mul(old)).store(l.as_mut_ptr());
            for at in (0..values).step_by(16) {
                V::load(from.add(at)).fma(new, V::load(to.add(at)).mul(old)).store(to.add(at));
            }
            scratch.total_softmax[h] = Softmax { m, l: l[0] };
        }
    }

    /// Writes the heads of row `r` of `rows`.
    ///
    /// # Safety
    /// As for [`Job::run`]; each head of a row is written by one worker, and q8 rows are whole blocks.
    #[inline(always)]
    unsafe fn finish<V: Lanes>(&self, scratch: &Scratch, out: &Forms<*mut u8>, [r, rows]: [usize; 2]) {
        let latent = self.p.latent as usize;
        for (h, head) in self.heads.clone().enumerate() {
            // SAFETY: as the caller promises.
            unsafe {
                let sums = (&raw const scratch.total).cast::<f32>().add(h * self.values());
                let row = Divided { sums, inverse: 1.0 / scratch.total_softmax[h].l };
                write_forms::<V>(&row, out, (head * rows + r, latent), 0..latent);
            }
        }
    }
}

/// Padded sums times a factor.
struct Divided {
    sums: *const f32,
    inverse: f32,
}

impl RowValues for Divided {
    #[inline(always)]
    unsafe fn at<V: Lanes>(&self, at: usize, _: usize) -> V {
        // SAFETY: the sums are padded to whole sixteens.
        unsafe { V::load(self.sums.add(at)).mul(V::splat(self.inverse)) }
    }
}

/// The scores of `positions` rows for all heads, `H` heads and `P` rows at a time.
///
/// # Safety
/// Padded queries and rows can be read, and a score written for each position of each head.
#[inline(always)]
unsafe fn score_tile<V: Lanes, const H: usize, const P: usize>(
    (q, heads): (*const f32, usize),
    (v, positions): (*const f32, usize),
    padded: usize,
    to: *mut f32,
) {
    let mut h = 0;
    while h < heads {
        let several = h + H <= heads;
        let mut i = 0;
        while i < positions {
            // SAFETY: as the caller promises.
            unsafe {
                let (q, v, to) = (q.add(h * padded), v.add(i * padded), to.add(h * SCORES + i));
                match (several, i + P <= positions) {
                    (true, true) => score_block::<V, H, P>(q, v, padded, to),
                    (true, false) => score_block::<V, H, 1>(q, v, padded, to),
                    (false, true) => score_block::<V, 1, P>(q, v, padded, to),
                    (false, false) => score_block::<V, 1, 1>(q, v, padded, to),
                }
            }
            i += if i + P <= positions { P } else { 1 };
        }
        h += if several { H } else { 1 };
    }
}

/// # Safety
/// As for [`score_tile`].
#[inline(always)]
unsafe fn score_block<V: Lanes, const H: usize, const P: usize>(
    q: *const f32,
    v: *const f32,
    padded: usize,
    to: *mut f32,
) {
    let mut sums = [[V::zero(); P]; H];
    // SAFETY: as the caller promises.
    unsafe {
        for at in (0..padded).step_by(16) {
            let mut keys = [V::zero(); P];
            for i in 0..P {
                keys[i] = V::load(v.add(i * padded + at));
            }
            for h in 0..H {
                let q = V::load(q.add(h * padded + at));
                for i in 0..P {
                    sums[h][i] = keys[i].fma(q, sums[h][i]);
                }
            }
        }
        for h in 0..H {
            for i in 0..P {
                *to.add(h * SCORES + i) = sums[h][i].sum();
            }
        }
    }
}

/// Adds weights · values of `positions` rows to the sums of all heads, `H` heads and `C` sixteens at a time.
///
/// # Safety
/// Padded rows and a weight for each position of each head can be read, and `values` sums of each head written.
#[inline(always)]
unsafe fn value_tile<V: Lanes, const H: usize, const C: usize>(
    (weights, heads): (*const f32, usize),
    (v, positions): (*const f32, usize),
    padded: usize,
    (sums, values): (*mut f32, usize),
) {
    let mut h = 0;
    while h < heads {
        let several = h + H <= heads;
        let mut at = 0;
        while at < values {
            let whole = at + 16 * C <= values;
            // SAFETY: as the caller promises.
            unsafe {
                let (weights, v) = ((weights.add(h * SCORES), positions), (v.add(at), padded));
                let sums = (sums.add(h * values + at), values);
                match (several, whole) {
                    (true, true) => value_block::<V, H, C>(weights, v, sums),
                    (true, false) => value_block::<V, H, 1>(weights, v, sums),
                    (false, true) => value_block::<V, 1, C>(weights, v, sums),
                    (false, false) => value_block::<V, 1, 1>(weights, v, sums),
                }
            }
            at += if whole { 16 * C } else { 16 };
        }
        h += if several { H } else { 1 };
    }
}

/// # Safety
/// As for [`value_tile`].
#[inline(always)]
unsafe fn value_block<V: Lanes, const H: usize, const C: usize>(
    (weights, positions): (*const f32, usize),
    (v, padded): (*const f32, usize),
    (sums, values): (*mut f32, usize),
) {
    let mut acc = [[V::zero(); C]; H];
    // SAFETY: as the caller promises.
    unsafe {
        for h in 0..H {
            for c in 0..C {
                acc[h][c] = V::load(sums.add(h * values + c * 16));
            }
        }
        for i in 0..positions {
            let mut numbers = [V::zero(); C];
            for c in 0..C {
                numbers[c] = V::load(v.add(i * padded + c * 16));
            }
            for h in 0..H {
                let weight = V::splat(*weights.add(h * SCORES + i));
                for c in 0..C {
                    acc[h][c] = numbers[c].fma(weight, acc[h][c]);
                }
            }
        }
        for h in 0..H {
            for c in 0..C {
                acc[h][c].store(sums.add(h * values + c * 16));
            }
        }
    }
}

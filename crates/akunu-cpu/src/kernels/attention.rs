//! Causal grouped-query attention.
//!
//! # Canonical arithmetic
//! Positions come in tiles of [`KV_TILE`] counted from position 0, and tiles in segments of [`SEGMENT`] positions. A
//! score is the sixteen-lane dot product of the key with the query, times the scale, soft-capped. Within a segment the
//! softmax is online, tile by tile in order:
//! `m' = max(m, tile)`, `p = exp(score − m')`, `l = l · exp(m − m') + Σp`, `acc = acc · exp(m − m')`, then
//! `acc = fma(p, value, acc)` position by position. Segments are merged in order. A window's start only masks: where
//! tiles and segments lie never depends on the row, so a row's output does not depend on which rows came with it.

use std::ops::Range;

use akunu_plan::params::AttentionParams;
use akunu_plan::{Kernel, NormOut, Row, q8};

use super::cache::Cache;
use super::put_q8;
use crate::command::{Command, Context};
use crate::isa::Lanes;
use crate::math::{exp, soft_cap};
use crate::panel::{KV_TILE, MAX_HEAD, MAX_STATES, Scratch, Softmax};

/// Positions whose partial results are merged in order.
const SEGMENT: usize = 512;
/// Most rows that share a load of keys and values.
const SHARED_ROWS: usize = 8;

const EMPTY: Softmax = Softmax { m: f32::NEG_INFINITY, l: 0.0, used: false };

/// One run of rows of one slot against one kv head.
struct Job<'a> {
    command: &'a Command,
    p: AttentionParams,
    cache: Cache,
    out: NormOut,
    /// Elements of a head, padded to whole sixteens.
    padded: usize,
    /// All rows of the pass; the run is `rows`.
    all: &'a [Row],
    rows: Range<usize>,
    kv_head: usize,
    /// Query heads.
    heads: Range<usize>,
    scratch: *mut Scratch,
}

#[inline(always)]
pub(crate) unsafe fn attention<V: Lanes>(command: &Command, context: &Context) {
    let p: AttentionParams = command.params();
    let Kernel::Attention { kv, out } = command.kernel else { return };
    let cache = Cache::new(kv, p.kv_heads, p.head_dim, p.capacity);
    let kv_heads = p.kv_heads as usize;
    let group = p.heads as usize / kv_heads;
    // SAFETY: the row buffer of the table.
    let all = unsafe { context.rows(command.bindings[3]) };
    let per_run = (context.rows * kv_heads / (2 * context.parts)).clamp(1, SHARED_ROWS);
    let per_run = per_run.min(MAX_STATES / group.min(MAX_STATES));
    let runs = context.rows.div_ceil(per_run);
    // Dealt out in turn, since later rows of a prompt see more.
    for unit in (context.part..runs * kv_heads).step_by(context.parts) {
        let (kv_head, mut first) = (unit % kv_heads, unit / kv_heads * per_run);
        let end = context.rows.min(first + per_run);
        while first < end {
            let slot = all[first].slot;
            let count = all[first..end].iter().take_while(|row| row.slot == slot).count();
            for start in (0..group).step_by(MAX_STATES) {
                let heads = kv_head * group + start..kv_head * group + group.min(start + MAX_STATES);
                let rows = first..first + count;
                let padded = cache.head_dim.next_multiple_of(16);
                let scratch = context.scratch;
                let job = Job { command, p, cache, out, padded, all, rows, kv_head, heads, scratch };
                // SAFETY: rows were checked against the cache; the scratch is this worker's.
                unsafe { job.run::<V>() };
            }
            first += count;
        }
    }
}

impl Job<'_> {
    fn states(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// The positions that a row sees.
    #[inline(always)]
    fn seen(&self, row: usize) -> Range<usize> {
        let Row { position, kv_len, .. } = self.all[row];
        let start = match self.p.window {
            0 => 0,
            window => (position + 1).saturating_sub(window),
        };
        start as usize..kv_len as usize
    }

    #[inline(always)]
    unsafe fn run<V: Lanes>(&self) {
        let first = self.rows.clone().map(|r| self.seen(r).start).min().unwrap_or(0) / KV_TILE;
        let end = self.rows.clone().map(|r| self.seen(r).end).max().unwrap_or(0);
        // SAFETY: everything below stays within the rows' own positions and this worker's scratch.
        unsafe {
            let scratch = &mut *self.scratch;
            self.begin::<V>(scratch);
            for tile in first..end.div_ceil(KV_TILE) {
                let start = tile * KV_TILE;
                if start.is_multiple_of(SEGMENT) {
                    self.merge::<V>(scratch);
                }
                let positions = start..end.min(start + KV_TILE);
                let (k, k_stride) = self.load_tile::<V>(1, &positions, (&raw mut scratch.k).cast());
                let (v, v_stride) = self.load_tile::<V>(2, &positions, (&raw mut scratch.v).cast());
                for (i, row) in self.rows.clone().enumerate() {
                    let seen = self.seen(row);
                    let part = seen.start.max(start)..seen.end.min(positions.end);
                    if part.is_empty() {
                        continue;
                    }
                    for head in 0..self.heads.len() {
                        let state = i * self.heads.len() + head;
                        self.step::<V>(scratch, state, start, &part, (k, k_stride), (v, v_stride));
                    }
                }
            }
            self.merge::<V>(scratch);
            self.finish::<V>(scratch);
        }
    }

    /// Queries into the scratch, padded; states empty.
    #[inline(always)]
    unsafe fn begin<V: Lanes>(&self, scratch: &mut Scratch) {
        let dim = self.cache.head_dim;
        for (i, row) in self.rows.clone().enumerate() {
            for (h, head) in self.heads.clone().enumerate() {
                let state = i * self.heads.len() + h;
                for at in (0..dim).step_by(16) {
                    // SAFETY: within the row's heads; the padded head is at most MAX_HEAD.
                    unsafe {
                        let from = self.command.f32s(0).add((row * self.p.heads as usize + head) * dim + at);
                        V::load_n(from, 16.min(dim - at))
                            .store((&raw mut scratch.q).cast::<f32>().add(state * MAX_HEAD + at));
                    }
                }
                scratch.segment_softmax[state] = EMPTY;
                scratch.total_softmax[state] = EMPTY;
            }
        }
    }

    /// Keys or values of a tile as f32: (first, elements from one position to the next).
    #[inline(always)]
    unsafe fn load_tile<V: Lanes>(
        &self,
        binding: usize,
        positions: &Range<usize>,
        to: *mut f32,
    ) -> (*const f32, usize) {
        let slot = self.all[self.rows.start].slot as usize;
        // SAFETY: positions are below the rows' kv_len, and so within the cache.
        unsafe {
            let from =
                self.command.bindings[binding].add(self.cache.offset(slot, self.kv_head, positions.start));
            if self.cache.kv == akunu_plan::KvType::F32 && self.padded == self.cache.head_dim {
                return (from.cast(), self.padded);
            }
            for i in 0..positions.len() {
                self.cache.load::<V>(from.add(i * self.cache.row), to.add(i * self.padded));
            }
            (to, self.padded)
        }
    }

    /// One (row, head) over positions `part` of the tile at `start`.
    #[inline(always)]
    unsafe fn step<V: Lanes>(
        &self,
        scratch: &mut Scratch,
        state: usize,
        start: usize,
        part: &Range<usize>,
        k: (*const f32, usize),
        (v, v_stride): (*const f32, usize),
    ) {
        let valid = part.start - start..part.end - start;
        let mut p = [f32::NEG_INFINITY; KV_TILE];
        // SAFETY: positions `valid` of the tile are loaded; the state is below MAX_STATES.
        unsafe {
            let q = (&raw const scratch.q).cast::<f32>().add(state * MAX_HEAD);
            self.scores::<V>(q, k, &valid, &mut p);
            let softmax = &mut scratch.segment_softmax[state];
            let (low, high) = (V::load(p.as_ptr()), V::load(p.as_ptr().add(16)));
            let most = low.max(high).max_lane();
            let m = if most > softmax.m { most } else { softmax.m };
            let (low, high) = (exp(low.sub(V::splat(m))), exp(high.sub(V::splat(m))));
            low.store(p.as_mut_ptr());
            high.store(p.as_mut_ptr().add(16));
            let fade = exp(V::splat(softmax.m - m));
            let mut first = [0.0_f32; 16];
            fade.store(first.as_mut_ptr());
            let l = softmax.l * first[0] + low.add(high).sum();
            let fresh = !softmax.used;
            *softmax = Softmax { m, l, used: true };
            let acc = (&raw mut scratch.segment).cast::<f32>().add(state * MAX_HEAD);
            let mut at = 0;
            while at + 64 <= self.padded {
                add_values::<V, 4>(acc.add(at), fresh, fade, &p, &valid, v.add(at), v_stride);
                at += 64;
            }
            while at < self.padded {
                add_values::<V, 1>(acc.add(at), fresh, fade, &p, &valid, v.add(at), v_stride);
                at += 16;
            }
        }
    }

    /// Scores of the tile; positions that are not valid stay at −∞.
    #[inline(always)]
    unsafe fn scores<V: Lanes>(
        &self,
        q: *const f32,
        (k, stride): (*const f32, usize),
        valid: &Range<usize>,
        p: &mut [f32; KV_TILE],
    ) {
        let mut sums = [f32::NEG_INFINITY; KV_TILE];
        // SAFETY: only valid positions are read; where eight reach past them, the last is repeated.
        unsafe {
            let mut j = valid.start / 8 * 8;
            while j < valid.end {
                let mut rows = [k; 8];
                for i in 0..8 {
                    rows[i] = k.add((j + i).clamp(valid.start, valid.end - 1) * stride);
                }
                let mut acc = [V::zero(); 8];
                let mut at = 0;
                while at < self.padded {
                    let q = V::load(q.add(at));
                    for i in 0..8 {
                        acc[i] = V::load(rows[i].add(at)).fma(q, acc[i]);
                    }
                    at += 16;
                }
                V::sums8(acc, sums.as_mut_ptr().add(j));
                j += 8;
            }
            for half in [0, 16] {
                let mut v = V::load(sums.as_ptr().add(half)).mul(V::splat(self.p.scale));
                if self.p.soft_cap != 0.0 {
                    v = soft_cap(self.p.soft_cap, v);
                }
                v.store(p.as_mut_ptr().add(half));
            }
        }
        p[..valid.start].fill(f32::NEG_INFINITY);
        p[valid.end..].fill(f32::NEG_INFINITY);
    }

    /// Moves every state's segment into its total.
    #[inline(always)]
    unsafe fn merge<V: Lanes>(&self, scratch: &mut Scratch) {
        for state in 0..self.states() {
            let (s, t) = (scratch.segment_softmax[state], scratch.total_softmax[state]);
            if !s.used {
                continue;
            }
            let m = if s.m > t.m { s.m } else { t.m };
            let (total, new) = (exp(V::splat(t.m - m)), exp(V::splat(s.m - m)));
            let mut l = [[0.0_f32; 16]; 2];
            // SAFETY: states are below MAX_STATES, heads within MAX_HEAD.
            unsafe {
                total.mul(V::splat(t.l)).store(l[0].as_mut_ptr());
                new.mul(V::splat(s.l)).store(l[1].as_mut_ptr());
                let from = (&raw const scratch.segment).cast::<f32>().add(state * MAX_HEAD);
                let to = (&raw mut scratch.total).cast::<f32>().add(state * MAX_HEAD);
                for at in (0..self.padded).step_by(16) {
                    let v = V::load(from.add(at));
                    let v = if t.used { V::load(to.add(at)).mul(total).add(v.mul(new)) } else { v };
                    v.store(to.add(at));
                }
            }
            scratch.total_softmax[state] =
                if t.used { Softmax { m, l: l[0][0] + l[1][0], used: true } } else { s };
            scratch.segment_softmax[state] = EMPTY;
        }
    }

    /// Divides by the sums and writes the forms that are asked for.
    #[inline(always)]
    unsafe fn finish<V: Lanes>(&self, scratch: &mut Scratch) {
        let (dim, heads) = (self.cache.head_dim, self.p.heads as usize);
        let cols = heads * dim;
        let q8_binding = 4 + usize::from(self.out.f32());
        // SAFETY: rows are within the table's; a group of heads is whole q8 blocks where those are asked for.
        unsafe {
            for (i, row) in self.rows.clone().enumerate() {
                // Queries are done with: their place takes the heads side by side.
                let out = (&raw mut scratch.q).cast::<f32>();
                for h in 0..self.heads.len() {
                    let state = i * self.heads.len() + h;
                    let total = (&raw const scratch.total).cast::<f32>().add(state * MAX_HEAD);
                    let inverse = V::splat(1.0 / scratch.total_softmax[state].l);
                    for at in (0..dim).step_by(16) {
                        let n = 16.min(dim - at);
                        V::load(total.add(at)).mul(inverse).store_n(out.add(h * dim + at), n);
                    }
                }
                let (first, count) = (self.heads.start * dim, self.heads.len() * dim);
                if self.out.f32() {
                    self.command.f32s(4).add(row * cols + first).copy_from_nonoverlapping(out, count);
                }
                if self.out.q8() {
                    let to = self.command.bindings[q8_binding].add(row * q8::row_bytes(cols));
                    for block in 0..count / q8::BLOCK {
                        put_q8::<V>(to, cols, first / q8::BLOCK + block, out.add(block * q8::BLOCK));
                    }
                }
            }
        }
    }
}

/// `acc · fade`, then each valid position's value times its weight, for C sixteens.
#[inline(always)]
unsafe fn add_values<V: Lanes, const C: usize>(
    acc: *mut f32,
    fresh: bool,
    fade: V,
    p: &[f32; KV_TILE],
    valid: &Range<usize>,
    v: *const f32,
    stride: usize,
) {
    // SAFETY: C sixteens at each place, as the caller promises.
    unsafe {
        let mut sum = [V::zero(); C];
        if !fresh {
            for c in 0..C {
                sum[c] = V::load(acc.add(c * 16)).mul(fade);
            }
        }
        for j in valid.clone() {
            let weight = V::splat(p[j]);
            for c in 0..C {
                sum[c] = V::load(v.add(j * stride + c * 16)).fma(weight, sum[c]);
            }
        }
        for c in 0..C {
            sum[c].store(acc.add(c * 16));
        }
    }
}

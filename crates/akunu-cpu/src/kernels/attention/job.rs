//! Attention of a run of rows of one sequence over one KV head.

use std::ops::Range;

use akunu_plan::keys::KEY_GROUP;
use akunu_plan::ops::{Attention, AttentionOperands, AttentionParams, F32};
use akunu_plan::{KvType, Row, q8};

use super::product::{self, Operands, Products};
use super::seen;
use crate::command::f32s;
use crate::isa::Lanes;
use crate::kernels::cache::Cache;
use crate::kernels::put_q8;
use crate::math::{exp, exps, soft_cap};
use crate::panel::{F16x, KV_TILE, KV_TILE_FLOATS, SCORES, SEGMENT, Scratch, Softmax};

const EMPTY: Softmax = Softmax { m: f32::NEG_INFINITY, l: 0.0 };

/// One unit of attention work. Its (row, head) pairs are called states, in row-major order.
pub(super) struct Job<'a> {
    pub(super) op: Attention,
    pub(super) operands: AttentionOperands<*mut u8>,
    pub(super) products: Products,
    pub(super) p: AttentionParams,
    pub(super) cache: Cache,
    /// All rows of the pass; the run is `rows`.
    pub(super) all: &'a [Row],
    pub(super) rows: Range<usize>,
    /// The end of the positions that are visible to any of them.
    pub(super) end: usize,
    pub(super) kv_head: usize,
    /// Query heads.
    pub(super) heads: Range<usize>,
}

impl Job<'_> {
    fn states(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// Computes the rows completely.
    ///
    /// # Safety
    /// The rows were checked against the cache and the command's operands; `segments` are those visible to the rows.
    #[inline(always)]
    pub(super) unsafe fn run<V: Lanes>(&self, scratch: &mut Scratch, segments: Range<usize>) {
        // SAFETY: rows and their visible positions were checked against the buffers; the states fit in the scratch.
        unsafe {
            self.begin::<V>(scratch);
            for segment in segments {
                self.segment::<V>(scratch, segment);
                let from = (&raw const scratch.segment).cast::<f32>();
                let to = (&raw mut scratch.total).cast::<f32>();
                for state in 0..self.states() {
                    let (softmax, at) = (scratch.segment_softmax[state], state * self.cache.padded());
                    self.merge::<V>(&mut scratch.total_softmax[state], to.add(at), softmax, from.add(at));
                }
            }
            self.finish::<V>(scratch);
        }
    }

    /// Computes the partial result of one segment, which is merged with the others by the worker that finishes last.
    ///
    /// # Safety
    /// As for [`Job::run`]; `to` has room for the head, `m` and `l` of every state.
    #[inline(always)]
    pub(super) unsafe fn partial<V: Lanes>(&self, scratch: &mut Scratch, segment: usize, to: *mut f32) {
        let (states, padded) = (self.states(), self.cache.padded());
        // SAFETY: as in `run`; `to` has room for every state's head and softmax state, as the caller promises.
        unsafe {
            self.begin::<V>(scratch);
            self.segment::<V>(scratch, segment);
            (&raw const scratch.segment).cast::<f32>().copy_to_nonoverlapping(to, states * padded);
            let softmax = to.add(states * padded).cast::<Softmax>();
            (&raw const scratch.segment_softmax).cast::<Softmax>().copy_to_nonoverlapping(softmax, states);
        }
    }

    /// Merges `count` partial results, `stride` numbers apart, and writes the output.
    ///
    /// # Safety
    /// As for [`Job::run`]; [`Job::partial`] has written `count` results at `partials`.
    #[inline(always)]
    pub(super) unsafe fn join<V: Lanes>(
        &self,
        scratch: &mut Scratch,
        partials: *const f32,
        stride: usize,
        count: usize,
    ) {
        let (states, padded) = (self.states(), self.cache.padded());
        // SAFETY: all partial results have been written in the layout of `partial`.
        unsafe {
            scratch.total_softmax[..states].fill(EMPTY);
            let to = (&raw mut scratch.total).cast::<f32>();
            for i in 0..count {
                let from = partials.add(i * stride);
                for state in 0..states {
                    let (softmax, at) =
                        (*from.add(states * padded).cast::<Softmax>().add(state), state * padded);
                    self.merge::<V>(&mut scratch.total_softmax[state], to.add(at), softmax, from.add(at));
                }
            }
            self.finish::<V>(scratch);
        }
    }

    /// Copies the queries to the scratch, scaled and padded, and resets the softmax states.
    ///
    /// # Safety
    /// As for [`Job::run`].
    #[inline(always)]
    unsafe fn begin<V: Lanes>(&self, scratch: &mut Scratch) {
        let (dim, padded) = (self.cache.head_dim, self.cache.padded());
        let to = (&raw mut scratch.q).cast::<f32>();
        for (i, row) in self.rows.clone().enumerate() {
            let scale = self.p.scale * self.query_factor(&self.all[row]);
            for (h, head) in self.heads.clone().enumerate() {
                let state = i * self.heads.len() + h;
                for at in (0..dim).step_by(16) {
                    // SAFETY: the head is one of the row's, and the scratch has room for the padded heads of all
                    // states.
                    unsafe {
                        let from =
                            f32s(self.operands.q.0).add((row * self.p.heads as usize + head) * dim + at);
                        let q = V::load_n(from, 16.min(dim - at)).mul(V::splat(scale));
                        q.store(to.add(state * padded + at));
                    }
                }
                scratch.total_softmax[state] = EMPTY;
            }
        }
    }

    fn query_factor(&self, row: &Row) -> f32 {
        match self.op.query_factors.zip(self.operands.query_factors) {
            // SAFETY: `factor` returns an index below the number of factors, which was checked against the operand's
            // extent.
            Some((by, factors)) => unsafe { *f32s(factors).add(self.p.factor(by, row.position) as usize) },
            None => 1.0,
        }
    }

    /// Adds a state's position bias to its scores `sixteens` (in whole groups of sixteen) of the segment that begins
    /// at `start`.
    ///
    /// # Safety
    /// `bias` has `bias_cols` columns for every query head.
    #[inline(always)]
    unsafe fn add_bias<V: Lanes>(
        &self,
        (bias, state, start): (F32<*mut u8>, usize, usize),
        scores: &mut [f32],
        sixteens: Range<usize>,
    ) {
        let row = &self.all[self.rows.start + state / self.heads.len()];
        let head = self.heads.start + state % self.heads.len();
        for at in sixteens.step_by(16) {
            let key = (start + at) as u32;
            let col = |lane: u32| self.p.bias_col(row.position, key + lane) as usize;
            // SAFETY: `bias_col` returns columns of this head only; the scores are a whole group of sixteen.
            unsafe {
                let from = f32s(bias).add(head * self.p.bias_cols() as usize);
                let added = match col(15) - col(0) {
                    15 => V::load(from.add(col(0))),
                    _ => {
                        let lanes: [f32; 16] = std::array::from_fn(|lane| *from.add(col(lane as u32)));
                        V::load(lanes.as_ptr())
                    }
                };
                let to = scores[at..].as_mut_ptr();
                V::load(to).add(added).store(to);
            }
        }
    }

    /// Computes every state's `m`, `l` and `acc` of one segment.
    ///
    /// # Safety
    /// As for [`Job::run`]; `begin` has been called.
    #[inline(always)]
    unsafe fn segment<V: Lanes>(&self, scratch: &mut Scratch, segment: usize) {
        let start = segment * SEGMENT;
        let (mut first, mut end) = (SEGMENT, 0);
        for (i, row) in self.rows.clone().enumerate() {
            let seen = seen(self.op, &self.p, &self.all[row]);
            let (a, b) = (seen.start.max(start) - start, seen.end.clamp(start, start + SEGMENT) - start);
            let part = if a < b { (a, b) } else { (SEGMENT, 0) };
            (first, end) = (first.min(part.0), end.max(part.1));
            let states = i * self.heads.len()..(i + 1) * self.heads.len();
            scratch.seen[states].fill(part);
        }
        let long = self.tile_positions();
        let tiles = first / long..end.div_ceil(long);
        // SAFETY: only positions that are visible to some row are read, and these are within the cache.
        unsafe {
            for pass in [Pass::Keys, Pass::Values] {
                match pass {
                    Pass::Values => self.weigh::<V>(scratch, start),
                    Pass::Keys if self.is_lean::<V>() => {
                        self.lean_scores(scratch, start, first..end);
                        continue;
                    }
                    Pass::Keys => {}
                }
                let mut from = self.place(pass, start + tiles.start * long);
                for tile in tiles.clone() {
                    let at = tile * long;
                    let next = match pass {
                        Pass::Keys if tile + 1 == tiles.end => (Pass::Values, tiles.start * long),
                        Pass::Values if tile + 1 == tiles.end => (Pass::Keys, at + long),
                        pass => (pass, at + long),
                    };
                    let next = self.place(next.0, start + next.1);
                    let from = std::mem::replace(&mut from, next);
                    let tile = Tile { from, next, first: at, end: at + long };
                    let part = first.max(at)..end.min(tile.end);
                    if !self.is_lean::<V>() {
                        self.load::<V>(scratch, pass, &tile, part);
                    }
                    self.tile::<V>(scratch, pass, &tile);
                }
            }
        }
    }

    /// With few states, memory bandwidth is the limit: f16 keys and values are then converted as they are loaded, not
    /// staged.
    #[inline(always)]
    fn is_lean<V: Lanes>(&self) -> bool {
        let whole = self.cache.kv == KvType::F16 && self.cache.head_dim == self.cache.padded();
        whole && self.states() <= product::most_rows::<V>()
    }

    /// Positions of a tile: twice [`KV_TILE`] if heads are so short that their keys or values still fill at most half
    /// of the first cache, and a tile is in one block of the cache. A product then does twice the work before sums are
    /// stored.
    #[inline(always)]
    fn tile_positions(&self) -> usize {
        let long = 2 * KV_TILE;
        let is_short = long * self.cache.padded() <= KV_TILE_FLOATS;
        if is_short && self.cache.has_runs_of(long, self.all[self.rows.start].start as usize) {
            long
        } else {
            KV_TILE
        }
    }

    /// The logical position in the cache of a position of the sequence.
    fn logical(&self, position: usize) -> usize {
        self.all[self.rows.start].start as usize + position
    }

    /// The address of a position's values, or of the keys of a group of sixteen. Beyond the visible positions, where
    /// it is used for prefetching only, it is that of the last of them.
    ///
    /// # Safety
    /// As for [`Job::run`].
    #[inline(always)]
    unsafe fn place(&self, pass: Pass, position: usize) -> *const u8 {
        let position = position.min(self.end.saturating_sub(1));
        // SAFETY: the table of blocks was checked to have all positions that may be visible.
        let place = unsafe { self.cache.place(self.logical(position)) };
        let cache = match pass {
            Pass::Keys => self.operands.k_cache.0,
            Pass::Values => self.operands.v_cache.0,
        };
        cache.wrapping_add(self.cache.offset(self.kv_head, place))
    }

    /// Converts keys or values of positions `part` of a segment, all in one tile, to f32.
    ///
    /// # Safety
    /// The positions are within the cache of this sequence.
    #[inline(always)]
    unsafe fn load<V: Lanes>(&self, scratch: &mut Scratch, pass: Pass, tile: &Tile, part: Range<usize>) {
        // SAFETY: positions are below the rows' kv_len, and so within the cache.
        unsafe {
            match pass {
                Pass::Keys => {
                    for sixteen in (tile.first..tile.end).step_by(KEY_GROUP) {
                        if part.start < sixteen + KEY_GROUP && sixteen < part.end {
                            self.keys::<V>(scratch, tile, sixteen);
                        }
                    }
                }
                Pass::Values => {
                    let (row, padded) = (self.cache.row, self.cache.padded());
                    for position in part {
                        let i = position - tile.first;
                        tile.prefetch::<V>(i * row..(i + 1) * row);
                        let to = (&raw mut scratch.v).cast::<f32>().add(i * padded);
                        self.cache.load::<V>(tile.from.wrapping_add(i * row), to);
                    }
                }
            }
        }
    }

    /// Converts the keys of sixteen positions; those of invisible positions are unspecified.
    ///
    /// # Safety
    /// The group of sixteen positions is within the cache.
    #[inline(always)]
    unsafe fn keys<V: Lanes>(&self, scratch: &mut Scratch, tile: &Tile, sixteen: usize) {
        let (dim, bytes) = (self.cache.head_dim, KEY_GROUP * self.cache.row);
        let place = (sixteen - tile.first) / KEY_GROUP;
        let (from, next) = (tile.from.wrapping_add(place * bytes), tile.next.wrapping_add(place * bytes));
        let step = bytes / dim;
        for (e, to) in scratch.k[place * dim..][..dim].iter_mut().enumerate() {
            V::prefetch(next.wrapping_add(e * step));
            // SAFETY: the group is within the cache; the scratch has room for a tile of keys.
            unsafe { self.cache.key_lanes::<V>(from, e).store(to.0.as_mut_ptr()) };
        }
    }

    /// Scores of positions `part` of the segment for all states, from keys in the cache without staging.
    ///
    /// # Safety
    /// The positions are within the cache, and `begin` has been called.
    #[inline(always)]
    unsafe fn lean_scores(&self, scratch: &mut Scratch, start: usize, part: Range<usize>) {
        let (dim, padded) = (self.cache.head_dim, self.cache.padded());
        let mut first = part.start / KEY_GROUP * KEY_GROUP;
        while first < part.end {
            // SAFETY: whole groups of sixteen positions, next to each other in the cache; the scratch has room for
            // every state's query and scores.
            unsafe {
                let count = self.cache.adjacent(self.logical(start + first), part.end - first);
                let sixteens = count.div_ceil(KEY_GROUP);
                let operands = Operands {
                    a: (&raw const scratch.q).cast(),
                    b: self.place(Pass::Keys, start + first),
                    to: (&raw mut scratch.scores).cast::<f32>().wrapping_add(first),
                    padded,
                    n: dim,
                };
                (self.products.lean_scores)(operands, self.states(), sixteens);
                first += sixteens * KEY_GROUP;
            }
        }
    }

    /// Multiplies a tile with every state to which any of it is visible.
    ///
    /// # Safety
    /// The tile's keys or values have been staged, and for values the scores turned into weights.
    #[inline(always)]
    unsafe fn tile<V: Lanes>(&self, scratch: &mut Scratch, pass: Pass, tile: &Tile) {
        let states = self.states();
        let mut first = 0;
        while first < states {
            let left = states - first;
            // Divide the states evenly.
            let count = left.div_ceil(left.div_ceil(product::most_rows::<V>()));
            let (mut union, mut common) = ((SEGMENT, 0), (0, SEGMENT));
            for (start, end) in &scratch.seen[first..first + count] {
                union = (union.0.min(*start), union.1.max(*end));
                common = (common.0.max(*start), common.1.min(*end));
            }
            let clip = |(start, end): (usize, usize)| (start.max(tile.first), end.min(tile.end));
            let (union, common) = (clip(union), clip(common));
            if union.0 < union.1 {
                // SAFETY: the states are below `self.states()`, and the tile has been staged for what is visible to
                // them.
                unsafe {
                    match pass {
                        Pass::Keys => self.scores(scratch, first, count, tile.first, union),
                        Pass::Values => self.add_values::<V>(scratch, first, count, tile, common),
                    }
                }
            }
            first += count;
        }
    }

    /// Scores of positions `part`, in whole groups of sixteen; scores of invisible positions are unspecified.
    ///
    /// # Safety
    /// The keys of these groups have been staged; the states are below `self.states()`.
    #[inline(always)]
    unsafe fn scores(
        &self,
        scratch: &mut Scratch,
        first: usize,
        count: usize,
        at: usize,
        part: (usize, usize),
    ) {
        let padded = self.cache.padded();
        let sixteen = (part.0 - at) / 16;
        let sixteens = (part.1 - at).div_ceil(16) - sixteen;
        // SAFETY: queries, staged keys and scores of the states, which the scratch has room for.
        unsafe {
            let operands = Operands {
                a: (&raw const scratch.q).cast::<f32>().add(first * padded),
                b: (&raw const scratch.k).cast::<F16x>().add(sixteen * self.cache.head_dim).cast(),
                to: (&raw mut scratch.scores).cast::<f32>().add(first * SCORES + at + sixteen * 16),
                padded,
                n: self.cache.head_dim,
            };
            (self.products.scores)(operands, count, sixteens);
        }
    }

    /// Accumulates weights · values: in one product for the positions that are visible to all of the states, and row
    /// by row (a row's heads together) for those before and after that are visible to some only. A weight of 0 for the
    /// others would be wrong, since a value may be infinite.
    ///
    /// # Safety
    /// The values of the tile have been staged (or are read from the cache), and the scores are weights; the states
    /// are below `self.states()`.
    #[inline(always)]
    unsafe fn add_values<V: Lanes>(
        &self,
        scratch: &mut Scratch,
        first: usize,
        count: usize,
        tile: &Tile,
        mut common: (usize, usize),
    ) {
        let (padded, lean) = (self.cache.padded(), self.is_lean::<V>());
        if common.0 >= common.1 {
            common = (tile.end, tile.end);
        }
        let multiply = if lean { self.products.lean_values } else { self.products.values };
        for within in [(tile.first, common.0), common, (common.1, tile.end)] {
            let part_of = |seen: (usize, usize)| (seen.0.max(within.0), seen.1.min(within.1));
            let mut state = first;
            while state < first + count {
                let part = part_of(scratch.seen[state]);
                let others = &scratch.seen[state + 1..first + count];
                let states = 1 + others.iter().take_while(|seen| part_of(**seen) == part).count();
                if part.0 < part.1 {
                    // SAFETY: positions `part` are visible to these states, so their values are in the tile; weights
                    // and accumulators of all states are in the scratch.
                    unsafe {
                        let position = part.0 - tile.first;
                        let loaded =
                            (&raw const scratch.v).cast::<f32>().wrapping_add(position * padded).cast();
                        let operands = Operands {
                            a: (&raw const scratch.scores).cast::<f32>().add(state * SCORES + part.0),
                            b: if lean { tile.from.wrapping_add(position * self.cache.row) } else { loaded },
                            to: (&raw mut scratch.segment).cast::<f32>().add(state * padded),
                            padded,
                            n: part.1 - part.0,
                        };
                        multiply(operands, states, padded / 16);
                    }
                }
                state += states;
            }
        }
    }

    /// Turns the scores of the segment that begins at `segment_start` into weights, for every state, and clears the
    /// accumulators.
    ///
    /// # Safety
    /// The scores of all visible positions of the segment have been computed.
    #[inline(always)]
    unsafe fn weigh<V: Lanes>(&self, scratch: &mut Scratch, segment_start: usize) {
        let padded = self.cache.padded();
        for state in 0..self.states() {
            let (start, end) = scratch.seen[state];
            if start >= end {
                scratch.segment_softmax[state] = EMPTY;
                continue;
            }
            let scores = &mut scratch.scores[state * SCORES..(state + 1) * SCORES];
            let (first, last) = (start / 16 * 16, end.next_multiple_of(16));
            if self.p.soft_cap != 0.0 {
                for at in (first..last).step_by(16) {
                    let at = scores[at..].as_mut_ptr();
                    // SAFETY: `at .. at + 16` are scores of this state.
                    unsafe { soft_cap(self.p.soft_cap, V::load(at)).store(at) };
                }
            }
            if let Some(bias) = self.operands.position_bias {
                // SAFETY: `first .. last` are whole groups of sixteen scores of this state, and the state has an
                // accumulator.
                unsafe { self.add_bias::<V>((bias, state, segment_start), scores, first..last) };
            }
            scores[first..start].fill(f32::NEG_INFINITY);
            scores[end..last].fill(f32::NEG_INFINITY);
            // SAFETY: `first .. last` are whole groups of sixteen scores of this state, and the state has an
            // accumulator.
            unsafe {
                let scores = scores.as_mut_ptr();
                let mut most = V::splat(f32::NEG_INFINITY);
                for at in (first..last).step_by(16) {
                    most = V::load(scores.add(at)).max(most);
                }
                let m = most.max_lane();
                let mut sum = V::zero();
                let fours = first + (last - first) / 64 * 64;
                for at in (first..fours).step_by(64) {
                    Self::weights::<V, 4>(scores.add(at), m, &mut sum);
                }
                for at in (fours..last).step_by(16) {
                    Self::weights::<V, 1>(scores.add(at), m, &mut sum);
                }
                scratch.segment_softmax[state] = Softmax { m, l: sum.sum() };
                let acc = (&raw mut scratch.segment).cast::<f32>().add(state * padded);
                for at in (0..padded).step_by(16) {
                    V::zero().store(acc.add(at));
                }
            }
        }
    }

    /// Turns N times sixteen scores into weights and adds these to the sum. Several exponentials are computed side by
    /// side, since each is one long chain.
    ///
    /// # Safety
    /// There are as many scores, none greater than `m`.
    #[inline(always)]
    unsafe fn weights<V: Lanes, const N: usize>(scores: *mut f32, m: f32, sum: &mut V) {
        let mut p = [V::zero(); N];
        // SAFETY: as the caller promises.
        unsafe {
            for n in 0..N {
                p[n] = V::load(scores.add(n * 16)).sub(V::splat(m));
            }
            let p = exps(p);
            for n in 0..N {
                p[n].store(scores.add(n * 16));
                *sum = sum.add(p[n]);
            }
        }
    }

    /// Merges the next segment's result of one state into its total, whose head is at `to`.
    ///
    /// # Safety
    /// A padded head can be read at `from`, and written at `to`, which is another one.
    #[inline(always)]
    unsafe fn merge<V: Lanes>(&self, total: &mut Softmax, to: *mut f32, s: Softmax, from: *const f32) {
        let (t, padded) = (*total, self.cache.padded());
        if !s.is_used() {
            return;
        }
        // SAFETY: as the caller promises.
        unsafe {
            if !t.is_used() {
                from.copy_to_nonoverlapping(to, padded);
                *total = s;
                return;
            }
            let m = if s.m > t.m { s.m } else { t.m };
            let (old, new) = (exp(V::splat(t.m - m)), exp(V::splat(s.m - m)));
            let mut l = [0.0_f32; 16];
            V::splat(s.l).fma(new, V::splat(t.l).mul(old)).store(l.as_mut_ptr());
            for at in (0..padded).step_by(16) {
                V::load(from.add(at)).fma(new, V::load(to.add(at)).mul(old)).store(to.add(at));
            }
            *total = Softmax { m, l: l[0] };
        }
    }

    /// What the weighted sum of a head is multiplied by at the end: the inverse of the softmax's sum, to which the head's
    /// sink is added.
    ///
    /// # Safety
    /// As for [`Job::run`].
    #[inline(always)]
    unsafe fn inverse<V: Lanes>(&self, Softmax { m, l }: Softmax, head: usize) -> V {
        let Some(sinks) = self.operands.sinks else { return V::splat(1.0 / l) };
        // SAFETY: there is a sink for every head.
        let sink = unsafe { *f32s(sinks).add(head) };
        let most = if sink > m { sink } else { m };
        let (scale, sink) = (exp(V::splat(m - most)), exp(V::splat(sink - most)));
        scale.div(V::splat(l).fma(scale, sink))
    }

    /// Divides by the softmax sums and writes the output in the requested forms.
    ///
    /// # Safety
    /// As for [`Job::run`]; all segments have been merged.
    #[inline(always)]
    unsafe fn finish<V: Lanes>(&self, scratch: &mut Scratch) {
        let (dim, padded) = (self.cache.head_dim, self.cache.padded());
        let cols = self.p.heads as usize * dim;
        // SAFETY: rows are within the table's; if q8 is written, a group of heads is whole q8 blocks; each (row, group
        // of heads) is written by one worker.
        unsafe {
            for (i, row) in self.rows.clone().enumerate() {
                // The queries are no longer needed: their buffer takes the heads side by side.
                let out = (&raw mut scratch.q).cast::<f32>();
                for h in 0..self.heads.len() {
                    let state = i * self.heads.len() + h;
                    let total = (&raw const scratch.total).cast::<f32>().add(state * padded);
                    let inverse = self.inverse::<V>(scratch.total_softmax[state], self.heads.start + h);
                    for at in (0..dim).step_by(16) {
                        let n = 16.min(dim - at);
                        V::load(total.add(at)).mul(inverse).store_n(out.add(h * dim + at), n);
                    }
                }
                let (first, count) = (self.heads.start * dim, self.heads.len() * dim);
                if let Some(to) = self.operands.out.f32 {
                    f32s(to).add(row * cols + first).copy_from_nonoverlapping(out, count);
                }
                if let Some(to) = self.operands.out.q8 {
                    let to = to.0.add(row * q8::row_bytes(cols));
                    for block in 0..count / q8::BLOCK {
                        put_q8::<V>(to, cols, first / q8::BLOCK + block, out.add(block * q8::BLOCK));
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Pass {
    Keys,
    Values,
}

/// Keys or values of [`Job::tile_positions`] in the cache.
struct Tile {
    from: *const u8,
    /// What will be read next, for prefetching.
    next: *const u8,
    /// Its first position, counted from the segment's start.
    first: usize,
    end: usize,
}

impl Tile {
    #[inline(always)]
    fn prefetch<V: Lanes>(&self, bytes: Range<usize>) {
        for at in bytes.step_by(64) {
            V::prefetch(self.next.wrapping_add(at));
        }
    }
}

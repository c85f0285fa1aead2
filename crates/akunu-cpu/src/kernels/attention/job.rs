//! One run of rows of one sequence against one kv head.

use std::ops::Range;

use akunu_plan::keys::TOGETHER;
use akunu_plan::ops::{AttentionOperands, AttentionParams, F32};
use akunu_plan::{KvType, Row, q8};

use super::product::{self, Operands, Products};
use super::seen;
use crate::command::f32s;
use crate::isa::Lanes;
use crate::kernels::cache::Cache;
use crate::kernels::put_q8;
use crate::math::{exp, soft_cap};
use crate::panel::{F16x, KV_TILE, SCORES, SEGMENT, Scratch, Softmax};

const EMPTY: Softmax = Softmax { m: f32::NEG_INFINITY, l: 0.0 };

/// (row, head) pairs are its states, row by row.
pub(super) struct Job<'a> {
    pub(super) operands: AttentionOperands<*mut u8>,
    pub(super) products: Products,
    pub(super) p: AttentionParams,
    pub(super) cache: Cache,
    /// All rows of the pass; the run is `rows`.
    pub(super) all: &'a [Row],
    pub(super) rows: Range<usize>,
    pub(super) kv_head: usize,
    /// Query heads.
    pub(super) heads: Range<usize>,
}

impl Job<'_> {
    fn states(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// Everything of these rows.
    #[inline(always)]
    pub(super) unsafe fn run<V: Lanes>(&self, scratch: &mut Scratch, segments: Range<usize>) {
        // SAFETY: all of this stays within the rows' own positions and this worker's scratch.
        unsafe {
            self.begin::<V>(scratch);
            let from = (&raw const scratch.segment).cast::<f32>();
            for segment in segments {
                self.segment::<V>(scratch, segment);
                for state in 0..self.states() {
                    let softmax = scratch.segment_softmax[state];
                    self.merge::<V>(scratch, state, softmax, from.add(state * self.cache.padded()));
                }
            }
            self.finish::<V>(scratch);
        }
    }

    /// One segment, to be merged with the others by whoever comes last.
    #[inline(always)]
    pub(super) unsafe fn partial<V: Lanes>(&self, scratch: &mut Scratch, segment: usize, to: *mut f32) {
        let (states, padded) = (self.states(), self.cache.padded());
        // SAFETY: as in `run`; the place has room for every state's head, m and l.
        unsafe {
            self.begin::<V>(scratch);
            self.segment::<V>(scratch, segment);
            (&raw const scratch.segment).cast::<f32>().copy_to_nonoverlapping(to, states * padded);
            let softmax = to.add(states * padded).cast::<Softmax>();
            (&raw const scratch.segment_softmax).cast::<Softmax>().copy_to_nonoverlapping(softmax, states);
        }
    }

    /// The end of `count` partial results, `stride` elements apart.
    #[inline(always)]
    pub(super) unsafe fn join<V: Lanes>(
        &self,
        scratch: &mut Scratch,
        partials: *const f32,
        stride: usize,
        count: usize,
    ) {
        let (states, padded) = (self.states(), self.cache.padded());
        // SAFETY: the partial results are all there, as in `partial`.
        unsafe {
            scratch.total_softmax[..states].fill(EMPTY);
            for i in 0..count {
                let from = partials.add(i * stride);
                for state in 0..states {
                    let softmax = *from.add(states * padded).cast::<Softmax>().add(state);
                    self.merge::<V>(scratch, state, softmax, from.add(state * padded));
                }
            }
            self.finish::<V>(scratch);
        }
    }

    /// Queries into the scratch, scaled and padded; totals empty.
    #[inline(always)]
    unsafe fn begin<V: Lanes>(&self, scratch: &mut Scratch) {
        let (dim, padded) = (self.cache.head_dim, self.cache.padded());
        let to = (&raw mut scratch.q).cast::<f32>();
        for (i, row) in self.rows.clone().enumerate() {
            let scale = self.p.scale * self.query_factor(&self.all[row]);
            for (h, head) in self.heads.clone().enumerate() {
                let state = i * self.heads.len() + h;
                for at in (0..dim).step_by(16) {
                    // SAFETY: within the row's heads; states have room for their padded heads.
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
        match self.operands.query_factors {
            // SAFETY: `factor` gives one of those that there are.
            Some(factors) => unsafe { *f32s(factors).add(self.p.factor(row.position) as usize) },
            None => 1.0,
        }
    }

    /// Adds a state's position bias to its scores of sixteens `first..last` of the segment that begins at `start`.
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
            // SAFETY: columns of this head, of which `bias_col` gives no other; a whole sixteen of scores.
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

    /// Every state's `m`, `l` and `acc` of one segment.
    #[inline(always)]
    unsafe fn segment<V: Lanes>(&self, scratch: &mut Scratch, segment: usize) {
        let start = segment * SEGMENT;
        let (mut first, mut end) = (SEGMENT, 0);
        for (i, row) in self.rows.clone().enumerate() {
            let seen = seen(&self.p, &self.all[row]);
            let (a, b) = (seen.start.max(start) - start, seen.end.clamp(start, start + SEGMENT) - start);
            let part = if a < b { (a, b) } else { (SEGMENT, 0) };
            (first, end) = (first.min(part.0), end.max(part.1));
            let states = i * self.heads.len()..(i + 1) * self.heads.len();
            scratch.seen[states].fill(part);
        }
        let tiles = first / KV_TILE..end.div_ceil(KV_TILE);
        // SAFETY: only positions that some row sees are read.
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
                for tile in tiles.clone() {
                    let at = tile * KV_TILE;
                    let next = match pass {
                        Pass::Keys if tile + 1 == tiles.end => (Pass::Values, tiles.start * KV_TILE),
                        Pass::Values if tile + 1 == tiles.end => (Pass::Keys, at + KV_TILE),
                        pass => (pass, at + KV_TILE),
                    };
                    let next = self.place(next.0, start + next.1);
                    let tile = Tile { from: self.place(pass, start + at), next, first: at };
                    let part = first.max(at)..end.min(at + KV_TILE);
                    if !self.is_lean::<V>() {
                        self.load::<V>(scratch, pass, &tile, part);
                    }
                    self.tile::<V>(scratch, pass, &tile);
                }
            }
        }
    }

    /// Few states are bound by reading: what is in halves is then multiplied as it is loaded.
    #[inline(always)]
    fn is_lean<V: Lanes>(&self) -> bool {
        let whole = self.cache.kv == KvType::F16 && self.cache.head_dim == self.cache.padded();
        whole && self.states() <= product::most_rows::<V>()
    }

    /// Where a position's values or a sixteen's keys are; they need not be in the cache.
    fn place(&self, pass: Pass, position: usize) -> *const u8 {
        let start = self.all[self.rows.start].start;
        let offset = self.cache.offset(start, self.kv_head, position);
        let cache = match pass {
            Pass::Keys => self.operands.k_cache.0,
            Pass::Values => self.operands.v_cache.0,
        };
        cache.wrapping_add(offset)
    }

    /// Keys or values of positions `part` of a segment, all in one tile, as f32.
    #[inline(always)]
    unsafe fn load<V: Lanes>(&self, scratch: &mut Scratch, pass: Pass, tile: &Tile, part: Range<usize>) {
        // SAFETY: positions are below the rows' kv_len, and so within the cache.
        unsafe {
            match pass {
                Pass::Keys => {
                    for sixteen in [tile.first, tile.first + TOGETHER] {
                        if part.start < sixteen + TOGETHER && sixteen < part.end {
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

    /// Sixteen positions' keys; those that nobody sees are of no meaning.
    #[inline(always)]
    unsafe fn keys<V: Lanes>(&self, scratch: &mut Scratch, tile: &Tile, sixteen: usize) {
        let (dim, bytes) = (self.cache.head_dim, TOGETHER * self.cache.row);
        let place = (sixteen - tile.first) / TOGETHER;
        let (from, next) = (tile.from.wrapping_add(place * bytes), tile.next.wrapping_add(place * bytes));
        let step = bytes / dim;
        for (e, to) in scratch.k[place * dim..][..dim].iter_mut().enumerate() {
            V::prefetch(next.wrapping_add(e * step));
            // SAFETY: the sixteen is in the cache.
            unsafe { self.cache.key_lanes::<V>(from, e).store(to.0.as_mut_ptr()) };
        }
    }

    /// Scores of positions `part` of the segment with all states, from keys where they lie.
    #[inline(always)]
    unsafe fn lean_scores(&self, scratch: &mut Scratch, start: usize, part: Range<usize>) {
        let (dim, padded) = (self.cache.head_dim, self.cache.padded());
        let first = part.start / TOGETHER * TOGETHER;
        let operands = Operands {
            a: (&raw const scratch.q).cast(),
            b: self.place(Pass::Keys, start + first),
            to: (&raw mut scratch.scores).cast::<f32>().wrapping_add(first),
            padded,
            n: dim,
        };
        let sixteens = part.end.saturating_sub(first).div_ceil(TOGETHER);
        // SAFETY: whole sixteens of positions that some row sees; every state's query and scores have their places.
        unsafe { (self.products.lean_scores)(operands, self.states(), sixteens) };
    }

    /// A tile's products with every state that sees any of it.
    #[inline(always)]
    unsafe fn tile<V: Lanes>(&self, scratch: &mut Scratch, pass: Pass, tile: &Tile) {
        let states = self.states();
        let mut first = 0;
        while first < states {
            let left = states - first;
            // Blocks of about the same size.
            let count = left.div_ceil(left.div_ceil(product::most_rows::<V>()));
            let (mut union, mut common) = ((SEGMENT, 0), (0, SEGMENT));
            for (start, end) in &scratch.seen[first..first + count] {
                union = (union.0.min(*start), union.1.max(*end));
                common = (common.0.max(*start), common.1.min(*end));
            }
            let clip = |(start, end): (usize, usize)| (start.max(tile.first), end.min(tile.end()));
            let (union, common) = (clip(union), clip(common));
            if union.0 < union.1 {
                // SAFETY: states have their places, and the tile what they see.
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

    /// Scores of positions `part`, in whole sixteens: what a state does not see there is of no meaning.
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
        // SAFETY: as the caller promises.
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

    /// Values by weights: those that all of the states see together, what only some see (a row's heads together) before and after
    /// it. A weight of 0 would not do, since a value may be infinite.
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
            common = (tile.end(), tile.end());
        }
        let multiply = if lean { self.products.lean_values } else { self.products.values };
        for within in [(tile.first, common.0), common, (common.1, tile.end())] {
            let part_of = |seen: (usize, usize)| (seen.0.max(within.0), seen.1.min(within.1));
            let mut state = first;
            while state < first + count {
                let part = part_of(scratch.seen[state]);
                let others = &scratch.seen[state + 1..first + count];
                let states = 1 + others.iter().take_while(|seen| part_of(**seen) == part).count();
                if part.0 < part.1 {
                    // SAFETY: as the caller promises.
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

    /// Scores of the segment that begins at `segment_start` to weights, for every state; sums begin at 0.
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
                    // SAFETY: a whole sixteen of this state's scores.
                    unsafe { soft_cap(self.p.soft_cap, V::load(at)).store(at) };
                }
            }
            if let Some(bias) = self.operands.position_bias {
                // SAFETY: as above.
                unsafe { self.add_bias::<V>((bias, state, segment_start), scores, first..last) };
            }
            scores[first..start].fill(f32::NEG_INFINITY);
            scores[end..last].fill(f32::NEG_INFINITY);
            // SAFETY: as above.
            unsafe {
                let scores = scores.as_mut_ptr();
                let mut most = V::splat(f32::NEG_INFINITY);
                for at in (first..last).step_by(16) {
                    most = V::load(scores.add(at)).max(most);
                }
                let m = most.max_lane();
                let mut sum = V::zero();
                for at in (first..last).step_by(16) {
                    let p = exp(V::load(scores.add(at)).sub(V::splat(m)));
                    p.store(scores.add(at));
                    sum = sum.add(p);
                }
                scratch.segment_softmax[state] = Softmax { m, l: sum.sum() };
                let acc = (&raw mut scratch.segment).cast::<f32>().add(state * padded);
                for at in (0..padded).step_by(16) {
                    V::zero().store(acc.add(at));
                }
            }
        }
    }

    /// Adds one state's next segment to its total.
    #[inline(always)]
    unsafe fn merge<V: Lanes>(&self, scratch: &mut Scratch, state: usize, s: Softmax, from: *const f32) {
        let (t, padded) = (scratch.total_softmax[state], self.cache.padded());
        if !s.is_used() {
            return;
        }
        // SAFETY: the state's place, and a padded head at `from`.
        unsafe {
            let to = (&raw mut scratch.total).cast::<f32>().add(state * padded);
            if !t.is_used() {
                from.copy_to_nonoverlapping(to, padded);
                scratch.total_softmax[state] = s;
                return;
            }
            let m = if s.m > t.m { s.m } else { t.m };
            let (old, new) = (exp(V::splat(t.m - m)), exp(V::splat(s.m - m)));
            let mut l = [0.0_f32; 16];
            V::splat(s.l).fma(new, V::splat(t.l).mul(old)).store(l.as_mut_ptr());
            for at in (0..padded).step_by(16) {
                V::load(from.add(at)).fma(new, V::load(to.add(at)).mul(old)).store(to.add(at));
            }
            scratch.total_softmax[state] = Softmax { m, l: l[0] };
        }
    }

    /// Divides by the sums and writes the forms that are asked for.
    #[inline(always)]
    unsafe fn finish<V: Lanes>(&self, scratch: &mut Scratch) {
        let (dim, padded) = (self.cache.head_dim, self.cache.padded());
        let cols = self.p.heads as usize * dim;
        // SAFETY: rows are within the table's; a group of heads is whole q8 blocks where those are asked for.
        unsafe {
            for (i, row) in self.rows.clone().enumerate() {
                // Queries are done with: their place takes the heads side by side.
                let out = (&raw mut scratch.q).cast::<f32>();
                for h in 0..self.heads.len() {
                    let state = i * self.heads.len() + h;
                    let total = (&raw const scratch.total).cast::<f32>().add(state * padded);
                    let inverse = V::splat(1.0 / scratch.total_softmax[state].l);
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

/// Keys or values of [`KV_TILE`] positions in the cache.
struct Tile {
    from: *const u8,
    /// What will be read next, to be on its way while this is multiplied.
    next: *const u8,
    /// Its first position in the segment.
    first: usize,
}

impl Tile {
    fn end(&self) -> usize {
        self.first + KV_TILE
    }

    #[inline(always)]
    fn prefetch<V: Lanes>(&self, bytes: Range<usize>) {
        for at in bytes.step_by(64) {
            V::prefetch(self.next.wrapping_add(at));
        }
    }
}

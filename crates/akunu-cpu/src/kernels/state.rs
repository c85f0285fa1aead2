//! Layers with a state: the convolution and the scan of Mamba 2.
//!
//! # Canonical arithmetic
//! Lanes are channels, or elements of a head, so no sum depends on their number. The sum of the convolution begins with the
//! bias, or 0, and takes the taps in order with fused multiply-add. A state is `fma(s, kept, B · Δx)`, and the sum over the
//! state takes its elements in order with fused multiply-add from 0; `fma(x, skip, sum) · silu(z)` is the output. Rows of a
//! sequence are processed one after the other, in f32, so passes may end anywhere.

use akunu_plan::ops::{self, MAX_TAPS, StateConvParams, StateScanParams};
use akunu_plan::state::{StateCache, follows};
use akunu_plan::{Kernel, Row};

use super::{OpKernel, load, store};
use crate::command::{Command, Context, f32s};
use crate::isa::target::Target;
use crate::math::{exp, silu, softplus};
use crate::panel::STATE_FLOATS;

/// Elements of a head that are processed together, in vectors of sixteen.
const WIDE: usize = 4;
/// The most elements of a state for each element of a head.
pub(crate) const MAX_STATE: usize = STATE_FLOATS / (16 * WIDE);

/// The row after the last one of the run that row `first` begins; `None` if it continues the row before.
#[inline(always)]
fn run_end(rows: &[Row], first: usize) -> Option<usize> {
    if first > 0 && follows(&rows[first - 1], &rows[first]) {
        return None;
    }
    let mut end = first + 1;
    while end < rows.len() && follows(&rows[end - 1], &rows[end]) {
        end += 1;
    }
    Some(end)
}

/// The slots of a layer, if states are kept.
///
/// # Safety
/// The table has the blocks of the rows' positions.
#[inline(always)]
unsafe fn slots<'a>(
    blocks: Option<ops::Blocks<*mut u8>>,
    rows: &[Row],
    [slots, block]: [u32; 2],
) -> StateCache<'a> {
    let Some(blocks) = blocks else { return StateCache::new(&[], 0, 0) };
    let mut last = 0;
    for row in rows {
        last = (row.start + row.position).max(last);
    }
    // SAFETY: as the caller promises; the table is aligned, as was checked when the command was prepared.
    let table = unsafe { std::slice::from_raw_parts(blocks.0.cast(), (last / block) as usize + 1) };
    StateCache::new(table, slots, block)
}

impl OpKernel for ops::StateConv {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: StateConvParams = command.params();
        let Kernel::StateConv(op) = command.kernel else { return };
        let o = command.operands(op);
        let [channels, taps, stride, first] = [p.channels, p.taps, p.stride, p.first].map(|n| n as usize);
        // SAFETY: rows and channels are within the table's; slots are limited to those that there are; the channels of a run
        // are those of one worker.
        unsafe {
            let rows = context.rows(o.rows);
            let cache = slots(o.blocks, rows, [p.slots, p.block]);
            // Rows vary fastest, so that the work of a long run is that of all workers.
            for unit in context.units(channels.div_ceil(16) * rows.len()) {
                let (at, begin) = (unit / rows.len() * 16, unit % rows.len());
                let Some(end) = run_end(rows, begin) else { continue };
                let n = 16.min(channels - at);
                let mut weights = [V::zero(); MAX_TAPS as usize];
                for (tap, weight) in weights[..taps].iter_mut().enumerate() {
                    let mut of_tap = [0.0; 16];
                    for (lane, to) in of_tap[..n].iter_mut().enumerate() {
                        *to = *f32s(o.weight).add((at + lane) * taps + tap);
                    }
                    *weight = V::load(of_tap.as_ptr());
                }
                let bias = o.bias.map_or(V::zero(), |bias| load::<V>(f32s(bias).add(at), n));
                let kept = |slot: usize, tap: usize| {
                    let state = o.state.map_or(std::ptr::null_mut(), f32s);
                    state.add((slot * (taps - 1) + tap) * channels + at)
                };
                let mut inputs = [V::zero(); MAX_TAPS as usize];
                if let Some(slot) = cache.before(&rows[begin]) {
                    for (tap, input) in inputs[..taps - 1].iter_mut().enumerate() {
                        *input = load::<V>(kept(slot, tap), n);
                    }
                }
                for row in begin..end {
                    inputs[taps - 1] = load::<V>(f32s(o.x).add(row * stride + first + at), n);
                    let mut sum = bias;
                    for tap in 0..taps {
                        sum = inputs[tap].fma(weights[tap], sum);
                    }
                    store(silu(sum), f32s(o.out).add(row * channels + at), n);
                    for tap in 1..taps {
                        inputs[tap - 1] = inputs[tap];
                    }
                    if let Some(slot) = cache.after(&rows[row], row + 1 == end) {
                        for (tap, input) in inputs[..taps - 1].iter().enumerate() {
                            store(*input, kept(slot, tap), n);
                        }
                    }
                }
            }
        }
    }
}

impl OpKernel for ops::StateScan {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: StateScanParams = command.params();
        let Kernel::StateScan(op) = command.kernel else { return };
        let o = command.operands(op);
        let [heads, dim] = [p.heads, p.head_dim].map(|n| n as usize);
        let pieces = dim.div_ceil(16 * WIDE);
        // SAFETY: rows and heads are within the table's; slots are limited to those that there are; `limits` has checked that
        // a piece of a state fits in the scratch; the piece of a run is one worker's.
        unsafe {
            let rows = context.rows(o.rows);
            let cache = slots(o.blocks, rows, [p.slots, p.block]);
            for unit in context.units(heads * pieces * rows.len()) {
                let (part, begin) = (unit / rows.len(), unit % rows.len());
                let Some(end) = run_end(rows, begin) else { continue };
                let (head, at) = (part / pieces, part % pieces * 16 * WIDE);
                let run = Run { p: &p, o: &o, rows, cache, begin, end, head };
                match dim - at {
                    whole if whole >= 16 * WIDE => run.scan::<V, WIDE>(context, at, 16),
                    rest => {
                        for at in (at..at + rest).step_by(16) {
                            run.scan::<V, 1>(context, at, 16.min(dim - at));
                        }
                    }
                }
            }
        }
    }
}

/// A head of the rows of a run.
struct Run<'a> {
    p: &'a StateScanParams,
    o: &'a ops::StateScanOperands<*mut u8>,
    rows: &'a [Row],
    cache: StateCache<'a>,
    begin: usize,
    end: usize,
    head: usize,
}

impl Run<'_> {
    /// `W` vectors of a head's elements from `at` on, the last of which has `n`.
    ///
    /// # Safety
    /// The rows, the head and its elements are those of the command; a piece of the state fits in the scratch.
    #[inline(always)]
    unsafe fn scan<V: Target, const W: usize>(&self, context: &Context, at: usize, n: usize) {
        let Run { p, o, rows, cache, begin, end, head } = self;
        let (head, begin, end) = (*head, *begin, *end);
        let [heads, dim, size, groups] = [p.heads, p.head_dim, p.state_size, p.groups].map(|n| n as usize);
        let inner = heads * dim;
        let cols = inner + 2 * groups * size;
        let group = head / (heads / groups);
        // SAFETY: as the caller promises.
        unsafe {
            let scratch = (&raw mut (*context.scratch).q).cast::<f32>();
            let kept = |slot: usize, i: usize| {
                let state = o.state.map_or(std::ptr::null_mut(), f32s);
                state.add(((slot * heads + head) * size + i) * dim + at)
            };
            match cache.before(&rows[begin]) {
                Some(slot) => {
                    for i in 0..size {
                        for w in 0..W {
                            load::<V>(kept(slot, i).add(16 * w), n).store(scratch.add((i * W + w) * 16));
                        }
                    }
                }
                None => std::slice::from_raw_parts_mut(scratch, size * W * 16).fill(0.0),
            }
            let of_head = |operand: ops::F32<*mut u8>| *f32s(operand).add(head);
            for row in begin..end {
                let (x, mixed) = (f32s(o.x).add(row * cols), f32s(o.mixed).add(row * p.stride as usize));
                let (b, c) = (x.add(inner + group * size), x.add(inner + (groups + group) * size));
                let raw = *mixed.add(p.dt as usize + head) + of_head(o.dt_bias);
                let delta = softplus(V::splat(raw));
                let decay = exp(delta.mul(V::splat(of_head(o.decay))));
                let (mut inputs, mut sums) = ([V::zero(); W], [V::zero(); W]);
                for w in 0..W {
                    inputs[w] = load::<V>(x.add(head * dim + at + 16 * w), n);
                }
                let mut taken = inputs;
                for w in 0..W {
                    taken[w] = taken[w].mul(delta);
                }
                for i in 0..size {
                    let (b, c) = (V::splat(*b.add(i)), V::splat(*c.add(i)));
                    for w in 0..W {
                        let place = scratch.add((i * W + w) * 16);
                        let state = V::load(place).fma(decay, taken[w].mul(b));
                        state.store(place);
                        sums[w] = state.fma(c, sums[w]);
                    }
                }
                let skip = V::splat(of_head(o.skip));
                for w in 0..W {
                    let place = head * dim + at + 16 * w;
                    let gate = load::<V>(mixed.add(p.gate as usize + place), n);
                    let y = inputs[w].fma(skip, sums[w]).mul(silu(gate));
                    store(y, f32s(o.out).add(row * inner + place), n);
                }
                if let Some(slot) = cache.after(&rows[row], row + 1 == end) {
                    for i in 0..size {
                        for w in 0..W {
                            store(V::load(scratch.add((i * W + w) * 16)), kept(slot, i).add(16 * w), n);
                        }
                    }
                }
            }
        }
    }
}

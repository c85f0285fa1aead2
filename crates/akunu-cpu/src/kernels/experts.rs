//! Mixtures of experts: routing, sorting rows by expert, products with the matrices of each row's expert, and the sum of
//! what they give.

use std::ops::Range;
use std::sync::atomic::Ordering;

use akunu_plan::ops::{
    self, CombineParams, ElementParams, ExpertParams, GatherParams, Indices, RouteParams, Routing,
};
use akunu_plan::{ExpertSet, GroupRank, Kernel, Scores, q8};

use super::matrix::{GROUP, Product, SUMS, group_bytes, outputs_of, pieces, put_q8_rows};
use super::rows::parts_of_rows;
use super::{OpKernel, for_lanes};
use crate::command::{Command, Context, f32s, row_bytes};
use crate::groups::{Group, SIDE};
use crate::isa::Lanes;
use crate::isa::target::Target;
use crate::math;
use crate::paging::{ELSEWHERE, Places};
use crate::tile::PackedKernel;

const MAX_EXPERTS: usize = ops::MAX_EXPERTS;

impl OpKernel for ops::Route {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: RouteParams = command.params();
        let Kernel::Route(op) = command.kernel else { return };
        let o = command.operands(op);
        let (experts, top) = (p.experts as usize, p.top as usize);
        // SAFETY: rows are within the table's; there are at most `MAX_EXPERTS` experts, and `top` is at most their number.
        unsafe {
            let bias = o.bias.map(|bias| std::slice::from_raw_parts(f32s(bias), experts));
            for row in context.units(context.rows) {
                let logits = std::slice::from_raw_parts(f32s(o.logits).add(row * experts), experts);
                let picks = std::slice::from_raw_parts_mut(o.picks.0.cast::<u32>().add(row * top), top);
                let shares = std::slice::from_raw_parts_mut(f32s(o.shares).add(row * top), top);
                let scores = Scored::of::<V>(op.scores, logits);
                if op.by_score() {
                    choose(op, &p, &scores.keys(experts, bias)[..experts], picks);
                } else {
                    choose(op, &p, logits, picks);
                }
                if op.scores == Scores::SparseMixer {
                    mix::<V>(logits, picks, p.tolerance, shares);
                } else {
                    scores.shares(picks, op.normalised.then_some(p.epsilon), shares);
                }
                let any_nan = logits.iter().any(|logit| logit.is_nan());
                shares
                    .iter_mut()
                    .for_each(|share| *share = if any_nan { f32::NAN } else { p.scale * *share });
            }
        }
    }
}

/// The scores of a row's experts, times a common factor.
struct Scored {
    scores: [f32; MAX_EXPERTS],
    factor: f32,
}

impl Scored {
    #[inline(always)]
    fn of<V: Lanes>(kind: Scores, logits: &[f32]) -> Scored {
        let mut scores = [f32::NEG_INFINITY; MAX_EXPERTS];
        let n = logits.len();
        scores[..n].copy_from_slice(logits);
        if kind == Scores::Sigmoid {
            for sixteen in scores[..n.next_multiple_of(16)].as_chunks_mut::<16>().0 {
                let at = sixteen.as_mut_ptr();
                // SAFETY: there are sixteen numbers.
                unsafe {
                    let exp = math::exp(V::zero().sub(V::load(at)));
                    V::splat(1.0).div(V::splat(1.0).add(exp)).store(at);
                }
            }
            return Scored { scores, factor: 1.0 };
        }
        let mut most = logits[0];
        for &logit in logits {
            most = if logit > most || most.is_nan() { logit } else { most };
        }
        exps_of::<V>(&mut scores, n, most);
        let factor = scores[..n].iter().sum();
        Scored { scores, factor }
    }

    /// Scores with the bias that is added for choosing.
    fn keys(&self, experts: usize, bias: Option<&[f32]>) -> [f32; MAX_EXPERTS] {
        let mut keys = self.scores;
        keys[..experts].iter_mut().for_each(|key| *key /= self.factor);
        keys.iter_mut().zip(bias.unwrap_or_default()).for_each(|(key, bias)| *key += bias);
        keys
    }

    /// `epsilon`: what is added to the sum of scores, if shares are normalised.
    fn shares(&self, picks: &[u32], epsilon: Option<f32>, shares: &mut [f32]) {
        for (share, pick) in shares.iter_mut().zip(picks) {
            *share = self.scores[*pick as usize];
        }
        let divisor = match epsilon {
            Some(0.0) => shares.iter().sum(),
            Some(epsilon) => shares.iter().sum::<f32>() + epsilon * self.factor,
            None => self.factor,
        };
        shares.iter_mut().for_each(|share| *share /= divisor);
    }
}

/// The experts with the largest keys, largest first, from the best groups.
fn choose(op: ops::Route, p: &RouteParams, keys: &[f32], picks: &mut [u32]) {
    let Some(rank) = op.groups else { return pick(keys, 0..keys.len(), picks) };
    let (groups, each) = (p.groups as usize, (p.experts / p.groups) as usize);
    let mut ranks = [0.0; MAX_EXPERTS];
    for (key, group) in ranks.iter_mut().zip(keys.chunks_exact(each)) {
        let mut best = [0; 2];
        let best = &mut best[..each.min(2)];
        pick(group, 0..each, best);
        let [first, second] = [0, best.len() - 1].map(|nth| number(group[best[nth] as usize]));
        *key = if rank == GroupRank::TwoBest { first + second } else { first };
    }
    let mut best = [0; MAX_EXPERTS];
    pick(&ranks[..groups], 0..groups, &mut best[..p.groups_used as usize]);
    let mut open = [false; MAX_EXPERTS];
    best[..p.groups_used as usize].iter().for_each(|group| open[*group as usize] = true);
    pick(keys, (0..keys.len()).filter(|expert| open[expert / each]), picks);
}

fn number(key: f32) -> f32 {
    if key.is_nan() { f32::NEG_INFINITY } else { key }
}

/// The candidates with the largest keys, largest first, equal ones in order; NaN is the smallest.
fn pick(keys: &[f32], candidates: impl Iterator<Item = usize>, picks: &mut [u32]) {
    let key = |index: u32| number(keys[index as usize]);
    for (seen, candidate) in candidates.enumerate() {
        let new = number(keys[candidate]);
        let mut at = seen.min(picks.len());
        if at == picks.len() && key(picks[at - 1]) >= new {
            continue;
        }
        at = at.min(picks.len() - 1);
        while at > 0 && key(picks[at - 1]) < new {
            picks[at] = picks[at - 1];
            at -= 1;
        }
        picks[at] = candidate as u32;
    }
}

/// The shares of a sparse mixer: the softmax of each choice among the experts that are left and near it.
#[inline(always)]
fn mix<V: Lanes>(logits: &[f32], picks: &[u32], tolerance: f32, shares: &mut [f32]) {
    for (place, share) in shares.iter_mut().enumerate() {
        let largest = logits[picks[place] as usize];
        let mut near = [f32::NEG_INFINITY; MAX_EXPERTS];
        for (near, &logit) in near.iter_mut().zip(logits) {
            let is_far = largest - logit > tolerance * logit.abs().max(largest);
            *near = if is_far { f32::NEG_INFINITY } else { logit };
        }
        picks[..place].iter().for_each(|before| near[*before as usize] = f32::NEG_INFINITY);
        exps_of::<V>(&mut near, logits.len(), largest);
        *share = 1.0 / near[..logits.len()].iter().sum::<f32>();
    }
}

/// e to the power of the first `n` numbers minus `most`.
#[inline(always)]
fn exps_of<V: Lanes>(values: &mut [f32; MAX_EXPERTS], n: usize, most: f32) {
    for sixteen in values[..n.next_multiple_of(16)].as_chunks_mut::<16>().0 {
        let at = sixteen.as_mut_ptr();
        // SAFETY: there are sixteen numbers.
        unsafe { math::exp(V::load(at).sub(V::splat(most))).store(at) };
    }
}

impl OpKernel for ops::Gather {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: GatherParams = command.params();
        let Kernel::Gather(op) = command.kernel else { return };
        let o = command.operands(op);
        let (cols, experts, top) = (p.cols as usize, p.experts as usize, p.top as usize);
        let picked = context.rows * top;
        // SAFETY: rows are within the table's, and numbers of experts are limited to those that there are, so every place
        // is below the number of picks. Each worker writes the rows and places of its own picks, and one the starts.
        unsafe {
            let picks = std::slice::from_raw_parts(o.picks.0.cast::<u32>(), picked);
            let expert = |pick: u32| (pick as usize).min(experts - 1);
            let mut next = [0_u32; MAX_EXPERTS + 1];
            for pick in picks {
                next[expert(*pick) + 1] += 1;
            }
            for expert in 0..experts {
                next[expert + 1] += next[expert];
            }
            if context.part == 0 {
                std::slice::from_raw_parts_mut(o.starts.0.cast::<u32>(), experts + 1)
                    .copy_from_slice(&next[..=experts]);
            }
            let own = context.share(picked);
            for (index, pick) in picks.iter().enumerate().take(own.end) {
                let place = &mut next[expert(*pick)];
                let to = *place as usize;
                *place += 1;
                if index < own.start {
                    continue;
                }
                *o.places.0.cast::<u32>().add(index) = to as u32;
                let row = index / top;
                let forms = [
                    (o.x.f32.map(|x| x.0), o.out.f32.map(|out| out.0), row_bytes(cols, false)),
                    (o.x.q8.map(|x| x.0), o.out.q8.map(|out| out.0), row_bytes(cols, true)),
                ];
                for form in forms {
                    if let (Some(x), Some(out), bytes) = form {
                        x.add(row * bytes).copy_to_nonoverlapping(out.add(to * bytes), bytes);
                    }
                }
            }
        }
    }
}

/// The experts that a command of a pass of so many rows chooses, or multiplies with.
///
/// # Safety
/// As for [`Run`](crate::command::Run).
pub(crate) unsafe fn needed(command: &Command, rows: usize) -> ExpertSet {
    let routing = match command.kernel {
        Kernel::Route(op) => {
            let p: RouteParams = command.params();
            let picks = command.operands(op).picks.0.cast::<u32>();
            // SAFETY: each row of the table has `top` picks.
            let picks = unsafe { std::slice::from_raw_parts(picks, rows * p.top as usize) };
            return ExpertSet::of_picks(picks.iter().copied(), p.experts as usize);
        }
        Kernel::ExpertGlu(op) => command.operands(op).routing,
        Kernel::ExpertMatmul(op) => Routing::Starts(command.operands(op).starts),
        Kernel::ExpertSum(op) => Routing::Picks(command.operands(op).picks),
        _ => return ExpertSet::default(),
    };
    let mut set = ExpertSet::default();
    let runs = Runs::of_rows(routing, 1, &command.params(), rows, None);
    // SAFETY: as the caller promises.
    unsafe { runs.used() }.for_each(|(expert, _)| set.add(expert));
    set
}

/// The rows of a command that multiply with the same matrices, in runs of adjacent rows.
#[derive(Clone, Copy)]
struct Runs<'a> {
    routing: Routing<*const u32>,
    experts: usize,
    rows: usize,
    /// Rows that read the same row of the input.
    each: usize,
    /// Where experts are that are paged.
    places: Option<&'a Places>,
}

impl<'a> Runs<'a> {
    #[inline(always)]
    fn new(routing: Routing<*mut u8>, each: usize, p: &ExpertParams, context: &Context<'a>) -> Runs<'a> {
        Runs::of_rows(routing, each, p, context.rows, context.places)
    }

    #[inline(always)]
    fn of_rows(
        routing: Routing<*mut u8>,
        each: usize,
        p: &ExpertParams,
        rows: usize,
        places: Option<&'a Places>,
    ) -> Runs<'a> {
        let routing = match routing {
            Routing::Starts(starts) => Routing::Starts(Indices(starts.0.cast_const().cast())),
            Routing::Picks(picks) => Routing::Picks(Indices(picks.0.cast_const().cast())),
        };
        Runs { routing, experts: p.experts as usize, rows: rows * p.top as usize, each, places }
    }

    /// Where an expert is among the matrices that a command binds; `None`: it is not computed in this stage.
    #[inline(always)]
    fn place(self, expert: usize) -> Option<usize> {
        match self.places {
            None => Some(expert),
            Some(places) => {
                let place = places[expert].load(Ordering::Relaxed);
                (place != ELSEWHERE).then_some(place as usize)
            }
        }
    }

    /// Each expert and its rows. Runs may be empty.
    ///
    /// # Safety
    /// At starts, `experts + 1` numbers can be read; at picks, one for each row.
    #[inline(always)]
    unsafe fn all(self) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a> {
        let count = match self.routing {
            Routing::Starts(_) => self.experts,
            Routing::Picks(_) => self.rows,
        };
        // SAFETY: as the caller promises.
        (0..count).map(move |index| unsafe {
            match self.routing {
                Routing::Starts(Indices(starts)) => {
                    let [start, end] = [0, 1].map(|next| (*starts.add(index + next) as usize).min(self.rows));
                    (index, start..end)
                }
                Routing::Picks(Indices(picks)) => {
                    ((*picks.add(index) as usize).min(self.experts - 1), index..index + 1)
                }
            }
        })
    }

    /// The runs that have rows, of experts that are computed in this stage.
    ///
    /// # Safety
    /// As for [`Runs::all`].
    #[inline(always)]
    unsafe fn used(self) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a> {
        let is_used = move |(expert, rows): &(usize, Range<usize>)| {
            !rows.is_empty() && (self.places.is_none() || self.place(*expert).is_some())
        };
        // SAFETY: as the caller promises.
        unsafe { self.all() }.filter(is_used)
    }
}

/// The part of a range of units that belongs to the `index`-th of several that have `each` units.
#[inline(always)]
fn units_of(units: &Range<usize>, index: usize, each: usize) -> Range<usize> {
    let first = index * each;
    units.start.clamp(first, first + each) - first..units.end.clamp(first, first + each) - first
}

/// Products of a run of rows, for some of the outputs.
struct OfExpert {
    product: Product,
    rows: Range<usize>,
    /// The first output among those of all experts, of the matrices that are bound, and of this one.
    of_all: usize,
    of_bound: usize,
    first: usize,
    outputs: usize,
}

/// The products of a worker that has some units of `unit` outputs each, out of those of all runs.
///
/// # Safety
/// As for [`Runs::all`].
#[inline(always)]
unsafe fn of_units<'a>(
    (product, runs): (&'a Product, Runs<'a>),
    command: &'a Command,
    units: Range<usize>,
    (unit, outputs): (usize, usize),
) -> impl Iterator<Item = OfExpert> + 'a {
    let each = outputs.div_ceil(unit);
    // SAFETY: as the caller promises.
    let used = unsafe { runs.used() }.enumerate();
    let parts = used.filter_map(move |(index, (expert, rows))| {
        let place = runs.place(expert)?;
        let (first, count) = outputs_of(&units_of(&units, index, each), unit, outputs);
        let packed = command.packed.filter(|kernel| rows.len() >= kernel.least_rows);
        let packed = packed.map(|kernel| (kernel, first_group(rows.start, expert)));
        let product = product.of_rows(rows.start / runs.each, packed);
        let [of_all, of_bound] = [expert, place].map(|place| place * outputs + first);
        Some(OfExpert { product, rows, of_all, of_bound, first, outputs: count })
    });
    parts.filter(|part| part.outputs > 0)
}

/// The place of an expert's packed rows, in groups. Each expert begins with a group of its own, and no two experts share
/// one: the groups before `start` and one for each expert are at least as many as the experts before have.
fn first_group(start: usize, expert: usize) -> usize {
    start / SIDE + expert
}

/// The most groups of packed rows.
pub(crate) fn most_groups(rows: usize, experts: usize) -> usize {
    rows / SIDE + experts
}

/// Packs the rows of the experts that have enough of them, before the command's products.
///
/// # Safety
/// As for [`Run`](crate::command::Run).
#[inline(always)]
pub(crate) unsafe fn pack(command: &Command, context: &Context, kernel: &PackedKernel) {
    let (x, routing) = match command.kernel {
        Kernel::ExpertMatmul(op) => (command.operands(op).x, Routing::Starts(command.operands(op).starts)),
        Kernel::ExpertGlu(op) => (command.operands(op).x, command.operands(op).routing),
        _ => return,
    };
    let p: ExpertParams = command.params();
    let (runs, inputs) = (Runs::new(routing, 1, &p, context), p.inputs as usize);
    let x_stride = row_bytes(inputs, matches!(x, ops::Input::Q8(_)));
    // SAFETY: rows are within the command's input; the device reserved groups for all of them, and each group is written by
    // one worker.
    unsafe {
        let mut seen = 0;
        for (expert, rows) in runs.all() {
            if rows.len() < kernel.least_rows {
                continue;
            }
            for group in 0..rows.len().div_ceil(SIDE) {
                seen += 1;
                if seen % context.parts != context.part {
                    continue;
                }
                let first = rows.start + group * SIDE;
                let to = first_group(rows.start, expert) + group;
                (kernel.pack)(&Group {
                    x: x.get().add(first * x_stride),
                    x_stride,
                    rows: SIDE.min(rows.end - first),
                    inputs,
                    to: context.packed.add(to * group_bytes(inputs, kernel)),
                });
            }
        }
    }
}

impl OpKernel for ops::ExpertMatmul {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ExpertParams = command.params();
        let Kernel::ExpertMatmul(op) = command.kernel else { return };
        let o = command.operands(op);
        let outputs = p.outputs as usize;
        let runs = Runs::new(Routing::Starts(o.starts), 1, &p, context);
        let product = Product::of((command, context), o.x, op.weight, p.inputs as usize);
        let (out, bias) = (f32s(o.out), o.bias.map(f32s));
        let each = outputs.div_ceil(GROUP);
        // SAFETY: the scratch is used by this worker only; outputs are within the command's, rows within the table's,
        // and each output is written by one worker.
        unsafe {
            let sums = (&raw mut (*context.scratch).tile).cast::<f32>();
            let piece = product.at_once(context.rows) / GROUP;
            for units in context.pieces(runs.used().count() * each, piece) {
                for of in of_units((&product, runs), command, units, (GROUP, outputs)) {
                    for (row, count) in of.product.row_tiles(of.rows.len()) {
                        of.product.sums(context, [o.weight], (of.of_bound, of.outputs), (row, count), [sums]);
                        for (r, half, n) in pieces(count, of.outputs) {
                            let mut v = V::load(sums.add(r * SUMS + half));
                            if let Some(bias) = bias {
                                v = v.add(V::load_n(bias.add(of.of_all + half), n));
                            }
                            v.store_n(out.add((of.rows.start + row + r) * outputs + of.first + half), n);
                        }
                    }
                }
            }
        }
    }
}

impl OpKernel for ops::ExpertGlu {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ExpertParams = command.params();
        let Kernel::ExpertGlu(op) = command.kernel else { return };
        let o = command.operands(op);
        let outputs = p.outputs as usize;
        let runs = Runs::new(o.routing, if op.picked { p.top as usize } else { 1 }, &p, context);
        let product = Product::of((command, context), o.x, op.weight, p.inputs as usize);
        let weights = [o.gate_weight, o.up_weight];
        let biases = [o.gate_bias, o.up_bias].map(|bias| bias.map(f32s));
        let each = outputs.div_ceil(q8::BLOCK);
        // SAFETY: as for `ExpertMatmul`. If q8 is written, outputs are whole blocks of 32, and a worker has whole blocks.
        unsafe {
            let gate = (&raw mut (*context.scratch).tile).cast::<f32>();
            let up = (&raw mut (*context.scratch).tile_up).cast::<f32>();
            let piece = product.at_once(context.rows) / q8::BLOCK;
            for units in context.pieces(runs.used().count() * each, piece) {
                for of in of_units((&product, runs), command, units, (q8::BLOCK, outputs)) {
                    for (row, count) in of.product.row_tiles(of.rows.len()) {
                        of.product.sums(
                            context,
                            weights,
                            (of.of_bound, of.outputs),
                            (row, count),
                            [gate, up],
                        );
                        for (r, half, n) in pieces(count, of.outputs) {
                            let at = r * SUMS + half;
                            let (mut g, mut u) = (V::load(gate.add(at)), V::load(up.add(at)));
                            if let [Some(gate_bias), Some(up_bias)] = biases {
                                g = g.add(V::load_n(gate_bias.add(of.of_all + half), n));
                                u = u.add(V::load_n(up_bias.add(of.of_all + half), n));
                            }
                            let v = math::glu(op.glu, g, u);
                            v.store(gate.add(at));
                            if let Some(out) = o.out.f32 {
                                let row = of.rows.start + row + r;
                                v.store_n(f32s(out).add(row * outputs + of.first + half), n);
                            }
                        }
                        if let Some(out) = o.out.q8 {
                            let rows = (of.rows.start + row, count);
                            put_q8_rows::<V>(out, outputs, (of.first, of.outputs), rows, gate);
                        }
                    }
                }
            }
        }
    }
}

impl OpKernel for ops::ExpertSum {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ExpertParams = command.params();
        let Kernel::ExpertSum(op) = command.kernel else { return };
        let o = command.operands(op);
        let (outputs, top, experts) = (p.outputs as usize, p.top as usize, p.experts as usize);
        let product = Product::of((command, context), o.x, op.weight, p.inputs as usize);
        let addends =
            Addends { shared: o.shared.map(f32s), gate: o.gate.map(f32s), residual: o.residual.map(f32s) };
        let bias = o.bias.map(f32s);
        let runs = Runs::new(Routing::Picks(o.picks), 1, &p, context);
        // SAFETY: as for `ExpertMatmul`; numbers of experts are limited to those that there are.
        unsafe {
            let sums = (&raw mut (*context.scratch).tile).cast::<f32>();
            let total = (&raw mut (*context.scratch).tile_up).cast::<f32>();
            let piece = product.at_once(context.rows) / GROUP;
            for units in context.pieces(outputs.div_ceil(GROUP), piece) {
                let (first, count) = outputs_of(&units, GROUP, outputs);
                for row in 0..context.rows {
                    for pick in row * top..(row + 1) * top {
                        let expert = (*o.picks.0.cast::<u32>().add(pick) as usize).min(experts - 1);
                        let of_all = expert * outputs + first;
                        // All experts of a row are there at once.
                        let Some(place) = runs.place(expert) else { return };
                        let share = V::splat(*f32s(o.shares).add(pick));
                        product.of_rows(pick, None).sums(
                            context,
                            [o.weight],
                            (place * outputs + first, count),
                            (0, 1),
                            [sums],
                        );
                        for (_, at, n) in pieces(1, count) {
                            let mut y = V::load(sums.add(at));
                            if let Some(bias) = bias {
                                y = y.add(V::load_n(bias.add(of_all + at), n));
                            }
                            let before = if pick == row * top { V::zero() } else { V::load(total.add(at)) };
                            share.fma(y, before).store(total.add(at));
                        }
                    }
                    for (_, at, n) in pieces(1, count) {
                        let to = row * outputs + first + at;
                        let sum = addends.add_to(V::load(total.add(at)), (row, to), n);
                        sum.store_n(f32s(o.out).add(to), n);
                    }
                }
            }
        }
    }
}

/// What is added to the weighted sum of a row's experts.
struct Addends {
    shared: Option<*mut f32>,
    gate: Option<*mut f32>,
    residual: Option<*mut f32>,
}

impl Addends {
    /// With the addends of row `row`, for `n` elements at `at`.
    ///
    /// # Safety
    /// The addends have that row and these elements.
    #[inline(always)]
    unsafe fn add_to<V: Lanes>(&self, mut sum: V, (row, at): (usize, usize), n: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            if let Some(shared) = self.shared {
                let shared = V::load_n(shared.add(at), n);
                sum = match self.gate {
                    Some(gate) => {
                        let negative = V::splat(-*gate.add(row));
                        let gate = V::splat(1.0).div(V::splat(1.0).add(math::exp(negative)));
                        gate.fma(shared, sum)
                    }
                    None => sum.add(shared),
                };
            }
            match self.residual {
                Some(residual) => sum.add(V::load_n(residual.add(at), n)),
                None => sum,
            }
        }
    }
}

impl OpKernel for ops::WeighInputs {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: ElementParams = command.params();
        let Kernel::WeighInputs(op) = command.kernel else { return };
        let o = command.operands(op);
        let cols = p.cols as usize;
        // SAFETY: rows are within the table's, and columns below `cols`.
        unsafe {
            for (row, part) in parts_of_rows(context, context.rows, cols) {
                let share = V::splat(*f32s(o.shares).add(row));
                if part.start == 0 {
                    *f32s(o.left).add(row) = 1.0;
                }
                for_lanes!(part.len(), |at, n| {
                    let place = row * cols + part.start + at;
                    V::load_n(f32s(o.x).add(place), n).mul(share).store_n(f32s(o.out).add(place), n);
                });
            }
        }
    }
}

impl OpKernel for ops::Combine {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: CombineParams = command.params();
        let Kernel::Combine(op) = command.kernel else { return };
        let o = command.operands(op);
        let (cols, top) = (p.cols as usize, p.top as usize);
        let last = (context.rows * top).saturating_sub(1);
        let addends =
            Addends { shared: o.shared.map(f32s), gate: o.gate.map(f32s), residual: o.residual.map(f32s) };
        // SAFETY: rows are within the table's, and places are limited to them.
        unsafe {
            for (row, part) in parts_of_rows(context, context.rows, cols) {
                let places = std::slice::from_raw_parts(o.places.0.cast::<u32>().add(row * top), top);
                let shares = std::slice::from_raw_parts(f32s(o.shares).add(row * top), top);
                let mut at = part.start;
                while at < part.end {
                    let n = 16.min(part.end - at);
                    let mut sum = V::zero();
                    for (place, share) in places.iter().zip(shares) {
                        let y = f32s(o.y).add((*place as usize).min(last) * cols + at);
                        sum = V::splat(*share).fma(V::load_n(y, n), sum);
                    }
                    let to = row * cols + at;
                    addends.add_to(sum, (row, to), n).store_n(f32s(o.out).add(to), n);
                    at += 16;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(logits: &[f32], top: usize) -> Vec<u32> {
        let mut picks = vec![0; top];
        pick(logits, 0..logits.len(), &mut picks);
        picks
    }

    #[test]
    fn the_largest_are_picked_in_order_and_equal_ones_by_number() {
        assert_eq!(picked(&[1.0, 3.0, 2.0, 3.0], 3), [1, 3, 2]);
        assert_eq!(picked(&[0.0; 5], 5), [0, 1, 2, 3, 4]);
        assert_eq!(picked(&[5.0, 4.0, 3.0], 1), [0]);
        assert_eq!(picked(&[3.0, 4.0, 5.0], 1), [2]);
        assert_eq!(picked(&[-0.0, 0.0, -0.0], 2), [0, 1]);
    }

    #[test]
    fn nan_is_the_smallest() {
        let nan = f32::NAN;
        assert_eq!(picked(&[nan, 1.0, nan, f32::NEG_INFINITY, 2.0], 4), [4, 1, 0, 2]);
        assert_eq!(picked(&[nan; 4], 2), [0, 1]);
    }

    fn chosen(op: ops::Route, keys: &[f32], [groups, used]: [u32; 2], top: usize) -> Vec<u32> {
        let p =
            RouteParams { experts: keys.len() as u32, groups, groups_used: used, ..RouteParams::default() };
        let mut picks = vec![9; top];
        choose(op, &p, keys, &mut picks);
        picks
    }

    #[test]
    fn experts_of_the_best_groups_are_chosen() {
        let grouped = |rank| ops::Route {
            scores: Scores::Sigmoid,
            normalised: true,
            corrected: true,
            groups: Some(rank),
        };
        let (best, two) = (grouped(GroupRank::Best), grouped(GroupRank::TwoBest));
        let keys = [0.9, 0.1, 0.0, 0.6, 0.6, 0.5, 0.7, 0.2, 0.6];
        assert_eq!(chosen(best, &keys, [3, 1], 2), [0, 1]);
        assert_eq!(chosen(two, &keys, [3, 1], 2), [6, 8]);
        assert_eq!(chosen(two, &keys, [3, 2], 4), [6, 3, 4, 8]);
        // Equal groups in order; those that are not used do not fill up.
        assert_eq!(chosen(best, &[0.0; 4], [2, 1], 2), [0, 1]);
        assert_eq!(
            chosen(two, &[1.0, f32::NAN, f32::NAN, f32::NEG_INFINITY, 2.0, f32::NAN], [3, 1], 2),
            [0, 1]
        );
        assert_eq!(chosen(best, &[f32::NAN, f32::NAN, f32::NEG_INFINITY, 0.0], [2, 1], 2), [3, 2]);
        assert_eq!(chosen(best, &[f32::NAN; 4], [2, 1], 2), [0, 1]);
    }

    #[test]
    fn packed_rows_of_two_experts_share_no_group() {
        for counts in [[0, 1, 16], [15, 17, 31], [16, 16, 16], [1, 1, 1], [33, 6, 100]] {
            let (mut start, mut free) = (0, 0);
            for (expert, count) in counts.into_iter().enumerate() {
                assert!(first_group(start, expert) >= free, "{counts:?}");
                free = first_group(start, expert) + usize::div_ceil(count, SIDE);
                start += count;
            }
            assert!(free <= most_groups(start, counts.len()), "{counts:?}");
        }
    }
}

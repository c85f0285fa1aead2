//! The experts of each row and their shares, from its router logits.
//!
//! An expert's score is the softmax of the logits of all experts, or the sigmoid of its logit. The `top` experts with
//! the largest keys are chosen, largest first, equal ones in the order of experts. The key is the logit; it is the score,
//! rounded to f32, if a bias of each expert is added to it or if groups are ranked by two experts.
//!
//! If experts are in groups (of consecutive experts, equally many), only those of the `groups_used` best groups are
//! chosen. Groups are ranked by their largest key, or by the sum of their two largest; equal ones in order.
//!
//! A share is `scale · score`. If shares are `normalised`, it is `scale · score / (sum + epsilon)`, with the sum of the
//! scores of the chosen experts.
//!
//! The sparse mixer chooses by logits, too. The share of each choice is `scale` times its softmax among the experts that
//! are not chosen yet and are near it: `largest − logit ≤ tolerance · max(|logit|, largest)`.
//!
//! NaN is smaller than any number. A logit of NaN makes all shares of its row NaN, so that the row's logits are NaN, too.

use akunu_arch::{GroupRank, Scores};

use super::extent::{Counts, Extent, f32s, indices};
use super::{F32, Indices, Op, operands, params};
use crate::reference::Bound;

/// A row's logits fit in the scratch of a kernel.
pub const MAX_EXPERTS: usize = akunu_arch::MAX_EXPERTS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    pub scores: Scores,
    pub normalised: bool,
    /// A bias is added to scores for choosing.
    pub corrected: bool,
    /// Experts are in groups.
    pub groups: Option<GroupRank>,
}

impl Route {
    /// Whether experts are chosen by their scores, instead of by their logits.
    pub fn by_score(self) -> bool {
        self.corrected || self.groups == Some(GroupRank::TwoBest)
    }
}

params! {
    RouteParams {
        experts: u32,
        top: u32,
        /// 1 if experts are not in groups.
        groups: u32,
        groups_used: u32,
        scale: f32,
        /// Added to the sum of scores; 0 if shares are not normalised.
        epsilon: f32,
        /// Of the sparse mixer; 0 for others.
        tolerance: f32,
    }
}

operands! {
    RouteOperands of Route as op {
        logits: read F32,
        /// `[expert]`
        bias: read F32 if op.corrected,
        /// `[row][top]`
        picks: write Indices,
        /// `[row][top]`
        shares: write F32,
    }
}

impl Op for Route {
    type Params = RouteParams;
    type Operands<T: Copy> = RouteOperands<T>;

    fn name(self) -> String {
        let scores = match self.scores {
            Scores::Softmax => "",
            Scores::Sigmoid => "_sigmoid",
            Scores::SparseMixer => "_sparse_mixer",
        };
        let corrected = if self.corrected { "_corrected" } else { "" };
        let groups = match self.groups {
            None => "",
            Some(GroupRank::Best) => "_groups",
            Some(GroupRank::TwoBest) => "_groups_by_two",
        };
        let normalised = if self.normalised { "_normalised" } else { "" };
        format!("route{scores}{corrected}{groups}{normalised}")
    }

    fn extents(self, p: &RouteParams, counts: &Counts) -> Result<RouteOperands<Extent>, String> {
        check_experts(p.experts, p.top)?;
        self.check_groups(p)?;
        if self.scores == Scores::SparseMixer && (self.normalised || self.corrected || self.groups.is_some()) {
            return Err("a sparse mixer has neither normalised shares nor biases nor groups".into());
        }
        Ok(RouteOperands {
            logits: f32s(counts.rows, p.experts),
            bias: self.corrected.then(|| f32s(1, p.experts)),
            picks: indices(counts.rows as u64, p.top),
            shares: f32s(counts.rows, p.top),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<RouteParams>(), bound.operands(self));
        let (experts, top) = (p.experts as usize, p.top as usize);
        let (mut picks, mut shares) = (Vec::new(), Vec::new());
        for row in 0..bound.live.rows {
            let logits = &bound.f32s(o.logits)[row * experts..][..experts];
            let scores = self.scores(logits);
            let bias = o.bias.map(|bias| &bound.f32s(bias)[..experts]);
            let key = |expert: usize| match self.by_score() {
                true => scores[expert] as f32 + bias.map_or(0.0, |bias| bias[expert]),
                false => logits[expert],
            };
            let keys: Vec<f32> = (0..experts).map(key).collect();
            let chosen = largest(&keys, self.candidates(&p, &keys), top);
            shares.extend(self.shares(&p, logits, &scores, &chosen).map(|share| share as f32));
            picks.extend(chosen.iter().map(|expert| *expert as u32));
        }
        bound.write_indices(o.picks, &picks);
        bound.write_f32s(o.shares, |_, out| out[..shares.len()].copy_from_slice(&shares));
    }
}

impl Route {
    fn check_groups(self, p: &RouteParams) -> Result<(), String> {
        let (groups, used) = (p.groups, p.groups_used);
        if groups == 0 || used == 0 || used > groups || !p.experts.is_multiple_of(groups) {
            return Err(format!("{used} of {groups} groups of {} experts", p.experts));
        }
        let each = p.experts / groups;
        if p.top > used * each {
            return Err(format!("{} experts of {used} groups of {each}", p.top));
        }
        match self.groups {
            None if groups > 1 => Err(format!("{groups} groups, but nothing to rank them by")),
            Some(GroupRank::TwoBest) if each < 2 => Err("the two best experts of groups of one".into()),
            _ => Ok(()),
        }
    }

    /// The scores of one row; NaN where its logits have NaN. Those of a sparse mixer are not used.
    fn scores(self, logits: &[f32]) -> Vec<f64> {
        let sigmoid = |logit: &f32| 1.0 / (1.0 + (-f64::from(*logit)).exp());
        match self.scores {
            Scores::Sigmoid => logits.iter().map(sigmoid).collect(),
            Scores::Softmax | Scores::SparseMixer => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exps: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
                let sum: f64 = exps.iter().sum();
                exps.iter().map(|exp| exp / sum).collect()
            }
        }
    }

    /// The experts of the best groups, in order.
    fn candidates(self, p: &RouteParams, keys: &[f32]) -> Vec<usize> {
        let each = (p.experts / p.groups) as usize;
        let rank = |group: &[f32]| {
            let best = largest(group, (0..each).collect(), each);
            let key = |nth: usize| number(group[best[nth]]);
            if self.groups == Some(GroupRank::TwoBest) { key(0) + key(1) } else { key(0) }
        };
        let ranks: Vec<f32> = keys.chunks(each).map(rank).collect();
        let groups = largest(&ranks, (0..ranks.len()).collect(), p.groups_used as usize);
        (0..keys.len()).filter(|expert| groups.contains(&(expert / each))).collect()
    }

    fn shares(
        self,
        p: &RouteParams,
        logits: &[f32],
        scores: &[f64],
        chosen: &[usize],
    ) -> impl Iterator<Item = f64> {
        let poison = if logits.iter().any(|logit| logit.is_nan()) { f64::NAN } else { 1.0 };
        let sum: f64 = chosen.iter().map(|expert| scores[*expert]).sum();
        let divisor = if self.normalised { sum + f64::from(p.epsilon) } else { 1.0 };
        let share = move |place: usize| match self.scores {
            Scores::SparseMixer => mixed(logits, &chosen[..=place], p.tolerance),
            _ => scores[chosen[place]] / divisor,
        };
        (0..chosen.len()).map(move |place| f64::from(p.scale) * share(place) * poison)
    }
}

/// The softmax of the last chosen expert among those that are not chosen before it and near it.
fn mixed(logits: &[f32], chosen: &[usize], tolerance: f32) -> f64 {
    let Some((last, before)) = chosen.split_last() else { return 0.0 };
    let largest = logits[*last];
    let is_far = |logit: f32| largest - logit > tolerance * logit.abs().max(largest);
    let others = logits.iter().enumerate().filter(|(expert, _)| !before.contains(expert));
    let sum: f64 = others.filter(|(_, logit)| !is_far(**logit)).map(|(_, logit)| f64::from(logit - largest).exp()).sum();
    1.0 / sum
}

fn number(key: f32) -> f32 {
    if key.is_nan() { f32::NEG_INFINITY } else { key }
}

/// The candidates with the largest keys, largest first.
fn largest(keys: &[f32], mut candidates: Vec<usize>, count: usize) -> Vec<usize> {
    let key = |candidate: &usize| number(keys[*candidate]);
    // Stable, so equal keys stay in order. −0 and 0 are equal.
    candidates.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(std::cmp::Ordering::Equal));
    candidates.truncate(count);
    candidates
}

pub(super) fn check_experts(experts: u32, top: u32) -> Result<(), String> {
    match top > 0 && top <= experts && experts as usize <= MAX_EXPERTS {
        true => Ok(()),
        false => Err(format!("{top} of {experts} experts; at most {MAX_EXPERTS} are supported")),
    }
}

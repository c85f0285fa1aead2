//! Samples tokens by the definition.

use crate::random::Draws;
use crate::sample::{
    BIASES, Settings, WINDOW, mask_words, narrow, scale_by_entropy, scaled, share, sigma_floor,
};

/// The record of one row at one step.
pub(crate) struct Record<'a> {
    settings: Settings,
    mask: Option<&'a [u32]>,
    biases: Vec<(u32, f32)>,
    /// The tokens that penalties apply to.
    window: Vec<u32>,
    /// Where the token found is written, in all words.
    pub(crate) end: usize,
}

impl Record<'_> {
    /// The record of a row; see [`crate::sample::Records`].
    pub(crate) fn read(all: &[u32], row: usize, vocab: usize, step: usize) -> Record<'_> {
        let head = size_of::<Settings>() / 4;
        let settings: Settings =
            bytemuck::pod_read_unaligned(bytemuck::cast_slice(&all[row * head..][..head]));
        let place = settings.place as usize;
        let masked = if settings.masked == 1 { mask_words(vocab) } else { 0 };
        let (mask, words) = all[place..].split_at(masked);
        let biases = (settings.biases as usize).min(BIASES);
        let (pairs, recent) = words.split_at(2 * biases);
        let known = (settings.recent as usize).min(WINDOW) + step;
        let window = (settings.window as usize).min(WINDOW).min(known);
        Record {
            settings,
            mask: (masked > 0).then_some(mask),
            biases: pairs.chunks_exact(2).map(|pair| (pair[0], f32::from_bits(pair[1]))).collect(),
            window: recent[known - window..known].to_vec(),
            end: place + masked + 2 * biases + known,
        }
    }

    /// `None` if a logit is NaN or no token is left.
    pub(crate) fn pick(&self, logits: &[f32], step: usize) -> Option<u32> {
        if logits.iter().any(|logit| !logit.is_finite()) {
            return None;
        }
        let settings = &self.settings;
        let edited = self.edited(logits);
        let scale = match settings.span > 0.0 {
            _ if settings.is_greedy() => 1.0,
            false => settings.inverse_temperature,
            true => scale_by_entropy(settings, &edited),
        };
        let floor = sigma_floor(settings, &edited, scale);
        let x: Vec<f32> = edited.iter().map(|logit| scaled(*logit, scale)).collect();
        let best = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if best == f32::NEG_INFINITY {
            return None;
        }
        let draw = join(settings.draw).wrapping_add(step as u64);
        let mut draws = Draws::new(join(settings.seed), draw);
        let mut score = |id: usize| match settings.is_greedy() {
            true => x[id],
            false => x[id] + draws.gumbel(id as u32),
        };
        let mut winner: Option<(f32, usize)> = None;
        for id in self.kept(&x, best, floor, draw) {
            let score = score(id);
            if winner.is_none_or(|(most, first)| score > most || (score == most && id < first)) {
                winner = Some((score, id));
            }
        }
        winner.map(|(_, id)| id as u32)
    }

    /// The logits with biases and penalties; −∞ for those that the mask excludes.
    fn edited(&self, logits: &[f32]) -> Vec<f32> {
        let (mut logits, mut counts) = (logits.to_vec(), vec![0; logits.len()]);
        for &(id, bias) in &self.biases {
            logits.get_mut(id as usize).into_iter().for_each(|logit| *logit += bias);
        }
        for &id in &self.window {
            counts.get_mut(id as usize).into_iter().for_each(|count| *count += 1);
        }
        let may_follow = |id: usize| self.mask.is_none_or(|mask| mask[id / 32] >> (id % 32) & 1 == 1);
        for (id, (logit, count)) in logits.iter_mut().zip(counts).enumerate() {
            *logit = if count > 0 { self.settings.penalised(*logit, count) } else { *logit };
            *logit = if may_follow(id) { *logit } else { f32::NEG_INFINITY };
        }
        logits
    }

    /// The tokens that pass every limit, for scaled logits, best first.
    fn kept(&self, scaled: &[f32], best: f32, floor: f32, draw: u64) -> Vec<usize> {
        let mut ids: Vec<usize> = (0..scaled.len()).filter(|id| scaled[*id] > f32::NEG_INFINITY).collect();
        if self.settings.is_greedy() {
            return ids;
        }
        ids.sort_by(|a, b| scaled[*b].total_cmp(&scaled[*a]));
        let total = ids.iter().map(|id| share(scaled[*id] - best)).sum();
        let (mut better, mut weight, mut kept) = (0, 0, 0);
        for equals in ids.chunk_by(|a, b| scaled[*a] == scaled[*b]) {
            let x = scaled[equals[0]];
            if !(self.settings.keeps(x - best, better, weight, total) && x >= floor) {
                break;
            }
            kept += equals.len();
            better += equals.len() as u32;
            weight += equals.len() as u64 * share(x - best);
        }
        ids.truncate(kept);
        let mut values: Vec<f32> = ids.iter().map(|id| scaled[*id]).collect();
        let (least, most) = narrow(&self.settings, &mut values, best, draw);
        ids.retain(|id| (least..=most).contains(&scaled[*id]));
        ids
    }
}

fn join([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

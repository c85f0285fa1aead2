//! Log probabilities of tokens.

use super::TokenLogprob;

/// The log probabilities of token `id` and of the `best` most probable tokens, from finite logits.
pub(super) fn logprob(logits: &[f32], id: u32, best: usize) -> TokenLogprob {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let all = largest + sum.ln();
    let of = |logit: f32| (f64::from(logit) - all) as f32;
    let best = best.min(logits.len());
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(best + 1);
    for (&logit, id) in logits.iter().zip(0..) {
        if top.len() < best || top.last().is_some_and(|&(_, least)| logit > least) {
            let place = top.partition_point(|&(_, better)| better >= logit);
            top.insert(place, (id, logit));
            top.truncate(best);
        }
    }
    top.iter_mut().for_each(|(_, logit)| *logit = of(*logit));
    TokenLogprob { id, logprob: of(logits[id as usize]), top }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_whole_vocabulary() {
        // 1 : 2 : 4 : 1 of 8.
        let logits = [0f32, 2f32.ln(), 4f32.ln(), 0.0].map(|l| l + 90.0);
        let found = logprob(&logits, 1, 3);
        let close = |a: f32, share: f32| (a - share.ln()).abs() < 1e-5;
        assert!(found.id == 1 && close(found.logprob, 0.25), "{found:?}");
        // Descending, and by id among equals.
        assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 1, 0]);
        assert!(close(found.top[0].1, 0.5) && close(found.top[2].1, 0.125), "{found:?}");
        assert_eq!(logprob(&logits, 3, 0).top, []);
        assert_eq!(logprob(&logits, 0, 9).top.len(), 4);
    }
}

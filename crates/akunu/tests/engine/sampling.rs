//! Compares the sampler with a naive one, and its draws with their distribution.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use akunu::random::{Draws, ln};
use akunu::{Error, Sampler, Sampling};
use akunu_plan::sample::{Settings, scale_by_entropy};
use proptest::prelude::*;

const VOCAB: usize = 50;

/// The definition, in float64 and with a full sort. `None`: a sum is so close to top-p that rounding decides.
fn naive(sampling: &Sampling, logits: &[f32], history: &[u32]) -> Option<u32> {
    let mut logits = logits.to_vec();
    for id in 0..logits.len() as u32 {
        let biases = sampling.logit_bias.iter().filter(|bias| bias.0 == id);
        logits[id as usize] += biases.map(|bias| bias.1).reduce(|a, b| a + b).unwrap_or(0.0);
    }
    let recent = &history[history.len().saturating_sub(sampling.repeat_last_n)..];
    for (id, logit) in logits.iter_mut().enumerate() {
        let count = recent.iter().filter(|&&r| r as usize == id).count();
        if count > 0 {
            let penalty = sampling.repeat_penalty;
            let l = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            *logit = l - (count as f32 * sampling.frequency_penalty + sampling.presence_penalty);
        }
    }
    let mut sorted: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if sampling.temperature == 0.0 {
        return Some(sorted[0].1);
    }
    let possible: Vec<f64> =
        sorted.iter().filter(|c| c.0 > f32::NEG_INFINITY).map(|c| f64::from(c.0)).collect();
    let scale = match sampling.dynatemp_range > 0.0 {
        true => dynamic_scale(sampling, &possible),
        false => 1.0 / sampling.temperature,
    };
    let mean = possible.iter().sum::<f64>() / possible.len() as f64;
    let variance = possible.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / possible.len() as f64;
    let sigma_floor = f64::from(sorted[0].0) - f64::from(sampling.top_n_sigma) * variance.sqrt();
    let unscaled: Vec<f32> = sorted.iter().map(|c| c.0).collect();
    sorted.iter_mut().for_each(|c| c.0 *= scale);
    let best = sorted[0].0;
    let weight = |c: &(f32, u32)| f64::from(c.0 - best).exp();
    let total: f64 = sorted.iter().map(weight).sum();
    let (mut kept, mut better, mut reached) = (vec![], 0, 0.0);
    for (equals, logit) in sorted.chunk_by(|a, b| a.0 == b.0).zip(unscaled.chunk_by(|a, b| a == b)) {
        let logit = f64::from(logit[0]);
        if sampling.top_n_sigma > 0.0 && better > 0 {
            if (logit - sigma_floor).abs() < 0.01 {
                return None;
            }
            if logit < sigma_floor {
                break;
            }
        }
        let enough = f64::from(sampling.top_p) * total;
        if sampling.top_p < 1.0 && (reached / enough - 1.0).abs() < 1e-5 {
            return None;
        }
        let inside = (sampling.top_k == 0 || better < sampling.top_k)
            && (sampling.top_p == 1.0 || better == 0 || reached < enough)
            && (sampling.min_p == 0.0 || equals[0].0 - best >= ln(sampling.min_p));
        if inside {
            kept.extend_from_slice(equals);
        }
        better += equals.len();
        reached += equals.iter().map(weight).sum::<f64>();
    }
    if sampling.typical_p < 1.0 {
        naive_typical(&mut kept, f64::from(sampling.typical_p))?;
    }
    if sampling.xtc_probability == 1.0 {
        let total: f64 = kept.iter().map(weight).sum();
        let enough = f64::from(sampling.xtc_threshold) * total;
        if kept.iter().any(|c| (weight(c) / enough - 1.0).abs() < 1e-5) {
            return None;
        }
        let choices: Vec<f32> =
            kept.iter().filter(|c| weight(c) >= enough && weight(c) > 1e-9).map(|c| c.0).collect();
        if choices.len() > 1 {
            let least = choices.into_iter().fold(f32::INFINITY, f32::min);
            kept.retain(|c| c.0 <= least);
        }
    }
    let mut draws = Draws::new(sampling.seed, history.len() as u64);
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    kept.sort_by_key(|c| c.1);
    for (logit, id) in kept {
        let drawn = logit + draws.gumbel(id);
        if drawn > best.0 {
            best = (drawn, id);
        }
    }
    Some(best.1)
}

/// The inverse temperature that is defined, whose last digits decide between draws that are nearly equal, after a
/// comparison with float64.
fn dynamic_scale(sampling: &Sampling, logits: &[f64]) -> f32 {
    let (temperature, range) = (sampling.temperature, sampling.dynatemp_range);
    let coolest = (temperature - range).max(0.0);
    let (span, exponent) = (temperature + range - coolest, sampling.dynatemp_exponent);
    let settings = Settings { coolest, span, exponent, ..Settings::default() };
    let values: Vec<f32> = logits.iter().map(|l| *l as f32).collect();
    let scale = scale_by_entropy(&settings, &values);
    let difference = 1.0 / f64::from(scale) - naive_temperature(sampling, logits);
    assert!(
        difference.abs() < 3e-3 * f64::from(temperature + range),
        "{difference}: {sampling:?} {logits:?}"
    );
    scale
}

/// By the entropy of the logits, relative to its maximum.
fn naive_temperature(sampling: &Sampling, logits: &[f64]) -> f64 {
    let total: f64 = logits.iter().map(|l| (l - logits[0]).exp()).sum();
    let probabilities = logits.iter().map(|l| (l - logits[0]).exp() / total);
    let entropy: f64 = probabilities.map(|p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum();
    let relative = if logits.len() > 1 { entropy / (logits.len() as f64).ln() } else { 0.0 };
    let (temperature, range) = (f64::from(sampling.temperature), f64::from(sampling.dynatemp_range));
    let coolest = (temperature - range).max(0.0);
    coolest + (temperature + range - coolest) * relative.powf(f64::from(sampling.dynatemp_exponent))
}

/// Keeps the tokens whose surprise is nearest to the entropy. `None`: rounding decides.
fn naive_typical(kept: &mut Vec<(f32, u32)>, part: f64) -> Option<()> {
    let best = f64::from(kept[0].0);
    let total: f64 = kept.iter().map(|c| (f64::from(c.0) - best).exp()).sum();
    let probability = |c: &(f32, u32)| (f64::from(c.0) - best).exp() / total;
    let surprise = |p: f64| if p > 0.0 { -p.ln() } else { f64::INFINITY };
    let entropy: f64 =
        kept.iter().map(probability).map(|p| if p > 0.0 { p * surprise(p) } else { 0.0 }).sum();
    let shift = |c: &(f32, u32)| (surprise(probability(c)) - entropy).abs();
    kept.sort_by(|a, b| shift(a).total_cmp(&shift(b)));
    let (mut reached, mut count) = (0.0, 0);
    while count < kept.len() && (count == 0 || reached < part) {
        reached += probability(&kept[count]);
        count += 1;
        if (reached - part).abs() < 1e-5 {
            return None;
        }
    }
    // Sums of surprise are rounded to a part in 4,096, which may exchange neighbours at the end.
    let reach = shift(&kept[count - 1]);
    if kept.iter().any(|c| (shift(c) - reach).abs() < 1e-3 && c.0 != kept[count - 1].0) {
        return None;
    }
    let equal = kept[count..].iter().take_while(|c| c.0 == kept[count - 1].0).count();
    kept.truncate(count + equal);
    Some(())
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let filters = (
        prop_oneof![Just(0.0f32), 0.05f32..3.0],
        prop_oneof![Just(0usize), 1usize..60],
        prop_oneof![Just(1.0f32), 0.0f32..1.0],
        prop_oneof![Just(0.0f32), 0.001f32..0.9],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -1.0f32..1.0],
        prop_oneof![Just(0.0f32), -1.0f32..1.0],
        0usize..20,
    );
    let bias =
        prop::collection::vec((0..VOCAB as u32, prop_oneof![Just(f32::NEG_INFINITY), -5.0f32..5.0]), 0..4);
    (filters, penalties, bias, any::<u64>()).prop_map(|(filters, penalties, logit_bias, seed)| Sampling {
        temperature: filters.0,
        top_k: filters.1,
        top_p: filters.2,
        min_p: filters.3,
        repeat_penalty: penalties.0,
        frequency_penalty: penalties.1,
        presence_penalty: penalties.2,
        repeat_last_n: penalties.3,
        logit_bias,
        seed,
        ..Sampling::default()
    })
}

/// Dynamic temperature and the limits by the shape of the distribution, together with the others.
fn shaped() -> impl Strategy<Value = Sampling> {
    let shape = (
        prop_oneof![Just(0.0f32), 0.1f32..3.0],
        prop_oneof![Just(1.0f32), 0.05f32..1.0],
        prop_oneof![Just(0.0f32), Just(1.0f32)],
        0.0f32..0.5,
        prop_oneof![Just(0.0f32), 0.1f32..2.0],
        prop_oneof![Just(1.0f32), 0.3f32..3.0],
    );
    (sampling(), shape).prop_map(|(sampling, shape)| Sampling {
        temperature: sampling.temperature.max(0.05),
        top_n_sigma: shape.0,
        typical_p: shape.1,
        xtc_probability: shape.2,
        xtc_threshold: shape.3,
        dynatemp_range: shape.4,
        dynatemp_exponent: shape.5,
        ..sampling
    })
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    // With and without many ties.
    prop_oneof![
        prop::collection::vec(-12.0f32..12.0, VOCAB),
        prop::collection::vec((-4i32..4).prop_map(|l| l as f32), VOCAB),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn picks_what_the_definition_picks(
        sampling in sampling(),
        logits in logits(),
        history in prop::collection::vec(0..VOCAB as u32, 0..30),
    ) {
        let mut sampler = Sampler::new(&sampling, VOCAB).unwrap();
        let Some(expected) = naive(&sampling, &logits, &history) else { return Ok(()) };
        prop_assert_eq!(sampler.pick(&logits, &history).unwrap(), expected);
        // Again, because a call must leave no state.
        prop_assert_eq!(sampler.pick(&logits, &history).unwrap(), expected);
    }

    #[test]
    fn shaped_distributions_are_picked_from_as_defined(sampling in shaped(), logits in logits()) {
        let mut sampler = Sampler::new(&sampling, VOCAB).unwrap();
        let Some(expected) = naive(&sampling, &logits, &[1, 2, 1]) else { return Ok(()) };
        prop_assert_eq!(sampler.pick(&logits, &[1, 2, 1]).unwrap(), expected);
    }

    /// A large vocabulary, of which top-p sorts only a part.
    #[test]
    fn large_vocabularies_are_picked_from_alike(seed in any::<u64>(), top_p in 0.5f32..0.999, scale in 0.01f32..4.0) {
        let mut draws = Draws::new(seed, 0);
        let logits: Vec<f32> = (0..3000).map(|id| scale * draws.gumbel(id)).collect();
        let sampling = Sampling { temperature: 1.0, top_p, seed, ..Default::default() };
        let mut sampler = Sampler::new(&sampling, logits.len()).unwrap();
        let Some(expected) = naive(&sampling, &logits, &[1, 2]) else { return Ok(()) };
        prop_assert_eq!(sampler.pick(&logits, &[1, 2]).unwrap(), expected);
    }
}

/// χ² of `n` draws at as many positions against exact probabilities.
fn chi_squared(sampling: &Sampling, logits: &[f32], probabilities: &[f64], n: usize) -> f64 {
    let mut sampler = Sampler::new(sampling, logits.len()).unwrap();
    let history = vec![0; n];
    let mut counts = vec![0usize; logits.len()];
    for position in 0..n {
        counts[sampler.pick(logits, &history[..position]).unwrap() as usize] += 1;
    }
    let mut sum = 0.0;
    for (&count, &p) in counts.iter().zip(probabilities) {
        if p == 0.0 {
            assert_eq!(count, 0, "a token that was ruled out came up");
            continue;
        }
        let expected = p * n as f64;
        sum += (count as f64 - expected).powi(2) / expected;
    }
    sum
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

const EIGHT: [f32; 8] = [2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, 1.0];

/// With 7 degrees of freedom, χ² is above 24.3 once in a thousand times by chance; the seeds are fixed, so it is not by chance.
#[test]
fn draws_follow_the_softmax() {
    for seed in [0, 1, 42, u64::MAX] {
        for temperature in [0.7, 1.0, 1.8] {
            let sampling = Sampling { temperature, seed, ..Default::default() };
            let exact = softmax(&EIGHT, f64::from(temperature));
            let found = chi_squared(&sampling, &EIGHT, &exact, 20_000);
            assert!(found < 24.3, "seed {seed}, temperature {temperature}: χ² {found}");
            // The test has power: the same draws do not fit another distribution.
            let other =
                chi_squared(&sampling, &EIGHT, &softmax(&EIGHT, f64::from(temperature) * 1.1), 20_000);
            assert!(
                other > 24.3,
                "seed {seed}, temperature {temperature}: χ² {other} for another temperature"
            );
        }
    }
}

#[test]
fn draws_after_limits_follow_the_softmax_of_the_rest() {
    let kept = |keep: &[usize]| {
        let exact = softmax(&EIGHT, 1.0);
        let total: f64 = keep.iter().map(|&id| exact[id]).sum();
        (0..8).map(|id| if keep.contains(&id) { exact[id] / total } else { 0.0 }).collect::<Vec<f64>>()
    };
    // Ids 2 and 7 tie, so both or neither are kept.
    for (sampling, keep) in [
        (Sampling { top_k: 2, ..Default::default() }, vec![0, 1]),
        (Sampling { top_k: 3, ..Default::default() }, vec![0, 1, 2, 7]),
        // 0.35, 0.57, 0.70: the third reaches it, and the fourth ties with it.
        (Sampling { top_p: 0.65, ..Default::default() }, vec![0, 1, 2, 7]),
        (Sampling { top_p: 0.55, ..Default::default() }, vec![0, 1]),
        // Top-p is relative to the whole vocabulary, not to what top-k keeps: 0.57 of 1, not of 0.83.
        (Sampling { top_p: 0.6, top_k: 4, ..Default::default() }, vec![0, 1, 2, 7]),
        // e⁻¹ = 0.368 is above it, e⁻¹·⁵ = 0.223 below.
        (Sampling { min_p: 0.3, ..Default::default() }, vec![0, 1, 2, 7]),
        (
            Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], top_k: 2, ..Default::default() },
            vec![1, 2, 7],
        ),
    ] {
        let sampling = Sampling { temperature: 1.0, seed: 3, ..sampling };
        let found = chi_squared(&sampling, &EIGHT, &kept(&keep), 20_000);
        assert!(found < 24.3, "{sampling:?}: χ² {found}");
    }
}

#[test]
fn neighbouring_positions_and_seeds_draw_independently() {
    // Pairs of draws at neighbouring positions, over 4 equal tokens: 16 cells, 15 degrees of freedom, 37.7 at 0.1 %.
    let logits = [0.0f32; 4];
    for seed in [5, 6] {
        let mut sampler =
            Sampler::new(&Sampling { temperature: 1.0, seed, ..Default::default() }, 4).unwrap();
        let history = vec![0; 20_001];
        let drawn: Vec<u32> = (0..20_001).map(|n| sampler.pick(&logits, &history[..n]).unwrap()).collect();
        let mut counts = [0.0f64; 16];
        drawn.windows(2).for_each(|w| counts[(w[0] * 4 + w[1]) as usize] += 1.0);
        let chi: f64 = counts.iter().map(|c| (c - 1250.0).powi(2) / 1250.0).sum();
        assert!(chi < 37.7, "seed {seed}: χ² {chi}");
    }
}

#[test]
fn penalties_are_applied() {
    let pick = |sampling: Sampling, logits: &[f32], history: &[u32]| {
        Sampler::new(&sampling, logits.len()).unwrap().pick(logits, history).unwrap()
    };
    let logits = [3.0, 2.0, 1.0, -1.0];
    let frequency = Sampling { frequency_penalty: 0.6, ..Default::default() };
    assert_eq!(pick(frequency.clone(), &logits, &[0]), 0);
    assert_eq!(pick(frequency, &logits, &[0, 0]), 1);
    let presence = Sampling { presence_penalty: 0.6, ..Default::default() };
    assert_eq!(pick(presence, &logits, &[0, 0, 0]), 0);
    let repeat = Sampling { repeat_penalty: 2.0, repeat_last_n: 2, ..Default::default() };
    assert_eq!(pick(repeat.clone(), &logits, &[0, 2, 3]), 0, "it has left the window");
    assert_eq!(pick(repeat.clone(), &logits, &[3, 0]), 1);
    assert_eq!(pick(repeat, &[-3.0, -1.0, -1.5, -9.0], &[1]), 2, "negative logits become more so");
}

#[test]
fn invalid_settings_are_refused() {
    let refused = [
        Sampling { temperature: -1.0, ..Default::default() },
        Sampling { temperature: f32::NAN, ..Default::default() },
        Sampling { top_p: 1.5, ..Default::default() },
        Sampling { min_p: -0.1, ..Default::default() },
        Sampling { repeat_penalty: 0.0, ..Default::default() },
        Sampling { frequency_penalty: f32::INFINITY, ..Default::default() },
        Sampling { presence_penalty: f32::NAN, ..Default::default() },
        Sampling { logit_bias: vec![(1, f32::NAN)], ..Default::default() },
    ];
    for sampling in refused {
        let error = Sampler::new(&sampling, 8).unwrap_err();
        assert!(matches!(error, Error::Setting { .. }), "{sampling:?}: {error}");
    }
    let outside = Sampling { logit_bias: vec![(8, 1.0)], ..Default::default() };
    assert!(matches!(Sampler::new(&outside, 8), Err(Error::TokenOutsideVocabulary { id: 8, .. })));
}

#[test]
fn nan_logits_and_excluding_every_token_are_errors() {
    let mut sampler = Sampler::new(&Sampling { temperature: 1.0, ..Default::default() }, 3).unwrap();
    for bad in [f32::NAN, f32::INFINITY] {
        let error = sampler.pick(&[0.0, bad, 1.0], &[0; 6]).unwrap_err();
        assert!(matches!(error, Error::NotFinite { position: 5 }), "{error}");
    }
    let none =
        Sampling { logit_bias: (0..3).map(|id| (id, f32::NEG_INFINITY)).collect(), ..Default::default() };
    let error = Sampler::new(&none, 3).unwrap().pick(&[0.0; 3], &[0]).unwrap_err();
    assert!(matches!(error, Error::NothingToPick), "{error}");
}

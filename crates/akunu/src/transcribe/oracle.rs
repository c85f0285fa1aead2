//! The rules and the search, compared with OpenAI's own decoding of made-up logits (`training/whisper_decoding.py`).

use serde_json::Value;

use akunu_tokenizer::SpeechTokens;

use super::decode::longest_text;
use super::rules::{Rules, Scored, probability};
use super::search::{Method, Search};

const GOLDEN: &str = include_str!("../../../../testdata/whisper/decoding.json");

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn logits_after(seed: u64, tokens: &[u32], speech: &SpeechTokens) -> Vec<f32> {
    let state =
        tokens.iter().fold(mix(seed + 1), |state, &token| mix(state.wrapping_add(u64::from(token) + 1)));
    let first = speech.timestamps.start;
    let due = 40 * tokens.len() as i64;
    let logit = |id: u32| {
        let hash = mix(state.wrapping_add(u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let value = (hash >> 41) as f32 / 1_048_576.0;
        if id >= first {
            let off = (i64::from(id - first) - due).abs().min(512);
            value - 3.0 - off as f32 / 64.0
        } else if id == speech.end {
            value + tokens.len() as f32 / if seed % 2 == 1 { 2.0 } else { 8.0 } - 4.0
        } else {
            value
        }
    };
    (0..speech.timestamps.end).map(logit).collect()
}

fn speech(text: u32) -> SpeechTokens {
    SpeechTokens {
        end: text,
        start: text + 1,
        languages: vec![("en".into(), text + 2), ("de".into(), text + 3)],
        translate: Some(text + 4),
        transcribe: Some(text + 5),
        start_of_lm: Some(text + 6),
        previous: Some(text + 7),
        no_speech: Some(text + 8),
        no_timestamps: text + 9,
        timestamps: text + 10..text + 10 + 1501,
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(|id| id.as_u64().map(|id| id as u32)).collect()
}

#[test]
fn tokens_and_probabilities_are_those_of_openai() {
    let golden: Value = serde_json::from_str(GOLDEN).expect("JSON");
    let number = |value: &Value| value.as_f64().expect("a number");
    let speech = speech(number(&golden["text"]) as u32);
    let rules = Rules::new(&speech, &[3, 17, 41], vec![7]);
    let cases = golden["cases"].as_array().expect("cases");
    let mut lengths: Vec<usize> = Vec::new();
    for case in cases {
        let (seed, prompt) = (number(&case["seed"]) as u64, ids(&case["prompt"]));
        let with_timestamps = case["timestamps"].as_bool().expect("whether");
        let start = number(&case["start"]) as usize;
        let method = match number(&case["width"]) as usize {
            1 => Method::Greedy,
            width => Method::Beams { width, patience: number(&case["patience"]) as f32 },
        };
        let no_speech = speech.no_speech.expect("a token");
        let found = probability(&logits_after(seed, &prompt[..=start], &speech), no_speech);
        assert!((found.expect("finite") - number(&case["no_speech"])).abs() < 1e-6);

        let longest = longest_text(number(&golden["context"]) as usize, prompt.len());
        let mut search = Search::new(method, speech.end, longest);
        // What the cache of each slot has.
        let mut slots = vec![prompt.clone(); Search::slots(method)];
        while !search.live().is_empty() {
            let mut rows = Vec::new();
            for live in search.live() {
                let sequence = [&prompt[..], &live.tokens].concat();
                if let Some((last, before)) = live.tokens.split_last() {
                    assert_eq!(slots[live.slot], [&prompt[..], before].concat(), "the slot of a text");
                    slots[live.slot].push(*last);
                }
                rows.push((logits_after(seed, &sequence, &speech), live.tokens.clone()));
            }
            let scored: Vec<Scored<'_>> = rows
                .iter_mut()
                .map(|(logits, sampled)| rules.apply(logits, sampled, with_timestamps).expect("finite"))
                .collect();
            for copied in search.advance(&scored) {
                slots[copied.to] = slots[copied.from].clone();
            }
        }
        let result = search.result().expect("a text");
        assert_eq!(result.tokens, ids(&case["tokens"]), "{case}");
        let difference = result.mean_log_probability() - number(&case["mean_log_probability"]);
        assert!(difference.abs() < 2e-6, "{case}: {difference}");
        lengths.push(result.tokens.len());
    }
    lengths.sort_unstable();
    lengths.dedup();
    assert!(cases.len() >= 70 && lengths.len() > 5, "texts of {lengths:?} tokens");
}

#[test]
fn samples_follow_the_probabilities_and_are_the_same_for_a_seed() {
    let mut logits = [0.0, 2f32.ln(), 5f32.ln(), f32::NEG_INFINITY];
    let speech = SpeechTokens { timestamps: 4..4, ..speech(100) };
    let rules = Rules::new(&speech, &[], vec![]);
    let scored = rules.apply(&mut logits, &[1], false).expect("finite");
    let count =
        |token: u32| (0..800).filter(|i| scored.sample(1.0, (f64::from(*i) + 0.5) / 800.0) == token).count();
    assert_eq!([0, 1, 2, 3].map(count), [100, 200, 500, 0]);
    // Squared at half the temperature.
    let cold = (0..300).filter(|i| scored.sample(0.5, (f64::from(*i) + 0.5) / 300.0) == 2).count();
    assert_eq!(cold, 250);
    assert_eq!(scored.top(3), [2, 1, 0]);
    assert!((scored.log_probability(2) - (5f64 / 8.0).ln()).abs() < 1e-6);
}

#[test]
fn logits_that_are_not_finite_are_found() {
    let speech = speech(60);
    let rules = Rules::new(&speech, &[], vec![]);
    for bad in [f32::NAN, f32::INFINITY] {
        for at in [5, 100] {
            let mut logits = vec![0.0; 1571];
            logits[at] = bad;
            assert!(rules.apply(&mut logits, &[1, 2], true).is_none(), "{bad} at {at}");
        }
    }
    assert!(rules.apply(&mut vec![f32::NEG_INFINITY; 1571], &[], false).is_none());
}

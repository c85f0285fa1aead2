//! Words and their times against OpenAI's implementation (`training/alignment_goldens.py`).
#![allow(clippy::unwrap_used)]

use std::path::Path;

use akunu::transcribe::align::{Scores, first_frames, matrix, path};
use akunu::transcribe::words::{Timed, Token, Word, assign, probability, split, words};
use serde_json::Value;

use crate::common::{floats, ids, json};

fn cases(of: &str) -> Vec<Value> {
    let golden = json(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/alignment.json"));
    golden[of].as_array().unwrap().clone()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().into()
}

/// `[[id, hexadecimal bytes]]`
fn tokens(value: &Value) -> Vec<(u32, Vec<u8>)> {
    let bytes = |hex: &str| {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let all = value.as_array().unwrap().iter();
    all.map(|token| (number(&token[0]) as u32, bytes(token[1].as_str().unwrap()))).collect()
}

fn views<'a>(tokens: &'a [(u32, Vec<u8>)], probabilities: &[f64]) -> Vec<Token<'a>> {
    let all = tokens.iter().enumerate();
    all.map(|(i, (id, bytes))| {
        let probability = probabilities.get(i).copied().unwrap_or(0.0) as f32;
        Token { id: *id, bytes, probability }
    })
    .collect()
}

/// `[[text, [id], start, end, probability]]`
fn timed(value: &Value) -> Vec<Word> {
    let word = |word: &Value| {
        let [start, end, probability] = [2, 3, 4].map(|i: usize| word[i].as_f64().unwrap());
        Word { text: text(&word[0]), tokens: ids(&word[1]), start, end, probability }
    };
    value.as_array().unwrap().iter().map(word).collect()
}

fn assert_close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() <= tolerance, "{i}: {found} is not {wanted}");
    }
}

#[test]
fn texts_are_split_into_openai_words() {
    let cases = cases("splits");
    assert!(cases.len() > 50);
    for case in cases {
        let tokens = tokens(&case["tokens"]);
        let wanted: Vec<(String, usize)> =
            case["words"].as_array().unwrap().iter().map(|word| (text(&word[0]), number(&word[1]))).collect();
        assert_eq!(split(&views(&tokens, &[]), case["language"].as_str().unwrap()), wanted, "{case}");
    }
}

#[test]
fn no_token_is_lost_with_bytes_that_are_no_characters() {
    // OpenAI's code loses the second token here, and all after it.
    let tokens = [vec![0xe6], vec![0x97], b"a".to_vec(), b" b".to_vec()].map(|bytes| (1, bytes));
    for language in ["en", "ja"] {
        let words = split(&views(&tokens, &[]), language);
        assert_eq!(words.iter().map(|word| word.1).sum::<usize>(), 4, "{words:?}");
    }
    assert_eq!(split(&[], "en"), []);
}

#[test]
fn paths_are_those_of_openai() {
    for case in cases("paths") {
        let first: Vec<usize> = case["first"].as_array().unwrap().iter().map(number).collect();
        let found = path(&floats(&case["matrix"]), number(&case["frames"])).unwrap();
        assert_eq!(found, first, "{case}");
    }
}

#[test]
fn words_of_a_window_have_openai_times() {
    for case in cases("windows") {
        let values: Vec<f32> = floats(&case["scores"]).into_iter().map(|score| score as f32).collect();
        let [heads, positions, frames, before] =
            ["heads", "positions", "frames", "before"].map(|key| number(&case[key]));
        let scores = Scores { values: &values, heads, positions };
        let inner = before..scores.tokens() - 1;
        let all = matrix(scores, frames).unwrap();
        let wanted = floats(&case["matrix"]);
        assert_close(&all[inner.start * frames..inner.end * frames], &wanted, 2e-5);
        let begins = first_frames(scores, frames, inner).unwrap();
        let (tokens, probabilities) = (tokens(&case["tokens"]), floats(&case["probabilities"]));
        let found = words(&views(&tokens, &probabilities), case["language"].as_str().unwrap(), &begins);
        let wanted = timed(&case["words"]);
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            assert_eq!((&found.text, &found.tokens), (&wanted.text, &wanted.tokens));
            let numbers = |word: &Word| [word.start, word.end, word.probability];
            assert_close(&numbers(found), &numbers(wanted), 1e-9);
        }
    }
}

#[test]
fn segments_and_words_have_openai_times() {
    let mut moved = 0;
    for case in cases("assigned") {
        let number = |key: &str| case[key].as_f64().unwrap();
        let part = |value: &Value| Timed {
            start: value[0].as_f64().unwrap(),
            end: value[1].as_f64().unwrap(),
            tokens: value[2].as_u64().unwrap() as usize,
            words: vec![],
        };
        let mut segments: Vec<Timed> = case["segments"].as_array().unwrap().iter().map(part).collect();
        let before = segments.clone();
        let mut last_speech = number("last_speech");
        assign(timed(&case["alignment"]), &mut segments, number("offset"), &mut last_speech);
        let wanted = case["result"].as_array().unwrap();
        for ((segment, wanted), before) in segments.iter().zip(wanted).zip(&before) {
            assert_close(
                &[segment.start, segment.end],
                &floats(&wanted.as_array().unwrap()[..2].into()),
                1e-9,
            );
            moved += usize::from(segment.start != before.start);
            let words = wanted[2].as_array().unwrap();
            assert_eq!(segment.words.len(), words.len(), "{case}");
            for (found, wanted) in segment.words.iter().zip(words) {
                assert_eq!(found.text, text(&wanted[0]));
                let numbers = [1, 2, 3].map(|i: usize| wanted[i].as_f64().unwrap());
                assert_close(&[found.start, found.end, found.probability], &numbers, 1e-9);
            }
        }
        let last = segments.iter().rfind(|segment| !segment.words.is_empty());
        assert_eq!(last_speech, last.map_or(number("last_speech"), |segment| segment.end));
    }
    assert!(moved > 0);
}

#[test]
fn a_token_has_its_probability_among_those_of_text() {
    let logits = [0.0, 2.0f32.ln(), 3.0f32.ln(), 90.0];
    let found = [0, 1, 2, 3].map(|token| f64::from(probability(&logits, 3, token)));
    assert_close(&found, &[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0, 0.0], 1e-7);
    assert_eq!(probability(&[], 3, 1), 0.0);
}

#[test]
fn heads_that_attend_alike_at_all_tokens_say_nothing() {
    let values = [0.3f32, -1.7, 4.1, 0.9, -200.0].repeat(7 * 3);
    let scores = Scores { values: &values, heads: 3, positions: 5 };
    assert_eq!(matrix(scores, 5).unwrap(), [0.0; 35]);
}

#[test]
fn scores_without_frames_or_numbers_are_harmless() {
    let values = [0.0f32; 24];
    let scores = Scores { values: &values, heads: 2, positions: 4 };
    let none: Vec<usize> = vec![];
    assert_eq!(first_frames(scores, 0, 0..3).unwrap(), none);
    assert_eq!(first_frames(scores, 9, 0..9).unwrap().len(), 3);
    assert_eq!(first_frames(Scores { values: &[], heads: 0, positions: 0 }, 5, 0..1).unwrap(), none);
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0].repeat(6);
    let scores = Scores { values: &values, heads: 2, positions: 4 };
    assert_eq!(first_frames(scores, 4, 0..3).unwrap().len(), 3);
    assert_eq!(first_frames(scores, 4, 2..2).unwrap(), none);
    assert_eq!(words(&[], "en", &[]), []);
    let token = Token { id: 0, bytes: b"a", probability: 1.0 };
    assert_eq!(words(&[token], "en", &[3]), []);
    assign(vec![], &mut [], 0.0, &mut 0.0);
}

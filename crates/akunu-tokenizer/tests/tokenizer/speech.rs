//! Whisper's vocabularies, from their ranks, from `tokenizer.json` and from the files before it, compared with OpenAI's
//! implementation.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::collections::BTreeMap;
use std::path::Path;

use akunu_tokenizer::{
    EncodeOptions, Model, NativeTokenizer, SpeechTokens, TokenKind, Tokenizer, TokenizerError, Vocabulary,
    language_code, language_name, non_speech_tokens,
};
use serde::Deserialize;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// What `training/whisper_tokens.py` writes.
#[derive(Deserialize)]
struct Goldens {
    names: BTreeMap<String, String>,
    texts: Vec<String>,
    vocabularies: BTreeMap<String, Golden>,
}

#[derive(Deserialize)]
struct Golden {
    file: String,
    rows: usize,
    languages: Vec<(String, u32)>,
    special: BTreeMap<String, u32>,
    non_speech: Vec<u32>,
    /// One list per text, or empty.
    ids: Vec<Vec<u32>>,
}

fn goldens() -> Goldens {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/whisper/tokens.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter(|digit| *digit != b'=').map(|digit| match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        _ => 63,
    });
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in digits {
        (bits, count) = (bits << 6 | u32::from(digit), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// The tokens of a tiktoken file, by rank.
fn ranks(file: &str) -> Option<Vec<Vec<u8>>> {
    let path = akunu_testing::data("whispers_vocabularies", &format!("whisper/{file}"))?;
    let text = std::fs::read_to_string(path).unwrap();
    let tokens = text.lines().enumerate().map(|(id, line)| {
        let (token, rank) = line.split_once(' ').unwrap();
        assert_eq!(rank.parse(), Ok(id));
        base64(token)
    });
    Some(tokens.collect())
}

fn vocabulary(golden: &Golden) -> Option<Vocabulary> {
    let tokens = ranks(&golden.file)?;
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    Some(Vocabulary::from_speech_ranks(&tokens, golden.rows).unwrap())
}

#[track_caller]
fn assert_special(golden: &Golden, tokenizer: &dyn Tokenizer) {
    let found = SpeechTokens::new(tokenizer, golden.rows).unwrap();
    let expected = |name: &str| golden.special[name];
    assert_eq!(
        found,
        SpeechTokens {
            start: expected("startoftranscript"),
            end: expected("endoftext"),
            languages: golden.languages.clone(),
            transcribe: Some(expected("transcribe")),
            translate: Some(expected("translate")),
            previous: Some(expected("startofprev")),
            start_of_lm: Some(expected("startoflm")),
            no_speech: Some(expected("nospeech")),
            no_timestamps: expected("notimestamps"),
            timestamps: expected("0.00")..expected("30.00") + 1,
        }
    );
    assert_eq!(found.timestamps.end as usize, golden.rows);
    assert_eq!(found.seconds(expected("30.00")), Some(30.0));
    assert_eq!(found.seconds(expected("notimestamps")), None);
    assert!(found.is_text(0) && found.is_text(found.end - 1) && !found.is_text(found.end));
    assert_eq!(found.language("en"), Some(found.start + 1));
    assert_eq!(found.language("yue").is_some(), golden.languages.len() == 100);
    assert_eq!(non_speech_tokens(tokenizer).unwrap(), golden.non_speech);
    assert!(tokenizer.is_end_of_generation(found.end));
}

#[track_caller]
fn assert_ids(goldens: &Goldens, golden: &Golden, tokenizer: &dyn Tokenizer) {
    for (text, ids) in goldens.texts.iter().zip(&golden.ids) {
        assert_eq!(&tokenizer.encode(text, PLAIN).unwrap(), ids, "{text:?}");
        assert_eq!(&tokenizer.decode(ids), text);
    }
}

#[test]
fn ranks_give_the_ids_of_openai() {
    let goldens = goldens();
    for (name, golden) in &goldens.vocabularies {
        let Some(vocabulary) = vocabulary(golden) else { return };
        assert_eq!((vocabulary.tokens.len(), name.as_str()), (golden.rows, name.as_str()));
        // All tokens but bytes and the empty one of multilingual vocabularies are merged from others.
        assert_eq!(vocabulary.merges.len(), 50_000, "{name}");
        let tokenizer = NativeTokenizer::new(vocabulary).unwrap();
        assert_special(golden, &tokenizer);
        assert_ids(&goldens, golden, &tokenizer);
    }
}

#[test]
fn control_tokens_are_not_part_of_text() {
    let goldens = goldens();
    let golden = &goldens.vocabularies["multilingual"];
    let Some(vocabulary) = vocabulary(golden) else { return };
    let tokenizer = NativeTokenizer::new(vocabulary).unwrap();
    let text = "<|startoftranscript|><|en|><|0.00|> Hi<|endoftext|>";
    let ids = tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true }).unwrap();
    assert_eq!(ids, [50258, 50259, 50364, 2421, 50257]);
    assert_eq!(tokenizer.decode(&ids), " Hi");
    let plain = tokenizer.encode(text, PLAIN).unwrap();
    assert!(plain.iter().all(|id| *id < 50257));
    assert_eq!(tokenizer.decode(&plain), text);
}

#[test]
fn languages_have_codes_and_names() {
    let goldens = goldens();
    for (name, code) in &goldens.names {
        assert_eq!(language_code(name), Some(code.as_str()), "{name}");
        assert_eq!(language_code(code), Some(code.as_str()));
    }
    let all = &goldens.vocabularies["large-v3"].languages;
    for (code, _) in all {
        assert_eq!(goldens.names[language_name(code).unwrap()], *code);
    }
    assert_eq!([language_code("GERMAN"), language_code("De")], [Some("de"); 2]);
    assert_eq!([language_code("klingon"), language_code("")], [None; 2]);
    assert_eq!(language_name("german"), None);
}

/// A vocabulary of few tokens, which lists its control tokens.
fn small(tokens: &[&str]) -> NativeTokenizer {
    let mut vocabulary = Vocabulary::new(Model::ByteLevel, "gpt-2");
    vocabulary.tokens = tokens.iter().copied().collect();
    let kind = |text: &&str| if text.len() > 1 { TokenKind::Control } else { TokenKind::Normal };
    vocabulary.kinds = tokens.iter().map(kind).collect();
    NativeTokenizer::new(vocabulary).unwrap()
}

#[test]
fn timestamps_that_are_not_listed_follow_the_control_tokens() {
    let listed = ["a", "b", "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|haw|>", "<|nocaptions|>"];
    let tokenizer = small(&[&listed[..], &["<|notimestamps|>"]].concat());
    let of = |rows| SpeechTokens::new(&tokenizer, rows).unwrap();
    let tokens = of(60);
    assert_eq!((tokens.end, tokens.start, tokens.no_speech, tokens.no_timestamps), (2, 3, Some(6), 7));
    assert_eq!(tokens.languages, [("en".to_string(), 4), ("haw".to_string(), 5)]);
    assert_eq!(
        (tokens.transcribe, tokens.translate, tokens.previous, tokens.start_of_lm),
        (None, None, None, None)
    );
    assert_eq!([of(60).timestamps, of(8).timestamps, of(0).timestamps], [8..60, 8..8, 8..8]);
    assert_eq!(of(5000).timestamps, 8..1509);
    assert_eq!(non_speech_tokens(&tokenizer).unwrap(), Vec::<u32>::new());
}

#[test]
fn other_vocabularies_are_not_of_speech() {
    let all = ["a", "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"];
    assert!(SpeechTokens::new(&small(&all), 9).is_some());
    for left_out in 1..all.len() {
        let rest: Vec<&str> = (0..all.len()).filter(|at| *at != left_out).map(|at| all[at]).collect();
        assert_eq!(SpeechTokens::new(&small(&rest), 9), None, "{rest:?}");
    }
    // Tokens of text would be taken for control tokens.
    assert_eq!(SpeechTokens::new(&small(&[all[2], all[3], all[0], all[1]]), 9), None);
}

#[test]
fn lists_that_do_not_fit_the_model_are_rejected() {
    let tokens = vec![&b"a"[..]; 60_000];
    let problem =
        |tokens: &[&[u8]], rows| Vocabulary::from_speech_ranks(tokens, rows).unwrap_err().to_string();
    let begin = "the vocabulary's list of tokens cannot be used: ";
    for (count, rows, expected) in [
        (50_255, 51_864, "it lists 50255 tokens of text, and 50256 are needed"),
        (50_256, 51_865, "it lists 50256 tokens of text, and 50257 are needed"),
        (50_257, 51_867, "the model has 51867 tokens, but the largest known vocabulary has 51866"),
        (60_000, 51_863, "it lists 60000 tokens, but the model has 51863"),
    ] {
        assert_eq!(problem(&tokens[..count], rows), format!("{begin}{expected}"));
    }
    let long = [b'a'; 600];
    let error = Vocabulary::from_speech_ranks(&[&long], 9).unwrap_err();
    assert!(matches!(error, TokenizerError::TokenTooLong { id: 0, len: 600, .. }), "{error}");
}

//! Whisper's vocabularies, from their ranks, from `tokenizer.json` and from the files before it, compared with OpenAI's
//! implementation.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::collections::BTreeMap;
use std::path::Path;

use akunu_tokenizer::{
    EncodeOptions, Model, NativeTokenizer, SpeechTokens, TokenKind, Tokenizer, TokenizerError, Vocabulary,
    from_folder, from_gguf, gguf_of_ranks, gguf_vocabulary, language_code, language_name, non_speech_tokens,
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

/// The files of a folder as Hugging Face publishes them: with a `tokenizer.json`, or with the files before it. `listed`:
/// the timestamps are in the vocabulary.
fn folder(vocabulary: &Vocabulary, listed: bool, json: bool) -> tempfile::TempDir {
    let controls = |id: &usize| vocabulary.kinds[*id] == TokenKind::Control;
    let text = |id: usize| vocabulary.tokens.get(id).unwrap();
    let is_timestamp = |id: usize| controls(&id) && text(id).contains('.');
    let ids = || (0..vocabulary.tokens.len()).filter(|id| listed || !is_timestamp(*id));
    let map = |ids: &mut dyn Iterator<Item = usize>| -> serde_json::Map<String, serde_json::Value> {
        ids.map(|id| (text(id).to_string(), id.into())).collect()
    };
    let base = map(&mut ids().filter(|id| !controls(id) || text(*id) == "<|endoftext|>"));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let merges: Vec<&str> = vocabulary.merges.iter().collect();
    write(
        "tokenizer_config.json",
        r#"{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}"#
            .into(),
    );
    if !json {
        let added = map(&mut ids().filter(|id| controls(id) && text(*id) != "<|endoftext|>"));
        write("vocab.json", serde_json::to_string(&base).unwrap());
        write("added_tokens.json", serde_json::to_string(&added).unwrap());
        write("merges.txt", format!("#version: 0.2\n{}\n", merges.join("\n")));
        return folder;
    }
    let added: Vec<_> = ids()
        .filter(controls)
        .map(|id| {
            serde_json::json!({
                "id": id, "content": text(id), "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": !is_timestamp(id),
            })
        })
        .collect();
    let find = |wanted: &str| ids().find(|id| text(*id) == wanted).unwrap();
    let special = |name: &str| serde_json::json!({"SpecialToken": {"id": name, "type_id": 0}});
    let defined = |name: &str| serde_json::json!({"id": name, "ids": [find(name)], "tokens": [name]});
    let (start, none, end) = ("<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>");
    let text_a = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    let text_b = serde_json::json!({"Sequence": {"id": "B", "type_id": 1}});
    let level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "decoder": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special(start), special(none), text_a, special(end)],
            "pair": [special(start), special(none), text_a, text_b, special(end)],
            "special_tokens": {start: defined(start), none: defined(none), end: defined(end)},
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": base, "merges": merges,
        },
    });
    write("tokenizer.json", file.to_string());
    folder
}

#[test]
fn folders_have_the_same_ids_and_become_gguf() {
    let goldens = goldens();
    for (name, listed, json) in [
        ("english", false, true),
        ("english", true, false),
        ("multilingual", true, true),
        ("multilingual", false, false),
        ("large-v3", true, true),
    ] {
        let golden = &goldens.vocabularies[name];
        let Some(vocabulary) = vocabulary(golden) else { return };
        let folder = folder(&vocabulary, listed, json);
        let tokenizer = from_folder(folder.path()).unwrap();
        assert_special(golden, &*tokenizer);
        assert_ids(&goldens, golden, &*tokenizer);
        let written = gguf_vocabulary(folder.path(), golden.rows).unwrap();
        assert_eq!(written.notes, Vec::<String>::new());
        let again = from_gguf(&written.metadata).unwrap();
        assert_special(golden, &again);
        assert_ids(&goldens, golden, &again);
        assert!(again.template().before().next().is_none() && again.template().after().next().is_none());
    }
}

#[test]
fn a_vocabulary_of_ranks_becomes_gguf() {
    let goldens = goldens();
    let golden = &goldens.vocabularies["multilingual"];
    let Some(tokens) = ranks(&golden.file) else { return };
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    let written = gguf_of_ranks(&tokens, golden.rows).unwrap();
    assert_eq!(written.metadata.str("tokenizer.ggml.model").unwrap(), Some("gpt2"));
    assert_eq!(written.metadata.str("tokenizer.ggml.pre").unwrap(), Some("gpt-2"));
    let again = from_gguf(&written.metadata).unwrap();
    assert_special(golden, &again);
    assert_ids(&goldens, golden, &again);
}

#[test]
fn older_files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let problem = || from_folder(folder.path()).unwrap_err().to_string();
    write("vocab.json", r#"{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}"#);
    write("merges.txt", "#version: 0.2\na b\n");
    // It may be a vocabulary of any model.
    assert!(problem().contains("has neither a tokenizer.json nor a tokenizer.model"));
    write("added_tokens.json", r#"{"<|startoftranscript|>": 4, "<|notimestamps|>": 6}"#);
    let tokenizer = from_folder(folder.path()).unwrap();
    assert_eq!(tokenizer.encode("abab", PLAIN).unwrap(), [2, 2]);
    assert_eq!(SpeechTokens::new(&*tokenizer, 9).unwrap().timestamps, 7..9);
    assert_eq!(tokenizer.token_kind(5), Some(TokenKind::Unused));
    write("merges.txt", "a b\na c\n");
    assert!(problem().contains("contains `c`, which is not a token"), "{}", problem());
    write("added_tokens.json", r#"{"<|startoftranscript|>": 3}"#);
    assert!(problem().contains("two tokens have the id 3"));
    write("added_tokens.json", r#"{"<|startoftranscript|>": 4000000000}"#);
    assert!(problem().contains("4000000001 tokens are more than any model has"));
    write("added_tokens.json", r#"{"<|startoftranscript|>": -1}"#);
    assert!(problem().contains("`added_tokens.json` is not valid JSON of the expected form"));
}

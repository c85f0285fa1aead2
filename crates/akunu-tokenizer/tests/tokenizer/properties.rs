//! Properties of all vocabularies and texts, including malicious ones.

#![allow(clippy::unwrap_used)]

use akunu_format::Strings;
use akunu_tokenizer::{
    EncodeOptions, Model, NativeTokenizer, SpecialTokens, StreamDecoder, TokenKind, Tokenizer,
    TokenizerError, Vocabulary,
};
use proptest::collection::vec;
use proptest::prelude::*;

const OPTIONS: [EncodeOptions; 4] = [
    EncodeOptions { add_special: false, parse_special: false },
    EncodeOptions { add_special: true, parse_special: false },
    EncodeOptions { add_special: false, parse_special: true },
    EncodeOptions { add_special: true, parse_special: true },
];

/// Texts that contain the tokens below, and others.
fn text() -> impl Strategy<Value = String> {
    let bit = prop_oneof![
        Just(" "),
        Just("  "),
        Just("a"),
        Just("b"),
        Just("ab"),
        Just("▁"),
        Just("é"),
        Just("🚀"),
        Just("中"),
        Just("<s>"),
        Just("<|x|>"),
        Just("</s>"),
        Just("\n"),
        Just("12"),
        Just("'s"),
        Just("Hello"),
        Just("\u{301}"),
    ];
    prop_oneof![
        vec(bit, 0..40).prop_map(|bits| bits.concat()),
        any::<String>(),
        ("[ab ▁é]", 0usize..300).prop_map(|(unit, count)| unit.repeat(count)),
    ]
}

fn kind() -> impl Strategy<Value = TokenKind> {
    use TokenKind::{Byte, Control, Normal, Unknown, Unused, UserDefined};
    prop::sample::select(vec![
        Normal,
        Normal,
        Normal,
        Normal,
        Normal,
        Normal,
        Unknown,
        Control,
        UserDefined,
        Unused,
        Byte,
        Byte,
    ])
}

fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab▁Ġ é]{0,3}",
        "[ab]{1,3}",
        "[ab▁]{1,2}",
        Just("".into()),
        Just("<s>".into()),
        Just("</s>".into()),
        Just("<|x|>".into()),
        "<0x[0-9A-G]{1,3}>",
        "[ÃÂĊ🚀中\u{0}]{1,2}",
        Just("a".repeat(500)),
    ]
}

prop_compose! {
    fn hostile_vocabulary()(
        model in prop_oneof![Just(Model::SentencePiece), Just(Model::ByteLevel), Just(Model::WordPiece)],
        pre in prop_oneof![9 => Just("gpt-2"), 4 => Just("llama-bpe"), 3 => Just("deepseek-llm"), 1 => Just("?")],
        tokens in vec((token(), kind(), prop::num::f32::ANY), 0..60),
        picks in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40),
        broken in vec("[ab ]{0,4}", 0..2),
        break_merges in prop::bool::weighted(0.1),
        drop_scores in prop_oneof![4 => Just(0usize), 1 => Just(1), 4 => Just(1000)],
        ids in prop::array::uniform3(prop_oneof![4 => Just(None), 8 => (0u32..30).prop_map(Some), 1 => Just(Some(u32::MAX))]),
        flags in any::<[bool; 8]>(),
    ) -> Vocabulary {
        let mut vocabulary = Vocabulary::new(model, pre);
        vocabulary.tokens = tokens.iter().map(|token| token.0.as_str()).collect();
        vocabulary.kinds = tokens.iter().map(|token| token.1).collect();
        vocabulary.scores = tokens.iter().map(|token| token.2).skip(drop_scores).collect();
        let mut merges: Vec<String> = Vec::new();
        for (left, right) in picks.iter().filter(|_| !tokens.is_empty()) {
            let (left, right) = (&left.get(&tokens).0, &right.get(&tokens).0);
            // Most merges produce a token, otherwise nearly every vocabulary would be rejected.
            let made = tokens.iter().any(|token| token.0 == format!("{left}{right}"));
            if !left.is_empty() && !right.is_empty() && (made || break_merges) {
                merges.push(format!("{left} {right}"));
            }
        }
        merges.extend(broken.into_iter().filter(|_| break_merges));
        vocabulary.merges = merges.into_iter().collect();
        vocabulary.special = SpecialTokens {
            bos: ids[0], eos: ids[1], unknown: ids[2], separator: ids[1],
            add_bos: flags[0] && ids[0].is_some(), add_eos: flags[1] && flags[2], add_separator: flags[3] && flags[4],
            ..SpecialTokens::default()
        };
        (vocabulary.add_space_prefix, vocabulary.ignore_merges) = (flags[5], flags[6]);
        (vocabulary.lowercase, vocabulary.strip_accents) = (flags[7], flags[0]);
        vocabulary
    }
}

fn streamed(tokenizer: &dyn Tokenizer, ids: &[u32]) -> String {
    let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
    ids.iter().for_each(|&id| decoder.push(tokenizer, id, &mut out));
    decoder.finish(&mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_vocabulary_and_no_text_panics(
        vocabulary in hostile_vocabulary(), texts in vec(text(), 1..4), noise in vec(0u32..70, 0..20),
    ) {
        let Ok(tokenizer) = NativeTokenizer::new(vocabulary) else { return Ok(()) };
        for text in &texts {
            for options in OPTIONS {
                let mut ids = vec![7];
                match tokenizer.encode_into(text, options, &mut ids) {
                    Ok(()) => {}
                    Err(TokenizerError::Unencodable { .. }) => prop_assert_eq!(&ids, &[7]),
                    Err(other) => prop_assert!(false, "{other}"),
                }
                let ids = &ids[1..];
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                prop_assert_eq!(streamed(&tokenizer, ids), tokenizer.decode(ids));
                let text_only = |&id: &u32| {
                    tokenizer.token_kind(id) != Some(TokenKind::Control) || tokenizer.special().unknown == Some(id)
                };
                if !options.parse_special && !options.add_special {
                    prop_assert!(ids.iter().all(text_only));
                }
            }
        }
        prop_assert_eq!(streamed(&tokenizer, &noise), tokenizer.decode(&noise));
    }
}

/// As in `src/bytes.rs`, but written from the definition: printable bytes are unchanged.
fn written(byte: u8) -> char {
    let prints = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if prints(&byte) {
        return byte as char;
    }
    char::from_u32(256 + (0..byte).filter(|other| !prints(other)).count() as u32).unwrap()
}

fn byte_level(pre: &str) -> NativeTokenizer {
    let mut vocabulary = Vocabulary::new(Model::ByteLevel, pre);
    let merges = ["a b", "ab ab", "Ġ Ġ", "ĠĠ ĠĠ", "Ġ a", "Ã ©", "l l", "H e", "He ll", "Hell o", "ð Ł"];
    let mut tokens = vec!["<|endoftext|>".to_string(), "<s>".to_string(), "<|x|>".to_string()];
    tokens.extend((0..=255).map(|byte| written(byte).to_string()));
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    vocabulary.kinds = vec![TokenKind::Normal; tokens.len()];
    vocabulary.kinds[..3].copy_from_slice(&[TokenKind::Control, TokenKind::Control, TokenKind::UserDefined]);
    vocabulary.tokens = tokens.into_iter().collect();
    vocabulary.merges = merges.into_iter().collect();
    vocabulary.special =
        SpecialTokens { bos: Some(0), eos: Some(0), add_bos: true, ..SpecialTokens::default() };
    NativeTokenizer::new(vocabulary).unwrap()
}

fn sentence_piece() -> NativeTokenizer {
    let mut vocabulary = Vocabulary::new(Model::SentencePiece, "");
    let words = [
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
        "▁ab",
        "▁▁",
        "▁▁▁▁",
        "é",
        "H",
        "e",
        "l",
        "o",
        "He",
        "ll",
        "Hell",
        "Hello",
        "🚀",
    ];
    let mut tokens = vec!["<unk>".to_string(), "<s>".to_string(), "</s>".to_string()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(words.map(str::to_string));
    vocabulary.kinds = vec![TokenKind::Normal; tokens.len()];
    vocabulary.kinds[..3].copy_from_slice(&[TokenKind::Unknown, TokenKind::Control, TokenKind::Control]);
    vocabulary.kinds[3..259].fill(TokenKind::Byte);
    vocabulary.scores = (0..tokens.len()).map(|id| -(id as f32 % 7.0)).collect();
    vocabulary.tokens = Strings::from_iter(tokens);
    vocabulary.special.bos = Some(1);
    vocabulary.special.eos = Some(2);
    NativeTokenizer::new(vocabulary).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn byte_level_round_trips_every_text(text in text()) {
        for pre in ["gpt-2", "llama-bpe", "deepseek-r1-qwen", "tekken", "smollm", "deepseek-v3", "default"] {
            let tokenizer = byte_level(pre);
            for add_special in [false, true] {
                let ids = tokenizer.encode(&text, EncodeOptions { add_special, parse_special: false }).unwrap();
                prop_assert_eq!(tokenizer.decode(&ids), text.clone());
                prop_assert!(ids[add_special as usize..].iter().all(|&id| !tokenizer.is_control(id)));
            }
        }
    }

    #[test]
    fn sentence_piece_round_trips_every_text(text in text()) {
        let tokenizer = sentence_piece();
        let ids = tokenizer.encode(&text, OPTIONS[1]).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids), text.replace('▁', " "));
        prop_assert!(ids[1..].iter().all(|&id| !tokenizer.is_control(id)));
    }

    #[test]
    fn streaming_equals_decoding_at_once(ids in vec(0u32..300, 0..60)) {
        let (bytes, pieces) = (byte_level("gpt-2"), sentence_piece());
        prop_assert_eq!(streamed(&bytes, &ids), bytes.decode(&ids));
        prop_assert_eq!(streamed(&pieces, &ids), pieces.decode(&ids));
    }
}

#[test]
fn a_word_merges_the_same_from_the_cache_and_from_any_thread() {
    let tokenizer = byte_level("gpt-2");
    let text = "Hello ab abab  Hello 🚀 Hello".repeat(50);
    let first = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(tokenizer.encode(&text, EncodeOptions::default()).unwrap(), first);
                }
            });
        }
    });
}

#[test]
fn special_tokens_are_parsed_only_when_asked_for() {
    let tokenizer = byte_level("gpt-2");
    let ids = |text, parse_special| {
        tokenizer.encode(text, EncodeOptions { add_special: false, parse_special }).unwrap()
    };
    assert_eq!(ids("<|endoftext|><|x|>", true), [0, 2]);
    let plain = ids("<|endoftext|><|x|>", false);
    assert_eq!((plain.len(), plain.last()), (14, Some(&2)));
    assert_eq!(tokenizer.decode(&[0, 2]), "<|x|>");
    assert_eq!(tokenizer.token_text(0), Some("<|endoftext|>"));
    assert_eq!((tokenizer.token_bytes(0), tokenizer.token_bytes(999)), (Some(&b""[..]), None));
    assert_eq!(tokenizer.find_token("<s>"), Some(1));
    assert_eq!(tokenizer.end_of_generation(), [0]);
}

#[test]
fn the_space_prefix_is_removed_only_at_the_start() {
    let tokenizer = sentence_piece();
    let ids = tokenizer.encode("Hello ab", OPTIONS[1]).unwrap();
    assert_eq!(tokenizer.decode(&ids), "Hello ab");
    let (mut decoder, mut out) = (StreamDecoder::continuing(), String::new());
    ids.iter().for_each(|&id| decoder.push(&tokenizer, id, &mut out));
    assert_eq!(out, " Hello ab");
    assert_eq!(tokenizer.encode("", OPTIONS[1]).unwrap(), [1]);
}

#[test]
fn a_megabyte_of_one_character_is_merged_quickly() {
    // Not timed: with quadratic run time this test would not finish.
    for unit in [" ", "a", "ab", "é", "="] {
        let text = unit.repeat((1 << 20) / unit.len());
        for tokenizer in [byte_level("gpt-2"), sentence_piece()] {
            let ids = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
            assert_eq!(tokenizer.decode(&ids), text);
        }
    }
}

#[test]
fn text_without_tokens_is_an_error() {
    let mut vocabulary = Vocabulary::new(Model::SentencePiece, "");
    vocabulary.tokens = ["a", "b"].into_iter().collect();
    vocabulary.special = SpecialTokens::default();
    vocabulary.add_space_prefix = false;
    let without = NativeTokenizer::new(vocabulary.clone()).unwrap();
    let error = without.encode("abc", EncodeOptions::default()).unwrap_err();
    assert!(error.to_string().contains("`c`"), "{error}");
    vocabulary.special.unknown = Some(1);
    let with = NativeTokenizer::new(vocabulary).unwrap();
    assert_eq!(with.encode("acccb", EncodeOptions::default()).unwrap(), [0, 1, 1]);
}

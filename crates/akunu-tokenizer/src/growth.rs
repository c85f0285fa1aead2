//! Tests that the work for a text grows linearly with its size, for each kind of tokenizer and for texts that are
//! expensive for some algorithm. Steps are counted ([`crate::work`]), so the results do not depend on the machine.

use std::sync::Arc;

use akunu_format::Strings;

use crate::chat::Rendered;
use crate::work::counted;
use crate::{
    EncodeOptions, HfTokenizer, Model, NativeTokenizer, Sidecar, TokenKind, Tokenizer, TokenizerError,
    Vocabulary, cancellable, pretokenizer,
};

/// Units that are repeated.
const UNITS: [&str; 25] = [
    "a",
    "A",
    "aA",
    "ab",
    "a ",
    " ",
    "  a",
    "\n",
    " \n",
    "\r\n",
    "\t",
    "1",
    "1 ",
    "1a",
    ".",
    "'",
    "a'",
    "é",
    "中",
    "e\u{301}",
    "\u{301}",
    "\u{3000}",
    "▁",
    "<|end|",
    "<|end|><|end|>",
];
const SIZE: usize = 3000;

/// Words, runs of letters and spaces, and byte tokens.
fn tokens(spaced: bool) -> Vec<(String, TokenKind)> {
    let mut tokens: Vec<(String, TokenKind)> = vec![
        ("<unk>".into(), TokenKind::Unknown),
        ("<|end|>".into(), TokenKind::Control),
        ("<|en".into(), TokenKind::UserDefined),
        ("▁▁▁▁".into(), TokenKind::UserDefined),
    ];
    for len in 1..=16 {
        tokens.push(("a".repeat(len), TokenKind::Normal));
        tokens.push((if spaced { "▁" } else { " " }.repeat(len), TokenKind::Normal));
    }
    for text in ["b", "ab", "▁a", "é", "e", "1", "11", "中", "<", "|", "n", "d", "A", "aA", "\n", "\n\n"]
    {
        tokens.push((text.into(), TokenKind::Normal));
    }
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte)));
    tokens
}

fn of_tokens(model: Model, change: impl FnOnce(&mut Vocabulary)) -> NativeTokenizer {
    let mut vocabulary = Vocabulary::new(model, "");
    let tokens = tokens(true);
    vocabulary.kinds = tokens.iter().map(|token| token.1).collect();
    vocabulary.scores = tokens.iter().map(|(text, _)| -8.0 / text.len() as f32).collect();
    vocabulary.tokens = tokens.into_iter().map(|token| token.0).collect();
    vocabulary.special.unknown = Some(0);
    (vocabulary.special.add_bos, vocabulary.special.add_eos) = (false, false);
    change(&mut vocabulary);
    NativeTokenizer::new(vocabulary).unwrap()
}

/// Every byte, and merges of letters, spaces and digits.
fn byte_level(pre: &str) -> NativeTokenizer {
    let mut vocabulary = Vocabulary::new(Model::ByteLevel, pre);
    let written = |byte: u8| crate::bytes::written(&[byte]);
    let mut tokens: Vec<String> = (0..=255).map(written).collect();
    let mut merges = Strings::new();
    for byte in *b"aA 1.\n\xcc" {
        let one = written(byte);
        for len in [1, 2, 4, 8] {
            merges.push(&[&one.repeat(len), " ", &one.repeat(len)]);
            tokens.push(one.repeat(2 * len));
        }
    }
    tokens.push("<|end|>".into());
    vocabulary.kinds = vec![TokenKind::Normal; tokens.len()];
    vocabulary.kinds[tokens.len() - 1] = TokenKind::Control;
    (vocabulary.tokens, vocabulary.merges) = (tokens.into_iter().collect(), merges);
    vocabulary.special.add_bos = false;
    NativeTokenizer::new(vocabulary).unwrap()
}

fn word_piece() -> NativeTokenizer {
    let mut vocabulary = Vocabulary::new(Model::WordPiece, "");
    let texts =
        ["[UNK]", "▁a", "a", "aa", "▁b", "b", "▁1", "1", "▁.", "▁中", "▁e", "e", "▁aaaaaaaa", "aaaaaaaaaaaa"];
    vocabulary.tokens = texts.into_iter().collect();
    vocabulary.special.unknown = Some(0);
    (vocabulary.special.add_bos, vocabulary.special.add_separator) = (false, false);
    NativeTokenizer::new(vocabulary).unwrap()
}

fn json(model: &str, pre: &str, added: &str) -> HfTokenizer {
    let json = format!(
        r#"{{"version":"1.0","added_tokens":[{added}],"normalizer":null,"pre_tokenizer":{pre},"decoder":{{"type":"Fuse"}},
        "model":{model}}}"#
    );
    HfTokenizer::from_bytes(json.as_bytes(), &Sidecar::default()).unwrap()
}

fn added(id: u32, text: &str, strips: bool) -> String {
    format!(
        r#"{{"id":{id},"content":"{text}","single_word":false,"lstrip":{strips},"rstrip":{strips},"normalized":false,
        "special":false}}"#
    )
}

/// Work for a text and for twice the text, with new tokenizers, whose caches are empty.
fn linear(name: &str, new: &dyn Fn() -> Box<dyn Tokenizer>) {
    for unit in UNITS {
        for parse_special in [false, true] {
            let steps = |size: usize| {
                let (tokenizer, text) = (new(), unit.repeat(size / unit.len()));
                counted(|| {
                    let options = EncodeOptions { parse_special, ..EncodeOptions::default() };
                    tokenizer.encode(&text, options).unwrap();
                })
            };
            let (once, twice) = (steps(SIZE), steps(2 * SIZE));
            assert!(once as usize > SIZE / 32, "{name}, {unit:?}: only {once} steps were counted");
            assert!(twice as f64 <= 2.5 * once as f64, "{name}, {unit:?}: {once} steps, then {twice}");
        }
    }
}

#[test]
fn sentence_piece_is_linear() {
    for splits_at_user_defined in [false, true] {
        for model in [Model::SentencePiece, Model::Unigram] {
            linear(&format!("{model:?} {splits_at_user_defined}"), &|| {
                Box::new(of_tokens(model, |vocabulary| {
                    vocabulary.splits_at_user_defined = splits_at_user_defined
                }))
            });
        }
    }
    linear("extra spaces", &|| {
        Box::new(of_tokens(Model::Unigram, |vocabulary| vocabulary.remove_extra_spaces = true))
    });
    linear("unused", &|| {
        Box::new(of_tokens(Model::SentencePiece, |vocabulary| {
            (6..40).step_by(3).for_each(|id| vocabulary.kinds[id] = TokenKind::Unused);
        }))
    });
}

#[test]
fn byte_level_is_linear_with_every_pre_tokenizer() {
    for name in pretokenizer::PreTokenizer::distinct_names() {
        linear(name, &|| Box::new(byte_level(name)));
    }
}

#[test]
fn word_piece_is_linear() {
    linear("WordPiece", &|| Box::new(word_piece()));
}

#[test]
fn tokenizer_json_is_linear() {
    let bpe = r#"{"type":"BPE","vocab":{"<unk>":0,"a":1,"aa":2,"aaaa":3,"▁":4,"▁▁":5},"unk_token":"<unk>","fuse_unk":true,
        "merges":["a a","aa aa","▁ ▁"]}"#;
    let metaspace = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":false}"#;
    let unigram = r#"{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1],["aa",-2.5],["aaa",-3],["▁",-2],["▁a",-2]]}"#;
    for strips in [false, true] {
        let both = [added(6, "<|end|", strips), added(7, "\\n", strips), added(8, " ", strips)].join(",");
        linear("BPE of characters", &|| Box::new(json(bpe, metaspace, &both)));
        linear("Unigram", &|| Box::new(json(unigram, metaspace, &both)));
        for pre in GENERAL {
            for model in [bpe, unigram, WORD_PIECE, WORD_LEVEL] {
                let new = || {
                    let tokenizer = json(model, pre, &both);
                    assert!(tokenizer.is_general(), "{}", tokenizer.describe());
                    Box::new(tokenizer) as Box<dyn Tokenizer>
                };
                linear(&format!("{} after {pre}", new().describe()), &new);
            }
        }
    }
}

/// Pre-tokenizers that only the general form has.
const GENERAL: [&str; 4] = [
    r#"{"type":"Split","pattern":{"Regex":"[^a]|aa(?!a)|(a|b)+c"},"behavior":"MergedWithNext","invert":false}"#,
    r#"{"type":"Sequence","pretokenizers":[{"type":"Whitespace"},{"type":"FixedLength","length":3}]}"#,
    r#"{"type":"Sequence","pretokenizers":[{"type":"Punctuation"},{"type":"ByteLevel","add_prefix_space":false}]}"#,
    r#"{"type":"Metaspace","replacement":"_","split":true}"#,
];

const WORD_PIECE: &str = r#"{"type":"WordPiece","vocab":{"<unk>":0,"a":1,"aa":2,"-a":3,"-aaa":4,"b":5},"unk_token":"<unk>",
    "continuing_subword_prefix":"-","max_input_chars_per_word":100000000}"#;

const WORD_LEVEL: &str =
    r#"{"type":"WordLevel","vocab":{"<unk>":0,"a":1,"aa":2,"aaa":3,"b":4,"c":5},"unk_token":"<unk>"}"#;

#[test]
fn conversations_of_look_alikes_are_linear() {
    for whole in [true, false] {
        let steps = |count: usize| {
            let (tokenizer, unit) = (byte_level("gpt-2"), "<|end|>");
            // One message, or one for each look-alike.
            let (messages, units) = if whole { (1, count) } else { (count, 1) };
            let size = units * unit.len();
            let untrusted = (0..messages).map(|at| at * size..(at + 1) * size).collect();
            let rendered = Rendered { text: unit.repeat(count), untrusted };
            counted(|| assert!(!rendered.encode(&tokenizer).unwrap().is_empty()))
        };
        let (once, twice) = (steps(400), steps(800));
        assert!(once > 400 && twice as f64 <= 2.5 * once as f64, "{whole}: {once} steps, then {twice}");
    }
}

#[test]
fn long_tokens_are_refused() {
    let long = "a".repeat(1 << 20);
    for kind in [TokenKind::Normal, TokenKind::Control, TokenKind::UserDefined] {
        for model in [Model::SentencePiece, Model::Unigram, Model::ByteLevel, Model::WordPiece] {
            let mut vocabulary = Vocabulary::new(model, "default");
            vocabulary.tokens = ["a", &long].into_iter().collect();
            vocabulary.kinds = vec![TokenKind::Normal, kind];
            vocabulary.special = Default::default();
            let error = NativeTokenizer::new(vocabulary).unwrap_err();
            assert!(
                matches!(error, TokenizerError::TokenTooLong { id: 1, len: 1_048_576, max: 16_384 }),
                "{error}"
            );
        }
    }
    let bpe = |vocab: &str, added: &str| {
        let model = format!(r#"{{"type":"BPE","vocab":{vocab},"merges":[]}}"#);
        let json = format!(r#"{{"version":"1.0","added_tokens":[{added}],"model":{model}}}"#);
        HfTokenizer::from_bytes(json.as_bytes(), &Sidecar::default()).unwrap_err().to_string()
    };
    let unigram =
        format!(r#"{{"model":{{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["{long}",-1]]}}}}"#);
    for error in [
        bpe(&format!(r#"{{"a":0,"{long}":1}}"#), ""),
        bpe(r#"{"a":0}"#, &added(1, &long, false)),
        HfTokenizer::from_bytes(unigram.as_bytes(), &Sidecar::default()).unwrap_err().to_string(),
    ] {
        assert!(error.contains("1048576 bytes"), "{error}");
    }
}

/// A cancelled encoding ends early, and does not spoil what is encoded later.
fn ends_when_cancelled(tokenizer: &dyn Tokenizer, same: &dyn Tokenizer) {
    let text = "a".repeat(20_000);
    let encode = |tokenizer: &dyn Tokenizer| tokenizer.encode(&text, EncodeOptions::default());
    let cancelled = cancellable(&Arc::new(true.into()), || encode(tokenizer));
    assert!(matches!(cancelled, Err(TokenizerError::Cancelled)), "{}", tokenizer.describe());
    let ids = cancellable(&Arc::default(), || encode(tokenizer)).unwrap();
    assert!(ids == encode(same).unwrap(), "{}", tokenizer.describe());
}

#[test]
fn cancelled_texts_end_early() {
    for new in [|| of_tokens(Model::SentencePiece, |_| ()), || of_tokens(Model::Unigram, |_| ())] {
        ends_when_cancelled(&new(), &new());
    }
    ends_when_cancelled(&byte_level("gpt-2"), &byte_level("gpt-2"));
    let metaspace = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":false}"#;
    let bpe = r#"{"type":"BPE","vocab":{"<unk>":0,"a":1,"aa":2,"▁":3},"unk_token":"<unk>","merges":["a a"]}"#;
    let unigram = r#"{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1],["aa",-2.5],["▁",-2]]}"#;
    for (model, added_tokens) in [(bpe, ""), (unigram, ""), (bpe, &*added(4, "b", false))] {
        let new = || json(model, metaspace, added_tokens);
        ends_when_cancelled(&new(), &new());
    }
}

/// With thousands of tokens `aaa…b` of different lengths, each position of `aaaa…` would take thousands of steps.
#[test]
fn tokens_that_begin_alike_do_not_multiply_the_steps() {
    let texts = |lengths: std::ops::Range<usize>| -> Vec<String> {
        let nested = lengths.map(|len| "a".repeat(len) + "b");
        ["<unk>", "a", "b"].into_iter().map(String::from).chain(nested).collect()
    };
    let open = |model, kind, texts: &[String]| {
        let mut vocabulary = Vocabulary::new(model, "gpt-2");
        vocabulary.tokens = texts.iter().map(String::as_str).collect();
        vocabulary.kinds = vec![kind; texts.len()];
        vocabulary.kinds[..3].copy_from_slice(&[TokenKind::Unknown, TokenKind::Normal, TokenKind::Normal]);
        vocabulary.scores = vec![-1.0; texts.len()];
        vocabulary.special = Default::default();
        vocabulary.special.unknown = Some(0);
        NativeTokenizer::new(vocabulary)
    };
    let (many, few) = (texts(1..1000), texts(1..300));
    for model in [Model::SentencePiece, Model::Unigram, Model::ByteLevel] {
        for kind in [TokenKind::Normal, TokenKind::Control, TokenKind::UserDefined] {
            let error = open(model, kind, &many).unwrap_err();
            assert!(matches!(error, TokenizerError::TokenList { .. }), "{error}");
            let tokenizer = open(model, kind, &few).unwrap();
            let text = "a".repeat(2000);
            let steps = counted(|| drop(tokenizer.encode(&text, EncodeOptions::default()).unwrap()));
            assert!(steps < 2000 * 1500, "{model:?} {kind:?}: {steps} steps");
            ends_when_cancelled(&tokenizer, &open(model, kind, &few).unwrap());
        }
    }
    let entries = || -> String {
        many.iter().enumerate().map(|(id, text)| format!(r#""{text}":{id}"#)).collect::<Vec<_>>().join(",")
    };
    let added: Vec<String> =
        many.iter().enumerate().map(|(id, text)| added(id as u32, text, false)).collect();
    let scores: Vec<String> = many.iter().map(|text| format!(r#"["{text}",-1]"#)).collect();
    for model in [
        format!(r#"{{"model":{{"type":"BPE","vocab":{{{}}},"merges":[]}}}}"#, entries()),
        format!(
            r#"{{"added_tokens":[{}],"model":{{"type":"BPE","vocab":{{}},"merges":[]}}}}"#,
            added.join(",")
        ),
        format!(r#"{{"model":{{"type":"Unigram","unk_id":0,"vocab":[{}]}}}}"#, scores.join(",")),
    ] {
        let error = HfTokenizer::from_bytes(model.as_bytes(), &Sidecar::default()).unwrap_err();
        assert!(matches!(error, TokenizerError::TokenList { .. }), "{error}");
    }
}

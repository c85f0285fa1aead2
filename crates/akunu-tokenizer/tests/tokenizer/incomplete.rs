//! Vocabularies that lack something: bytes, an unknown token, the name of the pre-tokenizer, or a statement of what the
//! model's own tokenizer does.

#![allow(clippy::unwrap_used)]

use akunu_format::{Array, Metadata, Value};
use akunu_tokenizer::{
    EncodeOptions, HfTokenizer, Model, NativeTokenizer, Sidecar, TokenKind, Tokenizer, Vocabulary, from_gguf,
};

use crate::few_tokens::{few_bytes, few_bytes_file, first_token_files, gguf};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

#[test]
fn missing_bytes_are_dropped_as_in_the_tokenizers_crate_and_never_become_special() {
    let json = few_bytes_file();
    let ours = HfTokenizer::from_bytes(&json, &Sidecar::default()).unwrap();
    assert!(!ours.is_general(), "{}", ours.describe());
    let gguf = from_gguf(&few_bytes("gpt-2")).unwrap();
    let cases: [(&str, &[u32]); 13] = [
        ("ab", &[4]),
        ("aba", &[5]),
        ("a\u{1}ba", &[1, 2, 1]),
        ("a\u{1}b", &[1, 2]),
        ("\0", &[]),
        ("é", &[6, 7]),
        ("aèb", &[1, 6, 2]),
        ("xaxbx a", &[4, 3, 1]),
        ("日ab本a", &[5]),
        ("aжbжжa", &[5]),
        ("a\nb", &[1, 2]),
        ("<|endoftext|", &[]),
        ("", &[]),
    ];
    for (text, expected) in cases {
        assert_eq!(ours.encode(text, PLAIN).unwrap(), expected, "{text:?}");
        assert_eq!(gguf.encode(text, PLAIN).unwrap(), expected, "{text:?}");
        assert!(!expected.contains(&0), "{text:?}");
    }
    assert_eq!(gguf.encode("aжbжжa", PLAIN).unwrap(), [5]);
    assert!(gguf.encode("<|endoftext|>", PLAIN).unwrap().is_empty());
    assert_eq!(gguf.encode("a<|endoftext|>", SPECIAL).unwrap(), [1, 0]);
}

#[test]
fn unknown_text_never_becomes_an_end_of_text() {
    use TokenKind::{Control, Normal};
    for (model, word) in [("llama", "a"), ("t5", "a"), ("bert", "▁a")] {
        let tokens = [("<|endoftext|>", Control), ("</s>", Control), (word, Normal)];
        for id in [0, 1] {
            let ids = [
                ("tokenizer.ggml.unknown_token_id", Value::U32(id)),
                ("tokenizer.ggml.eos_token_id", Value::U32(1)),
                ("tokenizer.ggml.bos_token_id", Value::U32(0)),
                ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
                ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
                ("tokenizer.ggml.add_sep_token", Value::Bool(false)),
            ];
            let tokenizer = from_gguf(&gguf(model, &tokens, &ids)).unwrap();
            assert_eq!(tokenizer.encode("a", PLAIN).unwrap(), [2], "{model}");
            let error = tokenizer.encode("b", PLAIN).unwrap_err().to_string();
            assert!(error.contains("`b`"), "{model}: {error}");
        }
    }
}

#[test]
fn a_default_pre_tokenizer_is_noted() {
    let mut metadata = few_bytes("gpt-2");
    assert!(from_gguf(&metadata).unwrap().notes().is_empty());
    metadata = few_bytes("default");
    assert!(from_gguf(&metadata).unwrap().notes().is_empty());
    let mut without = Metadata::default();
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "tokenizer.ggml.pre") {
        without.insert(key.to_string(), value.clone());
    }
    let notes = from_gguf(&without).unwrap().notes().join("\n");
    assert!(notes.contains("`tokenizer.ggml.pre`") && notes.contains("`default`"), "{notes}");
}

#[test]
fn families_that_compose_text_do_so_in_gguf() {
    for (pre, composed) in [("mpt", true), ("qwen2", true), ("gpt-2", false), ("deepseek-r1-qwen", false)] {
        let tokenizer = from_gguf(&few_bytes(pre)).unwrap();
        // `e` with an acute accent, in one or two characters; only the first is spelled by tokens.
        assert_eq!(tokenizer.encode("é", PLAIN).unwrap(), [6, 7], "{pre}");
        let ids: &[u32] = if composed { &[6, 7] } else { &[] };
        assert_eq!(tokenizer.encode("e\u{301}", PLAIN).unwrap(), ids, "{pre}");
    }
}

/// In the published `tokenizer.json` special tokens consume the whitespace after them (`rstrip`), except for these three.
#[test]
fn special_tokens_of_phi_3_consume_the_whitespace_after_them() {
    use TokenKind::{Control, Normal, Unknown};
    let texts = ["<unk>", "<s>", "<|endoftext|>", "<|user|>", "<|end|>", "▁", "a", "\n", "▁a"];
    let kind = |id: usize| [Unknown, Control, Control, Control, Control].get(id).copied().unwrap_or(Normal);
    let tokens: Vec<_> = texts.into_iter().enumerate().map(|(id, text)| (text, kind(id))).collect();
    let more = [
        ("general.architecture", Value::String("phi3".into())),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![-1.0; tokens.len()]))),
    ];
    let tokenizer = from_gguf(&gguf("llama", &tokens, &more)).unwrap();
    let cases: [(&str, &[u32]); 4] = [
        ("<|user|>\na<|end|>\n<|user|> \n a<|endoftext|>\na", &[3, 8, 4, 3, 8, 2, 5, 7, 6]),
        ("a <|end|>  ", &[8, 5, 4]),
        ("<s> a<s>\n", &[1, 5, 8, 1, 5, 7]),
        ("<|end|><|end|>\n\na", &[4, 4, 8]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.encode(text, SPECIAL).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn space_marks_in_user_defined_tokens_of_gguf_are_spaces() {
    use TokenKind::{Normal, Unknown, UserDefined};
    let tokens = [("<unk>", Unknown), ("a", Normal), ("▁", Normal), ("▁▁▁", UserDefined)];
    for model in ["llama", "t5"] {
        let more = [
            ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
            ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
        ];
        let tokenizer = from_gguf(&gguf(model, &tokens, &more)).unwrap();
        for text in ["a   a  a", "a▁▁▁a▁▁a"] {
            assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), [1, 3, 1, 2, 2, 1], "{model} {text:?}");
        }
        assert_eq!(tokenizer.decode(&[1, 3, 1]), "a   a");
    }
}

#[test]
fn settings_of_sentencepiece_that_change_text_are_refused_by_name() {
    // A model with one token and the given settings of its trainer or normalizer.
    let refused = |settings: &[u8]| {
        let mut bytes = vec![0x0a, 3, 0x0a, 1, b'a'];
        bytes.extend_from_slice(settings);
        Vocabulary::from_sentencepiece(&bytes).unwrap_err().to_string()
    };
    // Fields 24 of the trainer, 5 of the normalizer, 2 of the denormalizer.
    assert!(refused(&[0x12, 3, 0xc0, 1, 1]).contains("treat_whitespace_as_suffix"));
    assert!(refused(&[0x1a, 2, 0x28, 0]).contains("escape_whitespaces"));
    assert!(refused(&[0x2a, 3, 0x12, 1, 0]).contains("denormalization"));
}

#[test]
fn first_tokens_decode_as_in_the_tokenizers_crate() {
    let [word_piece, metaspace] = first_token_files();
    let pieces =
        ["a a a", "aa a", "a. a", "an't a", "##a aa", "##aaa", "##a.a", ". a.", "...", "##. a.", "n't an't"];
    let spaces = ["aaa", "a a", "a  a", "a a a", "a ", "  ", "   ", "a  ", "    ", "aa a", "aa a "];
    let ids = [[1, 1], [1, 2], [1, 3], [1, 5], [2, 1], [2, 2], [2, 3], [3, 1], [3, 3], [4, 1], [5, 1]];
    for (json, texts) in [(word_piece, pieces), (metaspace, spaces)] {
        let json = serde_json::to_vec(&json).unwrap();
        let ours = HfTokenizer::from_bytes(&json, &Sidecar::default()).unwrap();
        for ([a, b], expected) in ids.into_iter().zip(texts) {
            assert_eq!(ours.decode(&[a, b, a]), expected, "{a} {b}");
        }
    }
}

#[test]
fn a_vocabulary_of_many_end_tokens_opens_in_linear_time() {
    // 200,000 end-of-text tokens and as many merges: each merge was compared with each of these tokens.
    let mut vocabulary = Vocabulary::new(Model::ByteLevel, "gpt-2");
    let count = 200_000;
    let mut tokens: Vec<String> = vec!["</s>".into(); count];
    tokens.extend(["a".into(), "aa".into()]);
    vocabulary.tokens = tokens.into_iter().collect();
    vocabulary.merges = std::iter::repeat_n("a a", count).collect();
    let tokenizer = NativeTokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.end_of_generation().len(), count);
    assert_eq!(tokenizer.encode("aaa", PLAIN).unwrap(), [count as u32 + 1, count as u32]);
}

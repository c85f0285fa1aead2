//! The general form of `tokenizer.json`: files of random parts give the ids of the `tokenizers` library.

use akunu_testing::Cases;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::tokenizer_json::{Three, text};

/// A vocabulary of the characters and short texts that [`text`] often has.
fn texts() -> Vec<String> {
    let chars = "abcdehlnorstTw'1239.,!?()-_/#▁ é中文ĠĊ|ж🚀\n";
    let more = [
        "the", "he", "in", "on", "at", "cat", "▁the", "##ing", "##t", "##he", "Ġthe", "Hello", "don", "12",
        "中文",
    ];
    chars.chars().map(String::from).chain(more.map(String::from)).collect()
}

/// A vocabulary with ids in their order, and what is behind it.
fn vocab(texts: impl IntoIterator<Item = String>) -> Value {
    let mut ids = serde_json::Map::new();
    for text in texts {
        let next = ids.len();
        ids.entry(text).or_insert(json!(next));
    }
    Value::Object(ids)
}

fn bytes() -> impl Iterator<Item = String> {
    (0..=255u8).map(|byte| format!("<0x{byte:02X}>"))
}

/// `prefix` is that of continuing parts, `suffix` that of the last.
fn bpe(prefix: &str, suffix: &str, settings: Value) -> Value {
    let mut merges = Vec::new();
    let mut all = vec!["<unk>".to_string(), "<s>".into()];
    for text in texts() {
        all.extend([
            text.clone(),
            format!("{prefix}{text}"),
            format!("{text}{suffix}"),
            format!("{prefix}{text}{suffix}"),
        ]);
    }
    for [left, right] in [
        ["t", "h"],
        ["h", "e"],
        ["th", "e"],
        ["▁", "the"],
        ["i", "n"],
        ["a", "t"],
        ["c", "at"],
        ["t", "h"],
        ["<", "s"],
        ["<s", ">"],
        ["<unk>", "a"],
        ["1", "2"],
        ["Ġ", "the"],
        ["中", "文"],
    ] {
        let right = format!("{prefix}{right}");
        let merged = format!("{left}{}", &right[prefix.len()..]);
        all.extend([left.to_string(), right.clone(), merged]);
        merges.push(json!([left, right]));
        let (last, whole) = (format!("{right}{suffix}"), format!("{left}{}{suffix}", &right[prefix.len()..]));
        all.extend([last.clone(), whole]);
        merges.push(json!([left, last]));
    }
    if settings["byte_fallback"] == true {
        all.extend(bytes());
    }
    let mut model = json!({"type": "BPE", "vocab": vocab(all), "merges": merges, "unk_token": "<unk>",
        "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix});
    for (key, value) in settings.as_object().unwrap() {
        model[key] = value.clone();
    }
    model
}

fn word_piece(prefix: &str, most: usize) -> Value {
    let all = texts().into_iter().flat_map(|text| [format!("{prefix}{text}"), text]);
    let all = ["[UNK]".to_string(), "<s>".into()].into_iter().chain(all);
    json!({"type": "WordPiece", "vocab": vocab(all), "unk_token": "[UNK]", "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": most})
}

fn unigram(byte_fallback: bool, base: f64) -> Value {
    let all = ["<unk>".to_string(), "<s>".into(), "the".into()].into_iter().chain(texts());
    let bytes = bytes().filter(|_| byte_fallback);
    let scored =
        all.chain(bytes).enumerate().map(|(at, text)| json!([text, base - (at * 7 % 23) as f64 / 3.0]));
    json!({"type": "Unigram", "vocab": scored.collect::<Vec<_>>(), "unk_id": 0, "byte_fallback": byte_fallback})
}

pub(crate) fn models() -> Vec<Value> {
    let all = ["<unk>".to_string(), "<s>".into()].into_iter().chain(texts());
    vec![
        bpe("", "", json!({})),
        bpe("", "", json!({"fuse_unk": true, "ignore_merges": true})),
        bpe("", "", json!({"unk_token": null})),
        bpe("##", "", json!({})),
        bpe("", "</w>", json!({"fuse_unk": true})),
        bpe("@", "</w>", json!({"byte_fallback": true})),
        bpe("", "", json!({"byte_fallback": true, "unk_token": "missing"})),
        word_piece("##", 100),
        word_piece("", 5),
        word_piece("@@", 3),
        json!({"type": "WordLevel", "vocab": vocab(all.clone()), "unk_token": "<unk>"}),
        json!({"type": "WordLevel", "vocab": vocab(all), "unk_token": "none"}),
        unigram(false, -2.0),
        unigram(true, 20.0),
    ]
}

const REGEXES: [&str; 12] = [
    r"\s+",
    r"\S+|\s+",
    r" {2,}",
    r"^",
    r"(?<=\d)\s",
    r"[^\p{L}\d]",
    r"\b",
    r"a|b|",
    r"(?i)THE",
    r"\p{P}",
    r"\d{1,2}(?!\d)",
    r"['’]s|\p{N}",
];

fn pattern() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(&[" ", "the", "  ", "'", "", "é", "中"][..])
            .prop_map(|text| json!({"String": text})),
        prop::sample::select(&REGEXES[..]).prop_map(|regex| json!({"Regex": regex})),
    ]
}

fn matches_nothing(pattern: &Value) -> bool {
    ["", "^", r"\b", "a|b|"].iter().any(|empty| pattern["Regex"] == *empty || pattern["String"] == *empty)
}

/// The table of a real file, if the data is there.
fn precompiled() -> Value {
    let path = akunu_testing::data("general_form", "tokenizers/tiny/tiny_unigram_tokenizer.json");
    let file: Option<Value> = path.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap());
    fn find(value: &Value) -> Option<Value> {
        match value {
            Value::Object(fields) if value["type"] == "Precompiled" => Some(Value::Object(fields.clone())),
            Value::Object(fields) => fields.values().find_map(find),
            Value::Array(values) => values.iter().find_map(find),
            _ => None,
        }
    }
    file.as_ref().and_then(find).unwrap_or_else(|| json!({"type": "NFKC"}))
}

fn normalizer() -> impl Strategy<Value = Value> {
    const PLAIN: [&str; 8] = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "StripAccents", "ByteLevel"];
    prop_oneof![
        4 => prop::sample::select(&PLAIN[..]).prop_map(|kind| json!({"type": kind})),
        1 => Just(precompiled()),
        1 => prop::sample::select(&["▁", "x "][..]).prop_map(|text| json!({"type": "Prepend", "prepend": text})),
        // The library inserts the replacement of an empty match twice at times.
        2 => (pattern().prop_filter("empty matches", |pattern| !matches_nothing(pattern)),
                prop::sample::select(&["", "▁", " ", "ab"][..]))
            .prop_map(|(pattern, to)| json!({"type": "Replace", "pattern": pattern, "content": to})),
        1 => any::<(bool, bool)>().prop_map(|(l, r)| json!({"type": "Strip", "strip_left": l, "strip_right": r})),
        1 => (any::<(bool, bool, bool)>(), any::<Option<bool>>()).prop_map(|((clean, chinese, lower), accents)| json!({
            "type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese,
            "strip_accents": accents, "lowercase": lower})),
    ]
}

fn pre_tokenizer() -> impl Strategy<Value = Value> {
    let behavior = || {
        prop::sample::select(
            &["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"][..],
        )
    };
    prop_oneof![
        2 => prop::sample::select(&["BertPreTokenizer", "Whitespace", "WhitespaceSplit"][..])
            .prop_map(|kind| json!({"type": kind})),
        1 => behavior().prop_map(|behavior| json!({"type": "Punctuation", "behavior": behavior})),
        1 => any::<bool>().prop_map(|single| json!({"type": "Digits", "individual_digits": single})),
        1 => (1usize..5).prop_map(|length| json!({"type": "FixedLength", "length": length})),
        1 => prop::sample::select(&["-", " ", "a", "中"][..])
            .prop_map(|delimiter| json!({"type": "CharDelimiterSplit", "delimiter": delimiter})),
        2 => (prop::sample::select(&["always", "first", "never"][..]), any::<bool>(), prop::sample::select(&["▁", "_"][..]))
            .prop_map(|(scheme, split, mark)| json!({"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": split})),
        1 => any::<(bool, bool)>().prop_map(|(prefix, regex)| json!({"type": "ByteLevel", "add_prefix_space": prefix,
            "trim_offsets": true, "use_regex": regex})),
        4 => (pattern(), behavior(), any::<bool>()).prop_map(|(pattern, behavior, invert)| json!({
            "type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})),
    ]
}

/// One of them is normalized: of two that are then the same, the library takes any.
fn added() -> Value {
    let token = |id: usize, text: &str, special: bool, normalized: bool, word: bool| {
        json!({"id": id, "content": text, "special": special, "normalized": normalized, "lstrip": word,
            "rstrip": word, "single_word": word})
    };
    json!([
        token(1, "<s>", true, false, false),
        token(500, "<X>", true, false, true),
        token(7, "cat", false, true, true),
        token(8, "The", false, false, false),
        token(8, "", false, true, false),
        token(9, "<s>", false, false, false)
    ])
}

/// A file of random parts.
pub(crate) fn file(model: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let normalizers = prop::collection::vec(normalizer(), 0..3);
    let pre_tokenizers = prop::collection::vec(pre_tokenizer(), 0..3);
    (model, normalizers, pre_tokenizers, any::<bool>()).prop_map(|(model, mut normalizers, mut pre, has_added)| {
        // The library asks where a word's first character comes from, which also makes words of what is put before
        // a text, or instead of its beginning, the first.
        let is_first = |part: &Value| part["prepend_scheme"] == "first";
        let rewrites = |part: &Value| part["type"] == "ByteLevel" || part["type"] == "Metaspace";
        if pre.iter().any(is_first) {
            normalizers.retain(|part| part["type"] == "Precompiled");
            pre.truncate(1 + pre.iter().position(rewrites).unwrap_or(0));
        }
        json!({"version": "1.0", "model": model, "added_tokens": if has_added { added() } else { json!([]) },
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre}})
    })
}

/// The file with the model in place of its number.
pub(crate) fn with_model(file: &Value, models: &[Value]) -> Value {
    let mut file = file.clone();
    file["model"] = models[file["model"].as_u64().unwrap() as usize].clone();
    file
}

/// The library refuses files with two added tokens that are one after normalization, and panics on some.
pub(crate) fn opened(file: &Value) -> Option<Three> {
    let mut model = file["model"].clone();
    ["vocab", "merges"].into_iter().for_each(|key| model[key] = Value::Null);
    let shown = json!([model, file["normalizer"], file["pre_tokenizer"], file["added_tokens"] != json!([])]);
    let opens = || file.to_string().parse::<tokenizers::Tokenizer>().is_ok();
    std::panic::catch_unwind(opens).unwrap_or(false).then(|| Three::of(&shown.to_string(), file))
}

fn check(cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = prop::test_runner::TestRunner::new(config);
    let file = file(prop::sample::select(models()));
    runner
        .run(&(file, prop::collection::vec(text(), 8)), |(file, texts)| {
            let Some(three) = opened(&file) else { return Ok(()) };
            for text in texts.iter().map(String::as_str).chain(["", " ", "\u{301}a"]) {
                if let Some(difference) = three.difference(text) {
                    return Err(TestCaseError::fail(difference));
                }
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn files_of_random_parts_give_the_librarys_ids() {
    check(match akunu_testing::cases() {
        Cases::Fewest | Cases::Few => 200,
        Cases::Many => 1_000,
        Cases::All => 20_000,
    });
}

/// Files of the first versions, whose parts have no types, and lists of merges with a line of their version.
#[test]
fn files_without_types_give_the_librarys_ids() {
    let bpe = json!({"vocab": {"a": 0, "b": 1, "ab": 2, "u": 3}, "merges": ["#version: 0.2", "a b"], "unk_token": "u",
        "dropout": null, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false});
    let files = [
        json!({"model": bpe, "normalizer": {"normalizers": [{"strip_left": true, "strip_right": false},
            {"pattern": {"String": "b"}, "content": "a"}, {"prepend": "b"}]}}),
        json!({"model": bpe, "normalizer": {"clean_text": true, "handle_chinese_chars": true, "strip_accents": true,
            "lowercase": true}}),
        json!({"model": {"vocab": {"a": 0, "##b": 1, "u": 2}, "unk_token": "u", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 4}}),
        json!({"model": {"vocab": {"a": 0, "ab": 1, "u": 2}, "unk_token": "u"}}),
        json!({"model": {"vocab": [["u", -1.5], ["a", -2.0], ["ab", 1.0]], "unk_id": 0}}),
    ];
    for file in files {
        let three = Three::of(&file.to_string(), &file);
        for text in ["", "a", "ab", " abba-ba-", "\u{e4}B a", "bbbbbb"] {
            assert_eq!(three.difference(text), None);
        }
    }
}

//! Vocabularies are read in time and memory that grow with their size.
#![allow(clippy::unwrap_used)]

use akunu_format::{Array, Metadata, Strings, Value};
use akunu_testing::{Cost, MeasuringAllocator, assert_growth};
use akunu_tokenizer::{HfTokenizer, NativeTokenizer, Sidecar, Vocabulary, from_gguf};

#[global_allocator]
static ALLOCATOR: MeasuringAllocator = MeasuringAllocator;

fn each(count: usize, make: impl Fn(usize) -> String) -> String {
    (0..count).map(make).collect::<Vec<_>>().join(",")
}

/// A word of letters for each number, so that no two are equal.
fn word(number: usize) -> String {
    let digit = |place: u32| char::from(b'a' + (number / 26_usize.pow(place) % 26) as u8);
    (0..4).map(digit).collect()
}

/// A `tokenizer.json` of these parts.
fn json(model: &str, normalizer: &str, added: &str) -> String {
    format!(
        r#"{{"version":"1.0","added_tokens":[{added}],"normalizer":{normalizer},"pre_tokenizer":{{"type":"Metaspace",
        "replacement":"▁","prepend_scheme":"first","split":true}},"decoder":{{"type":"Metaspace","replacement":"▁",
        "prepend_scheme":"first","split":true}},"model":{model}}}"#
    )
}

fn unigram(count: usize, text: impl Fn(usize) -> String) -> String {
    let pieces = each(count, |n| format!(r#"["{}",-{n}.5]"#, text(n)));
    format!(
        r#"{{"type":"Unigram","unk_id":0,"byte_fallback":false,"vocab":[["<unk>",0.0],["▁",-2.0],{pieces}]}}"#
    )
}

fn added(id: usize, text: &str, special: bool) -> String {
    format!(
        r#"{{"id":{id},"content":"{text}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,
        "special":{special}}}"#
    )
}

/// Words, of which each is merged from two halves.
fn merged(count: usize) -> String {
    let letters = each(26, |n| format!(r#""{}":{n}"#, char::from(b'a' + n as u8)));
    let pairs = each(26 * 26, |n| format!(r#""{}":{}"#, &word(n)[..2], 26 + n));
    let words = each(count, |n| format!(r#""{}":{}"#, word(n), 702 + n));
    let merges = each(26 * 26, |n| format!(r#""{} {}""#, &word(n)[..1], &word(n)[1..2]));
    let longer = each(count, |n| format!(r#""{} {}""#, &word(n)[..2], &word(n)[2..]));
    format!(
        r#"{{"type":"BPE","unk_token":"a","vocab":{{{letters},{pairs},{words}}},"merges":[{merges},{longer}]}}"#
    )
}

#[test]
fn tokenizer_json() {
    type Make = fn(usize) -> String;
    let files: [(&str, Make); 8] = [
        ("a Unigram vocabulary", |n| json(&unigram(n, word), "null", "")),
        ("long tokens", |n| json(&unigram(4, |i| format!("{i}").repeat(n / 2)), "null", "")),
        ("merges", |n| json(&merged(n), "null", "")),
        ("WordPiece", |n| {
            let words = each(n, |i| format!(r###""##{}":{}"###, word(i), i + 1));
            let model = format!(
                r###"{{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##",
                "max_input_chars_per_word":100,"vocab":{{"[UNK]":0,{words}}}}}"###
            );
            json(&model, "null", "")
        }),
        ("added tokens", |n| {
            json(&unigram(2, word), "null", &each(n / 4, |i| added(4 + i, &word(i), i % 2 == 0)))
        }),
        ("normalizers", |n| {
            let one = r#"{"type":"Replace","pattern":{"String":"b"},"content":"c"}"#;
            let all = each(n / 16, |_| one.to_string());
            json(&unigram(2, word), &format!(r#"{{"type":"Sequence","normalizers":[{all}]}}"#), "")
        }),
        ("the same token twice", |n| json(&unigram(n, |i| word(i % 100)), "null", "")),
        ("a field that nobody knows", |n| {
            let list = each(n, |i| i.to_string());
            json(&unigram(2, word), "null", "").replacen('{', &format!(r#"{{"x":[{list}],"#), 1)
        }),
    ];
    for (what, make) in files {
        let (file, cost) = assert_growth(what, 1 << 11, make, |file| {
            HfTokenizer::from_bytes(file.as_bytes(), &Sidecar::default()).is_ok()
        });
        println!("{what}: {} bytes, {cost:?}", file.len());
        let result = HfTokenizer::from_bytes(file.as_bytes(), &Sidecar::default());
        assert!(result.is_ok(), "{what}: {:?}", result.err());
    }
}

/// Memory that a file of 2²² values takes at most: this many times its size.
const MOST: u64 = 128;

/// Files of very many small values, of which no tokenizer can be made.
#[test]
fn a_bad_tokenizer_json_takes_at_most_128_times_its_size() {
    const COUNT: usize = 1 << 16;
    let many = |value: &str| vec![value; COUNT].join(",");
    let list = |value: &str| format!("[{}]", many(value));
    let bpe = |vocab: &str, merges: &str| {
        json(&format!(r#"{{"type":"BPE","vocab":{vocab},"merges":{merges}}}"#), "null", "")
    };
    let with = |key: &str, file: String| file.replacen('{', &format!(r#"{{"{key}":{},"#, list("[]")), 1);
    let good = || json(&unigram(2, word), "null", "");
    for (what, file) in [
        ("values of a normalizer", json(&unigram(2, word), &list("0"), "")),
        ("fields of a normalizer", json(&unigram(2, word), &list(r#"{"":0}"#), "")),
        ("values of a post-processor", with("post_processor", good())),
        ("values of a padding", with("padding", good())),
        ("tokens", bpe(&format!("{{{}}}", many(r#""":0"#)), "[]")),
        ("tokens with scores", bpe(&list(r#"["",0]"#), "[]")),
        ("merges", bpe(r#"{"a":0}"#, &list(r#"" ""#))),
        ("merges as lists", bpe(r#"{"a":0}"#, &list(r#"["",""]"#))),
        ("added tokens", json(&unigram(2, word), "null", &many("{}"))),
        ("a field that nobody knows", with("x", good())),
        ("a field of a model that nobody knows", json(&with("x", unigram(2, word)), "null", "")),
    ] {
        let sidecar = Sidecar::default();
        let cost = Cost::of(|| HfTokenizer::from_bytes(file.as_bytes(), &sidecar).is_ok());
        println!("{what}: {} bytes, {cost:?}", file.len());
        assert!(cost.peak <= MOST * file.len() as u64, "{what}: {cost:?}");
        let ignored =
            ["values of a padding", "a field that nobody knows", "a field of a model that nobody knows"];
        let is_ignored = ignored.contains(&what);
        let is_ok = HfTokenizer::from_bytes(file.as_bytes(), &sidecar).is_ok();
        assert_eq!(is_ok, is_ignored, "{what}");
    }
}

/// A field of a protocol buffer: a message or a text.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend(bytes);
    out
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let score = [&[0x15][..], &score.to_le_bytes()].concat();
    field(1, &[&field(1, text.as_bytes())[..], &score, &[0x18, kind]].concat())
}

/// Pieces of a kind behind the unknown one, in a model of a type.
fn sentencepiece(model: u8, kind: u8, count: usize, text: impl Fn(usize) -> String) -> Vec<u8> {
    let mut bytes = piece("<unk>", 0.0, 2);
    (0..count).for_each(|n| bytes.extend(piece(&text(n), -(n as f32), kind)));
    bytes.extend(field(2, &[0x18, model]));
    bytes
}

#[test]
fn tokenizer_model() {
    const NORMAL: u8 = 1;
    const USER_DEFINED: u8 = 4;
    type Make = fn(usize) -> Vec<u8>;
    let files: [(&str, Make); 5] = [
        ("Unigram pieces", |n| sentencepiece(1, NORMAL, n, word)),
        ("BPE pieces", |n| sentencepiece(2, NORMAL, n, word)),
        ("user-defined pieces", |n| sentencepiece(1, USER_DEFINED, n, word)),
        ("long pieces", |n| sentencepiece(1, NORMAL, 4, |i| i.to_string().repeat(n / 2))),
        ("unknown fields", |n| {
            let mut bytes = sentencepiece(1, NORMAL, 2, word);
            (0..n).for_each(|_| bytes.extend(field(9, b"abc")));
            bytes
        }),
    ];
    for (what, make) in files {
        let read = |file: &Vec<u8>| Vocabulary::from_sentencepiece(file).and_then(NativeTokenizer::new);
        let (file, cost) = assert_growth(what, 1 << 11, make, read);
        println!("{what}: {} bytes, {cost:?}", file.len());
        assert!(read(&file).is_ok(), "{what}: {:?}", read(&file).err());
    }
}

fn metadata(model: &str, tokens: Strings, more: impl FnOnce(&mut Metadata)) -> Metadata {
    let mut metadata = Metadata::default();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    metadata.insert(key("model"), Value::String(model.into()));
    metadata
        .insert(key("scores"), Value::Array(Array::F32((0..tokens.len()).map(|n| -(n as f32)).collect())));
    metadata.insert(key("token_type"), Value::Array(Array::I32(vec![1; tokens.len()])));
    metadata.insert(key("tokens"), Value::Array(Array::Strings(tokens)));
    more(&mut metadata);
    metadata
}

#[test]
fn vocabularies_of_gguf_files() {
    type Make = fn(usize) -> Metadata;
    let files: [(&str, Make); 3] = [
        ("SentencePiece tokens", |n| metadata("llama", (0..n).map(word).collect(), |_| ())),
        ("merges", |n| {
            let letters = (0..26_u8).map(|letter| char::from(b'a' + letter).to_string());
            let pairs = (0..26 * 26).map(|number| word(number)[..2].to_string());
            let tokens: Strings = letters.chain(pairs).chain((0..n).map(word)).collect();
            metadata("gpt2", tokens, |metadata| {
                let pairs =
                    (0..26 * 26).map(|number| format!("{} {}", &word(number)[..1], &word(number)[1..2]));
                let merges = (0..n).map(|number| format!("{} {}", &word(number)[..2], &word(number)[2..]));
                let merges = Value::Array(Array::Strings(pairs.chain(merges).collect()));
                metadata.insert("tokenizer.ggml.merges", merges);
                metadata.insert("tokenizer.ggml.pre", Value::String("gpt-2".into()));
            })
        }),
        ("control tokens", |n| {
            metadata("llama", (0..n).map(word).collect(), |metadata| {
                metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![3; n])));
            })
        }),
    ];
    for (what, make) in files {
        let (file, cost) = assert_growth(what, 1 << 11, make, from_gguf);
        println!("{what}: {cost:?}");
        assert!(from_gguf(&file).is_ok(), "{what}: {:?}", from_gguf(&file).err());
    }
}

#[test]
fn ids_beside_a_vocabulary() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("growth");
    std::fs::create_dir_all(&folder).unwrap();
    let write = |count: usize| {
        let file = folder.join(format!("{count}/tokenizer.json"));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let ids = each(count, |id| id.to_string());
        std::fs::write(
            file.with_file_name("generation_config.json"),
            format!(r#"{{"eos_token_id":[{ids}]}}"#),
        )
        .unwrap();
        file
    };
    let (file, cost) = assert_growth("eos_token_id", 1 << 12, write, |file| Sidecar::beside(file).unwrap());
    println!("{}: {cost:?}", file.display());
}

//! `tokenizer.json` and `tokenizer.model` files compared with the libraries that define the formats.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;

use akunu_tokenizer::{
    EncodeOptions, HfTokenizer, NativeTokenizer, Sidecar, StreamDecoder, Tokenizer, TokenizerError,
    Vocabulary,
};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn streamed(tokenizer: &dyn Tokenizer, ids: &[u32]) -> String {
    let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
    ids.iter().for_each(|&id| decoder.push(tokenizer, id, &mut out));
    decoder.finish(&mut out);
    out
}

fn open(path: &Path) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    if path.extension().is_some_and(|end| end == "model") {
        return Ok(Box::new(akunu_tokenizer::from_model_file(path)?));
    }
    Ok(Box::new(HfTokenizer::open(path)?))
}

#[test]
fn every_tiny_family_encodes_and_decodes_as_its_library_does() {
    let test = "every_tiny_family_encodes_and_decodes_as_its_library_does";
    let Some(cases) = akunu_testing::data(test, "tokenizers/tiny/hf_tokenizer_cases.json") else { return };
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&cases).unwrap()).unwrap();
    let (mut passed, mut wrong) = (0, Vec::new());
    for (name, family) in json.as_object().unwrap() {
        let file = cases.with_file_name(family["tokenizer"].as_str().unwrap());
        // SentencePiece's own library treats control tokens as text.
        let parse_special = file.extension().is_some_and(|end| end == "json");
        let tokenizer = open(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        for case in family["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> =
                case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let found = tokenizer.encode(text, EncodeOptions { parse_special, ..PLAIN }).unwrap();
            let decoded = streamed(&*tokenizer, &ids);
            assert_eq!(decoded, tokenizer.decode(&ids));
            if found != ids || decoded != case["decoded"].as_str().unwrap() {
                wrong.push(format!(
                    "{name} {text:?}: {found:?} for {ids:?}, {decoded:?} for {}",
                    case["decoded"]
                ));
            } else {
                passed += 1;
            }
        }
    }
    println!("{passed} cases passed");
    assert!(wrong.is_empty(), "{} wrong, {passed} right:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn special_tokens_of_a_json_are_text_unless_asked_for() {
    let test = "special_tokens_of_a_json_are_text_unless_asked_for";
    for (file, text) in [
        ("llama2.json", "a</s>b"),
        ("gpt2.json", "a<|endoftext|>b"),
        ("bert-base-uncased.json", "a[SEP]b"),
        ("tiny/tiny_unigram_tokenizer.json", "on</s>the"),
        ("tiny/tiny_bpe_metaspace_pretok_tokenizer.json", "on</s>the"),
    ] {
        let Some(path) = akunu_testing::data(test, &format!("tokenizers/{file}")) else { return };
        let tokenizer = HfTokenizer::open(&path).unwrap();
        let unknown = tokenizer.find_token("<unk>").or(tokenizer.find_token("[UNK]"));
        let is_control = |id: &u32| tokenizer.is_control(*id) && Some(*id) != unknown;
        let plain = tokenizer.encode(text, PLAIN).unwrap();
        assert!(!plain.iter().any(is_control), "{file}: {plain:?}");
        let parsed = tokenizer.encode(text, EncodeOptions { parse_special: true, ..PLAIN }).unwrap();
        assert_eq!(parsed.iter().filter(|id| is_control(id)).count(), 1, "{file}: {parsed:?}");
        assert!(
            parsed.iter().any(|&id| tokenizer.is_end_of_generation(id)) || file.starts_with("bert"),
            "{file}"
        );
    }
}

#[test]
fn special_tokens_come_from_the_post_processor_and_the_config() {
    let test = "special_tokens_come_from_the_post_processor_and_the_config";
    let Some(llama) = akunu_testing::data(test, "tokenizers/llama2.json") else { return };
    let Some(bert) = akunu_testing::data(test, "tokenizers/bert-base-uncased.json") else { return };
    let llama = HfTokenizer::open(&llama).unwrap();
    assert_eq!((llama.bos(), llama.eos(), llama.special().add_bos), (Some(1), Some(2), true));
    assert_eq!(llama.encode("", WHOLE).unwrap(), [1]);
    assert_eq!(llama.encode("Hello", WHOLE).unwrap(), [1, 15043]);
    let bert = HfTokenizer::open(&bert).unwrap();
    assert_eq!(bert.encode("hello", WHOLE).unwrap(), [101, 7592, 102]);
    assert_eq!(bert.decode(&[101, 7592, 2088, 1010, 102]), "hello world,");
}

#[test]
fn a_megabyte_of_one_character_is_encoded_quickly() {
    let test = "a_megabyte_of_one_character_is_encoded_quickly";
    let Some(path) = akunu_testing::data(test, "tokenizers/gpt2.json") else { return };
    let tokenizer = HfTokenizer::open(&path).unwrap();
    for unit in [" ", "a", "é"] {
        let (text, start) = (unit.repeat(1 << 20), std::time::Instant::now());
        let ids = tokenizer.encode(&text, PLAIN).unwrap();
        println!("{unit:?}: {:?}", start.elapsed());
        assert!(tokenizer.decode(&ids) == text);
    }
}

#[test]
fn files_that_are_not_tokenizers_are_rejected_with_the_reason() {
    let refused =
        |json: &str| HfTokenizer::from_bytes(json.as_bytes(), &Sidecar::default()).unwrap_err().to_string();
    let model = r#""model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}"#;
    for (json, message) in [
        ("", "not valid JSON"),
        ("[1,2]", "not valid JSON of the expected form"),
        ("{\"model\":", "not valid JSON"),
        ("{}", "no `model`"),
        (r#"{"model":{"type":"BPE","merges":[]}}"#, "no `model.vocab`"),
        (r#"{"model":{"type":"BPE","vocab":{}}}"#, "no `model.merges`"),
        (r#"{"model":{"type":"BPE","vocab":{},"merges":[]}}"#, "no tokens"),
        (r#"{"model":{"type":"RWKV","vocab":{}}}"#, "unknown type `RWKV`"),
        (
            r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b"]]}}"#,
            "contains `b`, which is not a token",
        ),
        (r#"{"model":{"type":"BPE","vocab":{"a":4000000000},"merges":[]}}"#, "4000000000"),
        (
            &format!(r#"{{{model},"pre_tokenizer":{{"type":"Newest"}}}}"#),
            "`pre_tokenizer` of the unknown type `Newest`",
        ),
        (
            &format!(r#"{{{model},"normalizer":{{"type":"Sequence","normalizers":[{{"type":"X"}}]}}}}"#),
            "`normalizer`",
        ),
        (&format!(r#"{{{model},"decoder":{{"type":"CTC"}}}}"#), "`CTC`"),
        (&"[".repeat(100_000), "not valid JSON"),
    ] {
        let error = refused(json);
        assert!(error.contains(message), "{json:.80}: {error}");
    }
}

#[test]
fn any_truncated_model_file_is_rejected_or_read() {
    let test = "any_truncated_model_file_is_rejected_or_read";
    for name in ["tiny_spm.model", "tiny_spm_bpe.model", "tiny_spm_bytefallback.model"] {
        let Some(path) = akunu_testing::data(test, &format!("tokenizers/tiny/{name}")) else { return };
        let whole = std::fs::read(path).unwrap();
        for len in 0..whole.len() {
            if let Ok(vocabulary) = Vocabulary::from_sentencepiece(&whole[..len]) {
                let _ = NativeTokenizer::new(vocabulary);
            }
            let mut changed = whole.clone();
            changed[len] ^= 0x5a;
            if let Ok(tokenizer) = Vocabulary::from_sentencepiece(&changed).and_then(NativeTokenizer::new) {
                let _ = tokenizer.encode("the cat sat. é", WHOLE);
            }
        }
    }
    let error = Vocabulary::from_sentencepiece(b"<html>").unwrap_err().to_string();
    assert!(error.contains("not a SentencePiece file"), "{error}");
}

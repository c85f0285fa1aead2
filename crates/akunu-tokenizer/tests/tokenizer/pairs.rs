//! Text pairs and truncation, compared with Hugging Face's libraries and with GGUF keys.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;

use akunu_format::Gguf;
use akunu_tokenizer::{
    EncodeOptions, Encoding, GgufVocabulary, HfTokenizer, Sidecar, Tokenizer, from_folder, from_gguf,
    gguf_vocabulary,
};
use serde_json::{Value, json};

use crate::pair_files::{both_ways, file, golden};

const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

fn encode(tokenizer: &dyn Tokenizer, case: &Value) -> Encoding {
    let text = |key: &str| case[key].as_str().unwrap();
    let options = EncodeOptions { add_special: case["special"].as_bool().unwrap(), parse_special: true };
    let mut found = match case["second"].is_string() {
        true => tokenizer.encode_pair(text("first"), text("second"), options).unwrap(),
        false => tokenizer.encode_single(text("first"), options).unwrap(),
    };
    if let Some(most) = case["most"].as_u64() {
        assert!(found.truncate(most as usize), "{case}");
        if !case["second"].is_string() {
            let mut ids = tokenizer.encode(text("first"), options).unwrap();
            assert!(tokenizer.truncate(&mut ids, most as usize));
            assert_eq!(ids, found.ids, "{case}");
        }
    }
    found
}

fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32).collect()
}

#[test]
fn texts_pairs_and_truncation_match_transformers() {
    let test = "texts_pairs_and_truncation_match_transformers";
    let golden = golden();
    let mut tokenizers: BTreeMap<String, Vec<HfTokenizer>> = BTreeMap::new();
    let mut checked = 0;
    for case in golden["cases"].as_array().unwrap() {
        let (model, post) = (case["model"].as_str().unwrap(), case["post"].as_str());
        let found = tokenizers.entry(format!("{model} {post:?}")).or_insert_with(|| match post {
            Some(post) => both_ways(&file(&golden, model, post)).into(),
            None => match akunu_testing::data(test, model) {
                Some(path) => {
                    vec![HfTokenizer::from_bytes(&std::fs::read(path).unwrap(), &Sidecar::default()).unwrap()]
                }
                None => Vec::new(),
            },
        });
        for tokenizer in found {
            let encoding = encode(tokenizer, case);
            assert_eq!(encoding.ids, numbers(&case["ids"]), "{case}");
            assert_eq!(encoding.segments, numbers(&case["segments"]), "{case}");
            checked += 1;
        }
    }
    println!("{checked} cases");
}

/// As in transformers' LLaMA tokenizers, the flags in `tokenizer_config.json` override the post-processor.
#[test]
fn flags_in_the_config_make_a_pair_of_two_single_texts() {
    let golden = golden();
    let folder = Folder::new("flags", &file(&golden, "bytes", "llama-3"));
    let config =
        json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true});
    folder.write("tokenizer_config.json", &config);
    let tokenizer = from_folder(&folder.0).unwrap();
    let pair = tokenizer.encode_pair("cat", "the", WHOLE).unwrap();
    assert_eq!(pair.ids, tokenizer_ids(&*tokenizer, &["<s>", "cat", "</s>", "<s>", "the", "</s>"]));
    assert_eq!(pair.segments, [0, 0, 0, 1, 1, 1]);
}

fn tokenizer_ids(tokenizer: &dyn Tokenizer, texts: &[&str]) -> Vec<u32> {
    texts.iter().map(|text| tokenizer.find_token(text).unwrap()).collect()
}

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str, tokenizer: &Value) -> Folder {
        let path = std::env::temp_dir().join(format!("akunu-pairs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder(path);
        folder.write("tokenizer.json", tokenizer);
        folder
    }

    fn write(&self, name: &str, json: &Value) {
        std::fs::write(self.0.join(name), serde_json::to_vec(json).unwrap()).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn special_tokens_of_pairs_survive_in_gguf_keys() {
    let golden = golden();
    for (model, post, [bos, eos, separator]) in [
        ("wordpiece", "bert", [true, true, false]),
        ("wordpiece", "bert-processing", [true, true, false]),
        ("wordpiece", "mpnet", [true, true, true]),
        ("bytes", "modernbert", [true, true, false]),
        ("bytes", "roberta", [true, true, true]),
    ] {
        let folder = Folder::new(post, &file(&golden, model, post));
        let original = from_folder(&folder.0).unwrap();
        let GgufVocabulary { metadata, notes } = gguf_vocabulary(&folder.0, original.vocab_size()).unwrap();
        assert_eq!(notes, [""; 0], "{post}");
        let flag =
            |name: &str| metadata.bool(&format!("tokenizer.ggml.add_{name}_token")).unwrap() == Some(true);
        assert_eq!([flag("bos"), flag("eos"), flag("sep")], [bos, eos, separator], "{post}");
        let again = from_gguf(&metadata).unwrap();
        for (first, second) in [("the cat", "sat"), ("", "cat"), ("", "")] {
            let (was, is) = (
                original.encode_pair(first, second, WHOLE).unwrap(),
                again.encode_pair(first, second, WHOLE).unwrap(),
            );
            assert_eq!(is.ids, was.ids, "{post}");
            // Files of models other than BERT do not state the segments; those models have only one segment.
            assert_eq!(is.segments == was.segments, post != "modernbert" || was.ids.len() < 3, "{post}");
            assert_eq!(again.encode(first, WHOLE).unwrap(), original.encode(first, WHOLE).unwrap(), "{post}");
        }
    }
    // This template cannot be represented, which does not matter: no token follows its texts.
    let folder = Folder::new("llama", &file(&golden, "bytes", "llama-3"));
    assert_eq!(gguf_vocabulary(&folder.0, 300).unwrap().notes, [""; 0]);
    // Here a note says that it cannot be represented.
    let mut odd = file(&golden, "bytes", "modernbert");
    odd["post_processor"]["pair"].as_array_mut().unwrap().remove(2);
    let folder = Folder::new("odd", &odd);
    let notes = gguf_vocabulary(&folder.0, 300).unwrap().notes;
    assert!(notes[0].starts_with("what stands around two texts"), "{notes:?}");
}

/// A GGUF file of a BERT model and the `tokenizer.json` of another one with the same vocabulary.
#[test]
fn a_real_gguf_vocabulary_matches_the_pairs_of_its_tokenizer_json() {
    let test = "a_real_gguf_vocabulary_matches_the_pairs_of_its_tokenizer_json";
    let Some(gguf) = akunu_testing::data(test, "vocab/bert-bge.gguf") else { return };
    let Some(json) = akunu_testing::data(test, "minilm/tokenizer.json") else { return };
    let gguf = from_gguf(Gguf::open(&gguf).unwrap().metadata()).unwrap();
    let json = HfTokenizer::from_bytes(&std::fs::read(json).unwrap(), &Sidecar::default()).unwrap();
    for (first, second) in [
        ("how many people live in berlin?", "Berlin has a population of 3,520,031 registered inhabitants."),
        ("Ünï çödé", "中文"),
        ("", "x"),
    ] {
        let (found, expected) = (
            gguf.encode_pair(first, second, WHOLE).unwrap(),
            json.encode_pair(first, second, WHOLE).unwrap(),
        );
        assert_eq!(found, expected);
        assert_eq!(gguf.encode_single(first, WHOLE).unwrap(), json.encode_single(first, WHOLE).unwrap());
    }
}

#[test]
fn a_template_with_a_text_twice_is_rejected_when_used() {
    let golden = golden();
    let mut twice = file(&golden, "bytes", "modernbert");
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    twice["post_processor"]["pair"].as_array_mut().unwrap().push(text.clone());
    for tokenizer in both_ways(&twice) {
        assert_eq!(tokenizer.encode("cat", WHOLE).unwrap().len(), 3);
        let error = tokenizer.encode_pair("cat", "cat", WHOLE).unwrap_err();
        assert!(error.to_string().contains("each text of a pair once"), "{error}");
    }
    twice["post_processor"]["single"].as_array_mut().unwrap().push(text);
    let bytes = serde_json::to_vec(&twice).unwrap();
    assert!(HfTokenizer::from_bytes(&bytes, &Sidecar::default()).is_err());
}

#[test]
fn cut_pairs_are_as_long_as_asked_for_and_plain_ones_are_two_texts() {
    let golden = golden();
    for (model, post) in
        [("wordpiece", "bert"), ("wordpiece", "mpnet"), ("bytes", "llama-3"), ("unigram", "xlnet")]
    {
        for tokenizer in both_ways(&file(&golden, model, post)) {
            for (first, second) in
                [("", ""), ("the cat", ""), (" é🚀s?", "[SEP]the\n</s> cat s"), ("the", "the cat")]
            {
                let whole = tokenizer.encode_pair(first, second, WHOLE).unwrap();
                assert_eq!(whole.ids.len(), whole.segments.len());
                let plain = tokenizer.encode_pair(first, second, PLAIN).unwrap();
                let alone = [first, second].map(|text| tokenizer.encode(text, PLAIN).unwrap());
                assert_eq!(plain.ids, alone.concat(), "{model} {post}");
                for most in 0..12 {
                    let mut cut = whole.clone();
                    assert_eq!(
                        cut.truncate(most),
                        whole.ids.len() > most && most > 4 || cut.ids.len() < whole.ids.len()
                    );
                    assert!(
                        cut.ids.len() <= most && cut.segments.len() == cut.ids.len(),
                        "{model} {post} {most}"
                    );
                }
            }
        }
    }
}

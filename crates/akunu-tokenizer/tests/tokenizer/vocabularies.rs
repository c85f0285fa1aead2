//! Real vocabularies: the test cases that come with them, and the prompts of a trained model.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use akunu_format::Gguf;
use akunu_tokenizer::{
    EncodeOptions, HfTokenizer, NativeTokenizer, Sidecar, Tokenizer, TokenizerError, from_gguf,
    tokenizer_json,
};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

fn open(test: &str, file: &str) -> Option<NativeTokenizer> {
    let path = akunu_testing::data(test, file)?;
    Some(from_gguf(Gguf::open(&path).unwrap().metadata()).unwrap())
}

/// Texts and their ids.
fn cases(test: &str, name: &str) -> Option<Vec<(String, Vec<u32>)>> {
    let read = |end| std::fs::read_to_string(akunu_testing::data(test, &format!("vocab/{name}.{end}"))?).ok();
    let (input, output) = (read("inp")?, read("out")?);
    let texts: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
    // The last text is empty, and the file omits its empty line of ids.
    let lines: Vec<&str> = output.lines().chain([""]).collect();
    assert_eq!((texts.len(), lines.len()), (47, 47), "{name}");
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let cases = texts.iter().zip(lines).map(|(text, line)| (text.to_string(), ids(line))).collect();
    Some(cases)
}

fn agrees(name: &str) {
    let test = format!("{name} cases");
    let Some(tokenizer) = open(&test, &format!("vocab/{name}.gguf")) else { return };
    let Some(cases) = cases(&test, name) else { return };
    let mut wrong = 0;
    for (text, expected) in &cases {
        let ids = tokenizer.encode(text, PLAIN).unwrap();
        if ids != *expected {
            wrong += 1;
            println!("{name}: {text:?}\n  expected {expected:?}\n  is       {ids:?}");
        }
    }
    println!("{name}: {} of {} cases", cases.len() - wrong, cases.len());
    assert_eq!(wrong, 0);
}

#[test]
fn llama_spm_cases_agree() {
    agrees("llama-spm");
}

#[test]
fn gpt_2_cases_agree() {
    agrees("gpt-2");
}

#[test]
fn llama_bpe_cases_agree() {
    agrees("llama-bpe");
}

#[test]
fn qwen2_cases_agree() {
    agrees("qwen2");
}

#[test]
fn bert_bge_cases_agree() {
    agrees("bert-bge");
}

#[test]
fn cases_agree_with_a_tokenizer_json_of_the_file() {
    for name in ["gpt-2", "llama-bpe", "qwen2", "llama-spm"] {
        let Some(path) = akunu_testing::data("tokenizer.json", &format!("vocab/{name}.gguf")) else {
            continue;
        };
        let written = tokenizer_json(Gguf::open(&path).unwrap().metadata());
        if name == "llama-spm" {
            assert!(matches!(written, Err(TokenizerError::NoJson { .. })), "{written:?}");
            continue;
        }
        let tokenizer = HfTokenizer::from_bytes(&written.unwrap(), &Sidecar::default()).unwrap();
        assert!(!tokenizer.is_general(), "{name}");
        for (text, expected) in cases("tokenizer.json", name).unwrap() {
            assert_eq!(tokenizer.encode(&text, PLAIN).unwrap(), expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn case_texts_survive_the_round_trip() {
    for name in ["llama-spm", "gpt-2", "llama-bpe", "qwen2"] {
        let Some(tokenizer) = open("round trip", &format!("vocab/{name}.gguf")) else { continue };
        for (text, _) in cases("round trip", name).unwrap() {
            assert_eq!(tokenizer.decode(&tokenizer.encode(&text, WHOLE).unwrap()), text, "{name}");
        }
    }
}

#[test]
fn prompts_of_the_trained_model_agree() {
    let test = "prompts_of_the_trained_model_agree";
    let Some(golden) = akunu_testing::data(test, "stories260K/golden.json") else { return };
    let Some(tokenizer) = open(test, "stories260K/stories260K.gguf") else { return };
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    for case in golden["cases"].as_array().unwrap() {
        let prompt = case["prompt"].as_str().unwrap();
        assert_eq!(tokenizer.encode(prompt, WHOLE).unwrap(), ids(&case["prompt_ids"]), "{prompt:?}");
        assert_eq!(tokenizer.decode(&ids(&case["greedy_ids"])), case["greedy_text"].as_str().unwrap());
    }
}

#[test]
fn special_tokens_are_known() {
    let Some(qwen) = open("special_tokens_are_known", "vocab/qwen2.gguf") else { return };
    assert_eq!((qwen.bos(), qwen.eos()), (None, Some(151643)));
    assert_eq!(qwen.end_of_generation(), [151643, 151645]);
    assert!(qwen.is_control(151644) && !qwen.is_end_of_generation(151644));
    let text = "<|im_start|>user\nHi<|im_end|>";
    let parsed = qwen.encode(text, EncodeOptions { parse_special: true, ..PLAIN }).unwrap();
    assert_eq!((parsed[0], *parsed.last().unwrap()), (151644, 151645));
    assert_eq!(qwen.decode(&parsed), "user\nHi");
    let plain = qwen.encode(text, PLAIN).unwrap();
    assert!(!plain.iter().any(|&id| qwen.is_control(id)));
    assert_eq!(qwen.decode(&plain), text);

    let Some(llama) = open("special_tokens_are_known", "vocab/llama-bpe.gguf") else { return };
    assert_eq!(llama.encode("Hi", WHOLE).unwrap()[0], 128000);
    assert_eq!(llama.end_of_generation(), [128001, 128009]);
    assert_eq!(llama.special().eot, Some(128009));

    let Some(bert) = open("special_tokens_are_known", "vocab/bert-bge.gguf") else { return };
    assert_eq!(bert.encode("hello", WHOLE).unwrap(), [101, 7592, 102]);
    assert_eq!(bert.decode(&[101, 7592, 2088, 102]), "hello world");
}

//! `tokenizer.json` files: which are done in the general form, and what is refused. `oracle/` compares ids and texts with
//! the library `tokenizers`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use akunu_testing::fewest_or;
use akunu_tokenizer::{EncodeOptions, HfTokenizer, Sidecar, Tokenizer};
use serde_json::json;

use crate::decoders::{decoder_file, pieces, replace, sequence, strip};
use crate::json_files::{read, unknown_files};

const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

#[test]
fn unknown_files_use_the_general_form_and_give_the_reason() {
    let test = "unknown_files_use_the_general_form_and_give_the_reason";
    let Some(json) = read(test, "tiny/tiny_bpe_split_cl100k_tokenizer.json") else { return };
    assert_eq!(unknown_files(&json).len(), 6);
}

#[test]
fn decoders_over_several_tokens_are_refused() {
    let (marks, fuse, bytes) = (replace("▁", " "), json!({"type": "Fuse"}), json!({"type": "ByteLevel"}));
    for decoder in [
        sequence(&[&marks, &fuse, &strip(" ", 2, 0)]),
        sequence(&[&marks, &fuse, &strip(" ", 1, 1)]),
        sequence(&[&marks, &strip("a", 1, 0)]),
        sequence(&[&fuse, &replace("a▁", "x")]),
        sequence(&[&bytes, &replace("a", "x")]),
        sequence(&[&fuse, &pieces("##", true)]),
    ] {
        let error =
            HfTokenizer::from_bytes(&decoder_file(&decoder), &Sidecar::default()).unwrap_err().to_string();
        assert!(error.contains("decoder"), "{decoder}: {error}");
    }
}

/// Not timed: with quadratic run time this test would not finish.
#[test]
fn a_megabyte_of_any_text_is_encoded_quickly() {
    let test = "a_megabyte_of_any_text_is_encoded_quickly";
    let mut tokenizers = Vec::new();
    for file in [
        "gpt2.json",
        "llama2.json",
        "bert-base-uncased.json",
        "tiny/tiny_unigram_tokenizer.json",
        "tiny/tiny_bpe_bytelevel_noregex_tokenizer.json",
    ] {
        let Some(json) = read(test, file) else { return };
        let ours = HfTokenizer::from_bytes(&serde_json::to_vec(&json).unwrap(), &Sidecar::default()).unwrap();
        assert!(!ours.is_general());
        tokenizers.push((file, ours));
    }
    let units = [" ", "\n", "a", "7", "中", "=", "e\u{301}", "\u{301}", "<", " a", "</s"];
    for (i, unit) in units.into_iter().enumerate() {
        let text = unit.repeat((1 << 20) / unit.len());
        // With the fewest cases each text for one or two of them.
        let step = fewest_or(3, 1, 1);
        for (file, tokenizer) in tokenizers.iter().skip(i % step).step_by(step) {
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, WHOLE).unwrap();
            println!("{file} {unit:?}: {} tokens, {:?}", ids.len(), start.elapsed());
        }
    }
}

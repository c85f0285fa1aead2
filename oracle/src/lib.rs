//! Comparisons of `akunu-tokenizer` with the library `tokenizers`, which defines what a `tokenizer.json` means.

#![cfg(test)]
#![allow(clippy::unwrap_used)]

mod expressions;
mod general_form;
mod goldens;
mod incomplete;
mod pairs;
mod pre_tokenizers;
mod real_files;
mod tokenizer_json;

// Shared with the tests of the tokenizer.
#[path = "../../crates/akunu-tokenizer/tests/shared/decoders.rs"]
mod decoders;
#[path = "../../crates/akunu-tokenizer/tests/shared/few_tokens.rs"]
mod few_tokens;
#[path = "../../crates/akunu-tokenizer/tests/shared/json_files.rs"]
mod json_files;
#[path = "../../crates/akunu-tokenizer/tests/shared/pair_files.rs"]
mod pair_files;
#[path = "../../crates/akunu-tokenizer/tests/shared/random_expressions.rs"]
mod random_expressions;

/// A tokenizer of the library. Unlike `from_bytes`, `parse` is not generic, so that the readers of a file's parts are not
/// compiled here again.
fn library(json: &[u8]) -> tokenizers::Tokenizer {
    std::str::from_utf8(json).unwrap().parse().unwrap()
}

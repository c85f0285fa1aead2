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

/// A tokenizer of the library. Unlike `from_bytes`, `parse` is not generic, so that the readers of a file's parts are not
/// compiled here again.
fn library(json: &[u8]) -> tokenizers::Tokenizer {
    std::str::from_utf8(json).unwrap().parse().unwrap()
}

mod chat;
mod chat_behaviour;
mod damaged;
mod general_form;
mod gguf;
mod growth;
mod huggingface;
mod incomplete;
mod pairs;
mod properties;
mod speech;
mod tokenizer_json;
mod unigram_and_bpe;
mod vocabularies;

/// A tokenizer of the `tokenizers` crate. Unlike `from_bytes`, `parse` is not generic, so that the readers of a file's
/// parts are not compiled here again.
fn library(json: &[u8]) -> tokenizers::Tokenizer {
    std::str::from_utf8(json).expect("JSON is UTF-8").parse().expect("a tokenizer")
}

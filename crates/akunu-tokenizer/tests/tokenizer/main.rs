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

// The comparison with the library in `oracle/` has these modules, too.
#[path = "../shared/decoders.rs"]
mod decoders;
#[path = "../shared/few_tokens.rs"]
mod few_tokens;
#[path = "../shared/json_files.rs"]
mod json_files;
#[path = "../shared/pair_files.rs"]
mod pair_files;

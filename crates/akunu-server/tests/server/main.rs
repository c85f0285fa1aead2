//! Tests of the server over HTTP, in this process.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod anthropic;
mod attacks;
mod audio;
mod broken;
mod calls;
mod description;
mod embeddings;
mod faults;
mod guards;
mod http;
mod log;
mod models;
mod ollama;
mod openai;
mod page;
mod parameters;
mod priority;
mod rerank;
mod response_format;
mod responses;
mod schema;
mod serve;
mod slots;
mod streams;
mod thinker;

//! The server, in this process, as clients see it.
#![allow(clippy::unwrap_used)]

mod anthropic;
mod description;
mod faults;
mod guards;
mod http;
mod ollama;
mod openai;
mod page;
mod serve;
mod thinker;

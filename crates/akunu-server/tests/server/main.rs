//! The server, in this process, as clients see it.
#![allow(clippy::unwrap_used)]

mod description;
mod faults;
mod guards;
mod http;
mod openai;
mod serve;

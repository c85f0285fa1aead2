//! The binary as its users meet it: what it prints where, and how it exits.

mod bad_input;
mod bench;
mod common;
mod help;
mod hub;
mod models;
mod quantize;
mod run;
mod signals;
mod text;

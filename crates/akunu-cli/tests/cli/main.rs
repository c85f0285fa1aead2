//! The binary as its users meet it: what it prints where, and how it exits.

mod bad_input;
mod bad_models;
mod bench;
mod bench_serve;
mod chat;
mod common;
mod encoders;
mod environment;
mod help;
mod hub;
mod mlx;
mod models;
mod quantize;
mod run;
mod serve;
mod signals;
mod terminal;
mod text;

//! Tests of the binary: its output and its exit codes.

mod bad_input;
mod bad_models;
mod bench;
mod bench_serve;
mod chat;
mod common;
mod completions;
mod control_characters;
mod encoders;
mod environment;
mod habits;
mod help;
mod hub;
mod mlx;
mod models;
mod out_files;
mod promises;
mod quantize;
mod run;
mod serve;
mod signals;
mod sparse;
mod terminal;
mod text;

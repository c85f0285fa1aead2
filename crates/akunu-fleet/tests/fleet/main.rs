#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
mod emulated;
mod kernels;
mod models;

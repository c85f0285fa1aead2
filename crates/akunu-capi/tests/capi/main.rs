//! The library as seen by other languages: programs that are compiled and run against it, and the stability of its ABI.

#![allow(unsafe_code, clippy::unwrap_used, clippy::print_stderr)]

mod abi;
mod programs;
mod tools;

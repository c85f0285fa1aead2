//! The library as other languages see it: programs compiled and run against it, and what must not change.

#![allow(unsafe_code, clippy::unwrap_used, clippy::print_stderr)]

mod abi;
mod programs;
mod tools;

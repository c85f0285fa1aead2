//! Models that the tests of several crates share. It is a dev-dependency only. What needs no other crate of
//! the workspace belongs in `akunu-testing`.
#![allow(clippy::unwrap_used, reason = "a test fails where one of its fixtures cannot be made")]

mod dequantised;
pub mod scripted;

pub use dequantised::Dequantised;

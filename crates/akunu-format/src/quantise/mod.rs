//! Numbers to blocks, and whole models to smaller ones.

pub(crate) mod k;
mod search;

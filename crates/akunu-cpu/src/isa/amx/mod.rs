//! AMX: sixteen outputs by sixteen rows of sums in one instruction. Everything else is AVX-512's.

pub(crate) mod bf16;
pub(crate) mod packed;
pub(crate) mod tiles;

//! The memory traffic and the operations of a command, from its kernel and parameters alone. They give a lower bound of
//! its time.
//!
//! Counted are weights and KV cache, each byte once per pass, and the operations of matrix products and attention,
//! where a multiplication and an addition are two. Scratch buffers stay in caches, and norms, RoPE and activations are
//! too small to matter.

use std::iter::Sum;
use std::ops::Add;

use crate::{DType, DispatchCommand, DispatchTable, Entries, KvType};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights, independent of the number of rows.
    pub weight_bytes: u64,
    /// Bytes of the KV cache; positions that several rows of a sequence attend to count once.
    pub kv_bytes: u64,
    /// Operations on 8-bit integers.
    pub int8_ops: u64,
    /// Operations on floating-point numbers, including f16.
    pub f32_ops: u64,
}

impl Cost {
    pub fn bytes(self) -> u64 {
        self.weight_bytes + self.kv_bytes
    }

    pub fn ops(self) -> u64 {
        self.int8_ops + self.f32_ops
    }

    pub(crate) fn product(weight: DType, inputs: u32, outputs: u64, rows: usize, q8: bool) -> Cost {
        if rows == 0 {
            return Cost::default();
        }
        let ops = 2 * u64::from(inputs) * outputs * rows as u64;
        let weight_bytes = row_bytes(weight, inputs) * outputs;
        let (int8_ops, f32_ops) = if q8 { (ops, 0) } else { (0, ops) };
        Cost { weight_bytes, int8_ops, f32_ops, ..Cost::default() }
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            int8_ops: self.int8_ops + other.int8_ops,
            f32_ops: self.f32_ops + other.f32_ops,
        }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), Cost::add)
    }
}

impl DispatchTable {
    /// The cost of one step over `entries`, with `logit_rows` rows of logits.
    pub fn cost(&self, entries: Entries<'_>, logit_rows: usize) -> Cost {
        self.commands.iter().map(|command| command.cost(entries, logit_rows)).sum()
    }
}

impl DispatchCommand {
    /// The cost of one step over `entries`, with `logit_rows` rows of logits.
    pub fn cost(&self, entries: Entries<'_>, logit_rows: usize) -> Cost {
        self.kernel.cost(&self.params, entries, logit_rows)
    }
}

/// Bytes of K and V of one position of one layer.
pub(crate) fn position_bytes(kv: KvType, kv_heads: u32, head_dim: u32) -> u64 {
    2 * u64::from(kv_heads) * row_bytes(kv.dtype(), head_dim)
}

/// Bytes of a row. Rows of planned weights are whole blocks.
pub(crate) fn row_bytes(dtype: DType, cols: u32) -> u64 {
    dtype.row_bytes(cols as usize).unwrap_or(0) as u64
}

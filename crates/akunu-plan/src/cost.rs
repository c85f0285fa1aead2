//! What a command reads and computes, from its kernel and parameters alone: the floor under its time.
//!
//! Weights and KV cache are counted, each byte once a pass, and the operations of products and attention, a multiplication
//! and an addition being two. What goes through scratch buffers stays in caches, and norms, rotations and activations are
//! too little to matter.

use std::iter::Sum;
use std::ops::Add;

use crate::params::{
    AttentionParams, EmbedParams, GluMatmulParams, KvMoveParams, MatmulParams, QkvParams, UnpackParams,
};
use crate::{DType, DispatchCommand, DispatchTable, Kernel, KvType, Row, RowSet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Of weights, however many rows share them.
    pub weight_bytes: u64,
    /// Of the KV cache; positions that several rows of a slot see are counted once.
    pub kv_bytes: u64,
    /// On 8-bit integers.
    pub int8_ops: u64,
    /// On floating-point numbers, f16 among them.
    pub f32_ops: u64,
}

impl Cost {
    pub fn bytes(self) -> u64 {
        self.weight_bytes + self.kv_bytes
    }

    pub fn ops(self) -> u64 {
        self.int8_ops + self.f32_ops
    }

    fn product(weight: DType, inputs: u32, outputs: u64, rows: usize, q8: bool) -> Cost {
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
    /// Of one step over `rows`, of which `logit_rows` ask for logits.
    pub fn cost(&self, rows: &[Row], logit_rows: usize) -> Cost {
        self.commands.iter().map(|command| command.cost(rows, logit_rows)).sum()
    }
}

impl DispatchCommand {
    /// Of one step over `rows`, of which `logit_rows` ask for logits.
    pub fn cost(&self, rows: &[Row], logit_rows: usize) -> Cost {
        match self.kernel {
            Kernel::Embed { weight } => {
                let p: EmbedParams = self.params();
                let weight_bytes = row_bytes(weight, p.cols) * rows.len() as u64;
                Cost { weight_bytes, ..Cost::default() }
            }
            Kernel::Matmul { weight, q8, rows: set, .. } => {
                let p: MatmulParams = self.params();
                let rows = if set == RowSet::All { rows.len() } else { logit_rows };
                Cost::product(weight, p.inputs, u64::from(p.outputs), rows, q8)
            }
            Kernel::Qkv { weight, q8, .. } => {
                let p: QkvParams = self.params();
                let outputs = u64::from(p.q) + u64::from(p.k) + u64::from(p.v);
                Cost::product(weight, p.inputs, outputs, rows.len(), q8)
            }
            Kernel::GluMatmul { weight, q8, .. } => {
                let p: GluMatmulParams = self.params();
                Cost::product(weight, p.inputs, 2 * u64::from(p.outputs), rows.len(), q8)
            }
            Kernel::Unpack { weight } => {
                let p: UnpackParams = self.params();
                let weight_bytes = row_bytes(weight, p.inputs) * u64::from(p.outputs);
                Cost { weight_bytes, ..Cost::default() }
            }
            Kernel::HalfMatmul { .. } => {
                let p: MatmulParams = self.params();
                let f32_ops = 2 * u64::from(p.inputs) * u64::from(p.outputs) * rows.len() as u64;
                Cost { f32_ops, ..Cost::default() }
            }
            Kernel::Attention { kv, .. } => attention(&self.params(), kv, rows),
            Kernel::KvShift { kv, .. } => moved(
                &self.params(),
                kv,
                rows.iter().map(|r| u64::from(r.kv_len.saturating_sub(r.position + r.token))),
            ),
            Kernel::KvCopy { kv } => moved(&self.params(), kv, rows.iter().map(|r| u64::from(r.kv_len))),
            Kernel::RopeAngles
            | Kernel::RmsNorm { .. }
            | Kernel::NormAdd
            | Kernel::Glu { .. }
            | Kernel::Quantise
            | Kernel::Halve
            | Kernel::RopeKv { .. }
            | Kernel::Argmax
            | Kernel::Sample => Cost::default(),
        }
    }
}

/// Scores and sums for each row; keys and values once for all rows of a slot.
fn attention(p: &AttentionParams, kv: KvType, rows: &[Row]) -> Cost {
    let first_seen = |row: &Row| if p.window == 0 { 0 } else { row.kv_len.saturating_sub(p.window) };
    let pairs: u64 = rows.iter().map(|row| u64::from(row.kv_len - first_seen(row))).sum();
    // (slot, first position, end): ends are never below firsts, so joining neighbours is enough once they are in order.
    let mut spans: Vec<(u32, u32, u32)> =
        rows.iter().map(|row| (row.slot, first_seen(row), row.kv_len)).collect();
    spans.sort_unstable();
    let (mut positions, mut reached) = (0, (u32::MAX, 0));
    for (slot, first, end) in spans {
        let from = if reached.0 == slot { first.max(reached.1) } else { first };
        positions += u64::from(end.saturating_sub(from));
        reached = (slot, if reached.0 == slot { end.max(reached.1) } else { end });
    }
    Cost {
        kv_bytes: positions * position_bytes(kv, p.kv_heads, p.head_dim),
        f32_ops: 4 * u64::from(p.heads) * u64::from(p.head_dim) * pairs,
        ..Cost::default()
    }
}

fn moved(p: &KvMoveParams, kv: KvType, positions: impl Iterator<Item = u64>) -> Cost {
    let kv_bytes = positions.sum::<u64>() * position_bytes(kv, p.kv_heads, p.head_dim);
    Cost { kv_bytes, ..Cost::default() }
}

/// K and V of one position of one layer.
fn position_bytes(kv: KvType, kv_heads: u32, head_dim: u32) -> u64 {
    2 * u64::from(kv_heads) * row_bytes(kv.dtype(), head_dim)
}

/// A planned row is whole blocks.
fn row_bytes(dtype: DType, cols: u32) -> u64 {
    dtype.row_bytes(cols as usize).unwrap_or(0) as u64
}

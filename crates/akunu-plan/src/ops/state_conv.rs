//! The short convolution before a state: for each channel, a weighted sum of the last inputs of the row's sequence, and
//! SiLU.
//!
//! Rows of a sequence that follow each other in a pass are a run. The inputs before a run are in the cache, in the slot
//! of the block of the position before it, and the last inputs of each block are written there ([`StateCache`]).

use super::extent::{Counts, Extent, f32s, strided};
use super::{Blocks, F32, Op, RowField, Rows, operands, params};
use crate::reference::{Bound, activate};
use crate::state::{StateCache, runs};
use crate::{Activation, Cost, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateConv {
    /// Whether a bias is added.
    pub bias: bool,
    /// Whether inputs are kept for later passes. Otherwise, a run begins with zeros before it.
    pub kept: bool,
}

params! {
    StateConvParams {
        channels: u32,
        /// Inputs of a sum, the row's own included.
        taps: u32,
        /// Columns of a row of `x`, and the first one of the channels.
        stride: u32,
        first: u32,
        /// Slots of the cache, and positions of a block; 0 if inputs are not kept.
        slots: u32,
        block: u32,
    }
}

/// The fields of rows that ops with a state read.
pub(super) const FIELDS: &[RowField] = &[RowField::Position, RowField::Start];

operands! {
    StateConvOperands of StateConv as op {
        /// `[row][stride]`
        x: read F32,
        /// `[channel][tap]`, the oldest input first.
        weight: read F32,
        bias: read F32 if op.bias,
        rows: read Rows(FIELDS),
        /// `[slot][tap − 1][channel]`, the oldest input first.
        state: update F32 if op.kept,
        blocks: read Blocks if op.kept,
        /// `[row][channel]`
        out: write F32,
    }
}

impl Op for StateConv {
    type Params = StateConvParams;
    type Operands<T: Copy> = StateConvOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_biased" } else { "" };
        let kept = if self.kept { "_kept" } else { "" };
        format!("state_conv{bias}{kept}")
    }

    fn extents(self, p: &StateConvParams, counts: &Counts) -> Result<StateConvOperands<Extent>, String> {
        if p.channels == 0 || !(2..=MAX_TAPS).contains(&p.taps) {
            return Err(format!("a convolution of {} channels over {} inputs", p.channels, p.taps));
        }
        let end = p.first.checked_add(p.channels);
        let end = end.ok_or_else(|| format!("{} channels from column {} on", p.channels, p.first))?;
        let (channels, taps) = (u64::from(p.channels), u64::from(p.taps));
        Ok(StateConvOperands {
            x: strided(counts.rows, end, p.stride)?,
            weight: f32s(1, channels * taps),
            bias: self.bias.then(|| f32s(1, channels)),
            rows: counts.rows(),
            state: self.kept.then(|| f32s(p.slots as usize, channels * (taps - 1))),
            blocks: counts.state_blocks(self.kept, p.slots, p.block)?,
            out: f32s(counts.rows, channels),
        })
    }

    /// Inputs that are read before runs and written after them.
    fn cost(self, p: &StateConvParams, rows: &[Row], _: usize) -> Cost {
        let state = 4 * u64::from(p.channels) * u64::from(p.taps - 1);
        let moved = if self.kept { StateCache::moved(rows, p.block) } else { 0 };
        let f32_ops = 2 * u64::from(p.channels) * u64::from(p.taps) * rows.len() as u64;
        Cost { kv_bytes: moved * state, f32_ops, ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<StateConvParams>(), bound.operands(self));
        let [channels, taps, stride, first] = [p.channels, p.taps, p.stride, p.first].map(|n| n as usize);
        let cache = StateCache::new(bound.state_table(o.blocks), p.slots, p.block);
        let (rows, size) = (bound.rows(o.rows).to_vec(), channels * (taps - 1));
        let mut kept = o.state.map_or(vec![], |state| bound.f32s(state)[..p.slots as usize * size].to_vec());
        let mut out = vec![0.0f32; rows.len() * channels];
        for run in runs(&rows) {
            let mut inputs = match cache.before(&rows[run.start]) {
                Some(slot) => kept[slot * size..][..size].to_vec(),
                None => vec![0.0; size],
            };
            for index in run.clone() {
                inputs.extend_from_slice(&bound.f32s(o.x)[index * stride + first..][..channels]);
                for channel in 0..channels {
                    let weights = &bound.f32s(o.weight)[channel * taps..][..taps];
                    let last = inputs.chunks_exact(channels).map(|row| f64::from(row[channel]));
                    let sum: f64 = last.zip(weights).map(|(x, w)| x * f64::from(*w)).sum();
                    let bias = o.bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[channel]));
                    out[index * channels + channel] = activate(Activation::Silu, sum + bias) as f32;
                }
                inputs.drain(..channels);
                if let Some(slot) = cache.after(&rows[index], index + 1 == run.end) {
                    kept[slot * size..][..size].copy_from_slice(&inputs);
                }
            }
        }
        if let Some(state) = o.state {
            bound.write_f32s(state, |_, to| to[..kept.len()].copy_from_slice(&kept));
        }
        bound.write_f32s(o.out, |_, to| to[..out.len()].copy_from_slice(&out));
    }
}

/// The most inputs of a sum.
pub const MAX_TAPS: u32 = 8;

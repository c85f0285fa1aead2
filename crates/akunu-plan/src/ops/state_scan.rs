//! The state of Mamba 2: each head of a sequence has a matrix, which decays, takes up the row's input, and is read.
//!
//! With `Δ = softplus(dt + dt_bias)` of the head, and its group's B and C, for each element d of the head and n of the
//! state: `s[n][d] = s[n][d] · exp(Δ · decay) + B[n] · (Δ · x[d])`, and the row's output is
//! `(Σₙ s[n][d] · C[n] + skip · x[d]) · silu(z[d])`.

use super::extent::{Counts, Extent, f32s, strided};
use super::state_conv::FIELDS;
use super::{Blocks, F32, Op, Rows, operands, params};
use crate::reference::{Bound, activate};
use crate::state::{StateCache, runs};
use crate::{Activation, Cost, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateScan {
    /// Whether states are kept for later passes. Otherwise, a run begins with zeros.
    pub kept: bool,
}

params! {
    StateScanParams {
        heads: u32,
        head_dim: u32,
        state_size: u32,
        /// Of heads, one after the other, that share B and C.
        groups: u32,
        /// Columns of a row of `mixed`, and the first ones of z and of dt.
        stride: u32,
        gate: u32,
        dt: u32,
        /// Slots of the cache, and positions of a block; 0 if states are not kept.
        slots: u32,
        block: u32,
    }
}

operands! {
    StateScanOperands of StateScan as op {
        /// `[row][x of all heads, B of all groups, C of all groups]`
        x: read F32,
        /// `[row][stride]`, with z of all heads and dt of each.
        mixed: read F32,
        /// `[head]`, each of these.
        decay: read F32,
        skip: read F32,
        dt_bias: read F32,
        rows: read Rows(FIELDS),
        /// `[slot][head][state][element]`
        state: update F32 if op.kept,
        blocks: read Blocks if op.kept,
        /// `[row][head][element]`
        out: write F32,
    }
}

impl StateScanParams {
    /// Numbers of a slot.
    pub fn size(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.head_dim) * u64::from(self.state_size)
    }
}

impl Op for StateScan {
    type Params = StateScanParams;
    type Operands<T: Copy> = StateScanOperands<T>;

    fn name(self) -> String {
        let kept = if self.kept { "_kept" } else { "" };
        format!("state_scan{kept}")
    }

    fn extents(self, p: &StateScanParams, counts: &Counts) -> Result<StateScanOperands<Extent>, String> {
        let is_empty = [p.heads, p.head_dim, p.state_size, p.groups].contains(&0);
        if is_empty || !p.heads.is_multiple_of(p.groups) {
            return Err(format!(
                "{} heads of {} in {} groups, with states of {}",
                p.heads, p.head_dim, p.groups, p.state_size
            ));
        }
        let inner = p.heads.checked_mul(p.head_dim);
        let end = inner.and_then(|inner| Some(p.gate.checked_add(inner)?.max(p.dt.checked_add(p.heads)?)));
        let end = end.ok_or_else(|| format!("{} heads of {} elements", p.heads, p.head_dim))?;
        let inner = u64::from(p.heads) * u64::from(p.head_dim);
        let each = f32s(1, p.heads);
        Ok(StateScanOperands {
            x: f32s(counts.rows, inner + 2 * u64::from(p.groups) * u64::from(p.state_size)),
            mixed: strided(counts.rows, end, p.stride)?,
            decay: each,
            skip: each,
            dt_bias: each,
            rows: counts.rows(),
            state: self.kept.then(|| f32s(p.slots as usize, p.size())),
            blocks: counts.state_blocks(self.kept, p.slots, p.block)?,
            out: f32s(counts.rows, inner),
        })
    }

    /// States that are read before runs and written after them.
    fn cost(self, p: &StateScanParams, rows: &[Row], _: usize) -> Cost {
        let moved = if self.kept { StateCache::moved(rows, p.block) } else { 0 };
        Cost { kv_bytes: moved * 4 * p.size(), f32_ops: 5 * p.size() * rows.len() as u64, ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<StateScanParams>(), bound.operands(self));
        let cache = StateCache::new(bound.state_table(o.blocks), p.slots, p.block);
        let (rows, size) = (bound.rows(o.rows).to_vec(), p.size() as usize);
        let mut kept = o.state.map_or(vec![], |state| bound.f32s(state)[..p.slots as usize * size].to_vec());
        let inner = (p.heads * p.head_dim) as usize;
        let mut out = vec![0.0f32; rows.len() * inner];
        for run in runs(&rows) {
            let mut state = match cache.before(&rows[run.start]) {
                Some(slot) => kept[slot * size..][..size].to_vec(),
                None => vec![0.0; size],
            };
            for index in run.clone() {
                step(&bound, (&p, &o), index, &mut state, &mut out[index * inner..][..inner]);
                if let Some(slot) = cache.after(&rows[index], index + 1 == run.end) {
                    kept[slot * size..][..size].copy_from_slice(&state);
                }
            }
        }
        if let Some(state) = o.state {
            bound.write_f32s(state, |_, to| to[..kept.len()].copy_from_slice(&kept));
        }
        bound.write_f32s(o.out, |_, to| to[..out.len()].copy_from_slice(&out));
    }
}

/// One row of a sequence with this state.
fn step(
    bound: &Bound<'_>,
    (p, o): (&StateScanParams, &StateScanOperands<crate::table::Binding>),
    row: usize,
    state: &mut [f32],
    out: &mut [f32],
) {
    let [heads, dim, n, groups] = [p.heads, p.head_dim, p.state_size, p.groups].map(|n| n as usize);
    let inner = heads * dim;
    let cols = inner + 2 * groups * n;
    let x = &bound.f32s(o.x)[row * cols..][..cols];
    let mixed = &bound.f32s(o.mixed)[row * p.stride as usize..];
    let each = |operand: F32<_>, head: usize| f64::from(bound.f32s(operand)[head]);
    for head in 0..heads {
        let group = head / (heads / groups);
        let [b, c] = [0, groups].map(|of| &x[inner + (of + group) * n..][..n]);
        let raw = f64::from(mixed[p.dt as usize + head]) + each(o.dt_bias, head);
        let delta = if raw > 30.0 { raw } else { raw.exp().ln_1p() };
        let kept = (delta * each(o.decay, head)).exp();
        for d in 0..dim {
            let at = head * dim + d;
            let input = f64::from(x[at]);
            let mut sum = 0.0;
            for i in 0..n {
                let s = &mut state[(head * n + i) * dim + d];
                let new = f64::from(*s) * kept + delta * input * f64::from(b[i]);
                *s = new as f32;
                sum += new * f64::from(c[i]);
            }
            let gate = f64::from(mixed[p.gate as usize + at]);
            out[at] = ((sum + each(o.skip, head) * input) * activate(Activation::Silu, gate)) as f32;
        }
    }
}

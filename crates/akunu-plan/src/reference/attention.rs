//! The kernels that know the KV cache: `[slot][kv head][position][head dim]`.

use super::Bound;
use super::math::{kv_load, kv_store, soft_cap};
use super::ops::{normalise, write_scaled};
use crate::params::{AttentionParams, KvMoveParams, RopeKvParams};
use crate::{KvType, NormOut, Rope, RopeStyle, Row};

/// Byte places in one layer's cache.
#[derive(Clone, Copy)]
struct Cache {
    kv_heads: usize,
    capacity: usize,
    row_bytes: usize,
}

impl Cache {
    fn new(kv: KvType, kv_heads: u32, capacity: u32, head_dim: u32) -> Cache {
        Cache {
            kv_heads: kv_heads as usize,
            capacity: capacity as usize,
            row_bytes: kv.row_bytes(head_dim as usize).unwrap_or(0),
        }
    }

    fn row(&self, slot: usize, head: usize, position: usize) -> std::ops::Range<usize> {
        let start = ((slot * self.kv_heads + head) * self.capacity + position) * self.row_bytes;
        start..start + self.row_bytes
    }
}

/// The two elements of pair `i`.
fn pair(style: RopeStyle, i: usize, dims: usize) -> (usize, usize) {
    match style {
        RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        RopeStyle::HalfSplit => (i, i + dims / 2),
    }
}

fn rotate(head: &mut [f32], style: RopeStyle, dims: usize, angle: impl Fn(usize) -> (f64, f64)) {
    for i in 0..dims / 2 {
        let (a, b) = pair(style, i, dims);
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        let (cos, sin) = angle(i);
        head[a] = (x * cos - y * sin) as f32;
        head[b] = (x * sin + y * cos) as f32;
    }
}

/// One head at a time of what a product made, [`Kernel::RopeKv`] and attention alike.
struct Turning {
    style: RopeStyle,
    kv: KvType,
    cache: Cache,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    dims: usize,
    epsilon: f32,
    /// Bindings.
    angles: usize,
    q_norm: Option<usize>,
}

impl Turning {
    fn new(bound: &Bound<'_>, style: RopeStyle, kv: KvType, p: &RopeKvParams) -> Turning {
        Turning {
            style,
            kv,
            cache: Cache::new(kv, p.kv_heads, p.capacity, p.head_dim),
            heads: p.heads as usize,
            kv_heads: p.kv_heads as usize,
            dim: p.head_dim as usize,
            dims: p.rope_dims as usize,
            epsilon: p.epsilon,
            angles: bound.binding("angles").unwrap_or(0),
            q_norm: bound.binding("q_norm"),
        }
    }

    fn head<'a>(&self, bound: &'a Bound<'_>, row: usize, head: usize) -> &'a [f32] {
        let stride = (self.heads + 2 * self.kv_heads) * self.dim;
        &bound.f32s(0)[row * stride + head * self.dim..][..self.dim]
    }

    /// Q (part 0) or K (part 1) of one head, normed and turned.
    fn turned(&self, bound: &Bound<'_>, row: usize, part: usize, head: usize) -> Vec<f32> {
        let x = self.head(bound, row, part * self.heads + head);
        let mut x: Vec<f32> = match self.q_norm {
            Some(q_norm) => {
                let weight = &bound.f32s(q_norm + part)[..self.dim];
                normalise(x, weight, self.epsilon).into_iter().map(|v| v as f32).collect()
            }
            None => x.to_vec(),
        };
        let angles = &bound.f32s(self.angles)[row * self.dims..][..self.dims];
        rotate(&mut x, self.style, self.dims, |i| (f64::from(angles[2 * i]), f64::from(angles[2 * i + 1])));
        x
    }

    /// All of Q, `[row][head]`.
    fn queries(&self, bound: &Bound<'_>, rows: usize) -> Vec<f32> {
        let heads = (0..rows).flat_map(|row| (0..self.heads).map(move |head| (row, head)));
        heads.flat_map(|(row, head)| self.turned(bound, row, 0, head)).collect()
    }

    /// K and V to the cache, bound as `k` and the binding after it.
    fn store(&self, bound: &mut Bound<'_>, rows: &[Row], k: usize) {
        for part in [0, 1] {
            bound.write(k + part, |bound, cache| {
                for (i, row) in rows.iter().enumerate() {
                    for head in 0..self.kv_heads {
                        let values = match part {
                            0 => self.turned(bound, i, 1, head),
                            _ => self.head(bound, i, self.heads + self.kv_heads + head).to_vec(),
                        };
                        let place = self.cache.row(row.slot as usize, head, row.position as usize);
                        kv_store(self.kv, &values, &mut cache[place]);
                    }
                }
            });
        }
    }
}

pub(super) fn rope_kv(mut bound: Bound<'_>, style: RopeStyle, kv: KvType) {
    let turning = Turning::new(&bound, style, kv, &bound.command.params());
    let rows = bound.rows(2).to_vec();
    bound.write_f32s(3, |bound, q| {
        let queries = turning.queries(bound, rows.len());
        q[..queries.len()].copy_from_slice(&queries);
    });
    turning.store(&mut bound, &rows, 4);
}

/// Q as attention wants it: bound, or made here, with K and V on their way to the cache.
fn queries(bound: &mut Bound<'_>, p: &AttentionParams, kv: KvType, rope: Option<Rope>) -> Vec<f32> {
    let AttentionParams { heads, kv_heads, head_dim, rope_dims, capacity, epsilon, .. } = *p;
    let Some(Rope { style, .. }) = rope else {
        return bound.f32s(0)[..bound.live.rows * (heads * head_dim) as usize].to_vec();
    };
    let p = RopeKvParams { heads, kv_heads, head_dim, rope_dims, capacity, epsilon };
    let turning = Turning::new(bound, style, kv, &p);
    let rows = bound.rows(3).to_vec();
    turning.store(bound, &rows, 1);
    turning.queries(bound, rows.len())
}

pub(super) fn attention(mut bound: Bound<'_>, kv: KvType, out: NormOut, rope: Option<Rope>) {
    let p: AttentionParams = bound.command.params();
    let queries = queries(&mut bound, &p, kv, rope);
    let (heads, kv_heads, dim) = (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
    let cache = Cache::new(kv, p.kv_heads, p.capacity, p.head_dim);
    let mut rows = Vec::with_capacity(bound.live.rows);
    for (index, row) in bound.rows(3).iter().enumerate() {
        let first = match p.window {
            0 => 0,
            window => (row.position + 1).saturating_sub(window) as usize,
        };
        let mut output = vec![0.0f32; heads * dim];
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let q = &queries[(index * heads + head) * dim..][..dim];
            let at = |binding: usize, position: usize| {
                kv_load(kv, &bound.bytes(binding)[cache.row(row.slot as usize, kv_head, position)])
            };
            let positions = first..row.kv_len as usize;
            let score = |position: usize| -> f64 {
                let dot: f64 = q.iter().zip(at(1, position)).map(|(q, k)| f64::from(*q) * f64::from(k)).sum();
                soft_cap(dot * f64::from(p.scale), p.soft_cap)
            };
            let scores: Vec<f64> = positions.clone().map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0f64; dim];
            for (position, weight) in positions.zip(&weights) {
                for (sum, v) in sum.iter_mut().zip(at(2, position)) {
                    *sum += weight * f64::from(v);
                }
            }
            for (out, sum) in output[head * dim..][..dim].iter_mut().zip(&sum) {
                *out = (sum / total) as f32;
            }
        }
        rows.push(output);
    }
    write_scaled(&mut bound, out, 4, &rows, |_| 1.0);
}

/// Row: keep `position` positions, drop `token` after them, of `kv_len`.
pub(super) fn kv_shift(mut bound: Bound<'_>, style: RopeStyle, kv: KvType) {
    let p: KvMoveParams = bound.command.params();
    let cache = Cache::new(kv, p.kv_heads, p.capacity, p.head_dim);
    let dims = p.rope_dims as usize;
    let row = bound.rows(3)[0];
    let (slot, keep, drop, len) =
        (row.slot as usize, row.position as usize, row.token as usize, row.kv_len as usize);
    bound.write(0, |bound, k| {
        for head in 0..cache.kv_heads {
            for position in keep + drop..len {
                let mut key = kv_load(kv, &k[cache.row(slot, head, position)]);
                rotate(&mut key, style, dims, |i| {
                    let angle = -(drop as f64) * f64::from(bound.f32s(2)[i]);
                    (angle.cos(), angle.sin())
                });
                kv_store(kv, &key, &mut k[cache.row(slot, head, position - drop)]);
            }
        }
    });
    bound.write(1, |_, v| {
        for head in 0..cache.kv_heads {
            for position in keep + drop..len {
                v.copy_within(cache.row(slot, head, position), cache.row(slot, head, position - drop).start);
            }
        }
    });
}

/// Row: copy `kv_len` positions of slot `token` to `slot`.
pub(super) fn kv_copy(mut bound: Bound<'_>, kv: KvType) {
    let p: KvMoveParams = bound.command.params();
    let cache = Cache::new(kv, p.kv_heads, p.capacity, p.head_dim);
    let row = bound.rows(2)[0];
    for binding in [0, 1] {
        bound.write(binding, |_, bytes| {
            for head in 0..cache.kv_heads {
                for position in 0..row.kv_len as usize {
                    let from = cache.row(row.token as usize, head, position);
                    bytes.copy_within(from, cache.row(row.slot as usize, head, position).start);
                }
            }
        });
    }
}

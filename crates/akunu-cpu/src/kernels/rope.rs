//! Rotary position embeddings: the angles of a pass, and the kernel that rotates Q and K and writes the cache.

use akunu_plan::keys::KEY_GROUP;
use akunu_plan::ops::{self, AnglesParams, RopeKvParams};
use akunu_plan::{Kernel, RopeStyle, Row};

use super::OpKernel;
use super::cache::Cache;
use super::norm::{inverse_rms, normed};
use crate::command::{Command, Context, f32s};
use crate::isa::Lanes;
use crate::isa::target::Target;
use crate::math;

/// Computed in f64 with our own polynomials, so that every machine has the same angles.
impl OpKernel for ops::RopeAngles {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: AnglesParams = command.params();
        let o = command.operands(ops::RopeAngles);
        let (pairs, magnitude) = (p.pairs as usize, f64::from(p.magnitude));
        // SAFETY: rows are within the table's, each has room for its angles, and is written by one worker.
        unsafe {
            let rows = context.rows(o.rows);
            for unit in context.units(context.rows * pairs) {
                let (r, pair) = (unit / pairs, unit % pairs);
                let angle = f64::from(rows[r].position) * f64::from(*f32s(o.frequencies).add(pair));
                let (sin, cos) = math::sin_cos(angle);
                let to = f32s(o.angles).add(unit * 2);
                *to = (cos * magnitude) as f32;
                *to.add(1) = (sin * magnitude) as f32;
            }
        }
    }
}

/// Rotates the first `dims` elements by the angles `[pair][cos, sin]`. Products and sums are rounded separately (no
/// fma).
///
/// # Safety
/// `dims` elements can be read and written at `head`, and read at `angles`.
#[inline(always)]
pub(crate) unsafe fn rotate<V: Lanes>(head: *mut f32, style: RopeStyle, dims: usize, angles: *const f32) {
    let mut pair = 0;
    // SAFETY: all pairs are below `dims / 2`.
    unsafe {
        while pair < dims / 2 {
            let (count, angles) = (16.min(dims / 2 - pair), angles.add(pair * 2));
            match (style, count) {
                (RopeStyle::Interleaved, 16) => {
                    let at = head.add(pair * 2);
                    let [x, y] = rotated::<V>(deinterleaved::<V>(at), deinterleaved::<V>(angles));
                    let [x, y] = V::interleave(x, y);
                    x.store(at);
                    y.store(at.add(16));
                }
                (RopeStyle::HalfSplit, 16) => {
                    let (a, b) = (head.add(pair), head.add(pair + dims / 2));
                    let [x, y] = rotated::<V>([V::load(a), V::load(b)], deinterleaved::<V>(angles));
                    x.store(a);
                    y.store(b);
                }
                (style, count) => {
                    for i in 0..count {
                        let (cos, sin) = (*angles.add(i * 2), *angles.add(i * 2 + 1));
                        let (a, b) = match style {
                            RopeStyle::Interleaved => ((pair + i) * 2, (pair + i) * 2 + 1),
                            RopeStyle::HalfSplit => (pair + i, pair + i + dims / 2),
                        };
                        let (x, y) = (*head.add(a), *head.add(b));
                        *head.add(a) = x * cos - y * sin;
                        *head.add(b) = x * sin + y * cos;
                    }
                }
            }
            pair += count;
        }
    }
}

/// The even and the odd ones of 32 numbers.
///
/// # Safety
/// 32 elements can be read at `from`.
#[inline(always)]
unsafe fn deinterleaved<V: Lanes>(from: *const f32) -> [V; 2] {
    // SAFETY: 32 elements, as the caller promises.
    unsafe { V::deinterleave(V::load(from), V::load(from.add(16))) }
}

#[inline(always)]
fn rotated<V: Lanes>([x, y]: [V; 2], [cos, sin]: [V; 2]) -> [V; 2] {
    [x.mul(cos).sub(y.mul(sin)), x.mul(sin).add(y.mul(cos))]
}

impl OpKernel for ops::RopeKv {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: RopeKvParams = command.params();
        let Kernel::RopeKv(op) = command.kernel else { return };
        let o = command.operands(op);
        let (heads, kv_heads) = (p.heads as usize, p.kv_heads as usize);
        // SAFETY: rows are within the table's and their positions within the cache, as checked at submission; each head
        // of a row is handled by one worker.
        unsafe {
            let rows = context.rows(o.rows);
            let per_row = heads + 2 * kv_heads;
            for unit in context.units(context.rows * per_row) {
                // Keys of consecutive positions share cache lines, so one worker handles a head of sixteen rows before
                // the next head.
                let several = per_row * KEY_GROUP;
                let (first, place) = (unit / several * KEY_GROUP, unit % several);
                let count = KEY_GROUP.min(context.rows - first);
                let (head, r) = (place / count, first + place % count);
                one_head::<V>((op, &o, &p), context, r, head, &rows[r]);
            }
        }
    }
}

/// # Safety
/// The elements of a head can be read at `x` and `weight`, and written at `to`, which may be `x`.
#[inline(always)]
unsafe fn norm_head<V: Lanes>(x: *const f32, weight: *const f32, p: &RopeKvParams, to: *mut f32) {
    let dim = p.head_dim as usize;
    // SAFETY: as the caller promises; elements are read before they are written.
    unsafe {
        let scale = inverse_rms::<V>(x, dim, p.epsilon);
        let mut at = 0;
        while at < dim {
            let n = 16.min(dim - at);
            normed::<V>(x.add(at), weight.add(at), scale, n).store_n(to.add(at), n);
            at += 16;
        }
    }
}

/// The heads of a row are those of Q, K and V in this order.
#[inline(always)]
unsafe fn one_head<V: Lanes>(
    (op, o, p): (ops::RopeKv, &ops::RopeKvOperands<*mut u8>, &RopeKvParams),
    context: &Context,
    r: usize,
    head: usize,
    row: &Row,
) {
    let (heads, kv_heads, dim) = (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
    let dims = p.rope_dims as usize;
    let cache = Cache::new(op.kv, p.head_dim, p.positions).paged(o.blocks, p.block);
    // SAFETY: the row and its position were checked at submission, so the table has its block; this worker handles this
    // head alone.
    unsafe {
        // `limits` has refused f16.
        let Some(qkv) = o.qkv else { return };
        let x = f32s(qkv).add((r * (heads + 2 * kv_heads) + head) * dim);
        let at = (row.start + row.position) as usize;
        if head >= heads + kv_heads {
            let place = cache.offset(head - heads - kv_heads, cache.place(at));
            cache.store::<V>(x, o.v_cache.0.add(place));
            return;
        }
        let is_q = head < heads;
        let to = match o.q {
            Some(q) if is_q => f32s(q).add((r * heads + head) * dim),
            _ => (&raw mut (*context.scratch).head).cast::<f32>(),
        };
        let norm = (if is_q { o.q_norm } else { o.k_norm }).map(f32s);
        match norm.filter(|_| !op.norm_last) {
            Some(weight) => norm_head::<V>(x, weight, p, to),
            None => x.copy_to_nonoverlapping(to, dim),
        }
        if let Some((style, angles)) = op.style.zip(o.angles) {
            rotate::<V>(to, style, dims, f32s(angles).add(r * dims));
        }
        if let Some(weight) = norm.filter(|_| op.norm_last) {
            norm_head::<V>(to, weight, p, to);
        }
        if !is_q {
            let keys = o.k_cache.0.add(cache.offset(head - heads, 0));
            let held = &raw mut (*context.scratch).held;
            cache.store_key::<V>(to, held.cast(), keys, cache.place(at));
        }
    }
}

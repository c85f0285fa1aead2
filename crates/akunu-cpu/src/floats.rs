//! Products with weights that are multiplied as f32, in the canonical arithmetic of [`crate::tile`].

use crate::formats::floats::FloatWeight;
use crate::isa::Lanes;
use crate::panel::{FLOAT_CHUNK, FLOAT_OUTPUTS, TILE_ROWS};
use crate::planes::ScalesOf;
use crate::tile::Tile;

/// # Safety
/// All of the tile's pointers are valid for its extents, and the processor has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn rows<V: Lanes, W: FloatWeight>(t: &Tile) {
    // SAFETY: weights, activations and outputs of the tile, valid by the caller's promise.
    unsafe {
        if t.rows > 1 {
            return float_panels::<V, W>(t);
        }
        for o in 0..t.outputs {
            let w = [(t.weights.add(o * t.stride), t.planes.of_output(o))];
            let [v] = float_row::<V, W, 1>(w, t.x.cast(), t.inputs, t.ahead(o));
            *t.out.add(o) = v.sum();
        }
    }
}

/// # Safety
/// As for [`rows`], for each of the tiles; all have one row, the same inputs and the same number of outputs.
#[inline(always)]
pub(crate) unsafe fn streams<V: Lanes, W: FloatWeight>(t: &[Tile]) {
    // SAFETY: output `o` is below every tile's number of outputs; the pointers are valid by the caller's promise.
    unsafe {
        for o in 0..t[0].outputs {
            for four in t.as_chunks::<4>().0 {
                let w = four.each_ref().map(|t| (t.weights.add(o * t.stride), t.planes.of_output(o)));
                let lanes = float_row::<V, W, 4>(w, t[0].x.cast(), t[0].inputs, t[0].ahead(o));
                for s in 0..4 {
                    *four[s].out.add(o) = lanes[s].sum();
                }
            }
        }
    }
}

/// O outputs of a single row, from weights in their stored layout.
///
/// # Safety
/// `inputs` weights can be read at each pointer of `w`, with their scales, and as many activations at `x`.
#[inline(always)]
unsafe fn float_row<V: Lanes, W: FloatWeight, const O: usize>(
    w: [(*const u8, ScalesOf); O],
    x: *const f32,
    inputs: usize,
    ahead: usize,
) -> [V; O] {
    let mut acc = [V::zero(); O];
    // SAFETY: `i` never passes `inputs`, and the last partial vector is read with `load_n`.
    unsafe {
        let mut i = 0;
        while i + 16 <= inputs {
            let xs = V::load(x.add(i));
            for o in 0..O {
                let (w, scales) = (w[o].0.add(i * W::BYTES), w[o].1);
                V::prefetch(w.wrapping_add(ahead));
                acc[o] = W::weights::<V>(w, scales, i).fma(xs, acc[o]);
            }
            i += 16;
        }
        if i < inputs {
            let n = inputs - i;
            let xs = V::load_n(x.add(i), n);
            for o in 0..O {
                let (w, scales) = (w[o].0.add(i * W::BYTES), w[o].1);
                acc[o] = W::weights_n::<V>(w, n, scales, i).fma(xs, acc[o]);
            }
        }
    }
    acc
}

/// Several rows: weights are unpacked to f32, [`FLOAT_OUTPUTS`] by [`FLOAT_CHUNK`] at a time, which fit in L1 together
/// with a few rows of activations.
///
/// # Safety
/// As for [`rows`]; at most [`TILE_ROWS`] rows and 16 outputs.
#[inline(always)]
unsafe fn float_panels<V: Lanes, W: FloatWeight>(t: &Tile) {
    // SAFETY: the scratch is used by this worker only; `first`, `from` and `n` stay within the tile's outputs and
    // inputs, and `acc` has room for 16 outputs by `TILE_ROWS` rows.
    unsafe {
        let panel = (&raw mut (*t.scratch).floats).cast::<f32>();
        for first in (0..t.outputs).step_by(FLOAT_OUTPUTS) {
            let mut from = 0;
            while from < t.inputs {
                let n = FLOAT_CHUNK.min(t.inputs - from);
                let stored = t.weights.add(first * t.stride + from * W::BYTES);
                // f32 is multiplied where it lies.
                let in_place = W::IS_F32 && first + FLOAT_OUTPUTS <= t.outputs && n.is_multiple_of(16);
                let (weights, stride) =
                    if in_place { (stored.cast(), t.stride / 4) } else { (panel.cast_const(), FLOAT_CHUNK) };
                if !in_place {
                    unpack_floats::<V, W>(t, first, from, n, panel);
                }
                let next = stored.wrapping_add(FLOAT_OUTPUTS * t.stride);
                let chunk = FloatChunk { weights, stride, first, from, n, next, bytes: W::BYTES };
                if V::REGISTERS >= 32 {
                    float_rows::<V, 8, 3>(t, &chunk);
                } else {
                    float_rows::<V, 2, 3>(t, &chunk);
                }
                from += n;
            }
        }
    }
}

/// Inputs `from .. from + n` of the weights of [`FLOAT_OUTPUTS`] outputs from `first` on, as f32.
struct FloatChunk {
    weights: *const f32,
    /// From one output's weights to the next.
    stride: usize,
    first: usize,
    from: usize,
    n: usize,
    /// The same inputs of the next outputs as they are stored, and the bytes of one.
    next: *const u8,
    bytes: usize,
}

/// Unpacks inputs `from .. from + n` of [`FLOAT_OUTPUTS`] outputs, padded with zeros to a multiple of sixteen.
///
/// # Safety
/// As for [`rows`]; the inputs are within the tile, and `panel` has room for [`FLOAT_OUTPUTS`] × [`FLOAT_CHUNK`]
/// numbers.
#[inline(always)]
unsafe fn unpack_floats<V: Lanes, W: FloatWeight>(
    t: &Tile,
    first: usize,
    from: usize,
    n: usize,
    panel: *mut f32,
) {
    // SAFETY: outputs past the last repeat it, so every read is of an output of the tile; the panel has room for a
    // whole chunk of each.
    unsafe {
        for o in 0..FLOAT_OUTPUTS {
            let output = (first + o).min(t.outputs - 1);
            let (w, scales) =
                (t.weights.add(output * t.stride + from * W::BYTES), t.planes.of_output(output));
            let to = panel.add(o * FLOAT_CHUNK);
            let mut i = 0;
            while i + 16 <= n {
                W::weights::<V>(w.add(i * W::BYTES), scales, from + i).store(to.add(i));
                i += 16;
            }
            if i < n {
                W::weights_n::<V>(w.add(i * W::BYTES), n - i, scales, from + i).store(to.add(i));
            }
        }
    }
}

/// All rows of a tile with a chunk of weights: R rows at once, the last few one or two.
///
/// # Safety
/// As for [`rows`]; the chunk is of the tile.
#[inline(always)]
unsafe fn float_rows<V: Lanes, const O: usize, const R: usize>(t: &Tile, chunk: &FloatChunk) {
    // SAFETY: `r` stays below the tile's rows; the chunk always has all `FLOAT_OUTPUTS` outputs, a multiple of O.
    unsafe {
        let mut r = 0;
        while t.rows - r >= R && t.rows - r != R + 1 {
            float_outputs::<V, O, R>(t, chunk, r);
            r += R;
        }
        while t.rows - r >= 2 {
            float_outputs::<V, O, 2>(t, chunk, r);
            r += 2;
        }
        if r < t.rows {
            float_outputs::<V, O, 1>(t, chunk, r);
        }
    }
}

/// # Safety
/// As for [`float_rows`]; R rows from `r` on are within the tile.
#[inline(always)]
unsafe fn float_outputs<V: Lanes, const O: usize, const R: usize>(t: &Tile, chunk: &FloatChunk, r: usize) {
    let outputs = FLOAT_OUTPUTS.min(t.outputs - chunk.first);
    for o in (0..outputs).step_by(O) {
        // SAFETY: as for this function; O outputs from `o` on are within the chunk.
        unsafe { float_block::<V, O, R>(t, chunk, r, o) };
    }
}

/// Multiplies a chunk's outputs from `o` on by rows from `r` on. Lanes that are not done wait in the scratch's
/// accumulators, `[output][TILE_ROWS][lane]`, for the next chunk.
///
/// # Safety
/// As for [`float_outputs`].
#[inline(always)]
unsafe fn float_block<V: Lanes, const O: usize, const R: usize>(
    t: &Tile,
    chunk: &FloatChunk,
    r: usize,
    o: usize,
) {
    let (n, stride) = (chunk.n, t.x_stride / 4);
    let mut v = [[V::zero(); R]; O];
    // SAFETY: the caller's promise; only weights are padded, so the last partial vector of activations is read with
    // `load_n`.
    unsafe {
        let x = t.x.cast::<f32>().add(r * stride + chunk.from);
        let w = chunk.weights.add(o * chunk.stride);
        let acc = (&raw mut (*t.scratch).acc).cast::<f32>().add((o * TILE_ROWS + r) * 16);
        if chunk.from > 0 {
            for o in 0..O {
                for r in 0..R {
                    v[o][r] = V::load(acc.add((o * TILE_ROWS + r) * 16));
                }
            }
        }
        // Whole vectors in a loop of their own: one loop for both cases would need more registers. While the first
        // blocks of a chunk are multiplied, each asks for two of the next outputs: rows may be too short for hardware
        // prefetching, and many lines asked for at once would hold up the loads of this chunk.
        let block = r / R * (FLOAT_OUTPUTS / O) + o / O;
        let asks = if 2 * block < FLOAT_OUTPUTS { 2 * block } else { 0 };
        let next = chunk.next.wrapping_add(asks * t.stride);
        let after = next.wrapping_add(t.stride);
        let mut i = 0;
        while i + 16 <= n {
            V::prefetch(next.wrapping_add(i * chunk.bytes));
            V::prefetch(after.wrapping_add(i * chunk.bytes));
            let mut xs = [V::zero(); R];
            for r in 0..R {
                xs[r] = V::load(x.add(r * stride + i));
            }
            for o in 0..O {
                let w = V::load(w.add(o * chunk.stride + i));
                for r in 0..R {
                    v[o][r] = w.fma(xs[r], v[o][r]);
                }
            }
            i += 16;
        }
        if i < n {
            for o in 0..O {
                let w = V::load(w.add(o * chunk.stride + i));
                for r in 0..R {
                    v[o][r] = w.fma(V::load_n(x.add(r * stride + i), n - i), v[o][r]);
                }
            }
        }
        if chunk.from + n < t.inputs {
            for o in 0..O {
                for r in 0..R {
                    v[o][r].store(acc.add((o * TILE_ROWS + r) * 16));
                }
            }
            return;
        }
        for i in 0..R {
            let out = t.out.add((r + i) * t.out_stride + chunk.first + o);
            let mut lanes = [V::zero(); 8];
            for o in 0..O {
                lanes[o] = v[o][i];
            }
            if O == 8 {
                V::sums8(lanes, out);
            } else {
                for o in 0..O {
                    *out.add(o) = lanes[o].sum();
                }
            }
        }
    }
}

//! Products of weights that are not quantised, in the canonical arithmetic of [`crate::tile`].

use crate::isa::Lanes;
use crate::panel::{FLOAT_CHUNK, FLOAT_OUTPUTS, TILE_ROWS};
use crate::tile::Tile;

/// How weights that are not quantised are read.
pub(crate) trait FloatWeight: 'static {
    const BYTES: usize;
    /// # Safety
    /// Sixteen weights can be read at `p`.
    unsafe fn load<V: Lanes>(p: *const u8) -> V;

    /// The first `n`, the rest zero.
    /// # Safety
    /// `n` weights can be read at `p`.
    #[inline(always)]
    unsafe fn load_n<V: Lanes>(p: *const u8, n: usize) -> V {
        let mut bytes = [0_u8; 64];
        // SAFETY: n ≤ 16 weights of at most 4 bytes.
        unsafe {
            p.copy_to_nonoverlapping(bytes.as_mut_ptr(), n * Self::BYTES);
            Self::load(bytes.as_ptr())
        }
    }
}

macro_rules! float_weight {
    ($name:ident, $bytes:expr, |$p:ident| $load:expr) => {
        pub(crate) struct $name;
        impl FloatWeight for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<V: Lanes>($p: *const u8) -> V {
                // SAFETY: as the trait asks.
                unsafe { $load }
            }
        }
    };
}

float_weight!(F32W, 4, |p| V::load(p.cast()));
float_weight!(F16W, 2, |p| V::load_f16(p));
float_weight!(BF16W, 2, |p| V::load_bf16(p));

/// # Safety
/// Everything that the tile points to is there, and the instruction set of `V` is too.
#[inline(always)]
pub(crate) unsafe fn rows<V: Lanes, W: FloatWeight>(t: &Tile) {
    // SAFETY: passed on.
    unsafe {
        if t.rows > 1 {
            return float_panels::<V, W>(t);
        }
        for o in 0..t.outputs {
            let [v] = float_row::<V, W, 1>([t.weights.add(o * t.stride)], t.x.cast(), t.inputs, t.ahead(o));
            *t.out.add(o) = v.sum();
        }
    }
}

/// # Safety
/// As for [`rows`].
#[inline(always)]
pub(crate) unsafe fn streams<V: Lanes, W: FloatWeight>(t: &[Tile]) {
    // SAFETY: within the tiles.
    unsafe {
        for o in 0..t[0].outputs {
            for four in t.as_chunks::<4>().0 {
                let w = four.each_ref().map(|t| t.weights.add(o * t.stride));
                let lanes = float_row::<V, W, 4>(w, t[0].x.cast(), t[0].inputs, t[0].ahead(o));
                for s in 0..4 {
                    *four[s].out.add(o) = lanes[s].sum();
                }
            }
        }
    }
}

/// O outputs of the only row, weights as they stand.
#[inline(always)]
unsafe fn float_row<V: Lanes, W: FloatWeight, const O: usize>(
    w: [*const u8; O],
    x: *const f32,
    inputs: usize,
    ahead: usize,
) -> [V; O] {
    let mut acc = [V::zero(); O];
    // SAFETY: `inputs` weights can be read at each pointer, and as many activations.
    unsafe {
        let mut i = 0;
        while i + 16 <= inputs {
            let xs = V::load(x.add(i));
            for o in 0..O {
                let w = w[o].add(i * W::BYTES);
                V::prefetch(w.wrapping_add(ahead));
                acc[o] = W::load::<V>(w).fma(xs, acc[o]);
            }
            i += 16;
        }
        if i < inputs {
            let n = inputs - i;
            let xs = V::load_n(x.add(i), n);
            for o in 0..O {
                acc[o] = W::load_n::<V>(w[o].add(i * W::BYTES), n).fma(xs, acc[o]);
            }
        }
    }
    acc
}

/// Several rows: weights are unpacked to f32, [`FLOAT_OUTPUTS`] by [`FLOAT_CHUNK`] at a time, which the first cache
/// holds beside a few rows of activations.
#[inline(always)]
unsafe fn float_panels<V: Lanes, W: FloatWeight>(t: &Tile) {
    // SAFETY: the scratch is this worker's own; outputs and inputs stay within the tile.
    unsafe {
        let panel = (&raw mut (*t.scratch).floats).cast::<f32>();
        for first in (0..t.outputs).step_by(FLOAT_OUTPUTS) {
            let mut from = 0;
            while from < t.inputs {
                let n = FLOAT_CHUNK.min(t.inputs - from);
                unpack_floats::<V, W>(t, first, from, n, panel);
                let chunk = FloatChunk { panel, first, from, n };
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

/// Unpacked weights: `n` elements from `from` on of [`FLOAT_OUTPUTS`] outputs from `first` on.
struct FloatChunk {
    panel: *const f32,
    first: usize,
    from: usize,
    n: usize,
}

/// `n` elements from `from` on of [`FLOAT_OUTPUTS`] outputs, padded with zeros to whole sixteens.
#[inline(always)]
unsafe fn unpack_floats<V: Lanes, W: FloatWeight>(
    t: &Tile,
    first: usize,
    from: usize,
    n: usize,
    panel: *mut f32,
) {
    // SAFETY: outputs past the last repeat it; the panel has room for a whole chunk of each.
    unsafe {
        for o in 0..FLOAT_OUTPUTS {
            let w = t.weights.add((first + o).min(t.outputs - 1) * t.stride + from * W::BYTES);
            let to = panel.add(o * FLOAT_CHUNK);
            let mut i = 0;
            while i + 16 <= n {
                V::prefetch(w.wrapping_add(FLOAT_OUTPUTS * t.stride + i * W::BYTES));
                W::load::<V>(w.add(i * W::BYTES)).store(to.add(i));
                i += 16;
            }
            if i < n {
                W::load_n::<V>(w.add(i * W::BYTES), n - i).store(to.add(i));
            }
        }
    }
}

/// All rows of a tile with a chunk of weights: R rows at once, the last few one or two.
#[inline(always)]
unsafe fn float_rows<V: Lanes, const O: usize, const R: usize>(t: &Tile, chunk: &FloatChunk) {
    // SAFETY: rows are within the tile; outputs are taken in groups of O, of which the panel has whole ones.
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

#[inline(always)]
unsafe fn float_outputs<V: Lanes, const O: usize, const R: usize>(t: &Tile, chunk: &FloatChunk, r: usize) {
    let outputs = FLOAT_OUTPUTS.min(t.outputs - chunk.first);
    for o in (0..outputs).step_by(O) {
        // SAFETY: as the caller promises.
        unsafe { float_block::<V, O, R>(t, chunk, r, o) };
    }
}

/// Multiplies a chunk's outputs from `o` on by rows from `r` on. Lanes that are not done wait in the scratch's accumulators,
/// `[output][TILE_ROWS][lane]`, for the next chunk.
#[inline(always)]
unsafe fn float_block<V: Lanes, const O: usize, const R: usize>(
    t: &Tile,
    chunk: &FloatChunk,
    r: usize,
    o: usize,
) {
    let (n, stride) = (chunk.n, t.x_stride / 4);
    let mut v = [[V::zero(); R]; O];
    // SAFETY: as the callers promise; only the activations of a last partial sixteen are not padded.
    unsafe {
        let x = t.x.cast::<f32>().add(r * stride + chunk.from);
        let w = chunk.panel.add(o * FLOAT_CHUNK);
        let acc = (&raw mut (*t.scratch).acc).cast::<f32>().add((o * TILE_ROWS + r) * 16);
        if chunk.from > 0 {
            for o in 0..O {
                for r in 0..R {
                    v[o][r] = V::load(acc.add((o * TILE_ROWS + r) * 16));
                }
            }
        }
        // Whole sixteens apart from the last: one loop for both would cost registers.
        let mut i = 0;
        while i + 16 <= n {
            let mut xs = [V::zero(); R];
            for r in 0..R {
                xs[r] = V::load(x.add(r * stride + i));
            }
            for o in 0..O {
                let w = V::load(w.add(o * FLOAT_CHUNK + i));
                for r in 0..R {
                    v[o][r] = w.fma(xs[r], v[o][r]);
                }
            }
            i += 16;
        }
        if i < n {
            for o in 0..O {
                let w = V::load(w.add(o * FLOAT_CHUNK + i));
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

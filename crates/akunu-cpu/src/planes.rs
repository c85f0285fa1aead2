//! Scales and offsets in separate planes, as in MLX files and FP8.

use akunu_format::{Fp8, ScaleType};
use akunu_plan::DType;

use crate::isa::Lanes;
use crate::panel::{F16x, Panel};

/// Prefetch distance in bytes.
const AHEAD: usize = 1024;

/// The scales and offsets of a weight matrix. One of each is for `blocks` blocks of 32. These are runtime values, so
/// that a kernel is instantiated per number of bits only, not per group size and scale type.
#[derive(Clone, Copy)]
pub(crate) struct Planes {
    pub(crate) scales: *const u8,
    pub(crate) offsets: *const u8,
    /// Bytes from one output to the next, in either plane.
    pub(crate) stride: usize,
    pub(crate) kind: ScaleType,
    /// 1, 2 or 4; a row is a multiple of it.
    pub(crate) blocks: usize,
    /// Of FP8, whose scales are f32: log₂ of the inputs that share one.
    pub(crate) shift: u32,
}

/// The scales of one output of FP8.
#[derive(Clone, Copy)]
pub(crate) struct ScalesOf {
    scales: *const u8,
    shift: u32,
}

impl ScalesOf {
    /// The scale of input `i`.
    ///
    /// # Safety
    /// The scales of a whole row can be read, and `i` is an input of it.
    #[inline(always)]
    pub(crate) unsafe fn at(self, i: usize) -> f32 {
        // SAFETY: as the caller promises.
        unsafe { self.scales.add((i >> self.shift) * 4).cast::<f32>().read_unaligned() }
    }
}

impl Planes {
    /// The planes of a matrix with rows of `inputs`; the addresses are set for each product. Unused for types without
    /// planes.
    pub(crate) fn of(dtype: DType, inputs: usize) -> Planes {
        let (kind, blocks) = match dtype {
            DType::Affine(affine) => (affine.scales(), affine.group() / 32),
            _ => (ScaleType::F32, 1),
        };
        let shift = match dtype {
            DType::Fp8(Fp8::G128) => 7,
            // Every input is below this power of two.
            _ => usize::BITS - 1,
        };
        let stride = dtype.plane_bytes(inputs).map_or(0, |planes| planes[1]);
        Planes { scales: std::ptr::null(), offsets: std::ptr::null(), stride, kind, blocks, shift }
    }

    pub(crate) fn at(self, scales: *const u8, offsets: *const u8, output: usize) -> Planes {
        let from = output * self.stride;
        Planes { scales: scales.wrapping_add(from), offsets: offsets.wrapping_add(from), ..self }
    }

    /// The scales of output `o`, of FP8.
    #[inline(always)]
    pub(crate) fn of_output(&self, o: usize) -> ScalesOf {
        ScalesOf { scales: self.scales.wrapping_add(o * self.stride), shift: self.shift }
    }

    /// The scales and offsets of `count` ≤ 16 blocks of output `o` from block `first` (a multiple of 16) on; other
    /// lanes are 0.
    ///
    /// # Safety
    /// Output `o` and its blocks `first .. first + count` are within the planes.
    #[inline(always)]
    pub(crate) unsafe fn lanes<V: Lanes>(&self, o: usize, first: usize, count: usize) -> (V, V) {
        let at = o * self.stride + first / self.blocks * self.kind.bytes();
        let [scales, offsets] = [self.scales, self.offsets].map(|plane| plane.wrapping_add(at));
        V::prefetch(scales.wrapping_add(AHEAD));
        V::prefetch(offsets.wrapping_add(AHEAD));
        // SAFETY: the blocks are within the planes, as the caller promises.
        unsafe {
            (
                V::spread(scales, self.kind, self.blocks, count),
                V::spread(offsets, self.kind, self.blocks, count),
            )
        }
    }

    /// Stores the scales and offsets of sixteen outputs in a panel. Outputs past the last repeat it.
    ///
    /// # Safety
    /// As for [`Planes::lanes`] for all outputs below `outputs`; `panel` is valid and not aliased.
    #[inline(always)]
    pub(crate) unsafe fn unpack<V: Lanes>(
        &self,
        panel: *mut Panel,
        outputs: usize,
        first: usize,
        count: usize,
    ) {
        let mut rows = [[F16x([0.0; 16]); 16]; 2];
        for o in 0..16 {
            // SAFETY: `o` is an output of the planes; each of the arrays has sixteen lanes.
            unsafe {
                let (scales, offsets) = self.lanes::<V>(o.min(outputs - 1), first, count);
                scales.store(rows[0][o].0.as_mut_ptr());
                offsets.store(rows[1][o].0.as_mut_ptr());
            }
        }
        // SAFETY: valid and not aliased, as the caller promises.
        let panel = unsafe { &mut *panel };
        V::transpose(&rows[0], &mut panel.d);
        V::transpose(&rows[1], &mut panel.m);
    }
}

//! Scales and offsets that lie apart from their quants, as MLX has them.

use akunu_format::ScaleType;
use akunu_plan::DType;

use crate::isa::Lanes;
use crate::panel::{F16x, Panel};

/// How far ahead of their use they are asked for, in bytes.
const AHEAD: usize = 1024;

/// Where a weight's scales and offsets are. One of each is for `blocks` blocks of 32: known only when running, so that a
/// kernel is made for a number of bits and not for every group size and type of scales as well.
#[derive(Clone, Copy)]
pub(crate) struct Planes {
    pub(crate) scales: *const u8,
    pub(crate) offsets: *const u8,
    /// Bytes from one output's to the next, in either.
    pub(crate) stride: usize,
    pub(crate) kind: ScaleType,
    /// 1, 2 or 4; a row is a multiple of it.
    pub(crate) blocks: usize,
}

impl Planes {
    /// Of rows of `inputs`; where they start is set for each product. Of no meaning to types without planes.
    pub(crate) fn of(dtype: DType, inputs: usize) -> Planes {
        let (kind, blocks) = match dtype {
            DType::Affine(affine) => (affine.scales(), affine.group() / 32),
            _ => (ScaleType::F32, 1),
        };
        let stride = dtype.plane_bytes(inputs).map_or(0, |planes| planes[1]);
        Planes { scales: std::ptr::null(), offsets: std::ptr::null(), stride, kind, blocks }
    }

    pub(crate) fn at(self, scales: *const u8, offsets: *const u8, output: usize) -> Planes {
        let from = output * self.stride;
        Planes { scales: scales.wrapping_add(from), offsets: offsets.wrapping_add(from), ..self }
    }

    /// Scale and offset of `count` ≤ 16 blocks of output `o` from block `first` (a multiple of 16) on; other lanes are 0.
    ///
    /// # Safety
    /// The planes have that output and those blocks.
    #[inline(always)]
    pub(crate) unsafe fn lanes<V: Lanes>(&self, o: usize, first: usize, count: usize) -> (V, V) {
        let at = o * self.stride + first / self.blocks * self.kind.bytes();
        let [scales, offsets] = [self.scales, self.offsets].map(|plane| plane.wrapping_add(at));
        V::prefetch(scales.wrapping_add(AHEAD));
        V::prefetch(offsets.wrapping_add(AHEAD));
        // SAFETY: as the caller promises.
        unsafe {
            (
                V::spread(scales, self.kind, self.blocks, count),
                V::spread(offsets, self.kind, self.blocks, count),
            )
        }
    }

    /// Those of sixteen outputs, to a panel. Outputs past the last repeat it.
    ///
    /// # Safety
    /// As for [`Planes::lanes`], and the panel is the caller's.
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
            // SAFETY: as the caller promises; sixteen lanes each.
            unsafe {
                let (scales, offsets) = self.lanes::<V>(o.min(outputs - 1), first, count);
                scales.store(rows[0][o].0.as_mut_ptr());
                offsets.store(rows[1][o].0.as_mut_ptr());
            }
        }
        // SAFETY: the caller's panel.
        let panel = unsafe { &mut *panel };
        V::transpose(&rows[0], &mut panel.d);
        V::transpose(&rows[1], &mut panel.m);
    }
}

//! Every kernel, once, generic over its lanes. Each works on the part that is dealt to its worker.

pub(crate) mod attention;
pub(crate) mod cache;
mod keys;
pub(crate) mod matrix;
pub(crate) mod rope;
pub(crate) mod rows;

use akunu_plan::q8;

use crate::isa::Lanes;

/// Rounds the 32 elements at `x` into block `block` of a q8 row of `cols` elements.
///
/// # Safety
/// The row is whole, and 32 elements can be read at `x`.
#[inline(always)]
pub(crate) unsafe fn put_q8<V: Lanes>(row: *mut u8, cols: usize, block: usize, x: *const f32) {
    // SAFETY: as the caller promises.
    unsafe {
        let (scale, sum) = V::quantise(x, row.add(block * q8::BLOCK).cast());
        *row.add(q8::scales_offset(cols)).cast::<f32>().add(block) = scale;
        *row.add(q8::sums_offset(cols)).cast::<i32>().add(block) = sum;
    }
}

/// Rounds a whole row.
///
/// # Safety
/// `cols` elements (whole blocks) can be read at `x`, and a q8 row of them written.
#[inline(always)]
pub(crate) unsafe fn put_q8_row<V: Lanes>(row: *mut u8, cols: usize, x: *const f32) {
    for block in 0..cols / q8::BLOCK {
        // SAFETY: within the row.
        unsafe { put_q8::<V>(row, cols, block, x.add(block * q8::BLOCK)) };
    }
}

//! Keys in the cache, in [`akunu_plan::KeyOrder::Sixteens`]: an element of sixteen positions is one load, whose lanes are positions.

use akunu_plan::KvType;
use akunu_plan::keys::TOGETHER;

use super::cache::{BLOCK, Cache, SCALE};
use crate::isa::Lanes;

/// Which way a head goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// All `keys` here are those of one kv head, of a sequence or of all of the cache, and `row` is room for a head as values are held.
impl Cache {
    /// # Safety
    /// A head can be read at `from`, and the keys have the position.
    #[inline(always)]
    pub(crate) unsafe fn store_key<V: Lanes>(
        &self,
        from: *const f32,
        row: *mut u8,
        keys: *mut u8,
        position: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            self.store::<V>(from, row);
            self.carry(Way::In, row, keys, position);
        }
    }

    /// Padded with zeros to whole sixteens.
    ///
    /// # Safety
    /// The keys have the position; a padded head can be written at `to`.
    #[inline(always)]
    pub(crate) unsafe fn load_key<V: Lanes>(
        &self,
        keys: *mut u8,
        position: usize,
        row: *mut u8,
        to: *mut f32,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            self.carry(Way::Out, row, keys, position);
            self.load::<V>(row, to);
        }
    }

    /// Copies `count` positions: whole groups as they lie, where both begin with one.
    ///
    /// # Safety
    /// The keys have all these positions, and no position is copied onto another that is copied.
    #[inline(always)]
    pub(crate) unsafe fn copy_keys(&self, keys: *mut u8, row: *mut u8, [from, to]: [usize; 2], count: usize) {
        let aligned = from.is_multiple_of(TOGETHER) && to.is_multiple_of(TOGETHER);
        let whole = if aligned { count / TOGETHER * TOGETHER } else { 0 };
        // SAFETY: as the caller promises.
        unsafe {
            let (source, target) = (keys.add(from * self.row), keys.add(to * self.row));
            source.copy_to_nonoverlapping(target, whole * self.row);
            for i in whole..count {
                self.carry(Way::Out, row, keys, from + i);
                self.carry(Way::In, row, keys, to + i);
            }
        }
    }

    /// Element `e` of a sixteen.
    ///
    /// # Safety
    /// The sixteen can be read.
    #[inline(always)]
    pub(crate) unsafe fn key_lanes<V: Lanes>(&self, sixteen: *const u8, e: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            match self.kv {
                KvType::F32 => V::load(sixteen.add(e * TOGETHER * 4).cast()),
                KvType::F16 => V::load_f16(sixteen.add(e * TOGETHER * 2)),
                KvType::Q8_0 => {
                    let block = sixteen.add(e / 32 * BLOCK * TOGETHER);
                    let quants = block.add((SCALE + e % 32) * TOGETHER);
                    V::load_i8(quants.cast()).mul(V::load_f16(block))
                }
            }
        }
    }

    /// One head between its row and its places among the keys.
    #[inline(always)]
    unsafe fn carry(&self, way: Way, row: *mut u8, keys: *mut u8, position: usize) {
        let sixteen = keys.wrapping_add(position / TOGETHER * TOGETHER * self.row);
        let lane = position % TOGETHER;
        // SAFETY: as the callers promise.
        unsafe {
            match self.kv {
                KvType::F32 => fields::<4>(way, self.head_dim, row, sixteen, lane),
                KvType::F16 => fields::<2>(way, self.head_dim, row, sixteen, lane),
                KvType::Q8_0 => {
                    for block in (0..self.row).step_by(BLOCK) {
                        let (row, sixteen) = (row.add(block), sixteen.add(block * TOGETHER));
                        fields::<SCALE>(way, 1, row, sixteen, lane);
                        let (row, sixteen) = (row.add(SCALE), sixteen.add(SCALE * TOGETHER));
                        fields::<1>(way, BLOCK - SCALE, row, sixteen, lane);
                    }
                }
            }
        }
    }
}

/// `count` fields of `SIZE` bytes, side by side in a row.
#[inline(always)]
unsafe fn fields<const SIZE: usize>(way: Way, count: usize, row: *mut u8, sixteen: *mut u8, lane: usize) {
    for i in 0..count {
        // SAFETY: as the callers promise.
        unsafe {
            let own = row.add(i * SIZE).cast::<[u8; SIZE]>();
            let place = sixteen.add((i * TOGETHER + lane) * SIZE).cast::<[u8; SIZE]>();
            match way {
                Way::In => *place = *own,
                Way::Out => *own = *place,
            }
        }
    }
}

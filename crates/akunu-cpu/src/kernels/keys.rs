//! Keys in the cache, in [`akunu_plan::KeyOrder::GroupsOf16`]: the same element of sixteen positions is contiguous, so
//! one load gives a lane per position.

use akunu_plan::KvType;
use akunu_plan::keys::KEY_GROUP;

use super::cache::{BLOCK, Cache, SCALE};
use crate::isa::Lanes;

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// `keys` is one KV head's keys, of a sequence or of the whole cache; `row` is a buffer for one head in the cache's
/// type.
impl Cache {
    /// Stores one head as the key of a position.
    ///
    /// # Safety
    /// A head can be read at `from`, `row` has room for one, and `keys` has the position.
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

    /// Loads the key of a position, padded with zeros to a multiple of sixteen.
    ///
    /// # Safety
    /// `keys` has the position, `row` has room for a head, and a padded head can be written at `to`.
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

    /// Copies `count` positions: whole groups as they are if both ranges begin on a group boundary.
    ///
    /// # Safety
    /// `keys` has all these positions, source and target do not overlap, and `row` has room for a head.
    #[inline(always)]
    pub(crate) unsafe fn copy_keys(&self, keys: *mut u8, row: *mut u8, [from, to]: [usize; 2], count: usize) {
        let aligned = from.is_multiple_of(KEY_GROUP) && to.is_multiple_of(KEY_GROUP);
        let whole = if aligned { count / KEY_GROUP * KEY_GROUP } else { 0 };
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

    /// Element `e` of a group of sixteen positions, one position per lane.
    ///
    /// # Safety
    /// The group can be read.
    #[inline(always)]
    pub(crate) unsafe fn key_lanes<V: Lanes>(&self, sixteen: *const u8, e: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            match self.kv {
                KvType::F32 => V::load(sixteen.add(e * KEY_GROUP * 4).cast()),
                KvType::F16 => V::load_f16(sixteen.add(e * KEY_GROUP * 2)),
                KvType::Q8_0 => {
                    let block = sixteen.add(e / 32 * BLOCK * KEY_GROUP);
                    let quants = block.add((SCALE + e % 32) * KEY_GROUP);
                    V::load_i8(quants.cast()).mul(V::load_f16(block))
                }
            }
        }
    }

    /// Copies one head between a row and its interleaved place among the keys.
    ///
    /// # Safety
    /// `row` is a buffer for one head, and `keys` has the position.
    #[inline(always)]
    unsafe fn carry(&self, way: Way, row: *mut u8, keys: *mut u8, position: usize) {
        let sixteen = keys.wrapping_add(position / KEY_GROUP * KEY_GROUP * self.row);
        let lane = position % KEY_GROUP;
        // SAFETY: as the callers promise.
        unsafe {
            match self.kv {
                KvType::F32 => fields::<4>(way, self.head_dim, row, sixteen, lane),
                KvType::F16 => fields::<2>(way, self.head_dim, row, sixteen, lane),
                KvType::Q8_0 => {
                    for block in (0..self.row).step_by(BLOCK) {
                        let (row, sixteen) = (row.add(block), sixteen.add(block * KEY_GROUP));
                        fields::<SCALE>(way, 1, row, sixteen, lane);
                        let (row, sixteen) = (row.add(SCALE), sixteen.add(SCALE * KEY_GROUP));
                        fields::<1>(way, BLOCK - SCALE, row, sixteen, lane);
                    }
                }
            }
        }
    }
}

/// Copies `count` fields of `SIZE` bytes between a contiguous row and lane `lane` of a group of sixteen positions.
///
/// # Safety
/// The row has `count` fields, and the group `count` fields of all lanes.
#[inline(always)]
unsafe fn fields<const SIZE: usize>(way: Way, count: usize, row: *mut u8, sixteen: *mut u8, lane: usize) {
    for i in 0..count {
        // SAFETY: as the callers promise.
        unsafe {
            let own = row.add(i * SIZE).cast::<[u8; SIZE]>();
            let place = sixteen.add((i * KEY_GROUP + lane) * SIZE).cast::<[u8; SIZE]>();
            match way {
                Way::In => *place = *own,
                Way::Out => *own = *place,
            }
        }
    }
}

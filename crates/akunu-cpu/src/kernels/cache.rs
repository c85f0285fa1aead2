//! One layer's KV cache: values are `[KV head][position][head dim]`, keys are laid out as `keys.rs` describes.

use akunu_plan::ops::{self, KvMoveParams};
use akunu_plan::{Kernel, KvType, RopeStyle};

use super::OpKernel;
use super::rope::rotate;
use crate::command::{Command, Context, f32s};
use crate::isa::Lanes;
use crate::isa::target::Target;
use crate::math;
use crate::panel::MAX_HEAD;

/// Bytes of a Q8_0 scale, and of a whole block.
pub(super) const SCALE: usize = 2;
pub(super) const BLOCK: usize = 34;

/// Byte offsets in one layer's keys or values.
#[derive(Clone, Copy)]
pub(crate) struct Cache {
    pub(crate) kv: KvType,
    pub(crate) head_dim: usize,
    /// Bytes of one head at one position.
    pub(crate) row: usize,
    /// The number of positions.
    positions: usize,
    blocks: Option<Blocks>,
}

/// The table of the blocks of a cache ([`akunu_plan::blocks`]).
#[derive(Clone, Copy)]
struct Blocks {
    table: *const u32,
    /// The logarithm of the positions of a block.
    shift: u32,
}

impl Cache {
    #[inline(always)]
    pub(crate) fn new(kv: KvType, head_dim: u32, positions: u32) -> Cache {
        let head_dim = head_dim as usize;
        let row = kv.row_bytes(head_dim).unwrap_or(0);
        Cache { kv, head_dim, row, positions: positions as usize, blocks: None }
    }

    /// The same in blocks of `block` positions, which is a power of two, if there is a table of them.
    #[inline(always)]
    pub(crate) fn paged(self, table: Option<ops::Blocks<*mut u8>>, block: u32) -> Cache {
        let blocks = table.map(|table| Blocks { table: table.0.cast(), shift: block.trailing_zeros() });
        Cache { blocks, ..self }
    }

    /// The place in the cache of logical position `at`. A block that the cache does not have is its last one, so the
    /// place is within the cache whatever the table contains.
    ///
    /// # Safety
    /// The table, if there is one, has the block of this position.
    #[inline(always)]
    pub(crate) unsafe fn place(&self, at: usize) -> usize {
        let Some(Blocks { table, shift }) = self.blocks else { return at };
        let last = (self.positions >> shift) - 1;
        // SAFETY: as the caller promises; the table is aligned, as was checked when the command was prepared.
        let block = unsafe { *table.add(at >> shift) } as usize;
        (block.min(last) << shift) + (at & ((1 << shift) - 1))
    }

    /// The places of logical positions `at .. at + count` that are next to each other from the first one on: their
    /// number, at most `count`.
    ///
    /// # Safety
    /// The table, if there is one, has the blocks of these positions; `count` is at least 1.
    #[inline(always)]
    pub(crate) unsafe fn adjacent(&self, at: usize, count: usize) -> usize {
        let Some(Blocks { shift, .. }) = self.blocks else { return count };
        let mut end = (at | ((1 << shift) - 1)) + 1;
        // SAFETY: positions below `at + count`, as the caller promises.
        unsafe {
            let apart = self.place(at).wrapping_sub(at);
            while end < at + count && self.place(end).wrapping_sub(end) == apart {
                end += 1 << shift;
            }
        }
        count.min(end - at)
    }

    /// Whether runs of `count` positions, counted from a sequence's start, are next to each other; `count` is a power of
    /// two.
    #[inline(always)]
    pub(crate) fn has_runs_of(&self, count: usize, start: usize) -> bool {
        self.blocks.is_none_or(|Blocks { shift, .. }| (1 << shift) >= count && start.is_multiple_of(count))
    }

    /// Elements of a head, padded to a multiple of sixteen.
    #[inline(always)]
    pub(crate) fn padded(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// The offset of the values of a place; or of the keys of the group of 16 positions that begins there.
    #[inline(always)]
    pub(crate) fn offset(&self, head: usize, place: usize) -> usize {
        (head * self.positions + place) * self.row
    }

    /// Stores one head.
    ///
    /// # Safety
    /// A head can be read at `from` and written at `to`.
    #[inline(always)]
    pub(crate) unsafe fn store<V: Lanes>(&self, from: *const f32, to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.kv {
                KvType::F32 => from.cast::<u8>().copy_to_nonoverlapping(to, self.row),
                KvType::F16 => {
                    let mut at = 0;
                    while at + 16 <= self.head_dim {
                        V::load(from.add(at)).store_f16(to.add(at * 2));
                        at += 16;
                    }
                    if at < self.head_dim {
                        let (n, mut last) = (self.head_dim - at, [0_u8; 32]);
                        V::load_n(from.add(at), n).store_f16(last.as_mut_ptr());
                        last.as_ptr().copy_to_nonoverlapping(to.add(at * 2), n * 2);
                    }
                }
                KvType::Q8_0 => {
                    for block in 0..self.head_dim / 32 {
                        let to = to.add(block * BLOCK);
                        let (scale, _) = V::quantise(from.add(block * 32), to.add(SCALE).cast());
                        to.cast::<u16>().write_unaligned(half::f16::from_f32(scale).to_bits());
                    }
                }
            }
        }
    }

    /// Loads one head, padded with zeros to whole sixteens.
    ///
    /// # Safety
    /// A head can be read at `from`; a padded one can be written at `to`.
    #[inline(always)]
    pub(crate) unsafe fn load<V: Lanes>(&self, from: *const u8, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.kv {
                KvType::F32 => {
                    let from = from.cast::<f32>();
                    let mut i = 0;
                    while (i + 1) * 16 <= self.head_dim {
                        V::load(from.add(i * 16)).store(to.add(i * 16));
                        i += 1;
                    }
                    if i * 16 < self.head_dim {
                        V::load_n(from.add(i * 16), self.head_dim - i * 16).store(to.add(i * 16));
                    }
                }
                KvType::F16 => {
                    let mut i = 0;
                    while (i + 1) * 16 <= self.head_dim {
                        V::load_f16(from.add(i * 32)).store(to.add(i * 16));
                        i += 1;
                    }
                    if i * 16 < self.head_dim {
                        let (n, mut last) = (self.head_dim - i * 16, [0_u8; 32]);
                        from.add(i * 32).copy_to_nonoverlapping(last.as_mut_ptr(), n * 2);
                        V::load_f16(last.as_ptr()).store(to.add(i * 16));
                    }
                }
                KvType::Q8_0 => {
                    for block in 0..self.head_dim / 32 {
                        let from = from.add(block * BLOCK);
                        let scale = V::splat(V::f16(from.cast::<u16>().read_unaligned()));
                        let quants = from.add(SCALE).cast::<i8>();
                        let to = to.add(block * 32);
                        V::load_i8(quants).mul(scale).store(to);
                        V::load_i8(quants.add(16)).mul(scale).store(to.add(16));
                    }
                }
            }
        }
    }
}

/// Moves positions to lower ones, in ascending order, so that none is overwritten before it is read.
impl OpKernel for ops::KvShift {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: KvMoveParams = command.params();
        let Kernel::KvShift(op) = command.kernel else { return };
        let o = command.operands(op);
        let cache = Cache::new(op.kv, p.head_dim, p.positions).paged(o.blocks, p.block);
        // SAFETY: both ranges of positions were checked against the table, and its places are within the cache; each
        // head is handled by one worker.
        unsafe {
            for moved in context.moves(o.moves) {
                let (from, to, len) = (moved.from as usize, moved.to as usize, moved.len as usize);
                let angles = shift_angles(f32s(o.frequencies), &p, from - to);
                let Some(keys) = o.k_cache else {
                    if context.part == 0 {
                        let (rows, head) = (o.v_cache.0, (&raw mut (*context.scratch).q).cast::<f32>());
                        let (dim, dims) = (p.head_dim as usize, p.rope_dims as usize);
                        for i in 0..len {
                            let [source, target] =
                                [from + i, to + i].map(|at| cache.offset(0, cache.place(at)));
                            cache.load::<V>(rows.add(source), head);
                            rotate_key::<V>(head.add(dim - dims), op.style, dims, &angles);
                            cache.store::<V>(head, rows.add(target));
                        }
                    }
                    continue;
                };
                for head in context.share(p.kv_heads as usize) {
                    let offset = cache.offset(head, 0);
                    let (keys, v) = (keys.0.add(offset), o.v_cache.0.add(offset));
                    let (key, held) = (&raw mut (*context.scratch).head, &raw mut (*context.scratch).held);
                    for i in 0..len {
                        let (source, target) = (cache.place(from + i), cache.place(to + i));
                        cache.load_key::<V>(keys, source, held.cast(), key.cast());
                        rotate_key::<V>(key.cast(), op.style, p.rope_dims as usize, &angles);
                        cache.store_key::<V>(key.cast(), held.cast(), keys, target);
                        v.add(source * cache.row).copy_to(v.add(target * cache.row), cache.row);
                    }
                }
            }
        }
    }
}

type Angles = [f32; MAX_HEAD];

/// cos and sin of each pair for a rotation back by `back` positions.
///
/// # Safety
/// `frequencies` has one frequency for each pair.
unsafe fn shift_angles(frequencies: *const f32, p: &KvMoveParams, back: usize) -> Angles {
    let mut angles = [0.0; MAX_HEAD];
    for (i, pair) in angles.chunks_exact_mut(2).enumerate().take(p.rope_dims as usize / 2) {
        // SAFETY: `i` is below the number of pairs.
        let frequency = unsafe { *frequencies.add(i) };
        let (sin, cos) = math::sin_cos(back as f64 * f64::from(frequency));
        (pair[0], pair[1]) = (cos as f32, -sin as f32);
    }
    angles
}

#[inline(always)]
unsafe fn rotate_key<V: Lanes>(key: *mut f32, style: RopeStyle, dims: usize, angles: &Angles) {
    // SAFETY: the head has at least `dims` elements, and `angles` a cos and sin for each pair.
    unsafe { rotate::<V>(key, style, dims, angles.as_ptr()) };
}

impl OpKernel for ops::KvCopy {
    #[inline(always)]
    unsafe fn run<V: Target>(command: &Command, context: &Context) {
        let p: KvMoveParams = command.params();
        let Kernel::KvCopy(op) = command.kernel else { return };
        let o = command.operands(op);
        let cache = Cache::new(op.kv, p.head_dim, p.positions);
        // SAFETY: both ranges of positions were checked against the cache and do not overlap; each head is handled by
        // one worker.
        unsafe {
            for moved in context.moves(o.moves) {
                let (from, to, len) = (moved.from as usize, moved.to as usize, moved.len as usize);
                for head in context.share(p.kv_heads as usize) {
                    let offset = cache.offset(head, 0);
                    let v = o.v_cache.0.add(offset);
                    if let Some(keys) = o.k_cache {
                        let held = &raw mut (*context.scratch).held;
                        cache.copy_keys(keys.0.add(offset), held.cast(), [from, to], len);
                    }
                    let (source, target) = (v.add(from * cache.row), v.add(to * cache.row));
                    source.copy_to_nonoverlapping(target, len * cache.row);
                }
            }
        }
    }
}

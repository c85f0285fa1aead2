//! Memory followed by an inaccessible page, so that an access past its end faults.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use akunu_format::Region;

const PAGE: usize = 1 << 16;
/// The alignment of the widest load; an overrun by fewer bytes than this is not detected.
const ALIGN: usize = 16;

#[derive(Debug)]
enum Held {
    Own {
        map: NonNull<u8>,
        map_bytes: usize,
    },
    /// A region, which is never written.
    Region(#[allow(dead_code, reason = "it keeps the bytes")] Region),
}

#[derive(Debug)]
pub struct Memory {
    held: Held,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is owned by this value alone.
unsafe impl Send for Memory {}

impl Memory {
    /// A region in place, from a page boundary on. An access past its end may not be detected.
    pub(crate) fn of_region(region: &Region) -> Memory {
        let (start, bytes) = (NonNull::from(region.bytes()).cast::<u8>(), region.bytes().len());
        Memory { held: Held::Region(region.clone()), start, bytes }
    }

    /// `bytes` zeroed bytes.
    pub(crate) fn zeroed(bytes: usize) -> Option<Memory> {
        let held = bytes.checked_next_multiple_of(PAGE)?;
        let map_bytes = held.checked_add(PAGE)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        // SAFETY: a new anonymous mapping does not affect existing memory.
        let map = unsafe { libc::mmap(ptr::null_mut(), map_bytes, protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return None;
        }
        let map = NonNull::new(map.cast::<u8>())?;
        let offset = held - bytes.next_multiple_of(ALIGN);
        // SAFETY: both addresses are inside the mapping, and nothing refers to its last page yet.
        let start = unsafe {
            libc::mprotect(map.as_ptr().add(held).cast(), PAGE, libc::PROT_NONE);
            map.add(offset)
        };
        Some(Memory { held: Held::Own { map, map_bytes }, start, bytes })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` from `start` on are mapped and initialised; kernels write them only while the device is
        // mutably borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The bytes for writing; none for a region.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.held {
            // SAFETY: as above, and `&mut self` makes this the only reference.
            Held::Own { .. } => unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) },
            Held::Region(_) => &mut [],
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Held::Own { map, map_bytes } = self.held {
            // SAFETY: the mapping is owned by this value alone.
            unsafe { libc::munmap(map.as_ptr().cast(), map_bytes) };
        }
    }
}

//! Memory that ends where the next page may not be touched, so that an access past its end is a fault.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use akunu_format::Region;

const PAGE: usize = 1 << 16;
/// What the widest load wants; up to as many bytes past the end go unnoticed.
const ALIGN: usize = 16;

#[derive(Debug)]
enum Held {
    Own {
        map: NonNull<u8>,
        map_bytes: usize,
    },
    /// Whose bytes nobody writes.
    Region(#[allow(dead_code, reason = "it keeps the bytes")] Region),
}

#[derive(Debug)]
pub struct Memory {
    held: Held,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Memory {}

impl Memory {
    /// A region where it is, from a page's first byte on. An access past its end may go unnoticed.
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
        // SAFETY: a new mapping touches no memory that exists.
        let map = unsafe { libc::mmap(ptr::null_mut(), map_bytes, protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return None;
        }
        let map = NonNull::new(map.cast::<u8>())?;
        let offset = held - bytes.next_multiple_of(ALIGN);
        // SAFETY: both places are inside the mapping, and the last page is nobody's yet.
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
        // SAFETY: `bytes` from `start` on are mapped; kernels run only while the device is borrowed for writing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// A region has none that may be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.held {
            // SAFETY: as above.
            Held::Own { .. } => unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) },
            Held::Region(_) => &mut [],
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Held::Own { map, map_bytes } = self.held {
            // SAFETY: the mapping is this value's own.
            unsafe { libc::munmap(map.as_ptr().cast(), map_bytes) };
        }
    }
}

//! Memory that ends where the next page may not be touched, so that an access past its end is a fault.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

const PAGE: usize = 1 << 16;
/// What the widest load wants; up to as many bytes past the end go unnoticed.
const ALIGN: usize = 16;

/// `bytes` zeroed bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    map: NonNull<u8>,
    map_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Memory {}

impl Memory {
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
        Some(Memory { map, map_bytes, start, bytes })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` from `start` on are mapped; kernels run only while the device is borrowed for writing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

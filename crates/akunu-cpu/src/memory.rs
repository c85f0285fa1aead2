//! Buffers: zeroed memory owned by the device, or a memory-mapped model file.

use std::ptr::NonNull;

use akunu_format::Region;

/// Zeroed memory, aligned to a cache line. Large allocations are mapped, so pages are allocated on first touch, as
/// huge pages where the system offers them.
pub(crate) struct Owned {
    start: NonNull<u8>,
    pub(crate) bytes: usize,
}

// SAFETY: it owns plain memory that is not tied to a thread; the device synchronises access.
unsafe impl Send for Owned {}
// SAFETY: as for `Send`; a shared reference only gives out the address.
unsafe impl Sync for Owned {}

impl Owned {
    pub(crate) fn zeroed(bytes: u64) -> Option<Owned> {
        let bytes = usize::try_from(bytes).ok()?;
        let start = if is_mapped(bytes) { pages::map(bytes)? } else { heap::zeroed(bytes)? };
        Some(Owned { start, bytes })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if is_mapped(self.bytes) {
            pages::unmap(self.start, self.bytes);
        } else {
            heap::free(self.start, self.bytes);
        }
    }
}

/// Miri cannot unmap a part of a mapping.
fn is_mapped(bytes: usize) -> bool {
    cfg!(all(unix, not(miri))) && bytes >= 1 << 16
}

mod heap {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Option<Layout> {
        // At least one byte: an empty layout must not be allocated.
        Layout::from_size_align(bytes.max(1), 64).ok()
    }

    pub(super) fn zeroed(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the layout has at least one byte.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) })
    }

    pub(super) fn free(start: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: allocated with this layout, and no pointer to it outlives the device that owns it.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(unix)]
mod pages {
    use std::ptr::{NonNull, null_mut};

    const HUGE: usize = 2 << 20;

    pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
        if bytes < HUGE {
            return reserve(bytes);
        }
        // Reserve enough to align the start to a huge page; the rest is unmapped.
        let all = reserve(bytes.checked_add(HUGE)?)?;
        let before = all.align_offset(HUGE);
        // SAFETY: `before` < HUGE and `bytes` + HUGE were reserved, so all three parts are inside the mapping.
        let (start, end) =
            unsafe { (all.add(before), all.add(before + bytes.next_multiple_of(page_size()))) };
        if before > 0 {
            unmap(all, before);
        }
        let left = all.addr().get() + bytes + HUGE;
        if left > end.addr().get() {
            unmap(end, left - end.addr().get());
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the range is inside this mapping. madvise is only a hint here, and its failure changes nothing.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Some(start)
    }

    fn page_size() -> usize {
        // SAFETY: `sysconf` has no preconditions.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 12)
    }

    fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        // SAFETY: a new anonymous mapping at an address that the system chooses.
        let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
    }

    /// Unmaps whole pages; `start` is the beginning of a page.
    pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the range was mapped by `reserve`, and no pointer to it outlives the device that owns it.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(unix))]
mod pages {
    use std::ptr::NonNull;

    pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
        super::heap::zeroed(bytes)
    }

    pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
        super::heap::free(start, bytes);
    }
}

pub(crate) enum Buffer {
    Owned(Owned),
    Imported { region: Region, offset: usize, bytes: usize },
}

impl Buffer {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Buffer::Owned(owned) => owned.bytes as u64,
            Buffer::Imported { bytes, .. } => *bytes as u64,
        }
    }

    /// The address. Imported (file) memory must not be written through it.
    pub(crate) fn start(&self) -> *mut u8 {
        match self {
            Buffer::Owned(owned) => owned.start(),
            Buffer::Imported { region, offset, .. } => region.bytes()[*offset..].as_ptr().cast_mut(),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if matches!(self, Buffer::Owned(_)) { "owned" } else { "imported" };
        write!(f, "{} bytes {kind}", self.bytes())
    }
}

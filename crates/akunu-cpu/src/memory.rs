//! Buffers: zeroed memory of the device's own, or a model's file where it is mapped.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use akunu_format::Region;

/// Zeroed, aligned to a cache line.
pub(crate) struct Owned {
    start: NonNull<u8>,
    layout: Layout,
    pub(crate) bytes: usize,
}

// SAFETY: plain memory; the device hands out access.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    pub(crate) fn zeroed(bytes: u64) -> Option<Owned> {
        let bytes = usize::try_from(bytes).ok()?;
        // One byte at least: a layout of none may not be allocated.
        let layout = Layout::from_size_align(bytes.max(1), 64).ok()?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Owned { start, layout, bytes })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody holds a pointer past the device.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
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

    /// Imported memory may be read through it, never written.
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

//! Padding against false sharing.

/// A value on cache lines of its own, so that threads which poll one value do not slow down threads which write
/// another. The alignment is two cache lines, since processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

//! Memory that contains weights: a mapped file, bytes inside the binary, or an owned copy.

use std::sync::Arc;

/// A cheap handle to immutable bytes. Devices that share memory with the host use them in place.
#[derive(Clone)]
pub struct Region(Arc<Backing>);

enum Backing {
    Mapped(memmap2::Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Region {
    pub fn mapped(map: memmap2::Mmap) -> Region {
        Region(Arc::new(Backing::Mapped(map)))
    }

    pub fn from_static(bytes: &'static [u8]) -> Region {
        Region(Arc::new(Backing::Static(bytes)))
    }

    pub fn from_vec(bytes: Vec<u8>) -> Region {
        Region(Arc::new(Backing::Owned(bytes)))
    }

    /// Whether it is a mapped file, and therefore page-aligned.
    pub fn is_mapped(&self) -> bool {
        matches!(&*self.0, Backing::Mapped(_))
    }

    pub fn bytes(&self) -> &[u8] {
        match &*self.0 {
            Backing::Mapped(map) => map,
            Backing::Static(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &*self.0 {
            Backing::Mapped(_) => "mapped",
            Backing::Static(_) => "static",
            Backing::Owned(_) => "owned",
        };
        write!(f, "Region({kind}, {} bytes)", self.bytes().len())
    }
}

/// Embeds a file in the binary as a [`Region`] that is aligned for weights (`include_bytes!` does not guarantee any
/// alignment).
///
/// ```
/// let region = akunu_format::include_region!("../Cargo.toml");
/// assert_eq!(region.bytes().as_ptr().addr() % 64, 0);
/// ```
#[macro_export]
macro_rules! include_region {
    ($path:expr) => {{
        #[repr(C, align(64))]
        struct Aligned<T: ?Sized>(T);
        static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
        $crate::Region::from_static(&ALIGNED.0)
    }};
}

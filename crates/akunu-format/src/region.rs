//! Memory that contains weights: a file that is mapped or was read, bytes inside the binary, or an owned copy.

use std::path::PathBuf;
use std::sync::Arc;

use akunu_file::FileId;

/// A cheap handle to immutable bytes. Devices that share memory with the host use them in place.
#[derive(Clone)]
pub struct Region(Arc<Backing>);

enum Backing {
    Mapped(memmap2::Mmap, SourceFile),
    /// Anonymous memory with the content of a file.
    Read(memmap2::Mmap, SourceFile),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

/// The file that a region contains.
#[derive(Debug)]
pub struct SourceFile {
    pub path: PathBuf,
    /// Of the file that was opened.
    pub id: FileId,
}

impl Region {
    pub(crate) fn mapped(map: memmap2::Mmap, file: SourceFile) -> Region {
        Region(Arc::new(Backing::Mapped(map, file)))
    }

    pub(crate) fn read(memory: memmap2::Mmap, file: SourceFile) -> Region {
        Region(Arc::new(Backing::Read(memory, file)))
    }

    pub fn from_static(bytes: &'static [u8]) -> Region {
        Region(Arc::new(Backing::Static(bytes)))
    }

    pub fn from_vec(bytes: Vec<u8>) -> Region {
        Region(Arc::new(Backing::Owned(bytes)))
    }

    /// Whether it begins at a page of its own, as a file does that is mapped or was read.
    pub fn is_page_aligned(&self) -> bool {
        self.file().is_some()
    }

    /// Whether it is a file that was read into memory.
    pub fn is_read(&self) -> bool {
        matches!(&*self.0, Backing::Read(..))
    }

    pub fn file(&self) -> Option<&SourceFile> {
        match &*self.0 {
            Backing::Mapped(_, file) | Backing::Read(_, file) => Some(file),
            Backing::Static(_) | Backing::Owned(_) => None,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match &*self.0 {
            Backing::Mapped(map, _) | Backing::Read(map, _) => map,
            Backing::Static(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &*self.0 {
            Backing::Mapped(..) => "mapped",
            Backing::Read(..) => "read",
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

//! Memory that contains weights: a file that is mapped or was read, bytes inside the binary, or an owned copy.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

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
    Derived(Derived),
}

/// Computes bytes, of which it gets zeros.
type Fill = dyn Fn(&mut [u8]) + Send + Sync;

/// Bytes that are computed when they are first read.
struct Derived {
    len: usize,
    fill: Arc<Fill>,
    bytes: OnceLock<Vec<u8>>,
}

/// The file that a region contains.
#[derive(Debug)]
pub struct SourceFile {
    pub path: PathBuf,
    /// Of the file that was opened.
    pub id: FileId,
    /// Open, for reads beside a mapping. The path may lead to another file by now.
    pub(crate) file: File,
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

    /// `len` bytes that `fill` computes when they are first read, so that what only looks at a model's shapes does not
    /// wait for them. `fill` gets zeros, and what can fail has been checked before.
    pub fn derived(len: usize, fill: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Region {
        Region(Arc::new(Backing::Derived(Derived { len, fill: Arc::new(fill), bytes: OnceLock::new() })))
    }

    /// The same bytes for one use: what is computed for it goes when the last of its handles does, unless this region has
    /// its bytes already.
    pub fn for_once(&self) -> Region {
        match &*self.0 {
            Backing::Derived(Derived { len, fill, bytes }) if bytes.get().is_none() => {
                let (len, fill) = (*len, Arc::clone(fill));
                Region(Arc::new(Backing::Derived(Derived { len, fill, bytes: OnceLock::new() })))
            }
            _ => self.clone(),
        }
    }

    /// Copies bytes from `offset` on into `out`, which contains zeros. A whole region that has not been computed yet is
    /// computed there, and nowhere else.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        match &*self.0 {
            Backing::Derived(derived)
                if (offset, out.len()) == (0, derived.len) && derived.bytes.get().is_none() =>
            {
                (derived.fill)(out);
            }
            _ => out.copy_from_slice(&self.bytes()[offset..][..out.len()]),
        }
    }

    /// Whether it begins at a page of its own, as a file does that is mapped or was read.
    pub fn is_page_aligned(&self) -> bool {
        self.file().is_some()
    }

    /// Whether its bytes are computed when they are first read, into memory of their own.
    pub fn is_derived(&self) -> bool {
        matches!(&*self.0, Backing::Derived(_))
    }

    /// Whether it is a file that was read into memory.
    pub fn is_read(&self) -> bool {
        matches!(&*self.0, Backing::Read(..))
    }

    pub fn file(&self) -> Option<&SourceFile> {
        match &*self.0 {
            Backing::Mapped(_, file) | Backing::Read(_, file) => Some(file),
            Backing::Static(_) | Backing::Owned(_) | Backing::Derived(_) => None,
        }
    }

    /// Whether it is a file that is mapped, so that its bytes need memory only while they are used.
    pub fn is_mapped(&self) -> bool {
        matches!(&*self.0, Backing::Mapped(..))
    }

    /// Reads bytes of the region's file, not of the mapping: a file that has become shorter is an error, and does not end
    /// the process.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> io::Result<()> {
        match self.file() {
            Some(source) => read_exact_at(&source.file, to, offset as u64),
            None => Err(io::Error::other("the bytes are not in a file")),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match &*self.0 {
            Backing::Mapped(map, _) | Backing::Read(map, _) => map,
            Backing::Static(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
            Backing::Derived(derived) => derived.bytes.get_or_init(|| {
                let mut bytes = vec![0; derived.len];
                (derived.fill)(&mut bytes);
                bytes
            }),
        }
    }

    /// The number of bytes, which computes none.
    pub fn len(&self) -> usize {
        match &*self.0 {
            Backing::Derived(derived) => derived.len,
            _ => self.bytes().len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, to: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut to: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !to.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, to, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => (to, offset) = (&mut to[read..], offset + read as u64),
        }
    }
    Ok(())
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &*self.0 {
            Backing::Mapped(..) => "mapped",
            Backing::Read(..) => "read",
            Backing::Static(_) => "static",
            Backing::Owned(_) => "owned",
            Backing::Derived(_) => "derived",
        };
        write!(f, "Region({kind}, {} bytes)", self.len())
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn derived_bytes_are_computed_once_and_only_when_they_are_read() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let region = Region::derived(3, move |bytes| {
            counted.fetch_add(1, Ordering::Relaxed);
            bytes.copy_from_slice(&[5, 6, 7]);
        });
        let same = region.clone();
        assert_eq!((region.len(), format!("{region:?}")), (3, "Region(derived, 3 bytes)".to_string()));
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!((region.bytes(), same.bytes()), (&[5, 6, 7][..], &[5, 6, 7][..]));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn bytes_that_are_used_once_are_not_kept() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let region = Region::derived(3, move |bytes| {
            counted.fetch_add(1, Ordering::Relaxed);
            bytes.copy_from_slice(&[5, 6, 7]);
        });
        let mut all = [0; 3];
        region.copy_to(0, &mut all);
        assert_eq!((all, region.for_once().bytes()), ([5, 6, 7], &[5, 6, 7][..]));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        // A part of a region needs all of it.
        let mut last = [0; 2];
        region.copy_to(1, &mut last);
        assert_eq!((last, count.load(Ordering::Relaxed)), ([6, 7], 3));
        // From now on it has its bytes.
        region.copy_to(0, &mut all);
        assert_eq!((region.for_once().bytes().as_ptr(), region.bytes()), (region.bytes().as_ptr(), &all[..]));
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}

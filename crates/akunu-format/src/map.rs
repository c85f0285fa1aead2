//! The bytes of files: memory-mapped, or read into memory. The only `unsafe` code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use akunu_file::FileId;
use memmap2::{Mmap, MmapMut};

use crate::region::SourceFile;
use crate::{FormatError, Region};

/// How the bytes of a model's files get into memory.
#[derive(Clone, Copy, Debug, Default)]
pub enum Loading {
    /// Mapped: pages are read when they are used, and shared with other processes. If the file is truncated, the
    /// process ends.
    #[default]
    Map,
    /// Read into memory of the process, so that later changes of the file have no effect. A file that is larger than
    /// `available` bytes, if these are known, is rejected before it is read.
    Read { available: fn() -> Option<u64> },
}

/// A whole file. An empty file becomes an empty region, since not every system can map zero bytes.
pub(crate) fn load_file(path: &Path, loading: Loading) -> Result<Region, FormatError> {
    let cannot_open = |error| FormatError::io("open it", error, path);
    // Checks the path before opening, because opening a pipe would wait for a writer.
    let about = std::fs::metadata(path).map_err(cannot_open)?;
    if !about.is_file() {
        let what = if about.is_dir() { "it is a folder" } else { "it is not an ordinary file" };
        return Err(cannot_open(std::io::Error::other(what)));
    }
    let file = File::open(path).map_err(cannot_open)?;
    let id = FileId::of_open(&file, path).map_err(cannot_open)?;
    if about.len() == 0 {
        return Ok(Region::from_static(&[]));
    }
    let source = |file| SourceFile { path: path.to_path_buf(), id, file };
    match loading {
        Loading::Map => Ok(Region::mapped(map(&file, path)?, source(file))),
        Loading::Read { available } => {
            if let Some(available) = available().filter(|&available| available < about.len()) {
                return Err(FormatError::NoMemory { bytes: about.len(), available }.in_file(path));
            }
            Ok(Region::read(read(&file, about.len(), path)?, source(file)))
        }
    }
}

fn map(file: &File, path: &Path) -> Result<Mmap, FormatError> {
    // SAFETY: the mapping is read-only and private to this process. Another process could still change or truncate the
    // file while it is mapped, which no reader can prevent. Therefore parsed values are copied or checked again when
    // used, and any bits are valid weights; truncation is the responsibility of the file's owner.
    let map = unsafe { Mmap::map(file) };
    let map = map.map_err(|error| FormatError::io("map it", error, path))?;
    // Asks for huge pages, so that the file is read and mapped 2 MiB at a time. A failure has no consequences.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Page-aligned memory, as a mapped file has.
fn read(mut file: &File, bytes: u64, path: &Path) -> Result<Mmap, FormatError> {
    let cannot_read = |error| FormatError::io("read it", error, path);
    let length = usize::try_from(bytes).map_err(|error| cannot_read(std::io::Error::other(error)))?;
    let mut memory = MmapMut::map_anon(length).map_err(cannot_read)?;
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    file.read_exact(&mut memory).map_err(cannot_read)?;
    memory.make_read_only().map_err(cannot_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_read_is_the_same_as_mapped_and_does_not_change_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = load_file(&path, Loading::Map).unwrap();
        let read = load_file(&path, Loading::Read { available: || Some(400_000) }).unwrap();
        for (region, is_read) in [(&mapped, false), (&read, true)] {
            assert!(region.bytes() == bytes && region.is_page_aligned() && region.is_read() == is_read);
            assert_eq!(region.bytes().as_ptr().addr() % 4096, 0);
            assert_eq!(region.file().unwrap().id, FileId::of(&path).unwrap());
        }
        let mut part = [0; 8];
        mapped.read_at(4000, &mut part).unwrap();
        assert_eq!(part, bytes[4000..4008]);
        std::fs::write(&path, "shorter").unwrap();
        let error = mapped.read_at(4000, &mut part).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        drop(mapped);
        assert!(read.bytes() == bytes);
    }

    #[test]
    fn a_file_larger_than_the_memory_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        // Without blocks on the disk.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = load_file(&path, Loading::Read { available: || Some(5 << 30) }).unwrap_err().to_string();
        assert!(error.contains("1024.0 GiB") && error.contains("5.0 GiB"), "{error}");
    }
}

//! Memory-mapping of files: the only `unsafe` code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use crate::{FormatError, Region};

/// Maps a whole file. An empty file becomes an empty region, since not every system can map zero bytes.
pub(crate) fn map_file(path: &Path) -> Result<Region, FormatError> {
    let cannot_open = |error| FormatError::io("open it", error, path);
    // Checks the path before opening, because opening a pipe would wait for a writer.
    let about = std::fs::metadata(path).map_err(cannot_open)?;
    if !about.is_file() {
        let what = if about.is_dir() { "it is a folder" } else { "it is not an ordinary file" };
        return Err(cannot_open(std::io::Error::other(what)));
    }
    let file = File::open(path).map_err(cannot_open)?;
    if about.len() == 0 {
        return Ok(Region::from_static(&[]));
    }
    // SAFETY: the mapping is read-only and private to this process. Another process could still change or truncate the
    // file while it is mapped, which no reader can prevent. Therefore parsed values are copied or checked again when
    // used, and any bits are valid weights; truncation is the responsibility of the file's owner.
    let map = unsafe { memmap2::Mmap::map(&file) };
    let map = map.map_err(|error| FormatError::io("map it", error, path))?;
    // Asks for huge pages, so that the file is read and mapped 2 MiB at a time. A failure has no consequences.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(Region::mapped(map))
}

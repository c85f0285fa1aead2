//! Mapping a file into memory: the one place here with `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use crate::{FormatError, Region};

/// Maps a whole file. An empty one becomes an empty region: not every system can map nothing.
pub(crate) fn map_file(path: &Path) -> Result<Region, FormatError> {
    let cannot_open = |error| FormatError::io("open it", error, path);
    // Asked of the path and not of the open file, because opening a pipe waits for a writer.
    let about = std::fs::metadata(path).map_err(cannot_open)?;
    if !about.is_file() {
        let what = if about.is_dir() { "it is a folder" } else { "it is not an ordinary file" };
        return Err(cannot_open(std::io::Error::other(what)));
    }
    let file = File::open(path).map_err(cannot_open)?;
    if about.len() == 0 {
        return Ok(Region::from_static(&[]));
    }
    // SAFETY: the mapping is read-only and private to this process. Another process could still change or cut
    // the file while it is mapped; no reader can rule that out, so parsed values are copied or checked again
    // when used, weights are plain numbers for which any bits will do, and cutting the file is on its owner.
    let map = unsafe { memmap2::Mmap::map(&file) };
    let map = map.map_err(|error| FormatError::io("map it", error, path))?;
    // What is not in memory yet is then read, and mapped, two megabytes at a time. An answer of no changes nothing.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(Region::mapped(map))
}

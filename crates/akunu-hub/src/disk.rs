//! Disk access, behind a trait so that tests can simulate a full disk.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The disk operations of a download.
pub trait Disk: std::fmt::Debug + Send + Sync {
    /// Free space for this user in the file system of a folder, in bytes; `None` if unknown.
    fn free(&self, folder: &Path) -> Option<u64>;

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()>;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    #[cfg(unix)]
    fn free(&self, folder: &Path) -> Option<u64> {
        let about = rustix::fs::statvfs(folder).ok()?;
        about.f_bavail.checked_mul(about.f_frsize)
    }

    #[cfg(not(unix))]
    fn free(&self, _folder: &Path) -> Option<u64> {
        None
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }
}

/// `1536` as `1.5 KiB`.
pub(crate) fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!([0, 1023, 1536, 5 << 30].map(human_size), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_disk_has_free_space() {
        assert!(SystemDisk.free(&std::env::temp_dir()).is_some());
    }
}

//! Whether two paths are the same file.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// Equal for all paths of one file: other spellings, symbolic links and hard links. On systems without device and inode
/// numbers, hard links differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileId(Inner);

#[cfg(unix)]
type Inner = (u64, u64);
#[cfg(not(unix))]
type Inner = std::path::PathBuf;

impl FileId {
    /// Links are followed.
    pub fn of(path: &Path) -> io::Result<FileId> {
        identify(&std::fs::metadata(path)?, path)
    }

    /// The identity of an open file, whose path may lead elsewhere by now.
    pub fn of_open(file: &File, path: &Path) -> io::Result<FileId> {
        identify(&file.metadata()?, path)
    }
}

#[cfg(unix)]
fn identify(about: &Metadata, _: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;
    Ok(FileId((about.dev(), about.ino())))
}

#[cfg(not(unix))]
fn identify(_: &Metadata, path: &Path) -> io::Result<FileId> {
    path.canonicalize().map(FileId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_the_same_file_and_copies_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("one"), "same").unwrap();
        std::fs::copy(at("one"), at("copy")).unwrap();
        let one = FileId::of(&at("one")).unwrap();
        assert_eq!(one, FileId::of(&dir.path().join(".").join("one")).unwrap());
        assert_ne!(one, FileId::of(&at("copy")).unwrap());
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("one", at("link")).unwrap();
            std::fs::hard_link(at("one"), at("hard")).unwrap();
            assert_eq!(one, FileId::of(&at("link")).unwrap());
            assert_eq!(one, FileId::of(&at("hard")).unwrap());
        }
        assert!(FileId::of(&at("absent")).is_err());
    }
}

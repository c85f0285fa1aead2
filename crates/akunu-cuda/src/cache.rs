//! Compiled kernels on disk: one file each, named by a hash of everything that determines its contents.
//!
//! A file is the SHA-256 of its code, then the code. Files that do not match are compiled again, so damage to the
//! folder is harmless, and it may be deleted at any time.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use akunu_file::{Existing, NewFile};
use sha2::{Digest, Sha256};

const CHECKSUM: usize = 32;

#[derive(Clone, Debug)]
pub(crate) struct Cache {
    /// `None`: nothing is cached.
    folder: Option<PathBuf>,
}

impl Cache {
    pub(crate) fn new(folder: Option<&Path>) -> Cache {
        Cache { folder: folder.map(Path::to_path_buf) }
    }

    #[cfg(test)]
    pub(crate) fn at(folder: &Path) -> Cache {
        Cache::new(Some(folder))
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Whether kernels can be cached.
    pub(crate) fn check(&self) -> io::Result<()> {
        const PROBE: &str = "probe";
        self.write(PROBE, b"")?;
        self.file(PROBE).map_or(Ok(()), fs::remove_file)
    }

    fn file(&self, key: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.cubin")))
    }

    /// The cached code, if it is intact.
    pub(crate) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.file(key)?).ok()?;
        if bytes.len() < CHECKSUM {
            return None;
        }
        let code = bytes.split_off(CHECKSUM);
        (bytes[..] == Sha256::digest(&code)[..]).then_some(code)
    }

    /// Caches code. Readers see a complete file or none, also with concurrent writers.
    pub(crate) fn write(&self, key: &str, code: &[u8]) -> io::Result<()> {
        let (Some(folder), Some(file)) = (&self.folder, self.file(key)) else { return Ok(()) };
        fs::create_dir_all(folder)?;
        let mut part = NewFile::create(&file)?;
        part.write_all(&Sha256::digest(code))?;
        part.write_all(code)?;
        part.commit(Existing::Replace)
    }
}

/// The name of a kernel's file: a hash over all parts, with unambiguous boundaries.
pub(crate) fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_left() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(&home.path().join("made"));
        assert_eq!(cache.read("k"), None);
        cache.write("k", b"code").unwrap();
        cache.write("k", b"newer code").unwrap();
        assert_eq!(cache.read("k").unwrap(), b"newer code");
        let files: Vec<_> =
            fs::read_dir(home.path().join("made")).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(files, ["k.cubin"]);
    }

    #[test]
    fn a_file_that_is_not_whole_is_as_good_as_none() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path());
        cache.write("k", b"some code").unwrap();
        let file = home.path().join("k.cubin");
        let whole = fs::read(&file).unwrap();
        for length in [0, 5, CHECKSUM, whole.len() - 1] {
            fs::write(&file, &whole[..length]).unwrap();
            // The checksum of empty code does not match either.
            assert_eq!(cache.read("k"), None, "{length}");
        }
        let mut turned = whole.clone();
        turned[CHECKSUM] ^= 1;
        fs::write(&file, &turned).unwrap();
        assert_eq!(cache.read("k"), None);
        fs::write(&file, &whole).unwrap();
        assert_eq!(cache.read("k").unwrap(), b"some code");
    }

    #[test]
    fn many_writers_of_one_kernel_leave_one_whole_file() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path());
        std::thread::scope(|scope| {
            for writer in 0..8u8 {
                let cache = &cache;
                scope.spawn(move || cache.write("k", &vec![writer; 100_000]).unwrap());
            }
        });
        let code = cache.read("k").unwrap();
        assert!(code.len() == 100_000 && code.iter().all(|&byte| byte == code[0]));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_and_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        let cache = Cache::at(&home.path().join("file"));
        assert!(cache.write("k", b"code").is_err());
        assert_eq!(cache.read("k"), None);
    }

    #[test]
    fn keys_tell_every_part_from_the_next() {
        let keys = [key(&["ab", "c"]), key(&["a", "bc"]), key(&["abc"]), key(&["ab", "c", ""])];
        assert!(keys.iter().all(|k| k.len() == 64));
        assert!((0..4).all(|i| (0..i).all(|j| keys[i] != keys[j])), "{keys:?}");
        assert_eq!(keys[0], key(&["ab", "c"]));
    }
}

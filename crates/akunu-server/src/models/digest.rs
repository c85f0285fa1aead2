//! Digests of models: texts by which clients see that two models are the same, or that one has changed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::ModelSpec;

/// Parts of a file that are read, evenly spaced, and the bytes of each. Files of up to their sum are read whole.
const PARTS: u64 = 64;
const PART: u64 = 64 << 10;

/// The digest of a model that has none, because its files cannot be read.
pub(crate) const UNKNOWN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Read once for each state of the files: their sizes and times.
#[derive(Debug, Default)]
pub(super) struct Digest(Mutex<Option<(State, String)>>);

/// The size and time of each file.
type State = Vec<(PathBuf, u64, Option<SystemTime>)>;

impl Digest {
    /// Reads files, so it must not run on an async thread.
    pub(super) fn get(&self, spec: &ModelSpec) -> io::Result<String> {
        let Some(path) = &spec.path else {
            let version = concat!("embedded in akunu ", env!("CARGO_PKG_VERSION"));
            return Ok(hex(Sha256::digest(version)));
        };
        let state = state(path)?;
        if let Some((_, known)) = self.lock().as_ref().filter(|(known, _)| *known == state) {
            return Ok(known.clone());
        }
        let digest = match of_cache(path) {
            Some(digest) => digest,
            None => of_files(&state)?,
        };
        *self.lock() = Some((state, digest.clone()));
        Ok(digest)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(State, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file of a model, or the weights in its folder.
fn state(path: &Path) -> io::Result<State> {
    let of_file = |path: PathBuf| {
        let about = path.metadata()?;
        Ok::<_, io::Error>((path, about.len(), about.modified().ok()))
    };
    if !path.is_dir() {
        return Ok(vec![of_file(path.to_path_buf())?]);
    }
    let mut files = Vec::new();
    for entry in path.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            files.push(of_file(path)?);
        }
    }
    files.sort();
    Ok(files)
}

/// In the hub's cache a large file is a link to one that is named by its SHA-256.
fn of_cache(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    let name = target.file_name()?.to_str()?;
    let is_digest = name.len() == 64 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_digest.then(|| name.to_string())
}

/// The SHA-256 of the sizes of files and of parts of them.
fn of_files(files: &State) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut part = vec![0; PART as usize];
    for (path, size, _) in files {
        hasher.update(size.to_le_bytes());
        let mut file = File::open(path)?;
        let parts = size.div_ceil(PART).min(PARTS);
        for index in 0..parts {
            let at = match *size <= PARTS * PART {
                true => index * PART,
                false => (u128::from(size - PART) * u128::from(index) / u128::from(PARTS - 1)) as u64,
            };
            file.seek(SeekFrom::Start(at))?;
            let most = (size - at).min(PART) as usize;
            file.read_exact(&mut part[..most])?;
            hasher.update(&part[..most]);
        }
    }
    Ok(hex(hasher.finalize()))
}

pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of 64 hexadecimal digits.
pub(crate) fn digest(text: &str) -> Option<[u8; 32]> {
    let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..32).map(byte).collect::<Option<_>>()?;
    bytes.try_into().ok().filter(|_| text.len() == 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: &Path) -> ModelSpec {
        ModelSpec { path: Some(path.into()), ..ModelSpec::default() }
    }

    #[test]
    fn a_digest_changes_with_the_size_and_the_parts_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Digest::default().get(&spec(&path)).unwrap()
        };
        let size = 5 << 20;
        let mut bytes = vec![7; size];
        let whole = of(&bytes);
        assert!(whole.len() == 64 && whole == of(&bytes));
        for at in [0, size / 2, size - 1] {
            bytes[at] ^= 1;
            // Not each byte is read, and the first and the last are.
            assert!(whole != of(&bytes) || at == size / 2, "{at}");
            bytes[at] ^= 1;
        }
        assert_ne!(whole, of(&bytes[1..]));
        assert_ne!(of(b""), of(b"a"));
    }

    #[test]
    fn files_are_read_again_once_they_have_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        std::fs::write(&path, b"one").unwrap();
        let digest = Digest::default();
        let first = digest.get(&spec(&path)).unwrap();
        std::fs::write(&path, b"other").unwrap();
        assert_ne!(first, digest.get(&spec(&path)).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(digest.get(&spec(&path)).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn files_of_the_hubs_cache_have_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let (name, path) = ("0123456789abcdef".repeat(4), folder.path().join("model.gguf"));
        std::fs::write(folder.path().join(&name), b"x").unwrap();
        std::os::unix::fs::symlink(&name, &path).unwrap();
        assert_eq!(Digest::default().get(&spec(&path)).unwrap(), name);
    }
}

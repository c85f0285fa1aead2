//! Blocks in files of one folder, which several processes may share, those that were used least recently first to go.
//!
//! Nothing that happens to the folder ends a request: a file that is not what it should be is as good as none, and if
//! nothing can be written, nothing is.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::file::{Header, Reader, Writer, failed, file_bytes};
use crate::blocks::{Name, Named};
use crate::{Error, KvFileProblem};

/// Files that a process left behind half written are removed after this time.
const ABANDONED: Duration = Duration::from_secs(600);
/// After as much of the limit was written, the folder is looked at again, as other processes may write there, too.
const SHARE: u64 = 16;

/// Writes a file; another function in tests.
pub(super) type Write = fn(&Path, &Header, &[u8]) -> io::Result<u64>;

#[derive(Debug)]
pub(super) struct DiskTier {
    folder: PathBuf,
    /// The most bytes of all files.
    limit: u64,
    model: Name,
    /// Bytes of a block's file, and of the keys and values in it.
    file_bytes: u64,
    data_bytes: u64,
    /// Bytes of all files when the folder was looked at, and those written since.
    found: u64,
    written: u64,
    /// Names whose files are not usable, which is reported once.
    unusable: HashSet<Name>,
    /// Nothing is written any more.
    is_full: bool,
    pub(super) write: Write,
}

/// A file of the tier.
#[derive(Debug)]
struct Kept {
    modified: SystemTime,
    path: PathBuf,
    bytes: u64,
}

impl DiskTier {
    pub(super) fn open(
        folder: &Path,
        limit: u64,
        model: Name,
        (positions, data): (usize, usize),
        warnings: &mut Vec<String>,
    ) -> Result<DiskTier, Error> {
        let fail = |error| failed(folder, KvFileProblem::Io(error));
        fs::create_dir_all(folder).map_err(fail)?;
        let mut tier = DiskTier {
            folder: folder.into(),
            limit,
            model,
            file_bytes: file_bytes(positions, data),
            data_bytes: data as u64,
            found: 0,
            written: 0,
            unusable: HashSet::new(),
            is_full: false,
            write,
        };
        if limit < tier.file_bytes {
            return Err(Error::Setting {
                name: "the size of the cache on disk",
                value: format!("{limit} bytes"),
                expected: "at least that of one block",
            });
        }
        let (kept, foreign) = tier.files().map_err(fail)?;
        tier.found = kept.iter().map(|file| file.bytes).sum();
        if foreign > 0 {
            let folder = folder.display();
            warnings
                .push(format!("{folder} has {foreign} files that are not of the cache: they are left alone"));
        }
        Ok(tier)
    }

    /// Bytes of all files, as far as known.
    pub(super) fn used(&self) -> u64 {
        self.found + self.written
    }

    fn path(&self, name: Name) -> PathBuf {
        self.folder.join(format!("{name}.kv"))
    }

    pub(super) fn has(&self, name: Name) -> bool {
        !self.unusable.contains(&name) && self.path(name).exists()
    }

    /// Whether it has a block, which then counts as just used.
    pub(super) fn touch(&self, name: Name) -> bool {
        // A file that cannot be touched is still there, and only goes earlier.
        let touch = |file: File| file.set_modified(SystemTime::now());
        self.has(name) && {
            let _ = File::options().append(true).open(self.path(name)).and_then(touch);
            true
        }
    }

    /// Whether blocks are still written.
    pub(super) fn takes_more(&self) -> bool {
        !self.is_full
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Writes a block, if there is no file of it.
    pub(super) fn put(&mut self, block: &Named, data: &[u8], warnings: &mut Vec<String>) {
        if self.is_full || self.touch(block.name) {
            return;
        }
        let Named { name, parent, tokens } = block;
        let header =
            Header { model: self.model, parent: *parent, exact: tokens.len(), tokens: tokens.clone() };
        let written = self.make_space().and_then(|()| (self.write)(&self.path(*name), &header, data));
        match written {
            Ok(bytes) => {
                self.written += bytes;
                self.unusable.remove(name);
            }
            Err(error) => {
                self.is_full = true;
                let folder = self.folder.display();
                warnings.push(format!("{folder}: {error}: no more of the cache is written to disk"));
            }
        }
    }

    /// Reads a block into `data`.
    pub(super) fn get(&mut self, block: &Named, data: &mut [u8], warnings: &mut Vec<String>) -> bool {
        if self.unusable.contains(&block.name) {
            return false;
        }
        let path = self.path(block.name);
        let positions = block.tokens.len();
        let read = Reader::open(&path, self.model, positions, |_| self.data_bytes).and_then(|mut reader| {
            reader.read(data)?;
            let header = reader.finish()?;
            match header.parent == block.parent && header.tokens == block.tokens {
                true => Ok(()),
                false => Err(failed(&path, KvFileProblem::Damaged)),
            }
        });
        match read {
            Ok(()) => {
                self.touch(block.name);
                true
            }
            // Another process has removed it.
            Err(Error::KvFile { problem: KvFileProblem::Io(error), .. })
                if error.kind() == io::ErrorKind::NotFound =>
            {
                false
            }
            Err(error) => {
                self.unusable.insert(block.name);
                warnings.push(format!("{error}: the file is ignored"));
                false
            }
        }
    }

    /// Removes files until one more fits.
    fn make_space(&mut self) -> io::Result<()> {
        let needed = self.file_bytes;
        if self.used() + needed <= self.limit && self.written <= self.limit / SHARE {
            return Ok(());
        }
        let (mut kept, _) = self.files()?;
        kept.sort_unstable_by_key(|file| file.modified);
        (self.found, self.written) = (kept.iter().map(|file| file.bytes).sum(), 0);
        for file in kept {
            if self.found + needed <= self.limit {
                break;
            }
            match fs::remove_file(&file.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.found -= file.bytes,
            }
        }
        Ok(())
    }

    /// The files of the tier, of all models, and the number of others. Removes what was left behind half written.
    fn files(&self) -> io::Result<(Vec<Kept>, usize)> {
        let (mut kept, mut foreign) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Some(is_whole) = is_own(&entry.file_name()) else {
                foreign += 1;
                continue;
            };
            // A file that is gone by now is none.
            let Ok(metadata) = entry.metadata() else { continue };
            let (path, bytes, modified) = (entry.path(), metadata.len(), metadata.modified()?);
            let age = SystemTime::now().duration_since(modified).unwrap_or_default();
            if !is_whole && age > ABANDONED && fs::remove_file(&path).is_ok() {
                continue;
            }
            kept.push(Kept { modified, path, bytes });
        }
        Ok((kept, foreign))
    }
}

/// Whether a file with this name is one of the tier: a whole one, or one that is being written.
fn is_own(name: &OsStr) -> Option<bool> {
    let name = name.to_str()?;
    let (hash, rest) = name.split_at_checked(64)?;
    let is_hash = hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_whole = rest == ".kv";
    let is_part = rest.starts_with(".kv.") && rest.ends_with(".tmp");
    (is_hash && (is_whole || is_part)).then_some(is_whole)
}

fn write(path: &Path, header: &Header, data: &[u8]) -> io::Result<u64> {
    let mut writer = Writer::create(path, header)?;
    writer.add(data)?;
    writer.finish()
}

//! Files with blocks of a cache: of the disk's tier, with one block each, and of saved sessions.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `AKUNU KV` |
//! | 4 | version |
//! | 32 | name of the model and its cache |
//! | 32 | name of what precedes the first block; zeros in a session |
//! | 4 | how many tokens have the keys and values of a prefill: all, unless a session was shifted |
//! | 4 | number of tokens |
//! | 4 each | tokens |
//! | | for each block, the keys and then the values of its positions, as on the device |
//! | 32 | SHA-256 of everything before |
//!
//! Numbers are little-endian.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

use crate::blocks::Name;
use crate::memory::reserved;
use crate::{Error, KvFileProblem};

const MAGIC: &[u8; 8] = b"AKUNU KV";
const VERSION: u32 = 1;
/// Bytes before the tokens.
const FIXED: usize = 84;
const SUM: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) model: Name,
    pub(super) parent: Name,
    /// See the table above.
    pub(super) exact: usize,
    pub(super) tokens: Vec<u32>,
}

impl Header {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + 4 * self.tokens.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.model.0);
        bytes.extend(self.parent.0);
        bytes.extend((self.exact as u32).to_le_bytes());
        bytes.extend((self.tokens.len() as u32).to_le_bytes());
        self.tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        bytes
    }
}

/// Bytes of a file.
pub(super) fn file_bytes(tokens: usize, data: usize) -> u64 {
    (FIXED + 4 * tokens + data + SUM) as u64
}

pub(crate) fn failed(path: &Path, problem: KvFileProblem) -> Error {
    Error::KvFile { path: path.into(), problem }
}

/// A file that is being written under another name, so that it is there as a whole or not at all.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
    hasher: Sha256,
    bytes: u64,
}

impl Writer {
    pub(super) fn create(path: &Path, header: &Header) -> io::Result<Writer> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}-{number}.tmp", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        let (path, file) = (path.into(), BufWriter::new(file));
        let mut writer = Writer { path, temporary, file, hasher: Sha256::new(), bytes: 0 };
        writer.add(&header.bytes())?;
        Ok(writer)
    }

    pub(super) fn add(&mut self, data: &[u8]) -> io::Result<()> {
        self.hasher.update(data);
        self.bytes += data.len() as u64;
        self.file.write_all(data)
    }

    /// The file has its name now. Returns its bytes.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        let sum = std::mem::take(&mut self.hasher).finalize();
        self.add(&sum)?;
        self.file.flush()?;
        std::fs::rename(&self.temporary, &self.path)?;
        self.temporary.clear();
        Ok(self.bytes)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            // The error that ended writing is the one to report.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// A file that is being read, after its header.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    /// Bytes between the header and the sum that were not read yet.
    left: u64,
    pub(super) header: Header,
}

impl Reader {
    /// Opens a file with the cache of a model, in which `data` returns the bytes of the blocks of so many tokens, of which
    /// there are at most `most`.
    pub(super) fn open(
        path: &Path,
        model: Name,
        most: usize,
        data: impl Fn(usize) -> u64,
    ) -> Result<Reader, Error> {
        let fail = |problem| failed(path, problem);
        let read = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => fail(KvFileProblem::Foreign),
            _ => fail(KvFileProblem::Io(error)),
        };
        // Opening a pipe would wait for its other end.
        if !std::fs::metadata(path).map_err(|error| fail(KvFileProblem::Io(error)))?.is_file() {
            return Err(fail(KvFileProblem::Foreign));
        }
        let mut file = File::open(path).map_err(|error| fail(KvFileProblem::Io(error)))?;
        let mut fixed = [0; FIXED];
        file.read_exact(&mut fixed).map_err(read)?;
        let number = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let name = |at: usize| Name(std::array::from_fn(|index| fixed[at + index]));
        if fixed[..8] != *MAGIC {
            return Err(fail(KvFileProblem::Foreign));
        }
        if number(8) != VERSION {
            return Err(fail(KvFileProblem::Version(number(8))));
        }
        if name(12) != model {
            return Err(fail(KvFileProblem::OtherModel));
        }
        let (exact, count) = (number(76) as usize, number(80) as usize);
        if count > most {
            return Err(fail(KvFileProblem::TooLong { tokens: count, context: most }));
        }
        let left = data(count);
        let bytes = file.metadata().map_err(|error| fail(KvFileProblem::Io(error)))?.len();
        if exact > count || bytes != (FIXED + 4 * count + SUM) as u64 + left {
            return Err(fail(KvFileProblem::Damaged));
        }
        let mut ids: Vec<u8> = reserved("tokens of a file", 4 * count)?;
        ids.resize(4 * count, 0);
        file.read_exact(&mut ids).map_err(read)?;
        let tokens = ids.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]));
        let header = Header { model, parent: name(44), exact, tokens: tokens.collect() };
        let hasher = Sha256::new().chain_update(fixed).chain_update(&ids);
        Ok(Reader { path: path.into(), file, hasher, left, header })
    }

    /// Reads the next data.
    pub(super) fn read(&mut self, data: &mut [u8]) -> Result<(), Error> {
        let fail = |problem| failed(&self.path, problem);
        self.left = self.left.checked_sub(data.len() as u64).ok_or_else(|| fail(KvFileProblem::Damaged))?;
        self.file.read_exact(data).map_err(|error| fail(KvFileProblem::Io(error)))?;
        self.hasher.update(data);
        Ok(())
    }

    /// Checks the sum, after all data.
    pub(super) fn finish(mut self) -> Result<Header, Error> {
        let mut sum = [0; SUM];
        self.file.read_exact(&mut sum).map_err(|error| failed(&self.path, KvFileProblem::Io(error)))?;
        match self.left == 0 && sum == <[u8; SUM]>::from(self.hasher.finalize()) {
            true => Ok(self.header),
            false => Err(failed(&self.path, KvFileProblem::Damaged)),
        }
    }
}

//! Downloads one file from the hub into the cache: resumable, verified, and by one process at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use ureq::Body;
use ureq::http::Response;

use crate::api::RemoteFile;
use crate::cache::{Cache, make_parent};
use crate::digest::Hasher;
use crate::disk::Disk;
use crate::http::{Attempts, Http, RequestError, Resource, Retry, encode, header};
use crate::hub::Observer;
use crate::lock::{self, Lock};
use crate::reference::Repo;
use crate::{Error, Result};

const BUFFER: usize = 256 << 10;

/// The common state of all files of a pull.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    pub http: &'a Http,
    pub cache: &'a Cache,
    pub disk: &'a dyn Disk,
    pub repo: &'a Repo,
    pub commit: &'a str,
}

/// Progress of a whole pull.
pub(crate) struct PullProgress<'a> {
    pub observer: &'a mut dyn Observer,
    /// Bytes of completed files.
    pub before: u64,
    /// Bytes received over the network.
    pub received: u64,
}

/// A file being downloaded.
struct Part {
    file: File,
    hasher: Hasher,
    length: u64,
}

impl Download<'_> {
    /// Whether the blob of a file is in the cache.
    pub fn has(&self, file: &RemoteFile) -> bool {
        let about = fs::metadata(self.cache.blob(self.repo, file.sum.hex()));
        about.is_ok_and(|about| about.is_file() && about.len() == file.size)
    }

    /// Whether a file is complete in the cache: its blob and its link.
    pub fn is_complete(&self, file: &RemoteFile) -> bool {
        self.has(file) && self.cache.is_linked(self.repo, self.commit, &file.path, file.sum.hex())
    }

    /// Number of bytes of a file that are still missing.
    pub fn missing(&self, file: &RemoteFile) -> u64 {
        if self.has(file) {
            return 0;
        }
        let part = fs::metadata(self.cache.incomplete(self.repo, file.sum.hex()));
        file.size - part.map_or(0, |about| about.len()).min(file.size)
    }

    /// Downloads the blob of a file, unless it is already cached.
    pub fn fetch(&self, file: &RemoteFile, progress: &mut PullProgress<'_>) -> Result<()> {
        if !self.has(file) {
            let _lock = self.lock(file, progress)?;
            // The process that held the lock may have downloaded it.
            if !self.has(file) {
                self.fetch_locked(file, progress)?;
            }
        }
        progress.before += file.size;
        progress.observer.progress(progress.before);
        Ok(())
    }

    fn lock(&self, file: &RemoteFile, progress: &mut PullProgress<'_>) -> Result<Lock> {
        let lock = Lock::open(self.cache.lock(self.repo, file.sum.hex()))?;
        let who = || format!("another process is downloading {}", file.path);
        lock::wait(self.http, progress.observer, who, || lock.try_exclusive())?;
        Ok(lock)
    }

    fn fetch_locked(&self, file: &RemoteFile, progress: &mut PullProgress<'_>) -> Result<()> {
        let path = self.cache.incomplete(self.repo, file.sum.hex());
        make_parent(&path)?;
        let mut damaged = false;
        loop {
            let mut part = self.open_part(&path, file, progress)?;
            self.complete(&mut part, &path, file, progress)?;
            let found = part.hasher.hex();
            if found == file.sum.hex() {
                part.file.sync_all().map_err(|error| Error::io("write", &path, error))?;
                drop(part.file);
                let blob = self.cache.blob(self.repo, file.sum.hex());
                return akunu_file::rename(&path, &blob).map_err(|error| Error::io("write", &blob, error));
            }
            drop(part.file);
            fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
            if damaged {
                let expected = file.sum.hex().to_string();
                return Err(Error::Checksum { file: file.path.clone(), expected, found });
            }
            progress
                .observer
                .note(&format!("{} was damaged during the download: downloading it again", file.path));
            damaged = true;
        }
    }

    /// Opens the incomplete file and hashes what it contains so far.
    fn open_part(&self, path: &Path, file: &RemoteFile, progress: &mut PullProgress<'_>) -> Result<Part> {
        let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let opened = opened.map_err(|error| Error::io("open", path, error))?;
        let mut part = Part { file: opened, hasher: file.sum.hasher(file.size), length: 0 };
        let length = part.file.metadata().map_err(|error| Error::io("read", path, error))?.len();
        if length > file.size {
            self.restart(&mut part, path, file)?;
            return Ok(part);
        }
        let mut buffer = vec![0; BUFFER];
        loop {
            self.http.check()?;
            match part.file.read(&mut buffer).map_err(|error| Error::io("read", path, error))? {
                0 => return Ok(part),
                count => {
                    part.hasher.update(&buffer[..count]);
                    part.length += count as u64;
                    progress.observer.progress(progress.before + part.length);
                }
            }
        }
    }

    fn restart(&self, part: &mut Part, path: &Path, file: &RemoteFile) -> Result<()> {
        part.file.set_len(0).map_err(|error| Error::io("write", path, error))?;
        part.file.seek(SeekFrom::Start(0)).map_err(|error| Error::io("write", path, error))?;
        part.hasher = file.sum.hasher(file.size);
        part.length = 0;
        Ok(())
    }

    /// Requests until all bytes have arrived. An attempt that brought some bytes does not count as a failed one.
    fn complete(
        &self,
        part: &mut Part,
        path: &Path,
        file: &RemoteFile,
        progress: &mut PullProgress<'_>,
    ) -> Result<()> {
        let mut attempts = Attempts::default();
        while part.length < file.size {
            let before = part.length;
            if let Err(failure) = self.attempt(part, path, file, progress) {
                if part.length > before {
                    attempts.reset();
                }
                self.http.wait(failure, &mut attempts, progress.observer)?;
            }
        }
        Ok(())
    }

    fn attempt(
        &self,
        part: &mut Part,
        path: &Path,
        file: &RemoteFile,
        progress: &mut PullProgress<'_>,
    ) -> Result<(), RequestError> {
        let (endpoint, repo, commit) = (self.http.endpoint(), self.repo, self.commit);
        let url = format!("{endpoint}/{repo}/resolve/{commit}/{}", encode(&file.path));
        let from = (part.length > 0).then_some(part.length);
        let response = self.http.get(&url, from, Resource::File { repo, file: &file.path })?;
        match response.status().as_u16() {
            206 => self.check_range(&response, part.length, file)?,
            // The server ignored the range or no longer has it: start from the beginning.
            status => {
                self.restart(part, path, file)?;
                if status == 416 {
                    let error = Error::Server { host: self.http.host(), status, what: file.path.clone() };
                    return Err(RequestError::new(error, Retry::Later(None)));
                }
            }
        }
        self.receive(response.into_body(), part, path, file, progress)
    }

    /// Reads a response body to its end or to an error: received bytes are kept either way.
    fn receive(
        &self,
        body: Body,
        part: &mut Part,
        path: &Path,
        file: &RemoteFile,
        progress: &mut PullProgress<'_>,
    ) -> Result<(), RequestError> {
        let mut reader = body.into_reader();
        let mut buffer = vec![0; BUFFER];
        let cut = |received, reason: &str| {
            let (file, size, reason) = (file.path.clone(), file.size, reason.to_string());
            RequestError::new(Error::Cut { file, received, size, reason }, Retry::Later(None))
        };
        loop {
            self.http.check()?;
            let count = match reader.read(&mut buffer) {
                Ok(0) if part.length < file.size => return Err(cut(part.length, "the response ended early")),
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) => {
                    self.http.check()?;
                    return Err(cut(part.length, &error.to_string()));
                }
            };
            if part.length + count as u64 > file.size {
                let _ = fs::remove_file(path);
                return Err(Error::TooLong { file: file.path.clone(), expected: file.size }.into());
            }
            let written = self.disk.write(&mut part.file, &buffer[..count]);
            written.map_err(|error| Error::io("write", path, error))?;
            part.hasher.update(&buffer[..count]);
            part.length += count as u64;
            progress.received += count as u64;
            progress.observer.progress(progress.before + part.length);
        }
    }

    /// `Content-Range: bytes 5-9/10` must match the request.
    fn check_range(&self, response: &Response<Body>, from: u64, file: &RemoteFile) -> Result<()> {
        let text = header(response.headers(), "content-range").unwrap_or_default();
        let range = text.strip_prefix("bytes ").and_then(|rest| rest.split_once('/'));
        let start = range.and_then(|(range, _)| range.split_once('-')?.0.parse::<u64>().ok());
        let total = range.map_or("", |(_, total)| total);
        if start == Some(from) && (total == "*" || total.parse() == Ok(file.size)) {
            return Ok(());
        }
        let reason = format!("requested the bytes of {} from {from}, but received {text:?}", file.path);
        Err(Error::Protocol { host: self.http.host(), reason })
    }
}

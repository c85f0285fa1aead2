//! Resolves a reference to a path in the cache.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ureq::Agent;

use crate::api::{self, RemoteFile};
use crate::cache::Cache;
use crate::choose::{Choice, Open, RepoFile, choose, listing};
use crate::disk::{Disk, SystemDisk};
use crate::download::{Download, PullProgress};
use crate::http::{Http, headline};
use crate::lock::{self, Lock};
use crate::reference::{Reference, Repo, is_commit};
use crate::settings::Settings;
use crate::{Error, Result};

/// Maximum delay before an interrupt is noticed while no data arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Receives the progress of a download.
pub trait Observer {
    /// Total size of all files, before the first request; not called if nothing has to be downloaded.
    fn begin(&mut self, _total: u64) {}

    /// Number of bytes available so far, of all files. It decreases if something must be downloaded again.
    fn progress(&mut self, _done: u64) {}

    /// A message for the user, such as a wait or another attempt.
    fn note(&mut self, _text: &str) {}
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The path to open: a file (the first part of a split model), or the folder of a SafeTensors model.
    pub path: PathBuf,
    pub commit: String,
    /// The files of the model, in the snapshot.
    pub files: Vec<PathBuf>,
    pub bytes: u64,
    /// Number of bytes that were downloaded by this call.
    pub downloaded: u64,
}

#[derive(Debug)]
pub struct Hub {
    settings: Settings,
    cache: Cache,
    disk: Box<dyn Disk>,
    cancel: Arc<AtomicBool>,
}

impl Hub {
    pub fn new(settings: Settings) -> Hub {
        let cache = Cache::new(settings.cache.clone());
        Hub { settings, cache, disk: Box::new(SystemDisk), cancel: Arc::default() }
    }

    /// Sets a flag that cancels all operations; received data is kept for a later resume.
    pub fn with_cancel(self, cancel: Arc<AtomicBool>) -> Hub {
        Hub { cancel, ..self }
    }

    pub fn with_disk(self, disk: Box<dyn Disk>) -> Hub {
        Hub { disk, ..self }
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Makes sure that a model is in the cache. If the hub cannot be reached, an existing cached version is used and a
    /// note is given; in offline mode, only the cache is used.
    pub fn pull(&self, reference: &Reference, observer: &mut dyn Observer) -> Result<Pulled> {
        if self.settings.offline {
            return self.cached(reference);
        }
        match self.download(reference, observer) {
            Err(error @ Error::Unreachable { .. }) => match self.cached(reference) {
                Ok(pulled) => {
                    observer.note(&format!("{}: using the cached version", headline(&error)));
                    Ok(pulled)
                }
                Err(_) => Err(error),
            },
            outcome => outcome,
        }
    }

    /// Looks up a model in the cache only.
    pub fn cached(&self, reference: &Reference) -> Result<Pulled> {
        let repo = &reference.repo;
        let missing = |listing| Error::Offline { what: reference.to_string(), listing };
        let commit = self.cache.commit(repo, reference.revision()).ok_or_else(|| missing(String::new()))?;
        let files = self.cache.files(repo, &commit);
        let choice = choose(repo, &files, reference.selector.as_deref()).map_err(|_| {
            let lines = listing(files.iter().map(|f| (f.path.as_str(), f.size)));
            missing(if lines.is_empty() { lines } else { format!("\ncached files:{lines}") })
        })?;
        let size = |path: &String| files.iter().find(|f| f.path == *path).map_or(0, |f| f.size);
        let bytes = choice.files.iter().map(size).sum();
        Ok(self.pulled(repo, commit, &choice, bytes, 0))
    }

    fn download(&self, reference: &Reference, observer: &mut dyn Observer) -> Result<Pulled> {
        let repo = &reference.repo;
        let http = Http::new(&self.settings, self.cancel.clone())?;
        let _watcher = CancelWatcher::new(self.cancel.clone(), http.agent());
        let (commit, files, is_new) = self.listed(&http, reference, observer)?;
        let listed: Vec<RepoFile> = files.iter().map(RemoteFile::listed).collect();
        let choice = choose(repo, &listed, reference.selector.as_deref())?;
        let chosen: Vec<&RemoteFile> =
            choice.files.iter().filter_map(|path| files.iter().find(|f| f.path == *path)).collect();

        let download = Download { http: &http, cache: &self.cache, disk: &*self.disk, repo, commit: &commit };
        let total = chosen.iter().map(|f| f.size).sum();
        // If nothing changes, no lock is taken: a read-only cache is sufficient.
        let lock = if chosen.iter().all(|file| download.is_complete(file)) {
            None
        } else {
            Some(self.lock(&http, repo, observer)?)
        };
        let missing: u64 = chosen.iter().map(|f| download.missing(f)).sum();
        self.check_free_space(repo, missing)?;
        if missing > 0 {
            observer.begin(total);
        }
        let mut progress = PullProgress { observer, before: 0, received: 0 };
        for file in &chosen {
            download.fetch(file, &mut progress)?;
            self.cache.link(repo, &commit, &file.path, file.sum.hex())?;
        }
        // Updated last, so that offline use finds the previous version until all files are complete.
        self.cache.write_ref(repo, reference.revision(), &commit)?;
        if is_new {
            self.cache.store_listing(repo, &commit, &files);
        }
        drop(lock);
        Ok(self.pulled(repo, commit, &choice, total, progress.received))
    }

    /// The commit of a reference, its files, and whether the hub was asked for them. If the cache has a listing of the
    /// commit, the hub is not asked.
    fn listed(
        &self,
        http: &Http,
        reference: &Reference,
        observer: &mut dyn Observer,
    ) -> Result<(String, Vec<RemoteFile>, bool)> {
        let (repo, revision) = (&reference.repo, reference.revision());
        let known = |commit: &str| is_commit(commit).then(|| self.cache.listing(repo, commit)).flatten();
        if let Some(files) = known(revision) {
            return Ok((revision.to_string(), files, false));
        }
        let commit = api::commit(http, repo, revision, observer)?;
        if let Some(files) = known(&commit) {
            return Ok((commit, files, false));
        }
        let files = api::files(http, repo, &commit, observer)?;
        Ok((commit, files, true))
    }

    /// Prevents concurrent removals.
    fn lock(&self, http: &Http, repo: &Repo, observer: &mut dyn Observer) -> Result<Lock> {
        let lock = Lock::open(self.cache.pull_lock(repo))?;
        let who = || format!("another process is removing {repo}");
        lock::wait(http, observer, who, || lock.try_shared())?;
        Ok(lock)
    }

    fn check_free_space(&self, repo: &Repo, needed: u64) -> Result<()> {
        if needed == 0 {
            return Ok(());
        }
        let folder = self.cache.repo(repo).join("blobs");
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("make", &folder, error))?;
        match self.disk.free(&folder) {
            Some(free) if free < needed => {
                let path = self.cache.root().to_path_buf();
                Err(Error::DiskFull { path, needed: Some(needed), free: Some(free) })
            }
            _ => Ok(()),
        }
    }

    fn pulled(&self, repo: &Repo, commit: String, choice: &Choice, bytes: u64, downloaded: u64) -> Pulled {
        let snapshot = self.cache.snapshot(repo, &commit);
        let path = match &choice.open {
            Open::File(file) => snapshot.join(file),
            Open::Folder => snapshot.clone(),
        };
        let files = choice.files.iter().map(|file| snapshot.join(file)).collect();
        Pulled { path, commit, files, bytes, downloaded }
    }
}

/// Closes connections when the cancel flag is set, which interrupts blocking reads.
struct CancelWatcher {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl CancelWatcher {
    fn new(cancel: Arc<AtomicBool>, agent: Agent) -> CancelWatcher {
        let (sender, called_off) = channel();
        let thread = std::thread::spawn(move || {
            while called_off.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if cancel.load(Ordering::Relaxed) {
                    agent.shutdown();
                    return;
                }
            }
        });
        CancelWatcher { thread: Some((sender, thread)) }
    }
}

impl Drop for CancelWatcher {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

//! Locks between processes, released when dropped or when the process ends. Lock files are never removed: a waiting
//! process has the file open, and would wait for a different lock than processes that come later.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::make_parent;
use crate::http::Http;
use crate::hub::Observer;
use crate::{Error, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    pub fn open(path: PathBuf) -> Result<Lock> {
        make_parent(&path)?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| Error::io("open", &path, error))?;
        Ok(Lock { file, path })
    }

    /// Tries to take the lock exclusively.
    pub fn try_exclusive(&self) -> Result<bool> {
        self.taken(self.file.try_lock())
    }

    /// Tries to take the lock shared with other processes.
    pub fn try_shared(&self) -> Result<bool> {
        self.taken(self.file.try_lock_shared())
    }

    fn taken(&self, outcome: std::result::Result<(), TryLockError>) -> Result<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", &self.path, error)),
        }
    }
}

/// Retries until the lock is taken; the holder is reported once. An interrupt ends the wait.
pub(crate) fn wait(
    http: &Http,
    observer: &mut dyn Observer,
    who: impl FnOnce() -> String,
    mut attempt: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut who = Some(who);
    while !attempt()? {
        if let Some(who) = who.take() {
            observer.note(&format!("{}: waiting", who()));
        }
        http.check()?;
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

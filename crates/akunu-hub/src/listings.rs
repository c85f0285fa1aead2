//! The hub's listing of a commit, kept beside its snapshot: a commit never changes, so that nobody has to be asked again
//! which files there are and what they add up to.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::api::RemoteFile;
use crate::cache::{Cache, make_parent};
use crate::digest::Sum;
use crate::reference::{Repo, is_safe_path};

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: String,
    size: u64,
    sum: String,
}

impl Cache {
    pub(crate) fn listing_path(&self, repo: &Repo, commit: &str) -> PathBuf {
        self.repo(repo).join(".listings").join(format!("{commit}.json"))
    }

    /// `None` where none was kept, or it is damaged: then the hub is asked.
    pub(crate) fn listing(&self, repo: &Repo, commit: &str) -> Option<Vec<RemoteFile>> {
        let text = fs::read(self.listing_path(repo, commit)).ok()?;
        let entries: Vec<Entry> = serde_json::from_slice(&text).ok()?;
        let file = |entry: Entry| {
            let sum = Sum::sha256(&entry.sum).or_else(|| Sum::git(&entry.sum))?;
            is_safe_path(&entry.path).then_some(RemoteFile { path: entry.path, size: entry.size, sum })
        };
        entries.into_iter().map(file).collect()
    }

    /// A listing that cannot be kept is no error: it is asked for again.
    pub(crate) fn keep_listing(&self, repo: &Repo, commit: &str, files: &[RemoteFile]) {
        let path = self.listing_path(repo, commit);
        let part = path.with_file_name(format!(".{}.part", std::process::id()));
        let entry = |file: &RemoteFile| Entry {
            path: file.path.clone(),
            size: file.size,
            sum: file.sum.hex().to_string(),
        };
        let entries: Vec<Entry> = files.iter().map(entry).collect();
        let Ok(text) = serde_json::to_vec(&entries) else { return };
        let kept = make_parent(&path).is_ok()
            && fs::write(&part, text).and_then(|()| fs::rename(&part, &path)).is_ok();
        if !kept {
            let _ = fs::remove_file(&part);
        }
    }
}

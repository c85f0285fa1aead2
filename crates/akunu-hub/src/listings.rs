//! The hub's listing of a commit, cached beside its snapshot. A commit never changes, so its file names and checksums
//! need to be requested only once.

use std::fs;
use std::path::PathBuf;

use akunu_file::Existing;
use serde::{Deserialize, Serialize};

use crate::api::RemoteFile;
use crate::cache::{Cache, make_parent};
use crate::digest::Checksum;
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

    /// `None` if there is no cached listing or it is damaged: then the hub is asked.
    pub(crate) fn listing(&self, repo: &Repo, commit: &str) -> Option<Vec<RemoteFile>> {
        let text = fs::read(self.listing_path(repo, commit)).ok()?;
        let entries: Vec<Entry> = serde_json::from_slice(&text).ok()?;
        let file = |entry: Entry| {
            let sum = Checksum::sha256(&entry.sum).or_else(|| Checksum::git(&entry.sum))?;
            is_safe_path(&entry.path).then_some(RemoteFile { path: entry.path, size: entry.size, sum })
        };
        entries.into_iter().map(file).collect()
    }

    /// A failure to store a listing is not an error: it will be requested again.
    pub(crate) fn store_listing(&self, repo: &Repo, commit: &str, files: &[RemoteFile]) {
        let path = self.listing_path(repo, commit);
        let entry = |file: &RemoteFile| Entry {
            path: file.path.clone(),
            size: file.size,
            sum: file.sum.hex().to_string(),
        };
        let entries: Vec<Entry> = files.iter().map(entry).collect();
        let Ok(text) = serde_json::to_vec(&entries) else { return };
        if make_parent(&path).is_ok() {
            let _ = akunu_file::write(&path, &text, Existing::Replace);
        }
    }
}

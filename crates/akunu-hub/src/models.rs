//! The models in the cache that can be opened without the hub.

use std::path::PathBuf;

use crate::choose::{Open, complete};
use crate::{Cache, Result};

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// `hf:OWNER/NAME`, which is what that name stands for without the hub; of other files, with the file after a colon.
    pub name: String,
    /// The path to open: a file (the first part of a split model), or the folder of a SafeTensors model.
    pub path: PathBuf,
}

impl Cache {
    /// All complete models of the newest revision of each repository, sorted by name: that of `main`, or else one that
    /// has a name.
    pub fn models(&self) -> Result<Vec<CachedModel>> {
        let mut models = Vec::new();
        for cached in self.list()? {
            let is_main = |refs: &[String]| refs.iter().any(|name| name == "main");
            let revisions = &cached.revisions;
            let main = revisions.iter().find(|revision| is_main(&revision.refs));
            let named = || revisions.iter().find(|revision| !revision.refs.is_empty());
            let Some(revision) = main.or_else(named).or(revisions.last()) else { continue };
            let snapshot = self.snapshot(&cached.repo, &revision.commit);
            let files = self.files(&cached.repo, &revision.commit);
            for (selector, open) in complete(&cached.repo, &files) {
                let name = match selector {
                    None => format!("hf:{}", cached.repo),
                    Some(selector) => format!("hf:{}:{selector}", cached.repo),
                };
                let path = match open {
                    Open::File(file) => snapshot.join(file),
                    Open::Folder => snapshot.clone(),
                };
                models.push(CachedModel { name, path });
            }
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }
}

//! The cache, laid out as every Hugging Face tool has it:
//!
//! ```text
//! CACHE/models--OWNER--NAME/blobs/SUM              a file's bytes, named after its checksum
//!                           blobs/SUM.incomplete   what there is of one that is on its way
//!                           refs/REVISION          the commit that a branch or tag was at
//!                           snapshots/COMMIT/FILE  a link into blobs
//!                           .listings/COMMIT.json  the files of a commit; other tools do not know of it
//! CACHE/.locks/models--OWNER--NAME/SUM.lock        held while that blob is on its way
//!                                  pull.lock       shared by pulls, and held alone by a removal
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use akunu_file::Existing;

use crate::choose::RepoFile;
use crate::lock::Lock;
use crate::reference::{Repo, is_commit, is_safe_path};
use crate::{Error, Result};

/// Minimum length of an abbreviated commit id.
const SHORT_COMMIT: usize = 7;

#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A repository with files in the cache.
#[derive(Clone, Debug)]
pub struct CachedRepo {
    pub repo: Repo,
    /// Size on disk, including incomplete downloads. Blobs shared by several revisions count once.
    pub bytes: u64,
    /// The part of `bytes` that belongs to incomplete downloads.
    pub incomplete: u64,
    pub revisions: Vec<CachedRevision>,
}

#[derive(Clone, Debug)]
pub struct CachedRevision {
    pub commit: String,
    /// Branches and tags that pointed to this commit when they were last resolved.
    pub refs: Vec<String>,
    pub files: Vec<CachedFile>,
}

impl CachedRevision {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }
}

#[derive(Clone, Debug)]
pub struct CachedFile {
    /// Relative to the snapshot, with `/` as separator.
    pub path: String,
    pub bytes: u64,
}

/// The result of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    pub bytes: u64,
    pub revisions: usize,
}

impl Cache {
    pub fn new(root: impl Into<PathBuf>) -> Cache {
        Cache { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn folder_name(repo: &Repo) -> String {
        format!("models--{}--{}", repo.owner(), repo.name())
    }

    pub(crate) fn repo(&self, repo: &Repo) -> PathBuf {
        self.root.join(Cache::folder_name(repo))
    }

    pub(crate) fn blob(&self, repo: &Repo, sum: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(sum)
    }

    pub(crate) fn incomplete(&self, repo: &Repo, sum: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(format!("{sum}.incomplete"))
    }

    fn locks(&self, repo: &Repo) -> PathBuf {
        self.root.join(".locks").join(Cache::folder_name(repo))
    }

    pub(crate) fn lock(&self, repo: &Repo, sum: &str) -> PathBuf {
        self.locks(repo).join(format!("{sum}.lock"))
    }

    /// Shared by all pulls of a repository while they change the cache; exclusive for a removal.
    pub(crate) fn pull_lock(&self, repo: &Repo) -> PathBuf {
        self.locks(repo).join("pull.lock")
    }

    /// Locks against pulls of this program, and against downloads of other tools, which use only the blob locks.
    fn lock_all(&self, repo: &Repo) -> Result<Vec<Lock>> {
        let locks = self.locks(repo);
        let blobs =
            names(&locks).into_iter().filter(|name| name.ends_with(".lock")).map(|name| locks.join(name));
        let mut held = Vec::new();
        for path in std::iter::once(self.pull_lock(repo)).chain(blobs.filter(|p| *p != self.pull_lock(repo)))
        {
            let lock = Lock::open(path)?;
            if !lock.try_exclusive()? {
                return Err(Error::Busy { repo: repo.clone() });
            }
            held.push(lock);
        }
        Ok(held)
    }

    /// The repository that a path belongs to, in any cache: the path of a snapshot, or of something in one.
    pub fn repo_of(path: &Path) -> Option<Repo> {
        path.ancestors().find_map(|snapshot| {
            let commit = snapshot.file_name()?.to_str()?;
            let snapshots =
                snapshot.parent().filter(|p| p.file_name().is_some_and(|name| name == "snapshots"))?;
            let folder = snapshots.parent()?.file_name()?.to_str()?;
            is_commit(commit).then(|| repo_of_folder(folder)).flatten()
        })
    }

    pub(crate) fn snapshot(&self, repo: &Repo, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }

    /// The commit of a revision, if it is in the cache.
    pub(crate) fn commit(&self, repo: &Repo, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return self.snapshot(repo, revision).is_dir().then(|| revision.to_string());
        }
        let text = fs::read_to_string(self.repo(repo).join("refs").join(revision)).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_string())
    }

    pub(crate) fn write_ref(&self, repo: &Repo, revision: &str, commit: &str) -> Result<()> {
        if revision == commit || self.commit(repo, revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.repo(repo).join("refs").join(revision);
        make_parent(&path)?;
        // Atomic for concurrent readers: they see either the old or the new commit.
        akunu_file::write(&path, commit.as_bytes(), Existing::Replace)
            .map_err(|error| Error::io("write", &path, error))
    }

    /// Links a blob into a snapshot.
    pub(crate) fn link(&self, repo: &Repo, commit: &str, file: &str, sum: &str) -> Result<PathBuf> {
        let place = self.snapshot(repo, commit).join(file);
        if self.is_linked(repo, commit, file, sum) {
            return Ok(place);
        }
        make_parent(&place)?;
        let target = link_target(file, sum);
        let part = place.with_file_name(format!(".{}.{}.part", &sum[..8], std::process::id()));
        let _ = fs::remove_file(&part);
        link_or_copy(&target, &self.blob(repo, sum), &part)
            .and_then(|()| fs::rename(&part, &place))
            .map_err(|error| {
                let _ = fs::remove_file(&part);
                Error::io("link", &place, error)
            })?;
        Ok(place)
    }

    pub(crate) fn is_linked(&self, repo: &Repo, commit: &str, file: &str, sum: &str) -> bool {
        let found = fs::read_link(self.snapshot(repo, commit).join(file));
        found.is_ok_and(|found| found == link_target(file, sum))
    }

    /// The complete files of a snapshot, with their sizes.
    pub(crate) fn files(&self, repo: &Repo, commit: &str) -> Vec<RepoFile> {
        let mut files = Vec::new();
        walk(&self.snapshot(repo, commit), "", &mut |path, full| {
            // Follows the link: a dangling link is not a complete file.
            if let Some(about) = fs::metadata(full).ok().filter(fs::Metadata::is_file) {
                files.push(RepoFile { path: path.to_string(), size: about.len() });
            }
        });
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    }

    /// All repositories in the cache, sorted by name. A missing cache directory is an empty cache.
    pub fn list(&self) -> Result<Vec<CachedRepo>> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &self.root, error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("read", &self.root, error))?;
            let repo = entry.file_name().to_str().and_then(repo_of_folder);
            found.extend(repo.map(|repo| self.cached(repo)));
        }
        found.sort_by(|a, b| a.repo.cmp(&b.repo));
        Ok(found)
    }

    fn cached(&self, repo: Repo) -> CachedRepo {
        let mut refs: BTreeMap<String, Vec<String>> = BTreeMap::new();
        walk(&self.repo(&repo).join("refs"), "", &mut |name, full| {
            if let Ok(commit) = fs::read_to_string(full) {
                refs.entry(commit.trim().to_string()).or_default().push(name.to_string());
            }
        });
        let mut revisions = Vec::new();
        for commit in names(&self.repo(&repo).join("snapshots")).into_iter().filter(|name| is_commit(name)) {
            let files = self.files(&repo, &commit);
            let files = files.into_iter().map(|f| CachedFile { path: f.path, bytes: f.size }).collect();
            let mut refs = refs.remove(&commit).unwrap_or_default();
            refs.sort();
            revisions.push(CachedRevision { commit, refs, files });
        }
        let (mut bytes, mut incomplete) = (0, 0);
        walk(&self.repo(&repo), "", &mut |path, full| {
            // Does not follow links: the target is counted where it is stored.
            let size = fs::symlink_metadata(full).ok().filter(fs::Metadata::is_file).map_or(0, |m| m.len());
            bytes += size;
            incomplete += if path.ends_with(".incomplete") { size } else { 0 };
        });
        CachedRepo { repo, bytes, incomplete, revisions }
    }

    /// What a removal would delete: the commits of the revisions, and the space that would be freed.
    pub fn find(&self, repo: &Repo, revision: Option<&str>) -> Result<CachedRepo> {
        let missing = |what| Error::NotCached { what };
        if !self.repo(repo).is_dir() {
            return Err(missing(repo.to_string()));
        }
        let mut cached = self.cached(repo.clone());
        if let Some(revision) = revision {
            let is_it = |r: &CachedRevision| {
                r.refs.iter().any(|name| name == revision)
                    || (revision.len() >= SHORT_COMMIT && r.commit.starts_with(revision))
            };
            cached.revisions.retain(is_it);
            if cached.revisions.is_empty() {
                return Err(missing(format!("revision {revision} of {repo}")));
            }
        }
        Ok(cached)
    }

    /// Removes a repository, or one revision and the blobs that only it uses. An error if any process is downloading
    /// files of the repository.
    pub fn remove(&self, repo: &Repo, revision: Option<&str>) -> Result<Removed> {
        self.find(repo, revision)?;
        let _locks = self.lock_all(repo)?;
        // Checked again under the lock, since another process may have removed it.
        let found = self.find(repo, revision)?;
        let all = self.cached(repo.clone());
        let revisions = found.revisions.len();
        if revision.is_none() || revisions == all.revisions.len() {
            let folder = self.repo(repo);
            fs::remove_dir_all(&folder).map_err(|error| Error::io("remove", &folder, error))?;
            return Ok(Removed { bytes: all.bytes, revisions });
        }
        for gone in &found.revisions {
            for name in &gone.refs {
                let path = self.repo(repo).join("refs").join(name);
                fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
            }
            let folder = self.snapshot(repo, &gone.commit);
            fs::remove_dir_all(&folder).map_err(|error| Error::io("remove", &folder, error))?;
            let _ = fs::remove_file(self.listing_path(repo, &gone.commit));
        }
        self.remove_unused(repo)?;
        let bytes = all.bytes.saturating_sub(self.cached(repo.clone()).bytes);
        Ok(Removed { bytes, revisions })
    }

    /// Removes the blobs that no snapshot links to. Incomplete downloads stay.
    fn remove_unused(&self, repo: &Repo) -> Result<()> {
        let mut used = BTreeSet::new();
        walk(&self.repo(repo).join("snapshots"), "", &mut |_, full| {
            let target = fs::read_link(full).ok();
            used.extend(target.and_then(|t| Some(t.file_name()?.to_str()?.to_string())));
        });
        let blobs = self.repo(repo).join("blobs");
        for name in names(&blobs) {
            if !used.contains(&name) && !name.ends_with(".incomplete") {
                let path = blobs.join(name);
                fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
            }
        }
        Ok(())
    }
}

/// `models--OWNER--NAME`
fn repo_of_folder(name: &str) -> Option<Repo> {
    let (owner, name) = name.strip_prefix("models--")?.split_once("--")?;
    Repo::new(owner, name)
}

/// The relative link from a file in a snapshot to its blob.
fn link_target(file: &str, sum: &str) -> PathBuf {
    let mut target = PathBuf::from("../..");
    target.extend(std::iter::repeat_n("..", file.matches('/').count()));
    target.extend(["blobs", sum]);
    target
}

pub(crate) fn make_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(|error| Error::io("make", parent, error)),
        None => Ok(()),
    }
}

/// If symbolic links need a privilege, as on Windows, the file itself is stored in the snapshot, as other tools do.
fn link_or_copy(target: &Path, blob: &Path, place: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let _ = blob;
        std::os::unix::fs::symlink(target, place)
    }
    #[cfg(windows)]
    {
        std::os::windows::fs::symlink_file(target, place).or_else(|_| fs::hard_link(blob, place))
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = target;
        fs::hard_link(blob, place)
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Calls `each` for every file below a folder, with its relative and its full path.
fn walk(folder: &Path, prefix: &str, each: &mut dyn FnMut(&str, &Path)) {
    for name in names(folder) {
        let full = folder.join(&name);
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        match fs::symlink_metadata(&full) {
            Ok(about) if about.is_dir() => walk(&full, &path, each),
            Ok(_) if is_safe_path(&path) => each(&path, &full),
            _ => {}
        }
    }
}

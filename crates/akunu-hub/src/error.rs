//! Errors. The remedy follows the last semicolon of the first line; listings follow on separate lines.

use std::io;
use std::path::{Path, PathBuf};

use crate::reference::Repo;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "{text:?} names no model on the hub: {reason}; write hf:OWNER/NAME, with @REVISION, :QUANT or :FILE after it \
         where needed"
    )]
    Name { text: String, reason: &'static str },

    #[error("{variable} is {value:?}, which is {reason}")]
    Setting { variable: &'static str, value: String, reason: &'static str },

    #[error("there is no home folder to keep the cache in; set HF_HUB_CACHE or HF_HOME to a folder")]
    NoHome,

    /// Status 401 or 403 of a repository whose owner controls access.
    #[error(
        "{repo} is gated: its terms have to be accepted once, at {page}; {}",
        if *.token { "then try again: the token of that account is needed in HF_TOKEN" }
        else { "then set HF_TOKEN to a token of that account" }
    )]
    Gated { repo: Repo, page: String, token: bool },

    /// Status 401. Without a token, the hub also returns it for repositories that do not exist.
    #[error(
        "the hub does not let {} see {repo}: it is private, or there is no such repository; {}",
        if *.token { "this token" } else { "strangers" },
        if *.token { "check HF_TOKEN and the name" } else { "check the name, or set HF_TOKEN to a token that may read it" }
    )]
    Unauthorized { repo: Repo, token: bool },

    #[error("the hub refuses {repo} to this account (403); check what the token in HF_TOKEN may read")]
    Forbidden { repo: Repo },

    #[error("there is no repository {repo} on the hub; check the name: the owner comes first")]
    NoRepo { repo: Repo },

    #[error("{repo} has no revision {revision}; a revision is a branch, a tag or a commit's id")]
    NoRevision { repo: Repo, revision: String },

    #[error("{repo} has no file {file} in this revision{listing}")]
    NoFile { repo: Repo, file: String, listing: String },

    #[error("{repo}: {reason}; {advice}{listing}")]
    Choice { repo: Repo, reason: String, advice: &'static str, listing: String },

    #[error("{repo} lists a file named {path:?}, which would lie outside the cache; nothing was downloaded")]
    UnsafePath { repo: Repo, path: String },

    #[error(
        "{host} says that there are too many requests (429); try again {}",
        match .seconds { Some(s) => format!("in {s} s"), None => "later, or with HF_TOKEN set".to_string() }
    )]
    RateLimited { host: String, seconds: Option<u64> },

    #[error("{host} answers {status} for {what}; try again later")]
    Server { host: String, status: u16, what: String },

    #[error("cannot reach {host}: {reason}; check the connection, or HF_ENDPOINT")]
    Unreachable { host: String, reason: String },

    #[error(
        "the connection was cut at {received} of {size} bytes of {file}: {reason}; run it again to go on from there"
    )]
    Cut { file: String, received: u64, size: u64, reason: String },

    #[error(
        "{file} arrived damaged twice: its checksum is {found}, and the hub says {expected}; nothing of it was kept, try \
         again later"
    )]
    Checksum { file: String, expected: String, found: String },

    #[error(
        "{file} has more than the {expected} bytes that the hub's listing says; nothing of it was kept, try again later"
    )]
    TooLong { file: String, expected: u64 },

    #[error("{host} gave an answer that makes no sense: {reason}; is HF_ENDPOINT a hub?")]
    Protocol { host: String, reason: String },

    #[error("{host} redirects {reason}; nothing was sent there")]
    Redirect { host: String, reason: String },

    #[error(
        "the disk is full: {}{}; make room (akunu models, akunu rm) or set HF_HUB_CACHE to a folder on another disk",
        .path.display(),
        match (.needed, .free) {
            (Some(needed), Some(free)) => {
                format!(" has {} left and {} are needed", crate::disk::human_size(*free), crate::disk::human_size(*needed))
            }
            _ => " could not be written further, and what is there is kept".to_string(),
        }
    )]
    DiskFull { path: PathBuf, needed: Option<u64>, free: Option<u64> },

    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "{what} is not in the cache and offline mode is on; without --offline and HF_HUB_OFFLINE it is downloaded{listing}"
    )]
    Offline { what: String, listing: String },

    #[error("{what} is not in the cache")]
    NotCached { what: String },

    #[error("{repo} is being downloaded, or removed, by another process; try again when that has ended")]
    Busy { repo: Repo },

    #[error("stopped")]
    Interrupted,
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        if matches!(source.kind(), StorageFull | QuotaExceeded) {
            return Error::DiskFull { path: path.to_path_buf(), needed: None, free: None };
        }
        Error::Io { action, path: path.to_path_buf(), source }
    }
}

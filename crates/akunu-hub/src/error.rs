//! Errors. The remedy follows the last semicolon of the first line; listings follow on separate lines.

use std::io;
use std::path::{Path, PathBuf};

use crate::reference::Repo;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "{text:?} is not a valid hub model name: {reason}; write hf:OWNER/NAME, optionally followed by @REVISION, \
         :QUANT or :FILE"
    )]
    Name { text: String, reason: &'static str },

    #[error("{variable} is {value:?}, which is {reason}")]
    Setting { variable: &'static str, value: String, reason: &'static str },

    #[error("there is no home folder to keep the cache in; set HF_HUB_CACHE or HF_HOME to a folder")]
    NoHome,

    /// Status 401 or 403 of a repository whose owner controls access.
    #[error(
        "{repo} is gated: its terms must be accepted at {page}; {}",
        if *.token { "then try again with a token of that account in HF_TOKEN" }
        else { "then set HF_TOKEN to a token of that account" }
    )]
    Gated { repo: Repo, page: String, token: bool },

    /// Status 401. Without a token, the hub also returns it for repositories that do not exist.
    #[error(
        "access to {repo} was denied {}: it is private, or it does not exist; {}",
        if *.token { "with this token" } else { "without a token" },
        if *.token { "check HF_TOKEN and the name" } else { "check the name, or set HF_TOKEN to a token with read access" }
    )]
    Unauthorized { repo: Repo, token: bool },

    #[error(
        "access to {repo} is forbidden for this account (403); check the permissions of the token in HF_TOKEN"
    )]
    Forbidden { repo: Repo },

    #[error("there is no repository {repo} on the hub; check the name OWNER/NAME")]
    NoRepo { repo: Repo },

    #[error("{repo} has no revision {revision}; a revision is a branch, a tag or a commit's id")]
    NoRevision { repo: Repo, revision: String },

    #[error("{repo} has no file {file} in this revision{listing}")]
    NoFile { repo: Repo, file: String, listing: String },

    #[error("{repo}: {reason}; {advice}{listing}")]
    Choice { repo: Repo, reason: String, advice: &'static str, listing: String },

    #[error(
        "{repo} lists a file named {path:?}, which cannot be its name in the cache; nothing was downloaded"
    )]
    UnsafePath { repo: Repo, path: String },

    #[error(
        "{host} reports too many requests (429); try again {}",
        match .seconds { Some(s) => format!("in {s} s"), None => "later, or with HF_TOKEN set".to_string() }
    )]
    RateLimited { host: String, seconds: Option<u64> },

    #[error("{host} returned status {status} for {what}; try again later")]
    Server { host: String, status: u16, what: String },

    #[error(
        "cannot reach {host}{}: {reason}; check {}",
        proxy.as_ref().map(|proxy| format!(" through the proxy {proxy}")).unwrap_or_default(),
        if proxy.is_some() { "HTTPS_PROXY, and NO_PROXY for hosts that need no proxy" } else { "the connection, or HF_ENDPOINT" }
    )]
    Unreachable { host: String, proxy: Option<String>, reason: String },

    #[error(
        "the connection was interrupted at {received} of {size} bytes of {file}: {reason}; run the command again to resume"
    )]
    Cut { file: String, received: u64, size: u64, reason: String },

    #[error(
        "{file} was damaged in two downloads: its checksum is {found}, but should be {expected}; the data was deleted, \
         try again later"
    )]
    Checksum { file: String, expected: String, found: String },

    #[error(
        "{file} is larger than the {expected} bytes in the hub's listing; the data was deleted, try again later"
    )]
    TooLong { file: String, expected: u64 },

    #[error("{host} sent an invalid response: {reason}; check that HF_ENDPOINT is a hub")]
    Protocol { host: String, reason: String },

    #[error("{host} redirects {reason}; the redirect was not followed")]
    Redirect { host: String, reason: String },

    #[error(
        "the disk is full: {}{}; make room (akunu models, akunu rm) or set HF_HUB_CACHE to a folder on another disk",
        .path.display(),
        match (.needed, .free) {
            (Some(needed), Some(free)) => {
                format!(" has {} free, but {} are needed", crate::disk::human_size(*free), crate::disk::human_size(*needed))
            }
            _ => " cannot be written; received data is kept".to_string(),
        }
    )]
    DiskFull { path: PathBuf, needed: Option<u64>, free: Option<u64> },

    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "{what} is not in the cache and offline mode is on; remove --offline and HF_HUB_OFFLINE to download it{listing}"
    )]
    Offline { what: String, listing: String },

    #[error("{what} is not in the cache")]
    NotCached { what: String },

    #[error("{repo} is being downloaded, or removed, by another process; try again afterwards")]
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

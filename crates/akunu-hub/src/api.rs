//! The hub's API: the commit of a revision, and the files of a commit.

use serde::Deserialize;
use ureq::http::Uri;

use crate::choose::RepoFile;
use crate::digest::Checksum;
use crate::http::{Http, Resource, encode, header, join};
use crate::hub::Observer;
use crate::reference::{Repo, is_commit, is_safe_path};
use crate::{Error, Result};

/// Maximum number of pages of a file listing; the hub returns a thousand files per page.
const MAX_PAGES: usize = 1000;

/// A file of a commit.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub path: String,
    pub size: u64,
    pub sum: Checksum,
}

impl RemoteFile {
    pub fn listed(&self) -> RepoFile {
        RepoFile { path: self.path.clone(), size: self.size }
    }
}

#[derive(Debug, Deserialize)]
struct RevisionAnswer {
    sha: String,
}

/// An entry of a listing, as the hub answers it.
#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

pub(crate) fn commit(
    http: &Http,
    repo: &Repo,
    revision: &str,
    observer: &mut dyn Observer,
) -> Result<String> {
    let name = encode(revision).replace('/', "%2F");
    let url = format!("{}/api/models/{repo}/revision/{name}", http.endpoint());
    let (answer, _) = http.json::<RevisionAnswer>(&url, Resource::Revision { repo, revision }, observer)?;
    if !is_commit(&answer.sha) {
        return Err(Error::Protocol { host: http.host(), reason: "the commit id is invalid".to_string() });
    }
    Ok(answer.sha)
}

pub(crate) fn files(
    http: &Http,
    repo: &Repo,
    commit: &str,
    observer: &mut dyn Observer,
) -> Result<Vec<RemoteFile>> {
    let mut url = format!("{}/api/models/{repo}/tree/{commit}?recursive=1", http.endpoint());
    let mut files = Vec::new();
    for _ in 0..MAX_PAGES {
        let (page, headers) = http.json::<Vec<Entry>>(&url, Resource::Listing { repo }, observer)?;
        files.extend(page_files(http, repo, page)?);
        let Some(next) = header(&headers, "link").and_then(next_page) else { return Ok(files) };
        let base: Option<Uri> = url.parse().ok();
        url = base.and_then(|base| join(&base, next)).ok_or_else(|| Error::Protocol {
            host: http.host(),
            reason: format!("the URL of the listing's next page is invalid: {next:?}"),
        })?;
    }
    Err(Error::Protocol { host: http.host(), reason: "the listing has too many pages".to_string() })
}

/// The files of a page of a listing.
pub(crate) fn page_files(http: &Http, repo: &Repo, page: Vec<Entry>) -> Result<Vec<RemoteFile>> {
    let files = page.into_iter().filter(|entry| entry.kind == "file");
    files.map(|entry| remote_file(http, repo, entry)).collect()
}

fn remote_file(http: &Http, repo: &Repo, entry: Entry) -> Result<RemoteFile> {
    if !is_safe_path(&entry.path) {
        return Err(Error::UnsafePath { repo: repo.clone(), path: entry.path });
    }
    let (sum, size) = match &entry.lfs {
        Some(lfs) => (Checksum::sha256(&lfs.oid), lfs.size),
        None => (Checksum::git(&entry.oid), entry.size),
    };
    let sum = sum.ok_or_else(|| Error::Protocol {
        host: http.host(),
        reason: format!("the checksum of {} is invalid", entry.path),
    })?;
    Ok(RemoteFile { path: entry.path, size, sum })
}

/// The URL in `<URL>; rel="next"`.
pub(crate) fn next_page(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, rest) = part.trim().strip_prefix('<')?.split_once('>')?;
        let mut words = rest.split(';').map(|word| word.trim().replace('"', ""));
        words.any(|word| word.eq_ignore_ascii_case("rel=next")).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_among_links() {
        assert_eq!(next_page("</x?cursor=1>; rel=\"next\""), Some("/x?cursor=1"));
        assert_eq!(next_page("</a>; rel=\"prev\", </b>; rel=next"), Some("/b"));
        assert_eq!(next_page("</a>; rel=\"prev\""), None);
        assert_eq!(next_page("nonsense"), None);
    }
}

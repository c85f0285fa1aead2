//! What the hub answers, read without a network. Only for the fuzz target `hub`, with `--cfg fuzzing`.

use std::sync::LazyLock;

use ureq::http::{HeaderMap, HeaderValue};

use crate::choose::{Open, RepoFile, choose};
use crate::http::{Http, join, retry_after};
use crate::{Error, Repo, Result, RetryPolicy, Settings, api};

/// A file of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub path: String,
    pub size: u64,
    /// The name of its blob in the cache.
    pub sum: String,
}

/// The files of a model, and the one that is opened (`None`: the folder).
pub type Chosen = (Vec<String>, Option<String>);

static REPO: LazyLock<Repo> = LazyLock::new(|| Repo::new("owner", "name").expect("a valid name"));

/// Reads a page of a listing.
pub fn listing(json: &[u8]) -> Result<Vec<Listed>> {
    static HTTP: LazyLock<Http> = LazyLock::new(|| {
        let settings = Settings {
            endpoint: "http://127.0.0.1:1".into(),
            cache: "/nonexistent".into(),
            token: None,
            offline: false,
            proxy: None,
            retry_policy: RetryPolicy::default(),
        };
        Http::new(&settings, Default::default()).expect("a valid endpoint")
    });
    let page: Vec<api::Entry> = serde_json::from_slice(json)
        .map_err(|error| Error::Protocol { host: HTTP.host(), reason: error.to_string() })?;
    let files = api::page_files(&HTTP, &REPO, page)?;
    Ok(files
        .into_iter()
        .map(|file| Listed { path: file.path, size: file.size, sum: file.sum.hex().into() })
        .collect())
}

/// Chooses the files of a model.
pub fn chosen(files: &[Listed], selector: Option<&str>) -> Result<Chosen> {
    let file = |file: &Listed| RepoFile { path: file.path.clone(), size: file.size };
    let files: Vec<RepoFile> = files.iter().map(file).collect();
    let choice = choose(&REPO, &files, selector)?;
    let open = match choice.open {
        Open::File(file) => Some(file),
        Open::Folder => None,
    };
    Ok((choice.files, open))
}

/// The URL that a `Link` header names as the next page.
pub fn next_page(base: &str, link: &str) -> Option<String> {
    join(&base.parse().ok()?, api::next_page(link)?)
}

/// The seconds to wait that a `Retry-After` header states.
pub fn wait(header: &[u8]) -> Option<u64> {
    let mut headers = HeaderMap::new();
    headers.insert("date", HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
    headers.insert("retry-after", HeaderValue::from_bytes(header).ok()?);
    retry_after(&headers)
}

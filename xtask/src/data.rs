//! Fetches the public test data that `xtask/data/manifest.json` lists, each file by its URL and its SHA-256.

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::hash::sha256;
use crate::root;

const USAGE: &str = "usage: `cargo xtask data [--check] [DIR]`";
/// Downloads at a time: most files are small, so that waiting takes longer than transferring.
const WORKERS: usize = 4;

#[derive(Debug, Deserialize)]
struct Manifest {
    sources: Vec<Source>,
    unavailable: Vec<Unavailable>,
}

/// Files of one repository at one commit.
#[derive(Debug, Deserialize)]
struct Source {
    /// The URL of a file begins with it.
    base: String,
    licence: String,
    files: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    to: PathBuf,
    from: String,
    bytes: u64,
    sha256: String,
}

/// Files that nobody publishes, and where they come from.
#[derive(Debug, Deserialize)]
struct Unavailable {
    why: String,
    files: Vec<PathBuf>,
}

/// Fetches what is missing; with `--check`, only compares what is there.
pub(crate) fn data(args: &[String]) -> Result<()> {
    let (check, folder) = match args {
        [] => (false, None),
        [flag] if flag == "--check" => (true, None),
        [flag, folder] if flag == "--check" => (true, Some(folder)),
        [folder] if !folder.starts_with('-') => (false, Some(folder)),
        _ => bail!(USAGE),
    };
    let folder = match folder {
        Some(folder) => std::path::absolute(folder)?,
        // Where tests look for it.
        None => std::env::var_os("AKUNU_TEST_DATA").map_or(root().join("../shared/data"), PathBuf::from),
    };
    let manifest = fs::read(root().join("xtask/data/manifest.json"))?;
    fetch(&serde_json::from_slice(&manifest)?, &folder, check)
}

fn fetch(manifest: &Manifest, folder: &Path, check: bool) -> Result<()> {
    let all = manifest.sources.iter().flat_map(|source| source.files.iter().map(move |file| (source, file)));
    let (mut wanted, mut wrong) = (Vec::new(), Vec::new());
    for (source, file) in all {
        ensure!(stays_inside(&file.to), "{} leaves the folder", file.to.display());
        match sha256(&folder.join(&file.to)) {
            Ok(hash) if hash == file.sha256 => {}
            // What somebody has put there is not overwritten.
            Ok(_) => wrong.push(format!("{} is another file", folder.join(&file.to).display())),
            Err(_) => wanted.push((source, file)),
        }
    }
    let missing = wanted.len();
    if !check && missing > 0 {
        let bytes: u64 = wanted.iter().map(|(_, file)| file.bytes).sum();
        say!("{missing} files, {:.1} MB, into {}", bytes as f64 / 1e6, folder.display());
        let mut licences: Vec<_> = wanted.iter().map(|(source, _)| (&source.base, &source.licence)).collect();
        licences.dedup();
        for (base, licence) in licences {
            say!("  {base}: {licence}");
        }
        wrong.extend(download_all(wanted, folder));
    }
    for group in &manifest.unavailable {
        for file in group.files.iter().filter(|file| !folder.join(file).exists()) {
            say!("not published: {}: {}", file.display(), group.why);
        }
    }
    if check && missing > 0 {
        wrong.push(format!("{missing} files are missing: `cargo xtask data` fetches them"));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    say!("every file that can be fetched is in {}", folder.display());
    Ok(())
}

/// Downloads files, and returns what went wrong.
fn download_all(wanted: Vec<(&Source, &Entry)>, folder: &Path) -> Vec<String> {
    let (next, wrong) = (Mutex::new(wanted.into_iter()), Mutex::new(Vec::new()));
    let take = || next.lock().ok()?.next();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((source, file)) = take() {
                    let url = format!("{}{}", source.base, file.from);
                    let outcome = download(&url, file, &folder.join(&file.to));
                    if let (Err(error), Ok(mut wrong)) = (outcome, wrong.lock()) {
                        wrong.push(format!("{}: {error:#}", file.to.display()));
                    }
                }
            });
        }
    });
    wrong.into_inner().unwrap_or_default()
}

/// Downloads a file beside its place, where an interrupted download is resumed, and moves it there if it is the right
/// one.
fn download(url: &str, file: &Entry, place: &Path) -> Result<()> {
    let part = PathBuf::from(format!("{}.part", place.display()));
    let folder = place.parent().context("a file has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // A part that is too long would be refused as a range that is not there.
    if fs::metadata(&part).is_ok_and(|part| part.len() >= file.bytes) {
        fs::remove_file(&part)?;
    }
    let mut outcome = curl(url, &part, file.bytes, true);
    if let Ok(Some(NO_RANGES)) = outcome {
        fs::remove_file(&part)?;
        outcome = curl(url, &part, file.bytes, false);
    }
    match outcome? {
        Some(0) => {}
        // A connection that broke off: what has arrived is kept, for the next time.
        Some(code @ (18 | 28 | 56)) => {
            bail!("{url}: curl broke off (exit code {code}); run it again to resume")
        }
        code => {
            let _ = fs::remove_file(&part);
            bail!("{url}: curl failed (exit code {code:?})");
        }
    }
    let found = sha256(&part)?;
    if found != file.sha256 {
        fs::remove_file(&part)?;
        bail!("{url} has SHA-256 {found}, not {}", file.sha256);
    }
    File::open(&part)?.sync_all()?;
    fs::rename(&part, place).with_context(|| format!("cannot write {}", place.display()))
}

/// curl's exit code for a server that sends no parts of files.
const NO_RANGES: i32 = 33;

/// The exit code of curl, which resumes what is there.
fn curl(url: &str, part: &Path, bytes: u64, resumes: bool) -> Result<Option<i32>> {
    let mut curl = Command::new("curl");
    curl.args([
        "--fail",
        "--silent",
        "--show-error",
        "--location",
        "--proto",
        "=https,http",
        "--proto-redir",
        "=https",
    ]);
    curl.args(["--connect-timeout", "20", "--speed-limit", "1000", "--speed-time", "30"]);
    curl.args(["--max-filesize", &bytes.to_string(), "--output"]).arg(part);
    if resumes {
        curl.args(["--continue-at", "-"]);
    }
    let status = curl.arg(url).status().context("curl cannot be started; it downloads the files")?;
    Ok(status.code())
}

fn stays_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

    use super::*;

    const TEXT: &[u8] = b"0123456789";
    /// Of TEXT.
    const HASH: &str = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";

    /// A server on loopback, and the requests that it got: `PATH RANGE`.
    struct Server {
        base: String,
        requests: Arc<Mutex<Vec<String>>>,
    }

    impl Server {
        fn new() -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let base = format!("http://{}/", listener.local_addr().unwrap());
            let requests = Arc::new(Mutex::new(Vec::new()));
            let log = requests.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let request = answer(stream.unwrap());
                    log.lock().unwrap().push(request);
                }
            });
            Server { base, requests }
        }

        fn manifest(&self, from: &str, sha256: &str) -> Manifest {
            let (to, from, sha256) = ("a/file".into(), from.into(), sha256.into());
            let files = vec![Entry { to, from, bytes: TEXT.len() as u64, sha256 }];
            let source = Source { base: self.base.clone(), licence: "MIT".into(), files };
            let unavailable = vec![Unavailable { why: "made by hand".into(), files: vec!["own".into()] }];
            Manifest { sources: vec![source], unavailable }
        }
    }

    /// `good` has ranges, `whole` has none, `short` breaks off after 4 bytes, and everything else is missing.
    fn answer(mut stream: TcpStream) -> String {
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let path = head[0].split(' ').nth(1).unwrap().to_string();
        let range = head.iter().find_map(|line| line.strip_prefix("Range: bytes="));
        let from = range.and_then(|range| range.strip_suffix('-')?.parse().ok()).unwrap_or(0);
        let full = TEXT.len();
        let (status, headers, body) = match path.as_str() {
            "/good" if from > 0 => (
                "206 Partial Content",
                format!("Content-Range: bytes {from}-{}/{full}\r\n", full - 1),
                &TEXT[from..],
            ),
            "/good" | "/whole" => ("200 OK", String::new(), TEXT),
            "/short" => ("200 OK", String::new(), &TEXT[..4]),
            _ => ("404 Not Found", String::new(), &TEXT[..0]),
        };
        let length = if path == "/short" { full } else { body.len() };
        let head =
            format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        format!("{path} {}", range.unwrap_or("all"))
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries =
            fs::read_dir(folder.join("a")).map(|entries| entries.flatten().collect()).unwrap_or(vec![]);
        entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_file_is_fetched_verified_and_not_fetched_again() {
        let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
        let manifest = server.manifest("good", HASH);
        let missing = fetch(&manifest, folder.path(), true).unwrap_err().to_string();
        assert!(missing.contains("1 files are missing"), "{missing}");
        for _ in 0..2 {
            fetch(&manifest, folder.path(), false).unwrap();
            assert_eq!(fs::read(folder.path().join("a/file")).unwrap(), TEXT);
        }
        fetch(&manifest, folder.path(), true).unwrap();
        assert_eq!(*server.requests.lock().unwrap(), ["/good all"]);
        assert_eq!(files(folder.path()), ["file"]);
    }

    #[test]
    fn a_wrong_file_and_a_missing_one_leave_nothing() {
        let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
        let other = HASH.replace('8', "9");
        let error = fetch(&server.manifest("good", &other), folder.path(), false).unwrap_err().to_string();
        assert!(error.contains(&format!("good has SHA-256 {HASH}, not {other}")), "{error}");
        let error = fetch(&server.manifest("none", HASH), folder.path(), false).unwrap_err().to_string();
        assert!(error.contains("none: curl failed (exit code Some(22))"), "{error}");
        assert_eq!(files(folder.path()), [""; 0]);
    }

    #[test]
    fn an_interrupted_download_is_resumed() {
        let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
        let error = fetch(&server.manifest("short", HASH), folder.path(), false).unwrap_err().to_string();
        assert!(error.contains("broke off"), "{error}");
        assert_eq!(files(folder.path()), ["file.part"]);
        fetch(&server.manifest("good", HASH), folder.path(), false).unwrap();
        assert_eq!(*server.requests.lock().unwrap(), ["/short all", "/good 4-"]);
        assert_eq!(files(folder.path()), ["file"]);
    }

    #[test]
    fn a_server_without_ranges_and_a_part_that_is_too_long_begin_again() {
        let server = Server::new();
        for part in ["0123", "0123456789abc"] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("a")).unwrap();
            fs::write(folder.path().join("a/file.part"), part).unwrap();
            fetch(&server.manifest("whole", HASH), folder.path(), false).unwrap();
            assert_eq!(files(folder.path()), ["file"]);
        }
    }

    #[test]
    fn another_file_at_the_place_stays_and_is_reported() {
        let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/file"), "mine").unwrap();
        let error = fetch(&server.manifest("good", HASH), folder.path(), false).unwrap_err().to_string();
        assert!(error.contains("is another file"), "{error}");
        assert_eq!(fs::read(folder.path().join("a/file")).unwrap(), b"mine");
    }

    #[test]
    fn the_manifest_is_complete_and_pins_every_file() {
        let text = fs::read(root().join("xtask/data/manifest.json")).unwrap();
        let manifest: Manifest = serde_json::from_slice(&text).unwrap();
        let mut places: Vec<&Path> =
            manifest.unavailable.iter().flat_map(|g| &g.files).map(|p| &**p).collect();
        for source in &manifest.sources {
            assert!(source.base.starts_with("https://") && source.base.ends_with('/'), "{}", source.base);
            let is_commit = |part: &str| part.len() == 40 && part.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(source.base.split('/').any(is_commit), "{} names no commit", source.base);
            assert!(!source.licence.is_empty());
            for file in &source.files {
                assert!(stays_inside(&file.to) && file.bytes > 0, "{file:?}");
                assert!(file.sha256.len() == 64, "{file:?}");
                places.push(&file.to);
            }
        }
        let count = places.len();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), count, "a place is named twice");
        assert!(["../a", "/a", "a/../../b"].iter().all(|path| !stays_inside(Path::new(path))));
    }

    /// What tests read is in the manifest: otherwise somebody who fetches it runs less than is run here.
    #[test]
    fn files_that_lie_where_tests_look_are_those_of_the_manifest() {
        let Some(folder) = std::env::var_os("AKUNU_TEST_DATA").map(PathBuf::from).or_else(|| {
            let beside = root().join("../shared/data");
            beside.is_dir().then_some(beside)
        }) else {
            let _ = writeln!(std::io::stderr(), "skipped: the test data is not there");
            return;
        };
        let manifest = fs::read(root().join("xtask/data/manifest.json")).unwrap();
        let manifest: Manifest = serde_json::from_slice(&manifest).unwrap();
        for file in manifest.sources.iter().flat_map(|source| &source.files) {
            if let Ok(metadata) = fs::metadata(folder.join(&file.to)) {
                assert_eq!(metadata.len(), file.bytes, "{}", file.to.display());
                assert_eq!(sha256(&folder.join(&file.to)).unwrap(), file.sha256, "{}", file.to.display());
            }
        }
    }
}

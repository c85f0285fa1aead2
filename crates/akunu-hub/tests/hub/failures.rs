//! Failures of downloads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use akunu_hub::{Cache, Disk, Error, Hub, Observer, Silent, SystemDisk, Token};
use akunu_hub_testing::{COMMIT, FakeHub, Fault, sha256};

use crate::{Notes, bytes, hub, reference, settings};

const MODEL: &str = "hf:tiny/model-GGUF";
/// More than the buffers between server and client.
const SIZE: usize = 3 << 20;

fn blobs(cache: &Path) -> Vec<String> {
    let folder = cache.join("models--tiny--model-GGUF/blobs");
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn incomplete(cache: &Path, weights: &[u8]) -> PathBuf {
    cache.join("models--tiny--model-GGUF/blobs").join(format!("{}.incomplete", sha256(weights)))
}

fn ranges(fake: &FakeHub) -> Vec<Option<String>> {
    fake.requests("/resolve/").iter().map(|r| r.headers.get("range").cloned()).collect()
}

#[test]
fn an_interrupted_connection_is_resumed() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    // More interruptions than allowed attempts: each attempt brings data, so none counts as failed.
    fake.fault("/resolve/", Fault::Cut(400_000), 5);
    let pulled = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), weights);
    assert_eq!(pulled.downloaded, SIZE as u64);
    let ranges = ranges(&fake);
    assert_eq!(ranges.len(), 6);
    assert!(ranges[0].is_none() && ranges[1..].iter().all(Option::is_some), "{ranges:?}");
    assert_eq!(ranges[1].as_deref(), Some("bytes=400000-"));
    assert_eq!(blobs(cache.path()), [sha256(&weights)]);
}

#[test]
fn a_lost_connection_is_an_error_and_the_next_pull_resumes() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Cut(1_000_000), 1);
    fake.fault("/resolve/", Fault::Cut(0), 4);
    let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Cut { received: 1_000_000, .. }), "{error}");
    assert_eq!(fs::read(incomplete(cache.path(), &weights)).unwrap(), weights[..1_000_000]);
    let mut notes = Notes::default();
    fake.fault("/resolve/", Fault::Slow(SIZE, Duration::ZERO), 9);
    while let Err(error) = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut notes) {
        assert!(matches!(error, Error::Cut { .. }), "{error}");
    }
    assert_eq!(blobs(cache.path()), [sha256(&weights)]);
    assert_eq!((notes.total, notes.done), (SIZE as u64, SIZE as u64));
}

#[test]
fn a_server_that_ignores_ranges_sends_everything_again() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Cut(500_000), 1);
    fake.fault("/resolve/", Fault::IgnoreRange, 1);
    let pulled = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), weights);
    assert_eq!(pulled.downloaded, SIZE as u64 + 500_000);
}

#[test]
fn a_rejected_range_restarts_the_download() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Cut(500_000), 1);
    fake.fault("/resolve/", Fault::Status(416, &[]), 1);
    let pulled = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), weights);
}

#[test]
fn a_damaged_partial_download_is_restarted() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    for wrong in [bytes(1000, 9), bytes(SIZE, 9), bytes(SIZE + 1, 9)] {
        let _ = fs::remove_dir_all(cache.path().join("models--tiny--model-GGUF"));
        let part = incomplete(cache.path(), &weights);
        fs::create_dir_all(part.parent().unwrap()).unwrap();
        fs::write(part, wrong).unwrap();
        let pulled = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap();
        assert_eq!(fs::read(&pulled.path).unwrap(), weights);
    }
}

#[test]
fn a_wrong_checksum_is_retried_once_and_then_deleted() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Damage, 2);
    let mut notes = Notes::default();
    let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut notes).unwrap_err();
    assert!(matches!(&error, Error::Checksum { expected, .. } if *expected == sha256(&weights)), "{error}");
    assert_eq!(fake.requests("/resolve/").len(), 2);
    assert_eq!(notes.notes.len(), 1, "{notes:?}");
    assert!(blobs(cache.path()).is_empty());
    fake.fault("/resolve/", Fault::Damage, 1);
    hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap();
}

#[test]
fn small_files_are_verified_too() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(100, 1));
    let fake = FakeHub::new(&[("config.json", b"{}"), ("model.safetensors", &weights)]);
    fake.fault("config.json", Fault::Damage, 2);
    let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(&error, Error::Checksum { file, .. } if file == "config.json"), "{error}");
}

#[test]
fn access_errors_contain_a_remedy() {
    let fake = FakeHub::new(&[("m.gguf", &bytes(10, 1))]);
    let refused = |status, headers, token: Option<&str>| {
        let cache = tempfile::tempdir().unwrap();
        fake.fault("/revision/", Fault::Status(status, headers), 1);
        let mut settings = settings(&fake.url, cache.path());
        settings.token = token.and_then(Token::new);
        Hub::new(settings).pull(&reference(MODEL), &mut Silent).unwrap_err()
    };
    let gated: &[(&str, &str)] = &[("x-error-code", "GatedRepo")];
    for status in [401, 403] {
        let error = refused(status, gated, None);
        assert!(matches!(error, Error::Gated { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("HF_TOKEN") && text.contains("/tiny/model-GGUF"), "{text}");
    }
    let error = refused(401, &[], None);
    assert!(matches!(error, Error::Unauthorized { token: false, .. }), "{error}");
    assert!(matches!(refused(401, &[], Some("hf_x")), Error::Unauthorized { token: true, .. }));
    assert!(matches!(refused(403, &[], Some("hf_x")), Error::Forbidden { .. }));
    assert!(matches!(refused(418, &[], None), Error::Server { status: 418, .. }));
}

#[test]
fn a_404_says_what_is_missing() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("m.gguf", &bytes(10, 1))]));
    let pull = |text: &str| hub(&fake.url, cache.path()).pull(&reference(text), &mut Silent).unwrap_err();
    let error = pull("hf:tiny/other");
    assert!(matches!(error, Error::NoRepo { .. }), "{error}");
    let error = pull("hf:tiny/model-GGUF@other");
    assert!(matches!(&error, Error::NoRevision { revision, .. } if revision == "other"), "{error}");
    let error = pull("hf:tiny/model-GGUF:other.gguf");
    assert!(matches!(&error, Error::NoFile { .. }) && error.to_string().contains("\n  m.gguf"), "{error}");
    let error = pull("hf:tiny/model-GGUF:Q4_K_M");
    assert!(matches!(&error, Error::Choice { .. }) && error.to_string().contains("\n  m.gguf"), "{error}");
    fake.fault("/resolve/", Fault::Status(404, &[("x-error-code", "EntryNotFound")]), 1);
    assert!(matches!(pull(MODEL), Error::NoFile { .. }));
}

#[test]
fn retry_after_is_honoured_and_a_long_one_is_an_error() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("m.gguf", &bytes(10, 1))]));
    let pull = |notes: &mut Notes| hub(&fake.url, cache.path()).pull(&reference(MODEL), notes);
    fake.fault("/revision/", Fault::Status(429, &[("retry-after", "600")]), 1);
    let error = pull(&mut Notes::default()).unwrap_err();
    assert!(matches!(error, Error::RateLimited { seconds: Some(600), .. }), "{error}");
    fake.fault("/revision/", Fault::Status(429, &[]), 3);
    let error = pull(&mut Notes::default()).unwrap_err();
    assert!(matches!(error, Error::RateLimited { seconds: None, .. }), "{error}");

    fake.fault("/resolve/", Fault::Status(429, &[("retry-after", "1")]), 1);
    let (started, mut notes) = (Instant::now(), Notes::default());
    pull(&mut notes).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert!(notes.notes[0].contains("429") && notes.notes[0].contains("in 1 s"), "{notes:?}");
}

#[test]
fn retry_after_may_be_a_date_by_the_servers_clock() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("m.gguf", &bytes(10, 1))]));
    let pull = |notes: &mut Notes| hub(&fake.url, cache.path()).pull(&reference(MODEL), notes);
    const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    const FAR: &[(&str, &str)] = &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:59:37 GMT")];
    fake.fault("/revision/", Fault::Status(429, FAR), 1);
    let error = pull(&mut Notes::default()).unwrap_err();
    assert!(matches!(error, Error::RateLimited { seconds: Some(600), .. }), "{error}");

    const NEAR: &[(&str, &str)] = &[DATE, ("retry-after", "Sunday, 06-Nov-94 08:49:38 GMT")];
    fake.fault("/revision/", Fault::Status(503, NEAR), 1);
    // Without the server's clock, the local one decides, by which the date has passed: the default pause is used.
    fake.fault("/resolve/", Fault::Status(429, &[("retry-after", "Sun Nov  6 08:59:37 1994")]), 1);
    let (started, mut notes) = (Instant::now(), Notes::default());
    pull(&mut notes).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_eq!(notes.notes.len(), 1, "{notes:?}");
    assert!(notes.notes[0].contains("503") && notes.notes[0].contains("in 1 s"), "{notes:?}");
    fake.fault("/revision/", Fault::Status(429, &[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")]), 1);
    let error = pull(&mut Notes::default()).unwrap_err();
    assert!(matches!(error, Error::RateLimited { seconds: Some(1_000_000_000..), .. }), "{error}");
}

#[test]
fn temporary_server_errors_are_retried() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("m.gguf", &bytes(10, 1))]));
    for part in ["/revision/", "/tree/", "/resolve/"] {
        fake.fault(part, Fault::Status(503, &[]), 2);
    }
    hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap();
    fake.fault("/revision/", Fault::Status(500, &[]), 3);
    let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Server { status: 500, .. }), "{error}");
}

#[test]
fn a_redirect_to_another_host_goes_without_the_token() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(10, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Redirect(fake.other_host()), 1);
    // A renamed repository: the same host, so the token is sent again.
    fake.fault("/revision/", Fault::Redirect(String::new()), 1);
    let mut settings = settings(&fake.url, cache.path());
    settings.token = Token::new("hf_secret");
    Hub::new(settings).pull(&reference(MODEL), &mut Silent).unwrap();
    let token = |part: &str| -> Vec<bool> {
        fake.requests(part).iter().map(|r| r.headers.contains_key("authorization")).collect()
    };
    assert_eq!(token("/revision/"), [true, true]);
    assert_eq!(token("/resolve/"), [true, false]);
    let first = &fake.requests("/revision/")[0];
    assert_eq!(first.headers["authorization"], "Bearer hf_secret");
}

#[test]
fn endless_redirects_are_an_error() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("m.gguf", &bytes(10, 1))]));
    fake.fault("/revision/", Fault::Redirect(String::new()), 100);
    let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Redirect { .. }), "{error}");
}

#[test]
fn names_that_leave_the_cache_are_refused() {
    // No file system has names of more than 255 bytes.
    let long = format!("a/{}.gguf", "x".repeat(255));
    for evil in ["../../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a\\\\..\\\\x.gguf", "./x.gguf", &long] {
        let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[(evil, &bytes(10, 1))]));
        let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap_err();
        assert!(matches!(error, Error::UnsafePath { .. }), "{evil}: {error}");
        assert!(fs::read_dir(cache.path()).unwrap().next().is_none());
    }
}

#[test]
fn an_invalid_response_is_an_error() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("m.gguf", &bytes(10, 1))]));
    for part in ["/revision/", "/tree/"] {
        fake.fault(part, Fault::Status(200, &[]), 1);
        let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
    fake.commit("../../../../tmp/x", &[]);
    let error = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

/// A disk with limited space.
#[derive(Debug)]
struct SmallDisk {
    told: Option<u64>,
    room: AtomicU64,
}

impl Disk for SmallDisk {
    fn free(&self, _folder: &Path) -> Option<u64> {
        self.told
    }

    fn write(&self, file: &mut fs::File, bytes: &[u8]) -> io::Result<()> {
        let room = self.room.load(Ordering::Relaxed);
        let fits = (bytes.len() as u64).min(room);
        SystemDisk.write(file, &bytes[..fits as usize])?;
        self.room.store(room - fits, Ordering::Relaxed);
        if fits < bytes.len() as u64 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn a_full_disk_is_reported_before_the_download() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("m.gguf", &bytes(SIZE, 1))]));
    let disk = SmallDisk { told: Some(1000), room: AtomicU64::new(1000) };
    let hub = hub(&fake.url, cache.path()).with_disk(Box::new(disk));
    let error = hub.pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::DiskFull { needed: Some(n), free: Some(1000), .. } if n == SIZE as u64));
    assert!(fake.requests("/resolve/").is_empty());
}

#[test]
fn a_disk_that_fills_up_keeps_received_data_for_the_next_pull() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    let disk = SmallDisk { told: None, room: AtomicU64::new(1_234_567) };
    let full = hub(&fake.url, cache.path()).with_disk(Box::new(disk));
    let error = full.pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::DiskFull { needed: None, .. }), "{error}");
    assert_eq!(fs::read(incomplete(cache.path(), &weights)).unwrap(), weights[..1_234_567]);
    let pulled = hub(&fake.url, cache.path()).pull(&reference(MODEL), &mut Silent).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), weights);
    assert_eq!(ranges(&fake)[1].as_deref(), Some("bytes=1234567-"));
}

#[test]
fn an_interrupt_works_while_no_data_arrives() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Stall(700_000, Duration::from_secs(60)), 1);
    let cancel = Arc::new(AtomicBool::new(false));
    let hub = hub(&fake.url, cache.path()).with_cancel(cancel.clone());
    let part = incomplete(cache.path(), &weights);
    let stopper = std::thread::spawn(move || {
        while !fs::metadata(&part).is_ok_and(|m| m.len() == 700_000) {
            std::thread::sleep(Duration::from_millis(5));
        }
        cancel.store(true, Ordering::Relaxed);
        Instant::now()
    });
    let error = hub.pull(&reference(MODEL), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(stopper.join().unwrap().elapsed() < Duration::from_secs(5));
    assert_eq!(fs::metadata(incomplete(cache.path(), &weights)).unwrap().len(), 700_000);
}

#[test]
fn a_stalled_server_is_retried() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Stall(700_000, Duration::from_secs(60)), 1);
    let mut settings = settings(&fake.url, cache.path());
    settings.retry_policy.idle = Duration::from_millis(500);
    let pulled = Hub::new(settings).pull(&reference(MODEL), &mut Silent).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), weights);
}

#[test]
fn running_downloads_block_removal() {
    let (cache_folder, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    let repo = akunu_hub::Repo::new("tiny", "model-GGUF").unwrap();
    let cache = Cache::new(cache_folder.path());
    // An older commit is complete in the cache.
    hub(&fake.url, cache_folder.path()).pull(&reference(MODEL), &mut Silent).unwrap();
    let newer = bytes(SIZE, 2);
    fake.commit(&"f".repeat(40), &[("m.gguf", &newer)]);
    fake.fault("/resolve/", Fault::Stall(700_000, Duration::from_secs(60)), 1);
    let cancel = Arc::new(AtomicBool::new(false));
    let hub = hub(&fake.url, cache_folder.path()).with_cancel(cancel.clone());
    let pull = std::thread::spawn(move || hub.pull(&reference(MODEL), &mut Silent));
    let part = incomplete(cache_folder.path(), &newer);
    while !fs::metadata(&part).is_ok_and(|m| m.len() == 700_000) {
        std::thread::sleep(Duration::from_millis(5));
    }
    for revision in [None, Some("main"), Some(&COMMIT[..8])] {
        let error = cache.remove(&repo, revision).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
    }
    cancel.store(true, Ordering::Relaxed);
    assert!(matches!(pull.join().unwrap(), Err(Error::Interrupted)));
    assert_eq!(blobs(cache_folder.path()).len(), 2);
    assert_eq!(fs::metadata(&part).unwrap().len(), 700_000);
    // A process that another test starts shares this one's locks until its program runs.
    let deadline = Instant::now() + Duration::from_secs(10);
    let removed = loop {
        match cache.remove(&repo, None) {
            Err(Error::Busy { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5))
            }
            removed => break removed.unwrap(),
        }
    };
    assert_eq!(removed.revisions, 1);
    assert!(blobs(cache_folder.path()).is_empty());
}

#[test]
fn downloads_of_other_tools_block_removal() {
    let (cache_folder, weights) = (tempfile::tempdir().unwrap(), bytes(10, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    hub(&fake.url, cache_folder.path()).pull(&reference(MODEL), &mut Silent).unwrap();
    let (cache, repo) =
        (Cache::new(cache_folder.path()), akunu_hub::Repo::new("tiny", "model-GGUF").unwrap());
    // Other tools lock only the blob.
    let path = cache_folder.path().join(".locks/models--tiny--model-GGUF/other.lock");
    let lock = fs::File::create(path).unwrap();
    lock.lock().unwrap();
    assert!(matches!(cache.remove(&repo, None), Err(Error::Busy { .. })));
    drop(lock);
    assert_eq!(cache.remove(&repo, None).unwrap().revisions, 1);
}

#[test]
fn a_pull_waits_for_a_removal_with_a_note() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(10, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    let path = cache.path().join(".locks/models--tiny--model-GGUF/pull.lock");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let removal = fs::File::create(path).unwrap();
    removal.lock().unwrap();
    let (sender, told) = std::sync::mpsc::channel();
    let hub = hub(&fake.url, cache.path());
    let pull = std::thread::spawn(move || hub.pull(&reference(MODEL), &mut ChannelObserver(sender)));
    let note = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(note.contains("is removing") && note.contains("waiting"), "{note}");
    assert!(fake.requests("/resolve/").is_empty());
    drop(removal);
    assert_eq!(fs::read(pull.join().unwrap().unwrap().path).unwrap(), weights);
}

#[derive(Debug)]
struct ChannelObserver(std::sync::mpsc::Sender<String>);

impl Observer for ChannelObserver {
    fn note(&mut self, text: &str) {
        self.0.send(text.to_string()).unwrap();
    }
}

/// Started twice by the next test.
#[test]
#[ignore = "a part of two_processes_share_one_download"]
fn pull_in_a_process_of_its_own() {
    let (url, cache) = (std::env::var("TEST_HUB_URL").unwrap(), std::env::var("TEST_HUB_CACHE").unwrap());
    let mut notes = Notes::default();
    let pulled = hub(&url, Path::new(&cache)).pull(&reference(MODEL), &mut notes).unwrap();
    println!("downloaded {} waited {}", pulled.downloaded, notes.notes.len());
}

#[test]
fn two_processes_share_one_download() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(SIZE, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    fake.fault("/resolve/", Fault::Slow(SIZE / 20, Duration::from_millis(50)), 1);
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "failures::pull_in_a_process_of_its_own", "--ignored", "--nocapture"])
            .env("TEST_HUB_URL", &fake.url)
            .env("TEST_HUB_CACHE", cache.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children = [start(), start()];
    let outputs = children.map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    });
    let all = format!("downloaded {SIZE}");
    let downloads = outputs.iter().filter(|text| text.contains(&all)).count();
    let none = outputs.iter().filter(|text| text.contains("downloaded 0")).count();
    assert_eq!((downloads, none), (1, 1), "{outputs:?}");
    assert_eq!(fake.requests("/resolve/").len(), 1);
    assert_eq!(blobs(cache.path()), [sha256(&weights)]);
}

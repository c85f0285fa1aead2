//! What lands where, which files are chosen, and what the cache lists and removes.

use std::fs;
use std::path::{Path, PathBuf};

use akunu_hub::{Cache, Error, Repo, Silent};

use crate::server::{COMMIT, FakeHub, REPO, git_oid, sha256};
use crate::{Notes, bytes, hub, reference, settings};

fn repo() -> Repo {
    let (owner, name) = REPO.split_once('/').unwrap();
    Repo::new(owner, name).unwrap()
}

/// Every file below a folder, with a link's target after it.
fn tree(root: &Path) -> Vec<String> {
    fn visit(folder: &Path, root: &Path, out: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            match fs::read_link(&path) {
                Ok(target) => out.push(format!("{name} -> {}", target.display())),
                Err(_) if path.is_dir() => visit(&path, root, out),
                Err(_) => out.push(name),
            }
        }
    }
    let mut out = Vec::new();
    visit(root, root, &mut out);
    out.sort();
    out
}

#[cfg(unix)]
#[test]
fn the_cache_is_laid_out_as_other_tools_have_it() {
    let cache = tempfile::tempdir().unwrap();
    let (weights, config) = (bytes(3000, 1), b"{\"a\":1}".as_slice());
    let fake = FakeHub::new(&[
        ("config.json", config),
        ("model.safetensors", &weights),
        ("x/deep/model-Q8_0.bin", b"not asked for"),
    ]);
    let mut notes = Notes::default();
    let pulled = hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF"), &mut notes).unwrap();
    let (large, small) = (sha256(&weights), git_oid(config));
    let folder = "models--tiny--model-GGUF";
    let mut expected = vec![
        format!(".locks/{folder}/{large}.lock"),
        format!(".locks/{folder}/{small}.lock"),
        format!("{folder}/blobs/{large}"),
        format!("{folder}/blobs/{small}"),
        format!("{folder}/refs/main"),
        format!("{folder}/snapshots/{COMMIT}/config.json -> ../../blobs/{small}"),
        format!("{folder}/snapshots/{COMMIT}/model.safetensors -> ../../blobs/{large}"),
    ];
    expected.sort();
    assert_eq!(tree(cache.path()), expected);
    assert_eq!(fs::read_to_string(cache.path().join(folder).join("refs/main")).unwrap(), COMMIT);
    assert_eq!(pulled.path, cache.path().join(folder).join("snapshots").join(COMMIT));
    assert_eq!(fs::read(pulled.path.join("model.safetensors")).unwrap(), weights);
    let size = (weights.len() + config.len()) as u64;
    assert_eq!((pulled.bytes, pulled.downloaded), (size, size));
    assert_eq!((notes.total, notes.done, notes.notes.len()), (size, size, 0));
}

#[test]
fn a_file_in_a_folder_is_linked_from_there() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("Q8_0/a b/model.gguf", &bytes(100, 1))]);
    let pulled =
        hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF:q8_0"), &mut Silent).unwrap();
    assert!(pulled.path.ends_with("Q8_0/a b/model.gguf"));
    assert_eq!(fs::read(&pulled.path).unwrap(), bytes(100, 1));
}

#[test]
fn what_is_there_is_not_downloaded_again() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("m.gguf", &bytes(100, 1))]);
    let hub = hub(&fake.url, cache.path());
    for downloaded in [100, 0] {
        let pulled = hub.pull(&reference("hf:tiny/model-GGUF"), &mut Silent).unwrap();
        assert_eq!(pulled.downloaded, downloaded);
    }
    assert_eq!(fake.requests("/resolve/").len(), 1);
}

#[test]
fn every_page_of_a_listing_is_read() {
    let cache = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..7).map(|n| format!("n{n}.txt")).collect();
    let last = bytes(10, 1);
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), b"x".as_slice())).collect();
    files.push(("z-Q4_K_M.gguf", &last));
    let fake = FakeHub::new(&files);
    fake.page(3);
    hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF:Q4_K_M"), &mut Silent).unwrap();
    assert_eq!(fake.requests("/tree/").len(), 3);
}

#[test]
fn a_revision_may_be_a_branch_a_pull_request_or_a_commit() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("m.gguf", &bytes(10, 1))]);
    let hub = hub(&fake.url, cache.path());
    for revision in ["main", "refs/pr/1", COMMIT] {
        let pulled = hub.pull(&reference(&format!("hf:tiny/model-GGUF@{revision}")), &mut Silent).unwrap();
        assert_eq!(pulled.commit, COMMIT, "{revision}");
    }
    let refs = cache.path().join("models--tiny--model-GGUF/refs");
    assert_eq!(tree(&refs), ["main", "refs/pr/1"].map(|r| PathBuf::from(r).display().to_string()));
}

#[test]
fn the_list_and_the_removal_count_shared_bytes_once() {
    let cache_folder = tempfile::tempdir().unwrap();
    let (shared, old, new) = (bytes(1000, 1), bytes(500, 2), bytes(700, 3));
    let fake = FakeHub::new(&[("a.gguf", &shared), ("b.gguf", &old)]);
    let hub = hub(&fake.url, cache_folder.path());
    let pull = |file: &str| hub.pull(&reference(&format!("hf:tiny/model-GGUF:{file}")), &mut Silent).unwrap();
    pull("a.gguf");
    pull("b.gguf");
    let second = "f".repeat(40);
    fake.commit(&second, &[("a.gguf", &shared), ("b.gguf", &new)]);
    pull("a.gguf");
    pull("b.gguf");

    let cache = Cache::new(cache_folder.path());
    let listed = cache.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].repo, repo());
    let about: Vec<_> =
        listed[0].revisions.iter().map(|r| (&*r.commit, r.refs.join(","), r.bytes())).collect();
    assert_eq!(about, [(COMMIT, String::new(), 1500), (&*second, "main".to_string(), 1700)]);
    // The blobs, and the name of a commit in refs.
    assert_eq!(listed[0].bytes, 1000 + 500 + 700 + 40);

    assert!(matches!(cache.remove(&repo(), Some("other")), Err(Error::NotCached { .. })));
    let removed = cache.remove(&repo(), Some(&COMMIT[..8])).unwrap();
    assert_eq!((removed.bytes, removed.revisions), (500, 1));
    assert_eq!(cache.list().unwrap()[0].revisions.len(), 1);
    assert_eq!(fs::read(pull("a.gguf").path).unwrap(), shared);
    let removed = cache.remove(&repo(), None).unwrap();
    assert_eq!((removed.bytes, removed.revisions), (1740, 1));
    assert!(cache.list().unwrap().is_empty());
    assert!(matches!(cache.remove(&repo(), None), Err(Error::NotCached { .. })));
}

#[test]
fn a_cache_that_is_not_there_is_empty() {
    assert!(Cache::new("/no/such/folder").list().unwrap().is_empty());
}

#[test]
fn offline_only_the_cache_is_asked() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("m-Q4_0.gguf", &bytes(10, 1)), ("m-Q8_0.gguf", &bytes(20, 2))]);
    hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF:Q8_0"), &mut Silent).unwrap();
    let asked = fake.requests("").len();

    let mut offline = settings(&fake.url, cache.path());
    offline.offline = true;
    let offline = akunu_hub::Hub::new(offline);
    for found in ["", "@main", ":Q8_0", ":m-Q8_0.gguf"] {
        let pulled = offline.pull(&reference(&format!("hf:tiny/model-GGUF{found}")), &mut Silent).unwrap();
        assert_eq!(fs::read(pulled.path).unwrap(), bytes(20, 2), "{found}");
    }
    for missing in ["tiny/model-GGUF:Q4_0", "tiny/model-GGUF@other", "tiny/other"] {
        let error = offline.pull(&reference(&format!("hf:{missing}")), &mut Silent).unwrap_err();
        assert!(matches!(error, Error::Offline { .. }), "{error}");
        assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    }
    assert_eq!(fake.requests("").len(), asked);
}

#[test]
fn a_hub_out_of_reach_is_no_reason_not_to_use_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("m.gguf", &bytes(10, 1))]);
    hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF"), &mut Silent).unwrap();
    // Nothing listens on a port that was just given back.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = hub(&format!("http://{closed}"), cache.path());
    let mut notes = Notes::default();
    away.pull(&reference("hf:tiny/model-GGUF"), &mut notes).unwrap();
    assert!(notes.notes.iter().any(|n| n.contains("using what is in the cache")), "{notes:?}");
    let error = away.pull(&reference("hf:tiny/other"), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

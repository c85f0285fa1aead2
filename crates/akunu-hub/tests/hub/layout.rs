//! The cache layout, the selection of files, and the listing and removal of cached models.
#![cfg_attr(not(unix), allow(unused_imports))] // what only tests of Unix need

use std::fs;
use std::path::{Path, PathBuf};

use akunu_hub::{Cache, Error, Repo, Silent};
use akunu_hub_testing::{COMMIT, FakeHub, REPO, git_oid, sha256};

use crate::{Notes, bytes, hub, reference, settings};

fn repo() -> Repo {
    let (owner, name) = REPO.split_once('/').unwrap();
    Repo::new(owner, name).unwrap()
}

/// Every file below a folder, with the target of each link.
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
fn the_cache_layout_is_that_of_hugging_face() {
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
        format!(".locks/{folder}/pull.lock"),
        format!(".locks/{folder}/{large}.lock"),
        format!(".locks/{folder}/{small}.lock"),
        format!("{folder}/blobs/{large}"),
        format!("{folder}/blobs/{small}"),
        format!("{folder}/refs/main"),
        format!("{folder}/.listings/{COMMIT}.json"),
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
fn cached_files_are_not_downloaded_again() {
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
    let listing = |commit: &str| {
        let path =
            cache_folder.path().join("models--tiny--model-GGUF/.listings").join(format!("{commit}.json"));
        fs::metadata(path).unwrap().len()
    };
    let (first_listing, second_listing) = (listing(COMMIT), listing(&second));
    // The blobs, the commit id in refs, and the listings of both commits.
    assert_eq!(listed[0].bytes, 1000 + 500 + 700 + 40 + first_listing + second_listing);

    assert!(matches!(cache.remove(&repo(), Some("other")), Err(Error::NotCached { .. })));
    let removed = cache.remove(&repo(), Some(&COMMIT[..8])).unwrap();
    assert_eq!((removed.bytes, removed.revisions), (500 + first_listing, 1));
    assert_eq!(cache.list().unwrap()[0].revisions.len(), 1);
    assert_eq!(fs::read(pull("a.gguf").path).unwrap(), shared);
    let removed = cache.remove(&repo(), None).unwrap();
    assert_eq!((removed.bytes, removed.revisions), (1740 + second_listing, 1));
    assert!(cache.list().unwrap().is_empty());
    assert!(matches!(cache.remove(&repo(), None), Err(Error::NotCached { .. })));
}

#[test]
fn a_commit_that_is_cached_needs_no_hub() {
    let cache = tempfile::tempdir().unwrap();
    let (small, large) = (bytes(10, 1), bytes(20, 2));
    let fake = FakeHub::new(&[("m-Q4_0.gguf", &small), ("m-Q8_0.gguf", &large)]);
    let pinned = |rest: &str| reference(&format!("hf:tiny/model-GGUF@{COMMIT}{rest}"));
    let online = hub(&fake.url, cache.path());
    online.pull(&reference("hf:tiny/model-GGUF:Q8_0"), &mut Silent).unwrap();
    let resource = fake.requests("").len();
    for selector in [":Q8_0", ":m-Q8_0.gguf"] {
        let mut notes = Notes::default();
        let pulled = online.pull(&pinned(selector), &mut notes).unwrap();
        assert_eq!((fs::read(pulled.path).unwrap(), pulled.downloaded), (large.clone(), 0));
        assert_eq!((notes.total, notes.notes.len()), (0, 0), "{notes:?}");
    }
    assert_eq!(fake.requests("").len(), resource);

    // The preferred file of the commit differs from the cached one: selected from the cached listing, then downloaded.
    let pulled = online.pull(&pinned(""), &mut Silent).unwrap();
    assert_eq!(fs::read(pulled.path).unwrap(), small);
    assert_eq!(fake.requests("/api/").len(), resource - 1);

    // No server at all, and no message about it.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut notes = Notes::default();
    hub(&format!("http://{closed}"), cache.path()).pull(&pinned(""), &mut notes).unwrap();
    assert!(notes.notes.is_empty(), "{notes:?}");
    let mut offline = settings(&fake.url, cache.path());
    offline.offline = true;
    let pulled = akunu_hub::Hub::new(offline).pull(&pinned(""), &mut Silent).unwrap();
    assert_eq!(fs::read(pulled.path).unwrap(), small);
}

#[test]
fn a_damaged_or_unsafe_listing_is_requested_again() {
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(10, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    let pinned = reference(&format!("hf:tiny/model-GGUF@{COMMIT}"));
    let path = cache.path().join("models--tiny--model-GGUF/.listings").join(format!("{COMMIT}.json"));
    let mut listed = 0;
    let away = format!(r#"[{{"path":"../../m.gguf","size":10,"sum":"{}"}}]"#, sha256(&weights));
    for damage in ["", "[", r#"[{"path":"m.gguf","size":10,"sum":"../x"}]"#, &away] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, damage).unwrap();
        let pulled = hub(&fake.url, cache.path()).pull(&pinned, &mut Silent).unwrap();
        assert_eq!(fs::read(pulled.path).unwrap(), weights);
        listed += 1;
        assert_eq!(fake.requests("/tree/").len(), listed, "{damage}");
        assert!(fs::read_to_string(&path).unwrap().contains(&sha256(&weights)));
    }
}

#[cfg(unix)]
#[test]
fn a_read_only_cache_is_sufficient() {
    use std::os::unix::fs::PermissionsExt;
    let (cache, weights) = (tempfile::tempdir().unwrap(), bytes(10, 1));
    let fake = FakeHub::new(&[("m.gguf", &weights)]);
    let hub = hub(&fake.url, cache.path());
    hub.pull(&reference("hf:tiny/model-GGUF"), &mut Silent).unwrap();
    // As other tools leave it, without locks and listings. A file in place of a folder makes it read-only.
    fs::remove_dir_all(cache.path().join(".locks")).unwrap();
    fs::write(cache.path().join(".locks"), "").unwrap();
    let listings = cache.path().join("models--tiny--model-GGUF/.listings");
    fs::remove_dir_all(&listings).unwrap();
    fs::write(&listings, "").unwrap();
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let pulled = hub.pull(&reference("hf:tiny/model-GGUF"), &mut Silent);
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(fs::read(pulled.unwrap().path).unwrap(), weights);
}

#[test]
fn a_path_in_the_cache_determines_its_repository() {
    for (path, found) in [
        (format!("/c/models--tiny--model-GGUF/snapshots/{COMMIT}"), true),
        (format!("/c/models--tiny--model-GGUF/snapshots/{COMMIT}/a/model.safetensors"), true),
        (format!("models--tiny--model-GGUF/snapshots/{COMMIT}"), true),
        (format!("/c/models--tiny--model-GGUF/snapshots/{}", &COMMIT[1..]), false),
        (format!("/c/models--tiny--model-GGUF/blobs/{COMMIT}"), false),
        (format!("/c/tiny/snapshots/{COMMIT}"), false),
        (format!("/c/models--tiny--..--x/snapshots/{COMMIT}"), false),
        (format!("snapshots/{COMMIT}"), false),
        ("/".to_string(), false),
        (String::new(), false),
    ] {
        assert_eq!(Cache::repo_of(Path::new(&path)), found.then(repo), "{path}");
    }
}

#[test]
fn a_missing_cache_is_empty() {
    assert!(Cache::new("/no/such/folder").list().unwrap().is_empty());
}

#[test]
fn offline_mode_uses_only_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("m-Q4_0.gguf", &bytes(10, 1)), ("m-Q8_0.gguf", &bytes(20, 2))]);
    hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF:Q8_0"), &mut Silent).unwrap();
    let resource = fake.requests("").len();

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
    assert_eq!(fake.requests("").len(), resource);
}

#[test]
fn an_unreachable_hub_falls_back_to_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("m.gguf", &bytes(10, 1))]);
    hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF"), &mut Silent).unwrap();
    // Nothing listens on a port that was just released.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = hub(&format!("http://{closed}"), cache.path());
    let mut notes = Notes::default();
    away.pull(&reference("hf:tiny/model-GGUF"), &mut notes).unwrap();
    assert!(notes.notes.iter().any(|n| n.contains("using the cached version")), "{notes:?}");
    let error = away.pull(&reference("hf:tiny/other"), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[test]
fn complete_models_of_the_cache_are_found_by_name() {
    let cache = tempfile::tempdir().unwrap();
    let names = || -> Vec<(String, PathBuf)> {
        let models = Cache::new(cache.path()).models().unwrap();
        models.into_iter().map(|model| (model.name, model.path)).collect()
    };
    assert_eq!(names(), []);
    let part = |number: usize| format!("b-Q4_0-0000{number}-of-00002.gguf");
    let (first, second) = (part(1), part(2));
    let files: Vec<(&str, &[u8])> = vec![
        ("a-Q8_0.gguf", b"a"),
        (&first, b"1"),
        (&second, b"2"),
        ("mmproj-a.gguf", b"m"),
        ("c-F16-00001-of-00002.gguf", b"c"),
    ];
    let fake = FakeHub::new(&files);
    let pull = |selector: &str| {
        let name = format!("hf:{REPO}:{selector}");
        hub(&fake.url, cache.path()).pull(&reference(&name), &mut Silent).unwrap().path
    };
    let a = pull("a-Q8_0.gguf");
    let plain = format!("hf:{REPO}");
    assert_eq!(names(), [(plain.clone(), a.clone())]);
    // Where there are several, the plain name is that of the preferred one, and parts are one model.
    let b = pull(&first);
    pull("mmproj-a.gguf");
    assert_eq!(names(), [(plain.clone(), b.clone()), (format!("{plain}:a-Q8_0.gguf"), a)]);
    let cached = hub(&fake.url, cache.path()).cached(&reference(&plain)).unwrap();
    assert_eq!(cached.path, b);
    // Without a part, the model is not complete.
    fs::remove_file(b.with_file_name(second)).unwrap();
    assert_eq!(names().len(), 1);
}

#[test]
fn a_folder_with_weights_is_a_model_of_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("config.json", b"{}"), ("model.safetensors", b"w")]);
    let pulled = hub(&fake.url, cache.path()).pull(&reference("hf:tiny/model-GGUF"), &mut Silent).unwrap();
    let models = Cache::new(cache.path()).models().unwrap();
    assert_eq!((models.len(), &models[0].name), (1, &format!("hf:{REPO}")));
    assert_eq!(models[0].path, pulled.path);
}

//! Stored responses in files, so that they are there after a restart.
//!
//! Each response is a file of its id, which only the server's user can read. When there are too many, or too many bytes, the
//! oldest of the caller are removed, and then those of others.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value as Json, json};

use super::store::{Owner, StoredResponse};
use crate::models::digest::{digest, hex};

/// Files of one folder, and their bytes.
const MOST: usize = 100_000;
const MOST_BYTES: u64 = 16 << 30;

const SUFFIX: &str = ".json";

#[derive(Debug)]
struct Entry {
    id: String,
    bytes: u64,
    owner: Owner,
}

#[derive(Debug, Default)]
struct Entries {
    /// The oldest first.
    all: VecDeque<Entry>,
    bytes: u64,
}

#[derive(Debug)]
pub(crate) struct ResponseFolder {
    folder: PathBuf,
    most: usize,
    most_bytes: u64,
    entries: Mutex<Entries>,
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl ResponseFolder {
    /// Makes the folder if it is missing, and finds what is in it.
    pub(crate) fn open(folder: &Path) -> io::Result<ResponseFolder> {
        Self::with_limits(folder, MOST, MOST_BYTES)
    }

    fn with_limits(folder: &Path, most: usize, most_bytes: u64) -> io::Result<ResponseFolder> {
        fs::create_dir_all(folder)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if let Some(id) = name.strip_suffix(SUFFIX).filter(|id| is_id(id)) {
                let metadata = entry.metadata()?;
                let (id, owner) = (id.to_string(), owner_of(&entry.path()));
                found.push((metadata.modified()?, Entry { id, bytes: metadata.len(), owner }));
            } else if name.strip_suffix(".part").is_some_and(is_id) {
                // Of a write that was cut off.
                fs::remove_file(entry.path())?;
            }
        }
        found.sort_by_key(|(modified, _)| *modified);
        let bytes = found.iter().map(|(_, entry)| entry.bytes).sum();
        let all = found.into_iter().map(|(_, entry)| entry).collect();
        let entries = Mutex::new(Entries { all, bytes });
        let writing = Arc::default();
        let opened = ResponseFolder { folder: folder.to_path_buf(), most, most_bytes, entries, writing };
        opened.make_room(None);
        Ok(opened)
    }

    /// The turn to write a response, so that long ones do not take all threads.
    pub(crate) async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.writing.clone().lock_owned().await
    }

    pub(crate) fn put(&self, id: &str, owner: Owner, stored: &StoredResponse) -> io::Result<()> {
        if !is_id(id) {
            return Err(io::Error::other("not the id of a response"));
        }
        let turns: Vec<&str> = stored.turns.iter().map(|turn| &**turn).collect();
        let text = json!({ "owner": owner.map(hex), "response": &*stored.response, "input": &*stored.input, "turns": turns })
            .to_string();
        let part = self.folder.join(format!("{id}.part"));
        let written = create(&part)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&part, self.file(id)));
        if let Err(error) = written {
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = text.len() as u64;
        entries.bytes += bytes;
        entries.all.push_back(Entry { id: id.to_string(), bytes, owner });
        drop(entries);
        self.make_room(owner);
        Ok(())
    }

    /// The bytes of a response's file, if there is one.
    pub(crate) fn size(&self, id: &str) -> Option<u64> {
        is_id(id).then(|| fs::metadata(self.file(id)).ok().map(|metadata| metadata.len()))?
    }

    /// The owner's response with this id. One whose file is damaged counts as missing.
    pub(crate) fn get(&self, id: &str, owner: Owner) -> Option<StoredResponse> {
        if !is_id(id) {
            return None;
        }
        let mut text = String::new();
        File::open(self.file(id)).ok()?.read_to_string(&mut text).ok()?;
        let file: Json = serde_json::from_str(&text).ok()?;
        drop(text);
        if file["owner"].as_str() != owner.map(hex).as_deref() {
            return None;
        }
        let turns = file["turns"].as_array()?.iter().map(|turn| Some(turn.as_str()?.into()));
        Some(StoredResponse {
            response: file["response"].as_str()?.into(),
            input: file["input"].as_str()?.into(),
            turns: turns.collect::<Option<_>>()?,
        })
    }

    /// Whether there was such a response of the owner.
    pub(crate) fn delete(&self, id: &str, owner: Owner) -> bool {
        let is_own = is_id(id) && self.file(id).is_file() && owner_of(&self.file(id)) == owner;
        if !is_own || fs::remove_file(self.file(id)).is_err() {
            return false;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = entries.all.iter().position(|entry| entry.id == id) {
            let removed = entries.all.remove(at).map_or(0, |entry| entry.bytes);
            entries.bytes -= removed;
        }
        true
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    fn file(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}{SUFFIX}"))
    }

    /// Removes the oldest, except the last one: first those of an owner.
    fn make_room(&self, owner: Owner) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        while entries.all.len() > self.most || entries.bytes > self.most_bytes {
            let before = entries.all.len().saturating_sub(1);
            let own = entries.all.iter().take(before).position(|entry| entry.owner == owner);
            let Some(oldest) = entries.all.remove(own.unwrap_or(0)) else { return };
            entries.bytes -= oldest.bytes;
            // It may be gone already.
            let _ = fs::remove_file(self.file(&oldest.id));
        }
    }
}

/// The owner of a response's file, which begins with it; `None`: nobody.
fn owner_of(file: &Path) -> Owner {
    let mut start = [0; OWNER_START.len() + 64];
    File::open(file).and_then(|mut file| file.read_exact(&mut start)).ok()?;
    digest(std::str::from_utf8(start.strip_prefix(OWNER_START)?).ok()?)
}

/// The first bytes of a file of a key.
const OWNER_START: &[u8] = b"{\"owner\":\"";

/// `resp_` and hexadecimal digits: nothing else becomes a file's name.
fn is_id(id: &str) -> bool {
    let digits = id.strip_prefix("resp_").unwrap_or_default();
    (1..=64).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A file that only the server's user can read.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> StoredResponse {
        StoredResponse { response: text.into(), input: "[]".into(), turns: vec!["[1]".into(), "[2]".into()] }
    }

    #[test]
    fn responses_are_there_after_a_restart_for_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let open = || ResponseFolder::open(&folder.path().join("new")).unwrap();
        let (one, two) = (Some([1; 32]), Some([2; 32]));
        open().put("resp_0a", one, &of("{}")).unwrap();
        let again = open();
        let stored = again.get("resp_0a", one).unwrap();
        assert_eq!((&*stored.response, &*stored.turns[1]), ("{}", "[2]"));
        assert!(again.get("resp_0a", two).is_none() && again.get("resp_0a", None).is_none());
        assert!(!again.delete("resp_0a", two));
        assert!(again.delete("resp_0a", one) && !again.delete("resp_0a", one));
        assert!(open().get("resp_0a", one).is_none());
    }

    #[test]
    fn ids_are_no_paths_and_damaged_files_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let store = ResponseFolder::open(folder.path()).unwrap();
        for id in ["", "resp_", "resp_../a", "resp_0/1", "a", "resp_0g"] {
            assert!(store.put(id, None, &of("{}")).is_err(), "{id}");
            assert!(store.get(id, None).is_none() && store.size(id).is_none() && !store.delete(id, None));
        }
        for text in ["", "{", "{}", "[]", r#"{"owner": null, "response": 3, "input": "", "turns": []}"#] {
            fs::write(folder.path().join("resp_01.json"), text).unwrap();
            assert!(store.get("resp_01", None).is_none(), "{text}");
        }
        fs::write(folder.path().join("resp_02.part"), "").unwrap();
        fs::write(folder.path().join("other.part"), "").unwrap();
        ResponseFolder::open(folder.path()).unwrap();
        assert!(!folder.path().join("resp_02.part").exists() && folder.path().join("other.part").exists());
    }

    #[test]
    fn an_owner_removes_its_own_first() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (Some([0xa1; 32]), Some([2; 32]));
        let open = || ResponseFolder::with_limits(folder.path(), 3, 1 << 20).unwrap();
        let store = open();
        for (id, owner) in [("resp_1", two), ("resp_2", one), ("resp_3", one), ("resp_4", one)] {
            store.put(id, owner, &of("{}")).unwrap();
        }
        // The owners are known after a restart, too.
        let store = open();
        for id in ["resp_5", "resp_6", "resp_7"] {
            store.put(id, one, &of("{}")).unwrap();
        }
        assert!(store.get("resp_1", two).is_some());
        assert_eq!(
            ["resp_5", "resp_6", "resp_7"].map(|id| store.get(id, one).is_some()),
            [false, true, true]
        );
    }

    #[test]
    fn the_oldest_leave() {
        let folder = tempfile::tempdir().unwrap();
        let store = ResponseFolder::with_limits(folder.path(), 2, 1 << 20).unwrap();
        for id in ["resp_1", "resp_2", "resp_3"] {
            store.put(id, None, &of("{}")).unwrap();
        }
        let there =
            |store: &ResponseFolder| ["resp_1", "resp_2", "resp_3"].map(|id| store.size(id).is_some());
        assert_eq!(there(&store), [false, true, true]);
        store.put("resp_4", None, &of("{}")).unwrap();
        let bytes = store.size("resp_4").unwrap();
        drop(store);
        let smaller = ResponseFolder::with_limits(folder.path(), 9, bytes).unwrap();
        assert_eq!(there(&smaller), [false; 3]);
        assert!(smaller.size("resp_4").is_some());
    }
}

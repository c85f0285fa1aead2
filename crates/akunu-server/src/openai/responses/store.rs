//! Stored responses, in memory. When there are too many, the least recently used of the caller are removed, and then those of
//! others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The digest of the caller's API key; `None`: the server has no keys.
pub(crate) type Owner = Option<[u8; 32]>;

/// A response as JSON, its input, and the items of all turns up to it. All are JSON texts, whose size is known exactly.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    pub(crate) response: Arc<str>,
    pub(crate) input: Arc<str>,
    /// Lists of items, which later turns share.
    pub(crate) turns: Vec<Arc<str>>,
}

/// Bytes of an entry and of each turn besides their texts.
const ENTRY_BYTES: usize = 256;
const TURN_BYTES: usize = 32;

impl StoredResponse {
    /// Shared turns count for each response that has them, so the memory in use is at most the sum.
    fn bytes(&self) -> usize {
        let turns = self.turns.iter().map(|turn| turn.len() + TURN_BYTES);
        ENTRY_BYTES + self.response.len() + self.input.len() + turns.sum::<usize>()
    }
}

#[derive(Debug)]
struct Entry {
    owner: Owner,
    stored: StoredResponse,
    last_use: u64,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<String, Entry>,
    bytes: usize,
    uses: u64,
}

impl Entries {
    fn remove(&mut self, id: &str) -> bool {
        let removed = self.by_id.remove(id);
        self.bytes -= removed.as_ref().map_or(0, |entry| entry.stored.bytes());
        removed.is_some()
    }
}

#[derive(Debug)]
pub(crate) struct ResponseStore {
    most: usize,
    most_bytes: usize,
    entries: Mutex<Entries>,
}

impl ResponseStore {
    pub(crate) fn new(most: usize, most_bytes: usize) -> ResponseStore {
        ResponseStore { most, most_bytes, entries: Mutex::default() }
    }

    /// What one conversation may take, so that it does not drive out all others.
    pub(crate) fn of_one(&self) -> usize {
        self.most_bytes / 2
    }

    /// Stores a response, unless it is larger than all that may be stored.
    pub(crate) fn put(&self, id: &str, owner: Owner, stored: StoredResponse) {
        if stored.bytes() > self.most_bytes {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.uses += 1;
        entries.bytes += stored.bytes();
        let entry = Entry { owner, stored, last_use: entries.uses };
        entries.remove(id);
        entries.by_id.insert(id.to_string(), entry);
        while entries.by_id.len() > self.most || entries.bytes > self.most_bytes {
            let others = entries.by_id.iter().filter(|(other, _)| other.as_str() != id);
            let oldest = others.min_by_key(|(_, entry)| (entry.owner != owner, entry.last_use));
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            entries.remove(&oldest);
        }
    }

    /// The caller's response with this id.
    pub(crate) fn get(&self, id: &str, owner: Owner) -> Option<StoredResponse> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.uses += 1;
        let uses = entries.uses;
        let entry = entries.by_id.get_mut(id).filter(|entry| entry.owner == owner)?;
        entry.last_use = uses;
        Some(entry.stored.clone())
    }

    /// Whether there was such a response of the caller.
    pub(crate) fn delete(&self, id: &str, owner: Owner) -> bool {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.by_id.get(id).is_some_and(|entry| entry.owner == owner) && entries.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(len: usize) -> StoredResponse {
        StoredResponse { response: "a".repeat(len).into(), input: "".into(), turns: Vec::new() }
    }

    #[test]
    fn the_least_recently_used_leaves() {
        let store = ResponseStore::new(2, 1 << 20);
        store.put("a", None, of(1));
        store.put("b", None, of(1));
        assert!(store.get("a", None).is_some());
        store.put("c", None, of(1));
        assert_eq!(["a", "b", "c"].map(|id| store.get(id, None).is_some()), [true, false, true]);
    }

    #[test]
    fn bytes_are_bounded() {
        let store = ResponseStore::new(100, 3000);
        for id in ["a", "b", "c"] {
            store.put(id, None, of(1000));
        }
        assert_eq!(["a", "b", "c"].map(|id| store.get(id, None).is_some()), [false, true, true]);
        assert_eq!(store.entries.lock().unwrap().bytes, 2 * (1000 + ENTRY_BYTES));
        store.put("d", None, of(9000));
        assert_eq!(["b", "c", "d"].map(|id| store.get(id, None).is_some()), [true, true, false]);
        assert!(store.delete("b", None) && store.delete("c", None));
        assert_eq!(store.entries.lock().unwrap().bytes, 0);
    }

    #[test]
    fn a_response_that_is_put_again_counts_once() {
        let store = ResponseStore::new(100, 3000);
        for _ in 0..9 {
            store.put("a", None, of(1000));
        }
        store.put("b", None, of(1000));
        assert!(store.get("a", None).is_some() && store.get("b", None).is_some());
        assert!(store.delete("a", None) && store.delete("b", None));
        assert_eq!(store.entries.lock().unwrap().bytes, 0);
    }

    #[test]
    fn an_owner_removes_its_own_first() {
        let store = ResponseStore::new(3, 1 << 20);
        let (one, two) = (Some([1; 32]), Some([2; 32]));
        for (id, owner) in [("other", two), ("a", one), ("b", one), ("c", one), ("d", one)] {
            store.put(id, owner, of(1));
        }
        assert!(store.get("other", two).is_some());
        assert_eq!(["a", "b", "c", "d"].map(|id| store.get(id, one).is_some()), [false, false, true, true]);
    }

    #[test]
    fn owners_are_kept_apart() {
        let store = ResponseStore::new(100, 3000);
        store.put("a", Some([1; 32]), of(1));
        assert!(store.get("a", Some([2; 32])).is_none() && store.get("a", None).is_none());
        assert!(!store.delete("a", None));
        assert!(store.delete("a", Some([1; 32])) && !store.delete("a", Some([1; 32])));
    }
}

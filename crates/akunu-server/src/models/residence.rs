//! How long models stay in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::{KeepAlive, Loaded, ModelSpec, Models};
use crate::blocking::blocking;
use crate::refusal::Refusal;

/// A model in memory.
#[derive(Clone, Debug)]
pub(crate) struct InMemory {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) bytes: u64,
    /// The part that is memory of a GPU.
    pub(crate) device_bytes: u64,
    pub(crate) context: usize,
    /// The time until it is unloaded, if it has no further request; `None`: it stays.
    pub(crate) expires_in: Option<Duration>,
}

impl Models {
    /// The models that are loaded.
    pub(crate) fn in_memory(&self) -> Vec<InMemory> {
        let of_entry = |entry: &Arc<Entry>| {
            let guard = entry.loaded();
            let loaded = guard.as_ref()?;
            Some(InMemory {
                spec: entry.spec.clone(),
                bytes: loaded.bytes(),
                device_bytes: loaded.device_bytes(),
                context: loaded.context(),
                expires_in: self.expires_in(loaded),
            })
        };
        self.entries().iter().filter_map(of_entry).collect()
    }

    /// Sets how long a model that is loaded stays so without requests, if clients may.
    pub(crate) fn keep(&self, name: &str, keep: Option<KeepAlive>) {
        let (Some(keep), Ok(entry)) = (keep.filter(|_| self.options.keep_alive), self.entry(Some(name)))
        else {
            return;
        };
        if let Some(loaded) = entry.loaded().as_ref() {
            loaded.set_keep_alive(keep);
        }
    }

    /// Memory of all loaded models.
    pub(super) fn used(&self) -> u64 {
        self.entries().iter().filter_map(|entry| Some(entry.loaded().as_ref()?.bytes())).sum()
    }

    /// Unloads the model that has been idle for the longest time. False: none is idle.
    pub(super) async fn unload_oldest(&self) -> bool {
        let idle = |entry: &Entry| entry.loaded().as_ref().and_then(|loaded| loaded.idle_since());
        let entries = self.entries();
        let oldest = entries.iter().filter_map(|entry| Some((idle(entry)?, entry)));
        let Some((_, entry)) = oldest.min_by_key(|(since, _)| *since) else { return false };
        // If a request has leased it in the meantime, the caller checks again.
        if let Some(loaded) = entry.take_idle(|_| true) {
            let _ = blocking(move || drop(loaded)).await;
        }
        true
    }

    /// Whether models are unloaded because of time: idle ones, or those whose clients ask for it.
    pub fn has_timeouts(&self) -> bool {
        self.options.idle_unload.is_some() || self.options.keep_alive
    }

    /// Whether clients may say how long a model stays loaded.
    pub(crate) fn may_keep_alive(&self) -> bool {
        self.options.keep_alive
    }

    /// How long a loaded model stays without requests; `None`: for ever.
    fn limit(&self, loaded: &Loaded) -> Option<Duration> {
        match loaded.keep_alive() {
            None => self.options.idle_unload,
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Forever) => None,
        }
    }

    /// The time until a loaded model is unloaded, if it has no further request; `None`: it stays.
    fn expires_in(&self, loaded: &Loaded) -> Option<Duration> {
        let limit = self.limit(loaded)?;
        Some(loaded.idle_since().map_or(limit, |since| limit.saturating_sub(since.elapsed())))
    }

    /// Unloads models that have been idle for their time.
    pub async fn unload_idle(&self) {
        let now = Instant::now();
        for entry in self.entries() {
            let is_old = |loaded: &Loaded| {
                let limit = self.limit(loaded);
                let passed = loaded.idle_since().map(|since| now.saturating_duration_since(since));
                limit.zip(passed).is_some_and(|(limit, passed)| passed >= limit)
            };
            if let Some(loaded) = entry.take_idle(is_old) {
                let _ = blocking(move || drop(loaded)).await;
            }
        }
    }

    /// Unloads a model, once it has no requests.
    pub(crate) async fn unload(&self, name: &str) -> Result<(), Refusal> {
        let entry = self.entry(Some(name))?;
        if let Some(loaded) = entry.take_idle(|_| true) {
            return blocking(move || drop(loaded)).await;
        }
        if let Some(loaded) = entry.loaded().as_ref() {
            loaded.set_keep_alive(KeepAlive::UNLOAD);
        }
        Ok(())
    }
}

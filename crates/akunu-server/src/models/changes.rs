//! Models that are added while the server runs: to its folder, by downloads, and by clients that make them of others.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Instant, SystemTime};

use super::entry::Entry;
use super::{Finder, ModelSpec, Models, Owner, Settings, Variant, hub_name};
use crate::blocking::blocking;
use crate::refusal::{Reason, Refusal};

impl Models {
    /// Looks for models that have been added to the server's folder.
    pub(crate) async fn refresh(&self) {
        let Some(Finder { find, folder, every }) = self.options.finder.clone() else { return };
        let mut searched = self.searched.lock().await;
        if searched.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        let known: Vec<Arc<ModelSpec>> = self.entries().iter().map(|entry| entry.spec.clone()).collect();
        let search = move || {
            let is_new = |spec: &ModelSpec| known.iter().all(|known| known.path != spec.path);
            let found = find(folder.as_deref()).into_iter().filter(is_new);
            found.filter(|spec| spec.open(false).is_ok()).collect::<Vec<_>>()
        };
        let found = blocking(search).await.unwrap_or_default();
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for mut spec in found {
            let is_taken = |name: &String| entries.iter().any(|entry| entry.spec.is_called(name));
            if !is_taken(&spec.name) {
                spec.aliases.retain(|alias| !is_taken(alias));
                entries.push(Arc::new(Entry::new(spec)));
            }
        }
        *searched = Some(Instant::now());
    }

    /// As [`Models::entry`], for a model that may have been added.
    pub(super) async fn find(&self, name: Option<&str>) -> Result<Arc<Entry>, Refusal> {
        if let Ok(entry) = self.entry(name) {
            return Ok(entry);
        }
        self.refresh().await;
        self.entry(name)
    }

    /// The variant of a name, unless that is a model's.
    pub(crate) fn variant(&self, name: Option<&str>) -> Option<Arc<Variant>> {
        let name = hub_name(name?);
        self.variants.find(&name).filter(|_| !self.has(&name))
    }

    /// Whether there is a model of this name that no client has made.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries().iter().any(|entry| entry.spec.is_called(name))
    }

    pub(crate) fn variants(&self) -> Vec<Arc<Variant>> {
        self.variants.all()
    }

    /// The variants of all owners.
    pub(crate) fn variants_of_all(&self) -> Vec<Arc<Variant>> {
        self.variants.of_all()
    }

    /// Forgets the models whose files are in a folder.
    pub(crate) fn remove_in(&self, folder: &Path) {
        let is_there =
            |entry: &Arc<Entry>| entry.spec.path.as_deref().is_some_and(|path| path.starts_with(folder));
        self.entries.write().unwrap_or_else(PoisonError::into_inner).retain(|entry| !is_there(entry));
    }

    /// Adds a model that has been downloaded, unless it is served already.
    pub(crate) fn add(&self, name: &str, path: PathBuf) -> Result<(), Refusal> {
        if self.has(name) {
            return Ok(());
        }
        let spec = ModelSpec { name: name.into(), path: Some(path), aliases: Vec::new() };
        if let Err(error) = spec.open(false) {
            (self.options.log)(&format!("error: /api/pull of {name}: {error}"));
            let message = format!("the model \"{name}\" was downloaded, and cannot be used by this server");
            return Err(Refusal::invalid(message).param("model"));
        }
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let is_same = |entry: &&Arc<Entry>| entry.spec.path == spec.path || entry.spec.is_called(name);
        let same = entries.iter().find(is_same);
        match same.map(|entry| entry.spec.name.clone()) {
            None => entries.push(Arc::new(Entry::new(spec))),
            Some(of) if of == name => {}
            // Another name of it, so that its weights are loaded once.
            Some(of) => {
                drop(entries);
                let settings = Settings::default();
                let (owner, created) = (None, SystemTime::now());
                self.variants.put(Variant { name: name.into(), of, settings, owner, created })?;
            }
        }
        Ok(())
    }

    /// A message for the operator.
    pub(crate) fn tell(&self, message: &str) {
        (self.options.log)(message);
    }

    /// Adds a variant, or replaces that of its name.
    pub(crate) fn put_variant(&self, mut variant: Variant) -> Result<(), Refusal> {
        variant.name = hub_name(&variant.name).into_owned();
        if self.has(&variant.name)
            || self.entries().iter().any(|entry| entry.spec.is_also_called(&variant.name))
        {
            let message = format!("\"{}\" is a model of this server, and cannot be replaced", variant.name);
            return Err(Refusal::new(Reason::Forbidden, message).param("model"));
        }
        self.variants.put(variant)
    }

    /// Adds a variant of an earlier start. One whose name a model now has is not found by it.
    pub(crate) fn put_kept(&self, variant: Variant) {
        // There were no more than may be kept.
        let _ = self.variants.put(variant);
    }

    /// Removes a variant; false: there is none of this name.
    pub(crate) fn remove_variant(&self, name: &str, owner: Owner) -> bool {
        self.variants.remove(&hub_name(name), owner)
    }
}

//! Deletes downloaded models, where `--allow-delete` lets clients do so.

use akunu_hub::Cache;

use crate::app::App;
use crate::blocking::blocking;
use crate::models::ModelSpec;
use crate::refusal::{Reason, Refusal};

/// Deletes all files of a model that is in the cache of the hub, and no others.
pub(super) async fn downloaded(app: &App, name: &str, spec: &ModelSpec) -> Result<(), Refusal> {
    let refuse = |what: &str| {
        Refusal::new(Reason::Forbidden, format!("\"{name}\" {what}")).param("model").code("delete_disabled")
    };
    let settings = app.delete().ok_or_else(|| {
        refuse("is a model of this server, whose files clients may not delete: start it with --allow-delete")
    })?;
    let cache = Cache::new(settings.cache.clone());
    let inside = spec.path.as_deref().and_then(|path| path.strip_prefix(cache.root()).ok()?.iter().next());
    let folder = inside.map(|inside| cache.root().join(inside));
    let repo = spec.path.as_deref().and_then(Cache::repo_of);
    let (Some(folder), Some(repo)) = (folder, repo) else {
        return Err(refuse("is not in the cache of the hub: only downloaded models can be deleted"));
    };
    blocking(move || cache.remove(&repo, None)).await?.map_err(|error| {
        app.models().tell(&format!("error: /api/delete of {name}: {error}"));
        Refusal::internal("the server cannot delete this model").param("model")
    })?;
    app.models().remove_in(&folder);
    Ok(())
}

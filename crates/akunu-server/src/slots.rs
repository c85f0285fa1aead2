//! The texts of slots, saved, restored and erased: `/slots/{id}?action=save`, as llama.cpp's server has it. With keys, each key
//! has a folder of its own, unless they share what is cached.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Instant;

use akunu::schedule::SlotAction;
use akunu::{Error, KvFileProblem, SavedSession};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use serde_json::{Value as Json, json};
use tokio::sync::oneshot;

use crate::app::{App, Caller, PathParameter, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::models::Kind;
use crate::models::digest::hex;
use crate::openai;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |_| false, error: openai::error, needs_json_type: true };

/// Digits of a key's digest that name its folder.
const OWNER_DIGITS: usize = 16;

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/slots/{id}", post(change))]
}

async fn change(
    State(app): State<App>,
    caller: Caller,
    PathParameter(id): PathParameter,
    uri: Uri,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let folder = app.slots().ok_or_else(|| {
        let message = "saving slots is off: start the server with --slot-save-path DIR";
        Refusal::new(Reason::Forbidden, message).code("slots_disabled")
    })?;
    let folder = match app.cache_owner(caller) {
        Some(digest) => folder.join(&hex(digest)[..OWNER_DIGITS]),
        None => folder.to_path_buf(),
    };
    let fields = Fields::new(&body)?;
    let lease = app.models().get(fields.text("model")?).await?;
    lease.check_kind(Kind::Generates)?;
    let handle = lease.handle().ok_or_else(|| Refusal::internal("the model has no scheduler"))?;
    let slots = handle.stats().slots;
    let slot = id.parse().ok().filter(|slot| *slot < slots).ok_or_else(|| {
        Refusal::new(Reason::NotFound, format!("there is no slot {id}: slots are 0 to {}", slots - 1))
    })?;
    let name = fields.text("filename")?;
    let action = match (action(&uri), name) {
        ("save", Some(name)) => {
            let file = file(&folder, name)?;
            std::fs::create_dir_all(&folder).map_err(|error| refusal(KvFileProblem::Io(error), name))?;
            SlotAction::Save(file)
        }
        ("restore", Some(name)) => SlotAction::Restore(file(&folder, name)?),
        ("erase", _) => SlotAction::Erase,
        ("save" | "restore", None) => {
            let message = "'filename' is missing: give the name of a file in the server's folder";
            return Err(Refusal::invalid(message).param("filename").code("missing_required_parameter"));
        }
        _ => {
            let message = "'action' must be save, restore or erase";
            return Err(Refusal::invalid(message).param("action").code("invalid_value"));
        }
    };
    let salt = app.salt(caller, fields.text("cache_salt")?);
    let (sender, receiver) = oneshot::channel();
    let started = Instant::now();
    let on_done = Box::new(move |done| {
        // The client may have hung up.
        let _ = sender.send(done);
    });
    let stopping = || Refusal::new(Reason::Unavailable, "the model is being unloaded");
    handle.change_slot(slot, salt, action.clone(), on_done).map_err(|_| stopping())?;
    let done = receiver.await.map_err(|_| stopping())?;
    let done = done.map_err(|error| match (error, name) {
        (Error::KvFile { problem, .. }, name) => refusal(problem, name.unwrap_or_default()),
        (error @ Error::EmptySlot { .. }, _) => Refusal::new(Reason::NotFound, error.to_string()),
        (error @ (Error::WindowsStay { .. } | Error::LayersOnHost { .. }), _) => {
            Refusal::invalid(error.to_string())
        }
        (error, _) => error.into(),
    })?;
    Ok(json(&answer(slot, &action, name, done, started.elapsed().as_secs_f64() * 1e3)))
}

/// The folder's path is not told to clients.
fn refusal(problem: KvFileProblem, name: &str) -> Refusal {
    let reason = match &problem {
        KvFileProblem::Io(error) if error.kind() == ErrorKind::NotFound => Reason::NotFound,
        KvFileProblem::Io(_) => Reason::Internal,
        _ => Reason::Invalid,
    };
    Refusal::new(reason, format!("{name}: {problem}")).param("filename")
}

/// The value of `action` in the query.
fn action(uri: &Uri) -> &str {
    let pairs = uri.query().unwrap_or_default().split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(name, _)| *name == "action")
        .map_or("", |pair| pair.1)
}

/// A file in the folder, whose name has no folders.
fn file(folder: &std::path::Path, name: &str) -> Result<PathBuf, Refusal> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name = (1..=255).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_plain);
    match is_name {
        true => Ok(folder.join(name)),
        false => Err(Refusal::invalid(
            "'filename' must be a name of letters, digits, '.', '-' and '_' that does not begin with '.'",
        )
        .param("filename")
        .code("invalid_value")),
    }
}

fn answer(slot: usize, action: &SlotAction, name: Option<&str>, done: SavedSession, ms: f64) -> Json {
    let SavedSession { tokens, bytes } = done;
    match action {
        SlotAction::Save(_) => json!({
            "id_slot": slot, "filename": name, "n_saved": tokens, "n_written": bytes, "timings": { "save_ms": ms },
        }),
        SlotAction::Restore(_) => json!({
            "id_slot": slot, "filename": name, "n_restored": tokens, "n_read": bytes, "timings": { "restore_ms": ms },
        }),
        SlotAction::Erase => json!({ "id_slot": slot, "n_erased": tokens }),
    }
}

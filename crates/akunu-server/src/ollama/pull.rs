//! `/api/pull`: downloads a model from the hub, and tells of the progress.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use akunu_hub::{Error, Hub, Known, Observer, Reference, Settings};
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::model;
use crate::app::{App, json};
use crate::blocking::CancelOnDrop;
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::models::digest::hex;
use crate::models::hub_name;
use crate::refusal::{Reason, Refusal};
use crate::stream::{self, Outputs, Writer};

/// The last line of a download that is complete.
const SUCCESS: &str = "success";

/// The least time between two lines about the progress.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn pull(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    field_table::PULL.check(&fields)?;
    let name = model(&fields)?;
    let settings = app.pull().cloned().ok_or_else(|| {
        let message = "this server downloads no models for its clients: start it with --allow-pull";
        Refusal::new(Reason::Forbidden, message).code("pull_disabled")
    })?;
    let is_streamed = fields.flag("stream")?.unwrap_or(true);
    let reference = reference(name)?;
    let permit = app.pulls().clone().try_acquire_owned().map_err(|_| {
        Refusal::new(Reason::TooMany, "the server is downloading as many models as it does at once")
            .code("too_many_pulls")
            .retry_after(10)
    })?;
    let mut pulling = start(&app, name, reference, settings, permit)?;
    if is_streamed {
        return Ok(stream::respond(pulling, Lines));
    }
    while let Some(line) = std::future::poll_fn(|context| pulling.poll_next(context)).await {
        line?;
    }
    Ok(json(&status(SUCCESS)))
}

/// The model of a name: `hf.co/OWNER/NAME[:QUANT]`, as in Ollama; `hf:OWNER/NAME`; or a short name.
fn reference(name: &str) -> Result<Reference, Refusal> {
    let name = hub_name(name);
    Reference::named(&name).map_err(|error| match name.starts_with(akunu_hub::PREFIX) {
        true => Refusal::invalid(error.to_string()).param("model").code("invalid_value"),
        false => {
            let near: Vec<&str> = Known::near(&name).iter().map(|known| known.name).collect();
            let hint = match near.is_empty() {
                true => String::new(),
                false => format!(", or is it {}?", near.join(", ")),
            };
            let message = format!(
                "there is no model of the short name \"{name}\": use hf.co/OWNER/NAME for one of the Hugging Face hub{hint}"
            );
            Refusal::new(Reason::NotFound, message).param("model").code("model_not_found")
        }
    })
}

fn status(text: &str) -> Json {
    json!({ "status": text })
}

type Line = Result<Json, Refusal>;

/// A download on a thread of its own. Dropping this cancels it; what has arrived is kept for the next time.
#[derive(Debug)]
struct Pulling {
    lines: UnboundedReceiver<Line>,
    _cancel: CancelOnDrop,
    is_over: bool,
}

fn start(
    app: &App,
    name: &str,
    reference: Reference,
    settings: Settings,
    permit: OwnedSemaphorePermit,
) -> Result<Pulling, Refusal> {
    let (sender, lines) = unbounded_channel();
    let cancel = CancelOnDrop::default();
    let hub = Hub::new(settings).with_cancel(cancel.flag());
    let (app, name) = (app.clone(), hub_name(name).into_owned());
    let thread = std::thread::Builder::new().name("akunu-pull".into());
    let work = move || {
        let _permit = permit;
        let tell = |line: Line| drop(sender.send(line));
        tell(Ok(status("pulling manifest")));
        let mut progress =
            Progress { lines: sender.clone(), digest: digest(&reference), total: 0, last: None };
        let pulled = hub.pull(&reference, &mut progress).map_err(|error| refuse(&app, &error));
        let served = pulled.and_then(|pulled| app.models().add(&name, pulled.path));
        match served {
            Err(refusal) => tell(Err(refusal)),
            Ok(()) => {
                for step in ["verifying sha256 digest", "writing manifest", SUCCESS] {
                    tell(Ok(status(step)));
                }
            }
        }
    };
    let failed = |error| Refusal::internal(format!("cannot start a thread for the download: {error}"));
    thread.spawn(work).map_err(failed)?;
    Ok(Pulling { lines, _cancel: cancel, is_over: false })
}

/// What clients tell downloads apart by.
fn digest(reference: &Reference) -> String {
    format!("sha256:{}", hex(Sha256::digest(reference.to_string())))
}

/// Errors with paths, or about the operator's account, are for the operator.
fn refuse(app: &App, error: &Error) -> Refusal {
    let refusal = match error {
        Error::NoRepo { .. } | Error::NoRevision { .. } | Error::NoFile { .. } | Error::Choice { .. } => {
            Refusal::new(Reason::NotFound, error.to_string())
        }
        Error::Gated { repo, .. } | Error::Unauthorized { repo, .. } | Error::Forbidden { repo } => {
            let message = format!("this server has no access to {repo}, or it does not exist");
            Refusal::new(Reason::NotFound, message)
        }
        Error::Io { .. } | Error::DiskFull { .. } | Error::Setting { .. } | Error::NoHome => {
            app.models().tell(&format!("error: /api/pull: {error}"));
            let message = match error {
                Error::DiskFull { .. } => "the server has no space for this model",
                _ => "the server cannot store this model",
            };
            return Refusal::internal(message);
        }
        Error::Unreachable { .. } => {
            app.models().tell(&format!("error: /api/pull: {error}"));
            Refusal::new(Reason::Unavailable, "the server cannot reach the hub of models")
        }
        Error::Offline { .. } => {
            Refusal::new(Reason::Unavailable, "this server is offline, and the model is not in its cache")
        }
        Error::Interrupted => Refusal::new(Reason::Unavailable, "the download was stopped"),
        error => Refusal::new(Reason::Unavailable, error.to_string()),
    };
    refusal.param("model")
}

struct Progress {
    lines: UnboundedSender<Line>,
    digest: String,
    total: u64,
    last: Option<Instant>,
}

impl Progress {
    fn tell(&mut self, done: u64) {
        let short = self.digest.get(7..19).unwrap_or_default();
        let line = json!({
            "status": format!("pulling {short}"), "digest": self.digest, "total": self.total, "completed": done,
        });
        let _ = self.lines.send(Ok(line));
        self.last = Some(Instant::now());
    }
}

impl Observer for Progress {
    fn begin(&mut self, total: u64) {
        self.total = total;
        self.tell(0);
    }

    fn progress(&mut self, done: u64) {
        if done == self.total || self.last.is_none_or(|last| last.elapsed() >= INTERVAL) {
            self.tell(done);
        }
    }
}

impl Outputs for Pulling {
    type Output = Json;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Line>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.lines.poll_recv(context).map(|line| {
            let line = line.unwrap_or_else(|| Err(Refusal::internal("the download failed: a bug in Akunu")));
            self.is_over = line.as_ref().map_or(true, |line| line["status"] == SUCCESS);
            Some(line)
        })
    }
}

#[derive(Debug)]
struct Lines;

impl Writer<Json> for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";
    const PING: Option<&'static str> = None;

    fn output(&mut self, line: Json, to: &mut String) {
        to.push_str(&format!("{line}\n"));
    }

    fn end(&mut self, _to: &mut String) {}

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        to.push_str(&format!("{}\n", super::error(refusal)));
    }
}

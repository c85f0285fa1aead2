//! What the log says of a request, gathered where it becomes known.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use akunu::{FinishReason, GenerateOptions};
use axum::extract::Request;
use axum::http::header::USER_AGENT;
use serde_json::{Map, Value as Json, json};

use crate::openai::finish_reason;
use crate::refusal::Refusal;
use crate::timestamp::timestamp;

tokio::task_local! {
    /// The record of the request that a task handles.
    static CURRENT: Arc<Record>;
}

/// Maximum bytes of what a client chooses: its path, its name, and that of a model.
const MAX_TEXT: usize = 200;

/// The address at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

#[derive(Debug)]
pub(crate) struct Record {
    started: Instant,
    method: String,
    path: String,
    from: Option<IpAddr>,
    client: Option<String>,
    /// Tokens that have been generated so far; written by the engine's thread.
    output_tokens: AtomicU64,
    first_token: OnceLock<Duration>,
    details: Mutex<Details>,
}

#[derive(Debug, Default)]
struct Details {
    key: Option<String>,
    model: Option<String>,
    prompt_tokens: Option<usize>,
    cached_tokens: Option<usize>,
    generates: bool,
    /// Of the answers that have finished, each reason once.
    finish: Vec<&'static str>,
    error: Option<(&'static str, Option<String>)>,
    sampling: Json,
    /// What the response warns of.
    warnings: Option<String>,
}

impl Record {
    pub(crate) fn new(request: &Request) -> Record {
        let client = request.headers().get(USER_AGENT).and_then(|value| value.to_str().ok());
        Record {
            started: Instant::now(),
            method: shorten(request.method().as_str()),
            // The query may contain secrets.
            path: shorten(request.uri().path()),
            from: request.extensions().get().map(|Peer(address)| address.to_canonical()),
            client: client.map(shorten),
            output_tokens: AtomicU64::new(0),
            first_token: OnceLock::new(),
            details: Mutex::default(),
        }
    }

    fn details(&self) -> MutexGuard<'_, Details> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the API key.
    pub(crate) fn key(&self, name: String) {
        self.details().key = Some(name);
    }

    /// The model, or what the request names as one.
    pub(crate) fn model(&self, name: &str) {
        self.details().model = Some(shorten(name));
    }

    pub(crate) fn prompt_tokens(&self, tokens: usize) {
        self.details().prompt_tokens = Some(tokens);
    }

    /// The response has these warnings.
    pub(crate) fn warns(&self, warnings: &str) {
        self.details().warnings = Some(shorten(warnings));
    }

    /// Texts are generated with these options.
    pub(crate) fn generates(&self, options: &GenerateOptions, choices: usize) {
        let sampling = &options.sampling;
        let mut details = self.details();
        details.generates = true;
        // Not as f64, whose digits nobody has written.
        let number = |number: f32| number.to_string().parse::<f64>().map_or(Json::Null, Json::from);
        details.sampling = json!({
            "temperature": number(sampling.temperature), "top_k": sampling.top_k, "top_p": number(sampling.top_p),
            "min_p": number(sampling.min_p), "repeat_penalty": number(sampling.repeat_penalty),
            "seed": sampling.seed, "max_tokens": options.max_tokens, "choices": choices,
        });
    }

    /// Tokens have been generated.
    pub(crate) fn tokens(&self, count: usize) {
        self.first_token.get_or_init(|| self.started.elapsed());
        self.output_tokens.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// An answer has finished. `cached_tokens`: of the prompt, if this is its first answer.
    pub(crate) fn finished(&self, finish: &FinishReason, has_calls: bool, cached_tokens: Option<usize>) {
        let finish = match finish {
            FinishReason::Cancelled => "cancelled",
            _ if has_calls => "tool_calls",
            finish => finish_reason(finish),
        };
        let mut details = self.details();
        if let Some(more) = cached_tokens {
            *details.cached_tokens.get_or_insert(0) += more;
        }
        if !details.finish.contains(&finish) {
            details.finish.push(finish);
        }
    }

    /// The code and the field of an error; its message may quote the request.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        let code = refusal.code.unwrap_or_else(|| refusal.reason.code());
        self.details().error = Some((code, refusal.param.as_deref().map(shorten)));
    }

    /// The fields of the log. `status`: of the response, if it has begun.
    pub(crate) fn fields(&self, status: Option<u16>, is_complete: bool) -> Map<String, Json> {
        let milliseconds = |time: Duration| time.as_micros() as f64 / 1e3;
        let details = self.details();
        let error = details.error.as_ref();
        let finish = match (is_complete, error, &details.finish[..]) {
            (false, ..) => Some("disconnected".to_string()),
            (true, Some(_), _) => status.filter(|status| *status < 400).map(|_| "error".to_string()),
            (true, None, []) => None,
            (true, None, finish) => Some(finish.join(",")),
        };
        let output = self.output_tokens.load(Ordering::Relaxed);
        let fields = json!({
            "time": timestamp(SystemTime::now()),
            "status": status,
            "method": self.method,
            "path": self.path,
            "from": self.from.map(|address| address.to_string()),
            "key": details.key,
            "model": details.model,
            "prompt_tokens": details.prompt_tokens,
            "cached_tokens": details.cached_tokens,
            "output_tokens": details.generates.then_some(output),
            "first_token_ms": self.first_token.get().copied().map(milliseconds),
            "total_ms": milliseconds(self.started.elapsed()),
            "finish": finish,
            "error": error.map(|(code, _)| *code),
            "param": error.and_then(|(_, param)| param.as_ref()),
            "warnings": details.warnings,
            "client": self.client,
            "sampling": details.sampling,
        });
        match fields {
            Json::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

fn shorten(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_string()
}

/// Runs a task for the request of a record.
pub(crate) async fn scope<T>(record: Arc<Record>, task: impl Future<Output = T>) -> T {
    CURRENT.scope(record, task).await
}

/// As [`scope`], for a part of a task.
pub(crate) fn sync_scope<T>(record: Arc<Record>, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(record, work)
}

/// The record of the request that this task handles; `None`: nothing is logged.
pub(crate) fn current() -> Option<Arc<Record>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Adds to the record of the request that this task handles.
pub(crate) fn note(add: impl FnOnce(&Record)) {
    // Without a log there is no record.
    let _ = CURRENT.try_with(|record| add(record));
}

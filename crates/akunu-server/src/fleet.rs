//! What routers before several servers ask a server for, by the names of SGLang and vLLM: what it serves, how much it has
//! to do, and that it forgets its cache.

use std::time::{SystemTime, UNIX_EPOCH};

use akunu::schedule::Stats;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde_json::{Value as Json, json};
use tokio::sync::oneshot;

use crate::app::{App, json};
use crate::models::{Kind, Lease};
use crate::openai;
use crate::props::query;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |_| false, error: openai::error, needs_json_type: true };

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/get_model_info", get(model_info)),
        ("/model_info", get(model_info)),
        ("/get_server_info", get(server_info)),
        ("/server_info", get(server_info)),
        ("/get_load", get(load)),
        ("/get_loads", get(loads)),
        ("/v1/loads", get(loads)),
        ("/flush_cache", post(flush_cache)),
        ("/is_sleeping", get(is_sleeping)),
    ]
}

/// A model, `?model=NAME` or the first, which is not loaded for it.
async fn model_info(State(app): State<App>, uri: Uri) -> Result<Response, Refusal> {
    let spec = app.models().spec(query(&uri, "model").as_deref()).await?;
    let facts = app.models().facts(&spec).await;
    Ok(json(&json!({
        // Clients do not learn about the server's file system.
        "model_path": spec.name,
        "tokenizer_path": spec.name,
        "served_model_name": spec.name,
        "is_generation": facts.as_ref().map(|facts| facts.kind == Kind::Generates),
        "preferred_sampling_params": null,
        "weight_version": "default",
        "model_type": facts.as_ref().map(|facts| facts.family.as_str()),
    })))
}

/// The server, with the model of `?model=NAME` or the first.
async fn server_info(State(app): State<App>, uri: Uri) -> Result<Response, Refusal> {
    let spec = app.models().spec(query(&uri, "model").as_deref()).await?;
    let facts = app.models().facts(&spec).await;
    let context = app.models().loaded_context(&spec).or(facts.and_then(|facts| facts.context));
    Ok(json(&json!({
        "version": concat!("akunu-", env!("CARGO_PKG_VERSION")),
        "model_path": spec.name,
        "served_model_name": spec.name,
        "context_length": context,
        "max_running_requests": app.models().slots(),
        "max_total_num_tokens": app.models().kv_capacity(&spec),
        "dp_size": 1,
        "tp_size": app.models().ranks(),
        "status": if app.is_draining() { "stopping" } else { "ready" },
        "internal_states": [load_of(&app).json()],
    })))
}

/// What all loaded models that generate text have to do.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    running: usize,
    waiting: usize,
    tokens: usize,
    capacity: usize,
    slots: usize,
}

impl Load {
    fn add(self, stats: &Stats) -> Load {
        Load {
            running: self.running + stats.reading + stats.running,
            waiting: self.waiting + stats.waiting,
            tokens: self.tokens + stats.kv_tokens,
            capacity: self.capacity + stats.kv_capacity,
            slots: self.slots + stats.slots,
        }
    }

    fn usage(self) -> f64 {
        self.tokens as f64 / self.capacity.max(1) as f64
    }

    fn json(self) -> Json {
        json!({
            "dp_rank": 0,
            "num_running_reqs": self.running,
            "num_waiting_reqs": self.waiting,
            "num_reqs": self.running + self.waiting,
            "num_used_tokens": self.tokens,
            "num_tokens": self.tokens,
            "max_total_num_tokens": self.capacity,
            "max_running_requests": self.slots,
            "token_usage": self.usage(),
        })
    }
}

fn leases(app: &App) -> impl Iterator<Item = Lease> {
    app.models().list().into_iter().filter_map(|(_, lease)| lease)
}

fn load_of(app: &App) -> Load {
    leases(app)
        .filter_map(|lease| Some(lease.handle()?.stats()))
        .fold(Load::default(), |sum, stats| sum.add(&stats))
}

/// A list of one: the server has no ranks that answer different requests.
async fn load(State(app): State<App>) -> Response {
    json(&json!([load_of(&app).json()]))
}

async fn loads(State(app): State<App>) -> Response {
    let load = load_of(&app);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json(&json!({
        "timestamp": now.as_secs_f64(),
        "version": concat!("akunu-", env!("CARGO_PKG_VERSION")),
        "dp_rank_count": 1,
        "loads": [load.json()],
        "aggregate": {
            "total_running_reqs": load.running,
            "total_waiting_reqs": load.waiting,
            "total_reqs": load.running + load.waiting,
            "avg_token_usage": load.usage(),
        },
    }))
}

/// Forgets what loaded models keep of requests that have ended.
async fn flush_cache(State(app): State<App>) -> Result<Response, Refusal> {
    let mut tokens = 0;
    for lease in leases(&app) {
        let Some(handle) = lease.handle() else { continue };
        let (sender, receiver) = oneshot::channel();
        let on_done = Box::new(move |forgotten| {
            // The client may have hung up.
            let _ = sender.send(forgotten);
        });
        let stopping = || Refusal::new(Reason::Unavailable, "the model is being unloaded");
        handle.flush_cache(on_done).map_err(|_| stopping())?;
        tokens += receiver.await.map_err(|_| stopping())?;
    }
    Ok(json(&json!({ "success": true, "forgotten_tokens": tokens })))
}

/// There is no state in which a server keeps its models and answers nothing.
async fn is_sleeping() -> Response {
    json(&json!({ "is_sleeping": false }))
}

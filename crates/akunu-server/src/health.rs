//! Endpoints for monitoring.

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde_json::json;

use crate::app::{App, Preload, json};
use crate::models::Lease;
use crate::openai;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |_| false, error: openai::error, needs_json_type: true };

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/health", get(health)),
        ("/ready", get(ready)),
        ("/metrics", get(metrics)),
        ("/openapi.json", get(description)),
    ]
}

/// Whether the process is alive and of use: one whose device has failed has to be started again.
async fn health(State(app): State<App>) -> Result<Response, Refusal> {
    match has_failed(&app) {
        true => Err(Refusal::new(Reason::Unavailable, FAILED)),
        false => Ok(json(&json!({ "status": "ok" }))),
    }
}

const FAILED: &str = "the device of a model has failed; the server has to be started again";

fn has_failed(app: &App) -> bool {
    let failed = |lease: &Lease| lease.failure().is_some();
    app.models().list().iter().filter_map(|(_, lease)| lease.as_ref()).any(failed)
}

/// Whether new requests are accepted, the models loaded that are to be at the start, and all devices usable.
async fn ready(State(app): State<App>) -> Result<Response, Refusal> {
    let unavailable = |message: &str| Err(Refusal::new(Reason::Unavailable, message));
    if app.is_draining() {
        return unavailable("the server is shutting down");
    }
    if has_failed(&app) {
        return unavailable(FAILED);
    }
    match &*app.preload().borrow() {
        Preload::Done => Ok(json(&json!({ "status": "ready" }))),
        Preload::Loading => unavailable("the models are being loaded"),
        Preload::Failed(_) => unavailable("a model could not be loaded"),
    }
}

/// Metrics in the format of Prometheus.
async fn metrics(State(app): State<App>) -> Response {
    let mut response = app.metrics().write(app.models(), app.memory()).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The OpenAPI description of all paths. A test compares it with the routes.
async fn description() -> Response {
    let mut response = include_str!("../openapi.json").into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

//! For whoever watches over the server.

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde_json::json;

use crate::app::{App, json};
use crate::openai;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};

pub const PROTOCOL: Protocol = Protocol { routes, owns: |_| false, error: openai::error };

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/health", get(health)),
        ("/ready", get(ready)),
        ("/metrics", get(metrics)),
        ("/openapi.json", get(description)),
    ]
}

/// The process answers.
async fn health() -> Response {
    json(&json!({ "status": "ok" }))
}

/// Whether new requests are taken.
async fn ready(State(app): State<App>) -> Result<Response, Refusal> {
    match app.is_draining() {
        true => Err(Refusal::new(Reason::Unavailable, "the server is shutting down")),
        false => Ok(json(&json!({ "status": "ready" }))),
    }
}

/// For Prometheus.
async fn metrics(State(app): State<App>) -> Response {
    let mut response = app.metrics().write(app.models()).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// What all paths take and give. A test holds it to the routes.
async fn description() -> Response {
    let mut response = include_str!("../openapi.json").into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

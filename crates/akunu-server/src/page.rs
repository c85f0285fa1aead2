//! The chat page at `/`.

use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

use crate::app::App;
use crate::openai;
use crate::protocol::Protocol;

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |_| false, error: openai::error, needs_json_type: true };

/// The whole page; it loads no other resources.
const PAGE: &str = include_str!("../page/index.html");

/// The content security policy is in the page, except `frame-ancestors`, which must be in a header.
const HEADERS: [(axum::http::HeaderName, HeaderValue); 4] = [
    (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
    (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("frame-ancestors 'none'")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/", get(page))]
}

async fn page() -> Response {
    (HEADERS, PAGE).into_response()
}

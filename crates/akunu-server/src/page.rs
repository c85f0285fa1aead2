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

/// The whole page, which loads no other resources: the files of `page`, one after the other. The tests in a browser read
/// this list.
const PAGE: &str = concat!(
    include_str!("../page/head.html"),
    include_str!("../page/style.css"),
    include_str!("../page/body.html"),
    include_str!("../page/elements.js"),
    include_str!("../page/highlight.js"),
    include_str!("../page/math.js"),
    include_str!("../page/markdown.js"),
    include_str!("../page/storage.js"),
    include_str!("../page/conversations.js"),
    include_str!("../page/list.js"),
    include_str!("../page/settings.js"),
    include_str!("../page/server.js"),
    include_str!("../page/watch.js"),
    include_str!("../page/tools.js"),
    include_str!("../page/talk.js"),
    include_str!("../page/files.js"),
    include_str!("../page/answer.js"),
    include_str!("../page/record.js"),
    include_str!("../page/controls.js"),
    include_str!("../page/end.html"),
);

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

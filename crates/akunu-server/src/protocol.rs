//! The protocols that are spoken: a row for each.

use axum::Router;
use axum::http::Uri;
use axum::routing::MethodRouter;
use serde_json::Value as Json;

use crate::app::App;
use crate::refusal::Refusal;
use crate::{anthropic, health, ollama, openai, page, rerank, tei, tools};

/// A protocol: its paths, and how it tells errors.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Every path with its handlers. A handler may return [`Refusal`] for an error.
    pub routes: fn() -> Vec<(&'static str, MethodRouter<App>)>,
    /// Whether errors at this path are told in this protocol's form, if a handler is there or not.
    pub owns: fn(path: &str) -> bool,
    pub error: fn(&Refusal) -> Json,
}

/// The last speaks for all paths that no other owns.
pub const PROTOCOLS: &[Protocol] = &[
    health::PROTOCOL,
    tools::PROTOCOL,
    ollama::PROTOCOL,
    anthropic::PROTOCOL,
    rerank::PROTOCOL,
    tei::PROTOCOL,
    page::PROTOCOL,
    openai::PROTOCOL,
];

pub(crate) fn router() -> Router<App> {
    let routes = PROTOCOLS.iter().flat_map(|protocol| (protocol.routes)());
    routes.fold(Router::new(), |router, (path, handlers)| router.route(path, handlers))
}

pub(crate) fn write_error(uri: &Uri, refusal: &Refusal) -> Json {
    let own = PROTOCOLS.iter().find(|protocol| (protocol.owns)(uri.path()));
    own.map_or_else(|| openai::error(refusal), |protocol| (protocol.error)(refusal))
}

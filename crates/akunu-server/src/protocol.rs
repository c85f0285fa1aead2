//! The table of protocols.

use axum::Router;
use axum::http::Uri;
use axum::routing::MethodRouter;
use serde_json::Value as Json;

use crate::app::App;
use crate::refusal::Refusal;
use crate::{
    anthropic, fleet, health, lm_studio, mcp, ollama, openai, page, props, rerank, slots, tei, tools,
};

/// A protocol: its paths, and the format of its errors.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Paths and handlers. A handler may return a [`Refusal`].
    pub routes: fn() -> Vec<(&'static str, MethodRouter<App>)>,
    /// Whether errors at this path have this protocol's format, even if there is no handler.
    pub owns: fn(path: &str) -> bool,
    pub error: fn(&Refusal) -> Json,
    /// Whether bodies must be declared as JSON, which a page of another site cannot do without asking first.
    pub needs_json_type: bool,
}

/// The last one owns all paths that no other owns.
pub const PROTOCOLS: &[Protocol] = &[
    health::PROTOCOL,
    fleet::PROTOCOL,
    tools::PROTOCOL,
    props::PROTOCOL,
    slots::PROTOCOL,
    lm_studio::PROTOCOL,
    ollama::PROTOCOL,
    anthropic::PROTOCOL,
    rerank::PROTOCOL,
    tei::PROTOCOL,
    page::PROTOCOL,
    mcp::PROTOCOL,
    openai::PROTOCOL,
];

pub(crate) fn router() -> Router<App> {
    let routes = PROTOCOLS.iter().flat_map(|protocol| (protocol.routes)());
    routes.fold(Router::new(), |router, (path, handlers)| router.route(path, handlers))
}

fn owner(uri: &Uri) -> &'static Protocol {
    PROTOCOLS.iter().find(|protocol| (protocol.owns)(uri.path())).unwrap_or(&openai::PROTOCOL)
}

pub(crate) fn write_error(uri: &Uri, refusal: &Refusal) -> Json {
    (owner(uri).error)(refusal)
}

pub(crate) fn needs_json_type(uri: &Uri) -> bool {
    owner(uri).needs_json_type
}

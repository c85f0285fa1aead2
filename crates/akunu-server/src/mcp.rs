//! Tools of MCP servers for the chat page: `/mcp/tools` lists them, `/mcp/call` calls one. The page asks its user first.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use akunu_mcp::{Answer, Limits, Reason as Failed, ServerConfig, Toolbox};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde_json::json;
use tokio::sync::{Semaphore, oneshot};

use crate::app::{App, json};
use crate::blocking::CancelOnDrop;
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::openai;
use crate::origin;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |_| false, error: openai::error, needs_json_type: true };

/// Calls of a server that run or wait, at most.
const CALLS: usize = 4;

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/mcp/tools", get(tools)), ("/mcp/call", post(call))]
}

/// Servers that were started for the chat page. Clones share them.
#[derive(Clone, Debug)]
pub struct McpServers {
    toolbox: Arc<Toolbox>,
    /// For each server.
    calls: Arc<[Arc<Semaphore>]>,
}

impl McpServers {
    pub fn new(toolbox: Toolbox) -> McpServers {
        let calls = toolbox.servers().map(|_| Arc::new(Semaphore::new(CALLS))).collect();
        McpServers { toolbox: Arc::new(toolbox), calls }
    }

    /// Starts servers, or connects to them.
    pub fn start(
        servers: Vec<ServerConfig>,
        limits: Limits,
        cancel: &AtomicBool,
    ) -> Result<McpServers, akunu_mcp::Error> {
        Toolbox::start(servers, limits, cancel).map(McpServers::new)
    }

    /// Ends the servers, and waits for that.
    pub(crate) fn end(&self) {
        self.toolbox.end();
    }
}

/// Without servers the list is empty.
async fn tools(State(app): State<App>, headers: HeaderMap) -> Result<Response, Refusal> {
    origin::check_own_page(&headers)?;
    let toolbox = app.mcp().map(|servers| &servers.toolbox);
    let tools = toolbox.into_iter().flat_map(|toolbox| {
        let servers: Vec<&str> = toolbox.servers().collect();
        toolbox.tools().iter().map(move |offered| {
            let mut tool = offered.to_json();
            tool["server"] = servers[offered.server].into();
            tool
        })
    });
    Ok(json(&json!({ "tools": tools.collect::<Vec<_>>() })))
}

async fn call(
    State(app): State<App>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    origin::check_own_page(&headers)?;
    let servers = app.mcp().cloned().ok_or_else(|| {
        let message = "this server calls no tools: start it with --mcp FILE";
        Refusal::new(Reason::Forbidden, message).code("mcp_disabled")
    })?;
    let fields = Fields::new(&body)?;
    let missing = |name: &str| {
        Refusal::invalid(format!("'{name}' is missing")).param(name).code("missing_required_parameter")
    };
    let name = fields.text("name")?.ok_or_else(|| missing("name"))?;
    let arguments = fields.object("arguments")?.ok_or_else(|| missing("arguments"))?.clone();
    let offered = servers.toolbox.tool(name).cloned().ok_or_else(|| {
        Refusal::new(Reason::NotFound, format!("there is no tool \"{}\"", name.escape_debug()))
            .param("name")
            .code("tool_not_found")
    })?;
    let permit = servers.calls[offered.server].clone().try_acquire_owned().map_err(|_| {
        Refusal::new(Reason::TooMany, "the tool's server has too many calls to run")
            .code("too_many_calls")
            .retry_after(1)
    })?;
    let cancel = CancelOnDrop::default();
    let (sender, receiver) = oneshot::channel();
    let flag = cancel.flag();
    // A thread of its own: a call may take minutes, and blocking work of other requests must not wait for it.
    let calling = std::thread::Builder::new().name("akunu-mcp".into()).spawn(move || {
        let answered = servers.toolbox.call(&offered, &arguments, &flag);
        drop(permit);
        // The client may have hung up.
        let _ = sender.send(answered);
    });
    calling.map_err(|error| Refusal::internal(format!("the call cannot be started: {error}")))?;
    let answered = receiver.await.map_err(|_| Refusal::internal("the call was lost"))?;
    let Answer { text, is_error } = answered.map_err(refusal)?;
    Ok(json(&json!({ "content": text, "is_error": is_error })))
}

fn refusal(error: akunu_mcp::Error) -> Refusal {
    let reason = match error.reason {
        Failed::Timeout { .. } => Reason::Overdue,
        _ => Reason::Upstream,
    };
    Refusal::new(reason, error.to_string()).code("mcp_failed")
}

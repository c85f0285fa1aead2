//! Errors that prevent the server from starting.

use std::io;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error("cannot listen on {address}: {error}; choose another address (--host) or port (--port)")]
    Listen { address: String, error: io::Error },
    #[error("cannot start the server's threads: {0}")]
    Threads(io::Error),
    #[error("--preload: {0}")]
    Preload(String),
    #[error("{0}")]
    Model(String),
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    #[error("cannot read {path}: {error}")]
    File { path: String, error: io::Error },
    #[error("{path} has no API keys; write one per line")]
    NoKeys { path: String },
    #[error(
        "line {line} of {path} is not an API key; write KEY, KEY PRIORITY with an integer, or either with name=NAME"
    )]
    Key { path: String, line: usize },
    #[error(
        "tools of MCP servers are not offered to other machines without API keys: use --api-keys, or listen on 127.0.0.1"
    )]
    OpenTools,
    #[error("{path} cannot be used for TLS: {reason}")]
    Tls { path: String, reason: String },
}

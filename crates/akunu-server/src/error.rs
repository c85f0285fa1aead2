//! Why there is no server.

use std::io;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error("cannot listen on {address}: {error}; choose another address (--host) or port (--port)")]
    Listen { address: String, error: io::Error },
    #[error("no threads for the server: {0}")]
    Threads(io::Error),
    #[error("signals cannot be heard: {0}")]
    Signals(io::Error),
    #[error("cannot read {path}: {error}")]
    File { path: String, error: io::Error },
    #[error("there is no key in {path}; write one a line")]
    NoKeys { path: String },
    #[error("line {line} of {path} is no key; write KEY, or KEY PRIORITY with a whole number")]
    Key { path: String, line: usize },
    #[error("{path} cannot be used for TLS: {reason}")]
    Tls { path: String, reason: String },
}

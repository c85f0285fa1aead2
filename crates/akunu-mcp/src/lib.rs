//! A client of servers that speak the Model Context Protocol, for their tools: over the pipes of a process that it
//! starts, or over HTTP ("streamable HTTP"). Blocking, without an async runtime.
//!
//! ```text
//! Toolbox ─▶ Client ─JSON-RPC─▶ Transport: stdio | http
//!            Client ◀─ Inbox ── threads that read
//! ```
//!
//! A server may die, hang, write nonsense or write without end: each is an [`Error`] that names the server.

mod client;
mod config;
mod error;
mod http;
mod inbox;
mod stdio;
mod toolbox;

pub use client::{Answer, Client, Limits, Tool};
pub use config::{Place, ServerConfig, parse};
pub use error::{Error, Reason};
pub use toolbox::{Offered, Toolbox};

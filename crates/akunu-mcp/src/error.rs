/// What went wrong with a server.
#[derive(Debug, thiserror::Error)]
#[error("the MCP server {server} {reason}")]
pub struct Error {
    pub server: String,
    pub reason: Reason,
}

#[derive(Debug, thiserror::Error)]
pub enum Reason {
    #[error("cannot be started ({command}: {error})")]
    Start { command: String, error: std::io::Error },
    /// Its last lines on stderr.
    #[error("has ended{}", said(.0))]
    Ended(String),
    #[error("did not answer {method} within {seconds} s")]
    Timeout { method: String, seconds: u64 },
    #[error("answered {method} with error {code}: {message}")]
    Refused { method: String, code: i64, message: String },
    #[error("does not keep to the protocol: {0}")]
    Protocol(String),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("answered with HTTP status {status}{}", said(.text))]
    Status { status: u16, text: String },
    #[error(
        "has a tool that models cannot call by its name: {0:?}; names have at most 64 of the letters a to z and A to Z, digits, _ and -"
    )]
    ToolName(String),
    #[error("has a tool with the name of another one: {0}")]
    SameName(String),
    /// The caller's flag was set.
    #[error("was interrupted")]
    Cancelled,
}

fn said(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!("; it says: {text}") }
}

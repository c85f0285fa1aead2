//! MCP servers of a configuration file.

use std::path::Path;

use akunu_mcp::{Limits, Reason, Toolbox};

use crate::failure::Failure;
use crate::{interrupt, output};

/// Longest configuration in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// Starts the servers, with notes that say which tools they have. Ctrl-C ends the wait.
pub fn start(config: &Path, quiet: bool) -> Result<Toolbox, Failure> {
    let wrong = |reason: String| Failure::new(format!("{}: {reason}", config.display()));
    let text =
        akunu_file::read_text(config, MAX_CONFIG).map_err(|error| Failure::io("read", config, &error))?;
    let servers = akunu_mcp::parse(&text).map_err(wrong)?;
    let ignored = servers.iter().filter(|server| !quiet && !server.ignored.is_empty());
    for server in ignored {
        let (name, ignored) = (&server.name, server.ignored.join(", "));
        output::note(&format!("note: the MCP server {name}: {ignored} in {} is ignored", config.display()));
    }
    let listening = interrupt::listen();
    let toolbox = Toolbox::start(servers, Limits::default(), &listening.flag()).map_err(failure)?;
    for (index, server) in toolbox.servers().enumerate().filter(|_| !quiet) {
        let of_server = toolbox.tools().iter().filter(|offered| offered.server == index);
        let names: Vec<&str> = of_server.map(|offered| offered.tool.name.as_str()).collect();
        let names = if names.is_empty() { "no tools".to_string() } else { names.join(", ") };
        output::note(&format!("the MCP server {server} has {names}"));
    }
    Ok(toolbox)
}

pub fn failure(error: akunu_mcp::Error) -> Failure {
    match error.reason {
        Reason::Cancelled => Failure::Interrupted,
        _ => Failure::new(error.to_string()),
    }
}

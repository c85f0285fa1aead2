//! The tools of several servers, by the names that a model knows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value as Json, json};

use crate::client::{Answer, Client, Limits, Tool};
use crate::config::ServerConfig;
use crate::error::{Error, Reason};

/// Servers that threads may call at once. Each server takes one call after the other. One that has failed is started again
/// by the next call.
#[derive(Debug, Default)]
pub struct Toolbox {
    servers: Vec<Server>,
    tools: Vec<Offered>,
    limits: Limits,
}

#[derive(Debug)]
struct Server {
    config: ServerConfig,
    /// `None` after a failure.
    client: Mutex<Option<Client>>,
}

/// A tool as it is offered to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    /// What the model calls it: the server's name stands before it if another server has a tool of this name.
    pub name: String,
    /// The index of its server.
    pub server: usize,
    pub tool: Tool,
}

impl Offered {
    /// In the form of OpenAI's API.
    pub fn to_json(&self) -> Json {
        let Tool { description, parameters, .. } = &self.tool;
        let function = json!({ "name": self.name, "description": description, "parameters": parameters });
        json!({ "type": "function", "function": function })
    }
}

impl Toolbox {
    /// Starts all servers, or connects to them. An error of one is an error of all. `cancel` ends the wait.
    pub fn start(configs: Vec<ServerConfig>, limits: Limits, cancel: &AtomicBool) -> Result<Toolbox, Error> {
        let mut clients = Vec::with_capacity(configs.len());
        for config in &configs {
            clients.push(Client::connect(config, limits, cancel)?);
        }
        let lists: Vec<(&str, &[Tool])> =
            clients.iter().map(|client| (client.name(), client.tools())).collect();
        let tools = offer(&lists)?;
        let servers = configs.into_iter().zip(clients);
        let servers = servers.map(|(config, client)| Server { config, client: Mutex::new(Some(client)) });
        Ok(Toolbox { servers: servers.collect(), tools, limits })
    }

    pub fn tools(&self) -> &[Offered] {
        &self.tools
    }

    /// The tool that a model calls by this name.
    pub fn tool(&self, name: &str) -> Option<&Offered> {
        self.tools.iter().find(|offered| offered.name == name)
    }

    /// The names of the servers, in the order of their indices.
    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.config.name.as_str())
    }

    /// Calls a tool when its server has done its earlier calls. `cancel` ends the wait.
    pub fn call(
        &self,
        offered: &Offered,
        arguments: &Map<String, Json>,
        cancel: &AtomicBool,
    ) -> Result<Answer, Error> {
        let server = &self.servers[offered.server];
        let mut client = server.lock();
        if cancel.load(Ordering::SeqCst) {
            return Err(Error { server: server.config.name.clone(), reason: Reason::Cancelled });
        }
        let running = match client.take() {
            Some(running) => running,
            None => Client::connect(&server.config, self.limits, cancel)?,
        };
        let running = client.insert(running);
        let answered = running.call(&offered.tool.name, arguments, cancel);
        // After these the server can still be used.
        let is_alive = |error: &Error| matches!(error.reason, Reason::Cancelled | Reason::Timeout { .. });
        if answered.as_ref().is_err_and(|error| !is_alive(error)) {
            *client = None;
        }
        answered
    }

    /// Ends all servers, at once; those that do not end by themselves are killed. A later call starts its server again.
    pub fn end(&self) {
        std::thread::scope(|scope| {
            for server in &self.servers {
                scope.spawn(|| drop(server.lock().take()));
            }
        });
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names all tools.
fn offer(servers: &[(&str, &[Tool])]) -> Result<Vec<Offered>, Error> {
    let mut offered: Vec<Offered> = Vec::new();
    let count =
        |name: &str| servers.iter().flat_map(|(_, tools)| *tools).filter(|tool| tool.name == name).count();
    for (index, (server, tools)) in servers.iter().enumerate() {
        let fail = |reason| Error { server: server.to_string(), reason };
        for tool in *tools {
            let name = match count(&tool.name) {
                1 => tool.name.clone(),
                _ => format!("{server}_{}", tool.name),
            };
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
                return Err(fail(Reason::ToolName(name)));
            }
            if offered.iter().any(|other| other.name == name) {
                return Err(fail(Reason::SameName(name)));
            }
            offered.push(Offered { name, server: index, tool: tool.clone() });
        }
    }
    Ok(offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Tool {
        Tool { name: name.into(), description: String::new(), parameters: json!({ "type": "object" }) }
    }

    #[test]
    fn a_name_that_two_servers_have_gets_the_servers_before_it() {
        let names = |servers: &[(&str, &[Tool])]| {
            let offered = offer(servers).map_err(|error| error.to_string())?;
            Ok::<_, String>(offered.into_iter().map(|tool| tool.name).collect::<Vec<_>>())
        };
        let (one, two) = ([tool("get"), tool("put")], [tool("get")]);
        assert_eq!(names(&[("a", &one), ("b", &two)]).unwrap(), ["a_get", "put", "b_get"]);
        let spaced = names(&[("my files", &one), ("b", &two)]).unwrap_err();
        assert!(spaced.starts_with("the MCP server my files has a tool that models cannot call"), "{spaced}");
        let twice = names(&[("a", &[tool("get"), tool("get")])]).unwrap_err();
        assert!(twice.contains("a_get"), "{twice}");
        let taken = names(&[("a", &one), ("b", &[tool("get"), tool("a_get")])]).unwrap_err();
        assert!(taken.starts_with("the MCP server b has a tool with the name of another one"), "{taken}");
    }
}

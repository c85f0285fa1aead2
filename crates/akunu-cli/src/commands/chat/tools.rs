//! Tools of MCP servers: each call is shown, and run when the user allows it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use akunu_mcp::{Client, Limits, Reason};
use serde_json::{Map, Value as Json, json};

use super::input::Input;
use crate::failure::Failure;
use crate::{interrupt, output};

/// Longest configuration in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Characters of a result that are shown.
const SHOWN_RESULT: usize = 400;

/// The servers, and what was allowed.
#[derive(Debug, Default)]
pub struct Tools {
    clients: Vec<Client>,
    offered: Vec<Offered>,
    /// All calls are run unasked.
    allow_all: bool,
    /// Only what is asked for is shown.
    quiet: bool,
    /// Names of tools whose calls are run unasked.
    allowed: HashSet<String>,
}

/// A tool by the name that the model knows.
#[derive(Debug)]
struct Offered {
    name: String,
    client: usize,
    /// The server's name of it.
    tool: String,
}

/// What the user said to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consent {
    Yes,
    No,
    Always,
}

impl Tools {
    /// Starts the servers of a configuration. An error of one is an error of all.
    pub fn start(config: &Path, allow_all: bool, quiet: bool) -> Result<Tools, Failure> {
        let wrong = |reason: String| Failure::new(format!("{}: {reason}", config.display()));
        let size = std::fs::metadata(config).map_err(|error| Failure::io("read", config, &error))?.len();
        if size > MAX_CONFIG {
            return Err(wrong(format!("it has more than {MAX_CONFIG} bytes")));
        }
        let text = std::fs::read_to_string(config).map_err(|error| Failure::io("read", config, &error))?;
        let mut tools = Tools { allow_all, quiet, ..Tools::default() };
        let listening = interrupt::listen();
        for server in akunu_mcp::parse(&text).map_err(wrong)? {
            if !quiet && !server.ignored.is_empty() {
                let ignored = server.ignored.join(", ");
                output::note(&format!(
                    "note: the MCP server {}: {ignored} in {} is ignored",
                    server.name,
                    config.display()
                ));
            }
            let client = Client::connect(&server, Limits::default(), &listening.flag()).map_err(failure)?;
            if !quiet {
                let names: Vec<&str> = client.tools().iter().map(|tool| tool.name.as_str()).collect();
                let names = if names.is_empty() { "no tools".to_string() } else { names.join(", ") };
                output::note(&format!("the MCP server {} has {names}", client.name()));
            }
            tools.clients.push(client);
        }
        tools.offer()?;
        Ok(tools)
    }

    /// Names all tools: a name that several servers have gets the server's before it.
    fn offer(&mut self) -> Result<(), Failure> {
        let all = || self.clients.iter().flat_map(|client| client.tools());
        for (index, client) in self.clients.iter().enumerate() {
            for tool in client.tools() {
                let is_alone = all().filter(|other| other.name == tool.name).count() == 1;
                let name =
                    if is_alone { tool.name.clone() } else { format!("{}_{}", client.name(), tool.name) };
                let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
                    return Err(Failure::new(format!(
                        "the MCP server {} has a tool that models cannot call by its name: {name:?}",
                        client.name()
                    ))
                    .hint("names have at most 64 of the letters a to z and A to Z, digits, _ and -"));
                }
                if self.offered.iter().any(|other| other.name == name) {
                    return Err(Failure::new(format!("several tools of MCP servers are named {name}")));
                }
                self.offered.push(Offered { name, client: index, tool: tool.name.clone() });
            }
        }
        Ok(())
    }

    /// The tools in the form of OpenAI's API; `None` if there are none.
    pub fn offers(&self) -> Option<Vec<Json>> {
        let offered = self.offered.iter().filter_map(|offered| {
            let mut tools = self.clients[offered.client].tools().iter();
            let tool = tools.find(|tool| tool.name == offered.tool)?;
            let function =
                json!({ "name": offered.name, "description": tool.description, "parameters": tool.parameters });
            Some(json!({ "type": "function", "function": function }))
        });
        let offered: Vec<Json> = offered.collect();
        (!offered.is_empty()).then_some(offered)
    }

    /// The messages with the results of the calls of an answer.
    pub fn run(
        &mut self,
        calls: &[Json],
        input: &mut Input,
        cancel: &AtomicBool,
    ) -> Result<Vec<Json>, Failure> {
        let mut results = Vec::new();
        for call in calls {
            let text = self.call(&call["function"], input, cancel)?;
            if !self.quiet {
                let shown: String = text.chars().take(SHOWN_RESULT).collect();
                let more = if shown.len() < text.len() { "…" } else { "" };
                output::note(&format!("result: {shown}{more}"));
            }
            let mut message = json!({ "role": "tool", "content": text });
            for (field, value) in [("tool_call_id", &call["id"]), ("name", &call["function"]["name"])] {
                if value.is_string() {
                    message[field] = value.clone();
                }
            }
            results.push(message);
        }
        Ok(results)
    }

    /// What the model is told about a call.
    fn call(&mut self, function: &Json, input: &mut Input, cancel: &AtomicBool) -> Result<String, Failure> {
        let name = function["name"].as_str().unwrap_or_default();
        let arguments: Option<Map<String, Json>> = match &function["arguments"] {
            Json::Object(object) => Some(object.clone()),
            Json::String(text) => serde_json::from_str(text).ok(),
            _ => None,
        };
        let Some(arguments) = arguments else {
            return Ok("Error: the arguments are not a JSON object.".into());
        };
        let Some(offered) = self.offered.iter().find(|offered| offered.name == name) else {
            return Ok(format!("There is no tool named {name}."));
        };
        let client = &mut self.clients[offered.client];
        let asked = !self.allow_all && !self.allowed.contains(name);
        if asked || !self.quiet {
            let shown = Json::Object(arguments.clone());
            output::note(&format!("call of {} by the MCP server {}: {shown}", offered.tool, client.name()));
        }
        if asked {
            match consent(input)? {
                Some(Consent::Yes) => {}
                Some(Consent::Always) => drop(self.allowed.insert(name.to_string())),
                Some(Consent::No) => return Ok("The user refused this call.".into()),
                None => {
                    output::note(
                        "the call is not run, since there is no terminal to ask on: --mcp-allow runs calls unasked",
                    );
                    return Ok(
                        "The call was refused: the user could not be asked whether it may be run.".into()
                    );
                }
            }
        }
        let answer = client.call(&offered.tool, &arguments, cancel).map_err(failure)?;
        Ok(if answer.is_error { format!("Error: {}", answer.text) } else { answer.text })
    }
}

/// `None`: there is no terminal to ask on.
fn consent(input: &mut Input) -> Result<Option<Consent>, Failure> {
    loop {
        let Some(line) = input.ask("run it? y, n, or a: always this tool > ")? else { return Ok(None) };
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(Some(Consent::Yes)),
            "n" | "no" => return Ok(Some(Consent::No)),
            "a" | "always" => return Ok(Some(Consent::Always)),
            _ => {}
        }
    }
}

fn failure(error: akunu_mcp::Error) -> Failure {
    match error.reason {
        Reason::Cancelled => Failure::Interrupted,
        _ => Failure::new(error.to_string()),
    }
}

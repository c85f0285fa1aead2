//! A server, and its tools.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json, json};

use crate::config::{Place, ServerConfig};
use crate::error::{Error, Reason};
use crate::http::Http;
use crate::inbox::{Inbox, Incoming};
use crate::stdio::Process;

/// The version that is asked for, and all that are understood.
const VERSION: &str = "2025-06-18";
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// How often the caller's flag is looked at.
const POLL: Duration = Duration::from_millis(50);
const MAX_TOOLS: usize = 1000;
const MAX_PAGES: usize = 100;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a server to start and to list its tools, each.
    pub start: Duration,
    /// For a call.
    pub call: Duration,
    /// Bytes of a call's result.
    pub result: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { start: Duration::from_secs(30), call: Duration::from_secs(120), result: 256 << 10 }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: String,
    /// A JSON schema.
    pub parameters: Json,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    /// The tool failed; the text says why.
    pub is_error: bool,
}

/// A running server. It is ended when this is dropped.
#[derive(Debug)]
pub struct Client {
    name: String,
    link: Link,
    inbox: Inbox,
    tools: Vec<Tool>,
    next_id: u64,
    limits: Limits,
}

#[derive(Debug)]
enum Link {
    Process(Process),
    Http(Http),
}

impl Link {
    fn send(&self, message: &Json) {
        match self {
            Link::Process(process) => process.send(message),
            Link::Http(http) => http.send(message),
        }
    }
}

impl Client {
    /// Starts a server, or connects to it, and lists its tools. `cancel` ends the wait for it.
    pub fn connect(config: &ServerConfig, limits: Limits, cancel: &AtomicBool) -> Result<Client, Error> {
        let fail = |reason| Error { server: config.name.clone(), reason };
        let (outlet, inbox) = Inbox::new();
        let link = match &config.place {
            place @ Place::Stdio { .. } => Process::start(place, outlet).map(Link::Process),
            Place::Http { url, headers } => {
                Http::new(url, headers, outlet, limits.start.max(limits.call)).map(Link::Http)
            }
        };
        let link = link.map_err(fail)?;
        let mut client =
            Client { name: config.name.clone(), link, inbox, tools: Vec::new(), next_id: 0, limits };
        client.begin(cancel).map_err(fail)?;
        Ok(client)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Calls a tool. `cancel` ends the wait, and tells the server.
    pub fn call(
        &mut self,
        tool: &str,
        arguments: &Map<String, Json>,
        cancel: &AtomicBool,
    ) -> Result<Answer, Error> {
        let parameters = json!({ "name": tool, "arguments": arguments });
        let called = self.request("tools/call", parameters, self.limits.call, cancel);
        let answered = match called {
            Ok(result) => Ok(answer(&result, self.limits.result)),
            // The server refuses this call, such as for its arguments.
            Err(Reason::Refused { message, .. }) => Ok(limited(message, true, self.limits.result)),
            Err(reason) => Err(reason),
        };
        answered.map_err(|reason| Error { server: self.name.clone(), reason })
    }

    fn begin(&mut self, cancel: &AtomicBool) -> Result<(), Reason> {
        let client = json!({ "name": "akunu", "version": env!("CARGO_PKG_VERSION") });
        let hello = json!({ "protocolVersion": VERSION, "capabilities": {}, "clientInfo": client });
        let result = self.request("initialize", hello, self.limits.start, cancel)?;
        let version = result["protocolVersion"].as_str().unwrap_or_default();
        if !VERSIONS.contains(&version) {
            return Err(Reason::Protocol(format!(
                "its version is {version:?}, not one of {}",
                VERSIONS.join(", ")
            )));
        }
        if let Link::Http(http) = &self.link {
            http.set_version(version);
        }
        self.link.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        if result["capabilities"].get("tools").is_some() {
            self.tools = self.list(cancel)?;
        }
        Ok(())
    }

    fn list(&mut self, cancel: &AtomicBool) -> Result<Vec<Tool>, Reason> {
        let (mut tools, mut parameters) = (Vec::new(), json!({}));
        for _ in 0..MAX_PAGES {
            let page = self.request("tools/list", parameters, self.limits.start, cancel)?;
            let list = page["tools"].as_array();
            let list = list.ok_or_else(|| Reason::Protocol("its list of tools has no \"tools\"".into()))?;
            for listed in list {
                tools.push(tool(listed)?);
            }
            if tools.len() > MAX_TOOLS {
                return Err(Reason::Protocol(format!("it has more than {MAX_TOOLS} tools")));
            }
            match page["nextCursor"].as_str() {
                Some(cursor) => parameters = json!({ "cursor": cursor }),
                None => return Ok(tools),
            }
        }
        Err(Reason::Protocol(format!("its list of tools has more than {MAX_PAGES} pages")))
    }

    /// The result of a request. Requests of the server are answered meanwhile, its notifications are not read.
    fn request(
        &mut self,
        method: &str,
        parameters: Json,
        limit: Duration,
        cancel: &AtomicBool,
    ) -> Result<Json, Reason> {
        self.next_id += 1;
        let id = self.next_id;
        self.link.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters }));
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let stopped = cancel.load(Ordering::SeqCst);
            if stopped || left.is_zero() {
                self.give_up(id, method, if stopped { "stopped by the user" } else { "timeout" });
                return Err(match stopped {
                    true => Reason::Cancelled,
                    false => Reason::Timeout { method: method.to_string(), seconds: limit.as_secs() },
                });
            }
            let message = match self.inbox.next(left.min(POLL)) {
                None => continue,
                // Of an earlier request.
                Some(Incoming { request: Some(other), message: Err(_) }) if other != id => continue,
                Some(Incoming { message, .. }) => message?,
            };
            let messages = match message {
                Json::Array(batch) => batch,
                single => vec![single],
            };
            for message in messages {
                if let Some(result) = self.take(id, method, message)? {
                    return Ok(result);
                }
            }
        }
    }

    /// Tells the server that a request is not waited for. The first one may not be cancelled.
    fn give_up(&self, id: u64, method: &str, reason: &str) {
        if method != "initialize" {
            let told = json!({ "requestId": id, "reason": reason });
            let note = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": told });
            self.link.send(&note);
        }
    }

    /// The result, if the message is the answer to the request.
    fn take(&self, id: u64, method: &str, mut message: Json) -> Result<Option<Json>, Reason> {
        if let Some(wanted) = message["method"].as_str() {
            if let Some(id) = message.get("id").filter(|id| !id.is_null()) {
                let answer = match wanted {
                    "ping" => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
                    _ => {
                        let error =
                            json!({ "code": -32601, "message": "this client does not have that method" });
                        json!({ "jsonrpc": "2.0", "id": id, "error": error })
                    }
                };
                self.link.send(&answer);
            }
            return Ok(None);
        }
        if message["id"].as_u64() != Some(id) {
            return Ok(None);
        }
        if let Some(error) = message.get("error") {
            let (code, text) =
                (error["code"].as_i64().unwrap_or(0), error["message"].as_str().unwrap_or("no message"));
            return Err(Reason::Refused { method: method.to_string(), code, message: text.to_string() });
        }
        match message.get_mut("result") {
            Some(result) if result.is_object() => Ok(Some(result.take())),
            _ => Err(Reason::Protocol(format!("its answer to {method} has no result"))),
        }
    }
}

fn tool(listed: &Json) -> Result<Tool, Reason> {
    let Some(name) = listed["name"].as_str() else {
        return Err(Reason::Protocol("a tool has no name".into()));
    };
    let parameters = listed["inputSchema"].clone();
    if !parameters.is_object() {
        return Err(Reason::Protocol(format!("the tool {name:?} has no schema of its arguments")));
    }
    let description = listed["description"].as_str().or(listed["title"].as_str()).unwrap_or_default();
    Ok(Tool { name: name.to_string(), description: description.to_string(), parameters })
}

/// The contents of a result as text.
fn answer(result: &Json, most: usize) -> Answer {
    let content = result["content"].as_array().map_or(&[][..], Vec::as_slice);
    let shown = |part: &Json| {
        let text = |key: &str| part[key].as_str().unwrap_or_default().to_string();
        match part["type"].as_str().unwrap_or_default() {
            "text" => text("text"),
            "resource" => match part["resource"]["text"].as_str() {
                Some(text) => text.to_string(),
                None => format!("[the resource {} is not text]", part["resource"]["uri"]),
            },
            "resource_link" => text("uri"),
            other => format!("[{other} of type {}, which cannot be read here]", text("mimeType")),
        }
    };
    let mut text = content.iter().map(shown).collect::<Vec<_>>().join("\n");
    if content.is_empty()
        && let Some(structured) = result.get("structuredContent")
    {
        text = structured.to_string();
    }
    limited(text, result["isError"].as_bool().unwrap_or(false), most)
}

fn limited(text: String, is_error: bool, most: usize) -> Answer {
    if text.len() > most {
        let text = format!("the result has {} bytes, but at most {most} can be read", text.len());
        return Answer { text, is_error: true };
    }
    Answer { text, is_error }
}

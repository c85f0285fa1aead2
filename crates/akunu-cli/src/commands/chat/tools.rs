//! Tools of MCP servers: each call is shown, and run when the user allows it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use akunu_mcp::Toolbox;
use serde_json::{Map, Value as Json, json};

use super::input::Input;
use crate::failure::Failure;
use crate::{mcp, output};

/// Characters of a result that are shown.
const SHOWN_RESULT: usize = 400;

/// The servers, and what was allowed.
#[derive(Debug, Default)]
pub struct Tools {
    toolbox: Toolbox,
    /// All calls are run unasked.
    allow_all: bool,
    /// Results are not shown.
    quiet: bool,
    /// Names of tools whose calls are run unasked.
    allowed: HashSet<String>,
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
        let toolbox = mcp::start(config, quiet)?;
        Ok(Tools { toolbox, allow_all, quiet, allowed: HashSet::new() })
    }

    /// The tools in the form of OpenAI's API; `None` if there are none.
    pub fn offers(&self) -> Option<Vec<Json>> {
        let offered: Vec<Json> = self.toolbox.tools().iter().map(akunu_mcp::Offered::to_json).collect();
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
        let Some(offered) = self.toolbox.tool(name) else {
            return Ok(format!("There is no tool named {name}."));
        };
        let asked = !self.allow_all && !self.allowed.contains(name);
        // Even if all else is quiet: what a model does should be seen.
        let shown = Json::Object(arguments.clone());
        let server = self.toolbox.servers().nth(offered.server).unwrap_or_default();
        output::note(&format!("call of {} by the MCP server {server}: {shown}", offered.tool.name));
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
        let answer = self.toolbox.call(offered, &arguments, cancel).map_err(mcp::failure)?;
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

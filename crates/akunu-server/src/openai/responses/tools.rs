//! `tools` and `tool_choice` of a request to `/v1/responses`.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use super::items::unsupported;
use crate::fields::Fields;
use crate::openai;
use crate::refusal::Refusal;
use crate::response_format::not_in_tools;
use crate::texts::missing;

/// Between a namespace and the name of a function in the names that models know.
const BETWEEN: &str = "__";

/// What is given as a tool of this type, without access to the web, is no use to a model, and is ignored.
const SEARCH: &str = "web_search";

/// Tools in the form of this API, with all fields that a response has.
pub(super) fn tools(fields: &Fields<'_>) -> Result<Vec<Json>, Refusal> {
    let tools = list(fields, "tools", "tools", true)?;
    let mut names = HashSet::new();
    for (namespace, function) in functions(&tools) {
        let name = joined(namespace, name_of(function));
        // Calls of both could not be told apart.
        if !names.insert(name.clone()) {
            let message = format!("'tools' has two functions whose calls would be named \"{name}\"");
            return Err(Refusal::invalid(message).param("tools").code("invalid_value"));
        }
    }
    Ok(tools)
}

/// Whether a tool is ignored.
pub(super) fn is_ignored(tool: &Json) -> bool {
    tool["type"] == SEARCH
}

fn list(fields: &Fields<'_>, field: &str, place: &str, is_outer: bool) -> Result<Vec<Json>, Refusal> {
    let read = |(at, tool): (usize, &Json)| {
        let at = format!("{place}[{at}]");
        let place = format!("{at}.");
        let Json::Object(map) = tool else { return Err(fields.refuse(field, "a list of objects")) };
        let tool = Fields::within(map, &place);
        let name = || tool.text("name")?.ok_or_else(|| missing(&format!("{place}name"), "give a string"));
        let check = |name| openai::check_name(name, 128).map_err(|expected| tool.refuse("name", &expected));
        match tool.text("type")? {
            Some("function") => {
                let name = name()?;
                check(name)?;
                Ok(json!({
                    "type": "function", "name": name, "description": tool.text("description")?,
                    "parameters": tool.object("parameters")?, "strict": tool.flag("strict")?.unwrap_or(false),
                }))
            }
            Some("namespace") if is_outer => {
                let name = name()?;
                check(name)?;
                let tools = list(&tool, "tools", &format!("{at}.tools"), false)?;
                let description = tool.text("description")?;
                Ok(json!({ "type": "namespace", "name": name, "description": description, "tools": tools }))
            }
            Some(SEARCH) if is_outer && tool.flag("external_web_access")? == Some(false) => {
                Ok(Json::Object(map.clone()))
            }
            Some(kind) => {
                let what = format!("is \"{kind}\"; only functions are supported");
                Err(unsupported(&format!("{place}type"), &what))
            }
            None => Err(missing(&format!("{place}type"), "give \"function\"")),
        }
    };
    fields.list(field)?.unwrap_or_default().iter().enumerate().map(read).collect()
}

/// All functions, with their namespaces.
fn functions(tools: &[Json]) -> impl Iterator<Item = (Option<&str>, &Json)> {
    tools.iter().filter(|tool| !is_ignored(tool)).flat_map(|tool| match tool["tools"].as_array() {
        Some(functions) => functions.iter().map(|function| (tool["name"].as_str(), function)).collect(),
        None => vec![(None, tool)],
    })
}

fn name_of(function: &Json) -> &str {
    function["name"].as_str().unwrap_or_default()
}

/// The name by which models call a function.
pub(super) fn joined(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_string(), |namespace| format!("{namespace}{BETWEEN}{name}"))
}

/// The namespace and the name of the function that a model calls by a name.
pub(super) fn divided<'a>(tools: &'a Json, called: &'a str) -> (Option<&'a str>, &'a str) {
    let mut all = functions(tools.as_array().map_or(&[], Vec::as_slice));
    let of_namespace = all.find(|(namespace, function)| {
        let rest = namespace.and_then(|namespace| called.strip_prefix(namespace)?.strip_prefix(BETWEEN));
        rest == Some(name_of(function))
    });
    of_namespace.map_or((None, called), |(namespace, function)| (namespace, name_of(function)))
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mode {
    None,
    Auto,
    Required,
    Named,
}

/// `tool_choice`.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    pub(super) mode: Mode,
    /// The names of the functions that may be called; `None`: all.
    pub(super) only: Option<HashSet<&'a str>>,
}

impl Choice<'_> {
    pub(super) fn as_given(&self, fields: &Fields<'_>) -> Json {
        fields.get("tool_choice").cloned().unwrap_or_else(|| "auto".into())
    }
}

pub(super) fn choice<'a>(fields: &Fields<'a>) -> Result<Choice<'a>, Refusal> {
    const EXPECTED: &str = "\"auto\", \"none\", \"required\", a function's name or a list of allowed tools";
    let refuse = || fields.refuse("tool_choice", EXPECTED);
    let mode = |mode: Option<&Json>| match mode.and_then(Json::as_str) {
        Some("none") => Ok(Mode::None),
        Some("auto") => Ok(Mode::Auto),
        Some("required") => Ok(Mode::Required),
        _ => Err(refuse()),
    };
    let name = |tool: &'a Json| tool["name"].as_str().filter(|_| tool["type"] == "function");
    match fields.get("tool_choice") {
        None => Ok(Choice { mode: Mode::Auto, only: None }),
        Some(choice @ Json::Object(_)) if choice["type"] == "function" => {
            let name = name(choice).ok_or_else(refuse)?;
            Ok(Choice { mode: Mode::Named, only: Some(HashSet::from([name])) })
        }
        Some(choice @ Json::Object(_)) if choice["type"] == "allowed_tools" => {
            let names: Option<HashSet<&str>> =
                choice["tools"].as_array().and_then(|list| list.iter().map(name).collect());
            Ok(Choice { mode: mode(choice.get("mode"))?, only: Some(names.ok_or_else(refuse)?) })
        }
        Some(choice @ Json::Object(_)) => match choice["type"].as_str() {
            Some(kind) => {
                let what = format!("is \"{kind}\"; only functions are supported");
                Err(unsupported("tool_choice.type", &what))
            }
            None => Err(refuse()),
        },
        choice => Ok(Choice { mode: mode(choice)?, only: None }),
    }
}

/// The functions that may be called, in the form of chat completions.
pub(super) fn offered(tools: &[Json], choice: &Choice<'_>) -> Result<Option<Vec<Json>>, Refusal> {
    let all: Vec<(String, &Json)> = functions(tools)
        .map(|(namespace, function)| (joined(namespace, name_of(function)), function))
        .collect();
    let is_there = |name: &str| all.iter().any(|(known, _)| known == name);
    if let Some(name) = choice.only.iter().flatten().find(|name| !is_there(name)) {
        return Err(not_in_tools("tool_choice", name));
    }
    let may_call =
        |(name, _): &&(String, &Json)| choice.only.as_ref().is_none_or(|only| only.contains(name.as_str()));
    let chat_form = |(name, tool): &(String, &Json)| {
        let mut function = Map::from_iter([("name".into(), name.as_str().into())]);
        for field in ["description", "parameters"] {
            if !tool[field].is_null() {
                function.insert(field.into(), tool[field].clone());
            }
        }
        if tool["strict"] == true {
            function.insert("strict".into(), true.into());
        }
        json!({ "type": "function", "function": function })
    };
    let offered: Vec<Json> = all.iter().filter(may_call).map(chat_form).collect();
    Ok(Some(offered).filter(|offered| !offered.is_empty() && choice.mode != Mode::None))
}

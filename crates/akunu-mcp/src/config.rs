//! The file in which servers are configured, in the form of other clients.

use std::path::PathBuf;

use serde_json::{Map, Value as Json};

/// A server of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    pub name: String,
    pub place: Place,
    /// Fields that have no meaning here.
    pub ignored: Vec<String>,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A process, over its stdin and stdout.
    Stdio { command: String, args: Vec<String>, env: Vec<(String, String)>, folder: Option<PathBuf> },
    /// Streamable HTTP.
    Http { url: String, headers: Vec<(String, String)> },
}

/// Reads `{"mcpServers": {NAME: {"command", "args", "env", "cwd"} | {"url", "headers"}}}`. Servers with
/// `"disabled": true` are left out. The error says what is wrong.
pub fn parse(text: &str) -> Result<Vec<ServerConfig>, String> {
    let json: Json = serde_json::from_str(text).map_err(|error| format!("it is not JSON ({error})"))?;
    let servers = json.get("mcpServers").ok_or("it has no \"mcpServers\"")?;
    let servers = servers.as_object().ok_or("\"mcpServers\" is not an object")?;
    let configured = servers
        .iter()
        .map(|(name, fields)| server(name, fields).map_err(|reason| format!("the server {name:?} {reason}")));
    configured.filter_map(Result::transpose).collect()
}

/// `None` if it is disabled.
fn server(name: &str, json: &Json) -> Result<Option<ServerConfig>, String> {
    let fields = json.as_object().ok_or("is not an object")?;
    let text = |key: &str| match fields.get(key) {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("has a {key:?} that is not a text")),
    };
    match fields.get("disabled") {
        Some(Json::Bool(true)) => return Ok(None),
        None | Some(Json::Bool(false)) => {}
        Some(_) => return Err("has a \"disabled\" that is neither true nor false".into()),
    }
    let (command, url, kind) = (text("command")?, text("url")?, text("type")?);
    let (place, known): (Place, &[&str]) = match (command, url, kind.as_deref()) {
        (Some(command), None, None | Some("stdio")) => {
            let (args, env) = (texts(fields, "args")?, pairs(fields, "env")?);
            let folder = text("cwd")?.map(PathBuf::from);
            (Place::Stdio { command, args, env, folder }, &["command", "args", "env", "cwd"])
        }
        (None, Some(url), None | Some("http" | "streamable-http" | "streamableHttp")) => {
            if !url.starts_with("http://") && !url.starts_with("https://") {
                return Err(format!("has the URL {url:?}, which does not begin with http:// or https://"));
            }
            (Place::Http { url, headers: pairs(fields, "headers")? }, &["url", "headers"])
        }
        (_, _, Some("sse")) => return Err("has the type \"sse\", which MCP has replaced by \"http\"".into()),
        (Some(_), Some(_), _) => return Err("has both a \"command\" and a \"url\"".into()),
        (None, None, _) => return Err("has neither a \"command\" nor a \"url\"".into()),
        (_, _, Some(kind)) => return Err(format!("has the type {kind:?}, which does not go with the rest")),
    };
    let ignored =
        fields.keys().filter(|key| !known.contains(&key.as_str()) && *key != "type" && *key != "disabled");
    Ok(Some(ServerConfig { name: name.to_string(), place, ignored: ignored.cloned().collect() }))
}

fn texts(fields: &Map<String, Json>, key: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("has {key:?} that are not a list of texts");
    let Some(list) = fields.get(key) else { return Ok(Vec::new()) };
    let list = list.as_array().ok_or_else(wrong)?;
    list.iter().map(|item| item.as_str().map(str::to_string).ok_or_else(wrong)).collect()
}

fn pairs(fields: &Map<String, Json>, key: &str) -> Result<Vec<(String, String)>, String> {
    let wrong = || format!("has {key:?} that are not an object of texts");
    let Some(object) = fields.get(key) else { return Ok(Vec::new()) };
    let object = object.as_object().ok_or_else(wrong)?;
    let pair = |(name, value): (&String, &Json)| Some((name.clone(), value.as_str()?.to_string()));
    object.iter().map(|item| pair(item).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_servers_are_read() {
        let text = r#"{"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "cwd": "/srv", "autoApprove": ["a"]},
            "off": {"command": "x", "disabled": true},
            "web": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer t"}}}}"#;
        let place = |command: &str, args: &[&str]| Place::Stdio {
            command: command.into(),
            args: args.iter().map(|arg| arg.to_string()).collect(),
            env: vec![("A".into(), "1".into())],
            folder: Some("/srv".into()),
        };
        let web = Place::Http {
            url: "https://example.org/mcp".into(),
            headers: vec![("Authorization".into(), "Bearer t".into())],
        };
        let files = place("npx", &["-y", "x"]);
        let expected = [
            ServerConfig { name: "files".into(), place: files, ignored: vec!["autoApprove".into()] },
            ServerConfig { name: "web".into(), place: web, ignored: vec![] },
        ];
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let of = |server: &str| parse(&format!(r#"{{"mcpServers": {{"a": {server}}}}}"#)).unwrap_err();
        assert!(parse("{").unwrap_err().starts_with("it is not JSON"));
        assert_eq!(parse("{}").unwrap_err(), "it has no \"mcpServers\"");
        assert_eq!(parse(r#"{"mcpServers": []}"#).unwrap_err(), "\"mcpServers\" is not an object");
        for (server, expected) in [
            ("7", "is not an object"),
            ("{}", "has neither a \"command\" nor a \"url\""),
            (r#"{"command": "a", "url": "http://b"}"#, "has both a \"command\" and a \"url\""),
            (r#"{"command": 7}"#, "has a \"command\" that is not a text"),
            (r#"{"command": "a", "args": "b"}"#, "has \"args\" that are not a list of texts"),
            (r#"{"command": "a", "args": [7]}"#, "has \"args\" that are not a list of texts"),
            (r#"{"command": "a", "env": {"B": 7}}"#, "has \"env\" that are not an object of texts"),
            (r#"{"command": "a", "type": "http"}"#, "has the type \"http\", which does not go with the rest"),
            (
                r#"{"url": "http://b", "type": "sse"}"#,
                "has the type \"sse\", which MCP has replaced by \"http\"",
            ),
            (
                r#"{"url": "ftp://b"}"#,
                "has the URL \"ftp://b\", which does not begin with http:// or https://",
            ),
            (r#"{"command": "a", "disabled": 1}"#, "has a \"disabled\" that is neither true nor false"),
        ] {
            assert_eq!(of(server), format!("the server \"a\" {expected}"));
        }
    }
}

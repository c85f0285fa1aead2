//! Reads a Modelfile: what a model is made from, and its settings.

use serde_json::{Map, Value as Json, json};

use crate::refusal::Refusal;

/// What a Modelfile says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Modelfile {
    pub(super) from: Option<String>,
    pub(super) system: Option<String>,
    pub(super) template: Option<String>,
    pub(super) parameters: Map<String, Json>,
    /// Messages with `role` and `content`.
    pub(super) messages: Vec<Json>,
    pub(super) license: Vec<String>,
}

pub(super) fn parse(text: &str) -> Result<Modelfile, Refusal> {
    let mut file = Modelfile::default();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(file);
        }
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
            continue;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (command, after) = rest.split_at(end);
        let command = command.to_ascii_uppercase();
        let after = after.trim_start_matches([' ', '\t']);
        let named = matches!(command.as_str(), "PARAMETER" | "MESSAGE");
        let (name, after) = match named {
            true => after.split_at(after.find(char::is_whitespace).unwrap_or(after.len())),
            false => ("", after),
        };
        let (value, after) = value(after.trim_start_matches([' ', '\t']))
            .ok_or_else(|| refuse(format!("the value of {command} has no end")))?;
        if value.is_empty() {
            return Err(refuse(format!("{command} has no value")));
        }
        rest = after;
        match command.as_str() {
            "FROM" => file.from = Some(value.to_string()),
            "SYSTEM" => file.system = Some(value.to_string()),
            "TEMPLATE" => file.template = Some(value.to_string()),
            "LICENSE" => file.license.push(value.to_string()),
            "MESSAGE" => file.messages.push(json!({ "role": name, "content": value })),
            "PARAMETER" => add(&mut file.parameters, name, value),
            "ADAPTER" => return Err(refuse("ADAPTER is not supported: adapters are not available".into())),
            _ => {
                let command: String = command.chars().take(40).collect();
                return Err(refuse(format!("{command:?} is not a command of a Modelfile")));
            }
        }
    }
}

/// A parameter that occurs several times is a list.
fn add(parameters: &mut Map<String, Json>, name: &str, value: &str) {
    let value = match serde_json::from_str(value) {
        Ok(value @ (Json::Number(_) | Json::Bool(_))) => value,
        _ => Json::from(value),
    };
    let name = name.to_ascii_lowercase();
    match parameters.get_mut(&name) {
        Some(Json::Array(values)) => values.push(value),
        Some(first) => *first = json!([first.take(), value]),
        None => drop(parameters.insert(name, value)),
    }
}

/// A value and what follows: in three quotes or one, or the rest of the line.
fn value(text: &str) -> Option<(&str, &str)> {
    for quotes in ["\"\"\"", "\""] {
        if let Some(inside) = text.strip_prefix(quotes) {
            let end = inside.find(quotes)?;
            // The last of several quotes end a value, of which the others are a part.
            let more =
                inside[end + quotes.len()..].bytes().take_while(|byte| quotes.len() > 1 && *byte == b'"');
            let end = end + more.count();
            return Some((&inside[..end], &inside[end + quotes.len()..]));
        }
    }
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    Some((line.trim_end(), rest))
}

fn refuse(what: String) -> Refusal {
    Refusal::invalid(format!("'modelfile': {what}")).param("modelfile").code("invalid_value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_values_of_each_form() {
        let text = "# a comment\nfrom tales:latest\n\nPARAMETER temperature 0.5\nPARAMETER stop \"a b\"\n\
                    PARAMETER stop <|x|>\n\
                    TEMPLATE \"\"\"{{ .Prompt }}\"\"\"\"\nSYSTEM \"\"\"\nYou are\n\"Mario\".\"\"\"\n\
                    MESSAGE user Who are you?\nMESSAGE assistant \"Mario\"\nLICENSE MIT";
        let file = parse(text).unwrap();
        assert_eq!(file.from.as_deref(), Some("tales:latest"));
        assert_eq!(file.system.as_deref(), Some("\nYou are\n\"Mario\"."));
        assert_eq!(file.template.as_deref(), Some("{{ .Prompt }}\""));
        assert_eq!(Json::from(file.parameters), json!({ "temperature": 0.5, "stop": ["a b", "<|x|>"] }));
        let messages = json!([
            { "role": "user", "content": "Who are you?" }, { "role": "assistant", "content": "Mario" },
        ]);
        assert_eq!((Json::from(file.messages), file.license), (messages, vec!["MIT".to_string()]));
    }

    #[test]
    fn what_is_no_modelfile_is_refused_with_the_reason() {
        for (text, reason) in [
            ("FROM", "FROM has no value"),
            ("FROM a\nADAPTER ./b", "ADAPTER is not supported"),
            ("FROM a\nSYSTEM \"\"\"open", "the value of SYSTEM has no end"),
            ("FROM a\nFOO b", "\"FOO\" is not a command"),
            ("PARAMETER temperature", "PARAMETER has no value"),
        ] {
            let refusal = parse(text).unwrap_err();
            assert!(refusal.message.contains(reason), "{text}: {}", refusal.message);
        }
        assert_eq!(parse("").unwrap(), Modelfile::default());
    }
}

//! Tool calls with each argument between tags.

use serde_json::{Map, Value as Json};

use super::calls::Call;

/// The tags of such a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallTags {
    pub(super) name: &'static str,
    pub(super) key: [&'static str; 2],
    pub(super) value: [&'static str; 2],
    pub(super) end: &'static str,
}

impl CallTags {
    /// Parses the text before `end`. The schemas of `tools` say which arguments are strings.
    pub(super) fn read(&self, text: &str, tools: &[Json]) -> Option<Call> {
        let text = text.trim_start().strip_prefix(self.name)?;
        let (name, mut rest) = text.split_at(text.find(['<', '>', '\n']).unwrap_or(text.len()));
        let name = name.trim();
        let tool = tools.iter().find(|tool| name_of(tool) == Some(name));
        let mut arguments = Map::new();
        while let Some((key, behind)) = between(rest, self.key) {
            let (value, behind) = between(behind, self.value)?;
            let kind =
                tool.map_or(&Json::Null, |tool| &tool["function"]["parameters"]["properties"][key]["type"]);
            arguments.insert(key.to_string(), argument(value, kind));
            rest = behind;
        }
        let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
        is_name.then(|| Call { name: name.to_string(), arguments })
    }
}

pub(super) fn name_of(tool: &Json) -> Option<&str> {
    tool["function"]["name"].as_str()
}

/// The first text between two tags, and the rest.
fn between<'t>(text: &'t str, [open, close]: [&str; 2]) -> Option<(&'t str, &'t str)> {
    let (_, rest) = text.split_once(open)?;
    rest.split_once(close)
}

/// Parses an argument. Templates put values on separate lines, and write values other than strings as JSON or as in Python.
fn argument(written: &str, kind: &Json) -> Json {
    let text = written.strip_prefix('\n').unwrap_or(written);
    let text = text.strip_suffix('\n').unwrap_or(text);
    match text.trim() {
        _ if kind == "string" => text.into(),
        "True" => true.into(),
        "False" => false.into(),
        "None" => Json::Null,
        other => serde_json::from_str(other).unwrap_or_else(|_| text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TAGS: CallTags = CallTags {
        name: "<function=",
        key: ["<parameter=", ">"],
        value: ["", "</parameter>"],
        end: "</function>",
    };

    fn read(text: &str) -> Option<Json> {
        let properties = json!({ "text": { "type": "string" }, "list": { "type": "array" }, "flag": { "type": "boolean" } });
        let tools = [json!({ "function": { "name": "f", "parameters": { "properties": properties } } })];
        TAGS.read(text, &tools).map(|call| json!([call.name, call.arguments]))
    }

    #[test]
    fn string_arguments_are_not_parsed() {
        let text =
            "\n<function=f>\n<parameter=text>\n 3 <b>\n\n</parameter>\n<parameter=list>\n[1]\n</parameter>";
        assert_eq!(read(text), Some(json!(["f", { "text": " 3 <b>\n", "list": [1] }])));
        assert_eq!(
            read("<function=f><parameter=flag>False</parameter>"),
            Some(json!(["f", { "flag": false }]))
        );
        assert_eq!(read("<function=g><parameter=x>1</parameter>"), Some(json!(["g", { "x": 1 }])));
        assert_eq!(read("<function=g><parameter=x>a b</parameter>"), Some(json!(["g", { "x": "a b" }])));
        assert_eq!(read("<function=f>\n"), Some(json!(["f", {}])));
    }

    #[test]
    fn invalid_calls_are_not_parsed() {
        for text in ["", "f", "<function=>", "<function=two words>", "<function=f><parameter=a>never ends"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}

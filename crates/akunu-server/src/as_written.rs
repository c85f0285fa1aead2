//! JSON with parts that stay as the model wrote them, because their numbers may have more digits than those of [`Json`].

use serde_json::Value as Json;

/// The text of a value, in which strings in fields of this name are JSON texts that are written as they are.
pub fn text_with(field: &str, value: &Json) -> String {
    let mut text = String::new();
    write(field, value, &mut text);
    text
}

fn write(field: &str, value: &Json, to: &mut String) {
    match value {
        Json::Object(members) => {
            to.push('{');
            for (index, (name, value)) in members.iter().enumerate() {
                if index > 0 {
                    to.push(',');
                }
                to.push_str(&Json::from(name.as_str()).to_string());
                to.push(':');
                match value {
                    Json::String(written) if name == field => to.push_str(written),
                    value => write(field, value, to),
                }
            }
            to.push('}');
        }
        Json::Array(items) => {
            to.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    to.push(',');
                }
                write(field, item, to);
            }
            to.push(']');
        }
        other => to.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_written_as_they_are() {
        let value = json!({ "a": ["input", { "input": "{\"n\": 1e999}", "b": "\"" }, null], "input": { "c": 1.5 }, "d": {} });
        let text = r#"{"a":["input",{"input":{"n": 1e999},"b":"\""},null],"input":{"c":1.5},"d":{}}"#;
        assert_eq!(text_with("input", &value), text);
        assert_eq!(text_with("none", &value), value.to_string());
    }
}

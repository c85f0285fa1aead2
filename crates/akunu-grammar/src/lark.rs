//! Grammars in Lark's syntax: schemas in them are rewritten, and work that the library does not limit is limited.

use serde_json::{Deserializer, Value as Json};

use crate::error::GrammarError;

/// Schemas in one grammar.
const MAX_SCHEMAS: usize = 16;
/// Intersections of regular expressions: each may double the work of one step of the library.
const MAX_INTERSECTIONS: usize = 12;
/// Alternatives: the library compares each with all others.
pub(crate) const MAX_ALTERNATIVES: usize = 10_000;

const SCHEMA: &str = "%json";

/// The grammar with its schemas as `rewrite` returns them.
pub(crate) fn prepare(
    text: &str,
    mut rewrite: impl FnMut(&Json) -> Result<Json, GrammarError>,
) -> Result<String, GrammarError> {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut schemas, mut intersections, mut alternatives) = (text, 0, 0, 0);
    while let Some(first) = rest.chars().next() {
        let token = token(rest, first);
        out.push_str(&rest[..token]);
        rest = &rest[token..];
        match first {
            '%' if token == SCHEMA.len() => {
                let mut values = Deserializer::from_str(rest).into_iter::<Json>();
                let Some(Ok(schema)) = values.next() else {
                    return crate::gbnf::invalid("%json is not followed by a JSON Schema");
                };
                rest = &rest[values.byte_offset()..];
                out.push_str(&format!(" {}", rewrite(&schema)?));
                schemas += 1;
            }
            '&' => intersections += 1,
            '|' => alternatives += 1,
            _ => {}
        }
        for (count, limit, what) in [
            (schemas, MAX_SCHEMAS, "schemas"),
            (intersections, MAX_INTERSECTIONS, "intersections (&)"),
            (alternatives, MAX_ALTERNATIVES, "alternatives"),
        ] {
            if count > limit {
                let reason = format!("it has more than {limit} {what}");
                return Err(GrammarError::TooLarge { what: "grammar", reason });
            }
        }
    }
    Ok(out)
}

/// The length of the string, regular expression, comment, control token or keyword with which a text begins, else of
/// its first character. One without an end takes the rest, which the library refuses.
fn token(text: &str, first: char) -> usize {
    let end = |found: Option<usize>, more: usize| found.map_or(text.len(), |at| at + more);
    match first {
        '"' => quoted(text, b'"'),
        '/' if text.starts_with("//") => end(text.find('\n'), 0),
        '/' => quoted(text, b'/'),
        '#' => end(text.find('\n'), 0),
        '<' => end(text.find('>'), 1),
        '%' if text.starts_with(SCHEMA) => SCHEMA.len(),
        _ => first.len_utf8(),
    }
}

/// The length of what begins and ends with the same character, which `\` escapes in between.
fn quoted(text: &str, quote: u8) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_schemas_are_rewritten() {
        let text = "start: \"%json {}\" /%json \\/{}/ a // %json {}\n# %json {}\na: <%json> %json {\"a\": \"}\"} \"b\"";
        let mut seen = Vec::new();
        let out = prepare(text, |schema| {
            seen.push(schema.clone());
            Ok(json!("rewritten"))
        });
        assert_eq!(seen, [json!({ "a": "}" })]);
        assert_eq!(out, Ok(text.replace("%json {\"a\": \"}\"}", "%json \"rewritten\"")));
    }

    #[test]
    fn what_doubles_the_work_is_limited() {
        let is_refused =
            |text: &str| matches!(prepare(text, |_| Ok(json!(true))), Err(GrammarError::TooLarge { .. }));
        assert!(is_refused(&format!("start: T\nT: {}/a/", "/a/ & ".repeat(13))));
        assert!(is_refused(&format!("start: {}\"a\"", "\"a\" | ".repeat(10_001))));
        assert!(is_refused(&"start: %json {}\n".repeat(17)));
        assert!(is_refused(&format!("start: <\"> {} <\">", "/a/ & ".repeat(13))));
        assert!(!is_refused("start: \"&&&&&&&&&&&&&&&&&&&&\" /&&&&&&&&&&&&&&&&&&&&/"));
    }
}

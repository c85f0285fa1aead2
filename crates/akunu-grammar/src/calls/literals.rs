//! Arguments as literals: `key=value, …`.

use serde_json::Value as Json;

use super::properties::{ANNOTATIONS, Member, is_any_boolean, is_definition, members};
use super::writer::Writer;
use super::{CallLiterals, WHAT};
use crate::error::GrammarError;
use crate::format::{escaped, quoted};

/// Schemas within others that are held. Values in deeper ones may be any.
const DEEPEST: usize = 16;

/// The rules of any value.
pub(super) fn rules(form: &CallLiterals) -> String {
    let CallLiterals { assign, separator, quote, .. } = *form;
    let (assign, separator) = (quoted(assign), quoted(separator));
    let member = format!("literal_key {assign} literal");
    let mut rules = format!(
        "literal_key: /[A-Za-z0-9_.-]{{1,64}}/\n\
         members: ({member} ({separator} {member})*)?\n\
         list: \"[\" (literal ({separator} literal)*)? \"]\"\n\
         number: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/\n"
    );
    rules += &match quote {
        Some(quote) => format!(
            "text_end[lazy]: /(?s:.*){}/\ntext: {} text_end\n\
             literal: text | number | \"true\" | \"false\" | \"null\" | list | \"{{\" members \"}}\"\n",
            escaped(quote),
            quoted(quote)
        ),
        None => "text: /\"([^\"\\\\\\n]|\\\\[^\\n])*\"/\n\
                 dict: \"{\" (text \":\" \" \"? literal (\",\" \" \"? text \":\" \" \"? literal)*)? \"}\"\n\
                 literal: text | number | \"True\" | \"False\" | \"None\" | list | dict\n"
            .into(),
    };
    rules
}

impl Writer<'_, '_> {
    pub(super) fn literals(&mut self, form: &CallLiterals) -> Result<String, GrammarError> {
        match self.tool.parameters.clone() {
            None => Ok("members".into()),
            Some(schema) => self.object(form, &schema, 0),
        }
    }

    /// A rule of its own for an expression.
    fn rule(&mut self, expression: &str) -> String {
        let name = format!("part{}x{}", self.index, self.count);
        self.count += 1;
        *self.rules += &format!("{name}: {expression}\n");
        name
    }

    /// The members of an object in the order of the schema, between its brackets.
    fn object(&mut self, form: &CallLiterals, schema: &Json, depth: usize) -> Result<String, GrammarError> {
        let Some(mut all) = members(schema) else { return self.not_held("members") };
        if form.is_sorted {
            // As templates sort them.
            all.sort_by_key(|member| member.name.to_lowercase());
        }
        if all.is_empty() {
            let is_closed = schema["additionalProperties"] == false;
            return Ok(if is_closed { "" } else { "members" }.into());
        }
        let separator = quoted(form.separator);
        let mut written = Vec::with_capacity(all.len());
        for Member { name, is_required, schema } in &all {
            let value = self.value(form, schema, depth + 1)?;
            let member = self.rule(&format!("{} {value}", quoted(&format!("{name}{}", form.assign))));
            written.push((member, *is_required));
        }
        // From the last on: what may follow a member, and what may begin there.
        let (mut next, mut first) = (String::new(), None::<String>);
        for (member, is_required) in written.iter().rev() {
            let from_here = format!("{member} {next}");
            first = Some(match first {
                Some(later) if !is_required => format!("{from_here} | {later}"),
                _ => from_here,
            });
            let optional = if *is_required { "" } else { "?" };
            next = self.rule(&format!("({separator} {member}){optional} {next}"));
        }
        let all_optional = written.iter().all(|(_, is_required)| !is_required);
        let first = self.rule(&first.unwrap_or_default());
        Ok(if all_optional { format!("{first}?") } else { first })
    }

    fn value(&mut self, form: &CallLiterals, schema: &Json, depth: usize) -> Result<String, GrammarError> {
        if depth > DEEPEST {
            return self.not_held("literal");
        }
        let Some(quote) = form.quote else {
            let value = self.json_value(schema)?;
            let python = match schema["type"].as_str() {
                _ if is_any_boolean(schema) => " | \"True\" | \"False\"",
                Some("null") => " | \"None\"",
                _ => "",
            };
            return Ok(format!("({value}{python})"));
        };
        let Some(fields) = schema.as_object() else { return Ok("literal".into()) };
        if let Some(place) = fields.get("$ref").and_then(Json::as_str) {
            let root = self.tool.parameters.as_ref().filter(|_| is_definition(place));
            let found = root.and_then(|root| root.pointer(&place[1..])).cloned();
            return match found {
                Some(schema) => self.value(form, &schema, depth + 1),
                None => self.not_held("literal"),
            };
        }
        let has_only = |allowed: &[&str]| {
            let known = |key: &str| key == "type" || ANNOTATIONS.contains(&key) || allowed.contains(&key);
            fields.keys().all(|key| known(key))
        };
        if fields.keys().all(|key| ANNOTATIONS.contains(&key.as_str())) {
            return Ok("literal".into());
        }
        let choices = match (fields.get("enum"), fields.get("const")) {
            (Some(Json::Array(all)), None) => Some(all.clone()),
            (None, Some(only)) => Some(vec![only.clone()]),
            _ => None,
        };
        if let Some(choices) = choices.filter(|all| has_only(&["enum", "const"]) && !all.is_empty()) {
            let written: Option<Vec<String>> = choices.iter().map(|value| literal(quote, value)).collect();
            return match written {
                Some(all) => Ok(format!("({})", all.join(" | "))),
                None => self.not_held("literal"),
            };
        }
        // Alternatives, such as a string or null.
        let alternatives = match (fields.get("anyOf"), fields.get("type")) {
            (Some(Json::Array(all)), None) if has_only(&["anyOf"]) => all.clone(),
            (None, Some(Json::Array(all))) if has_only(&[]) => {
                all.iter().map(|of| serde_json::json!({ "type": of })).collect()
            }
            _ => Vec::new(),
        };
        if !alternatives.is_empty() {
            let written: Result<Vec<String>, GrammarError> =
                alternatives.iter().map(|schema| self.value(form, schema, depth + 1)).collect();
            return Ok(self.rule(&written?.join(" | ")));
        }
        match fields.get("type").and_then(Json::as_str) {
            Some("string") if has_only(&[]) => Ok("text".into()),
            Some("integer" | "number" | "boolean" | "null") => self.json_value(schema),
            Some("array") => {
                if !has_only(&["items", "minItems", "maxItems"]) {
                    self.not_held("")?;
                }
                let item = match fields.get("items") {
                    Some(items) => self.value(form, items, depth + 1)?,
                    None => "literal".into(),
                };
                let count = |name: &str| fields.get(name).and_then(Json::as_u64);
                let list =
                    list(&item, &quoted(form.separator), count("minItems").unwrap_or(0), count("maxItems"));
                Ok(self.rule(&format!("\"[\" {list} \"]\"")))
            }
            Some("object") if members(schema).is_some() => {
                let inner = self.object(form, schema, depth + 1)?;
                Ok(self.rule(&format!("\"{{\" {inner} \"}}\"")))
            }
            Some("object") => self.not_held("\"{\" members \"}\""),
            Some("string") => self.not_held("text"),
            _ => self.not_held("literal"),
        }
    }

    /// A rule in the place of a schema that cannot be held, unless the tool is strict.
    fn not_held(&self, instead: &str) -> Result<String, GrammarError> {
        match self.tool.is_strict {
            false => Ok(instead.into()),
            true => Err(GrammarError::Invalid {
                what: WHAT,
                reason: "the model's format of calls can hold objects, lists, numbers and strings without constraints \
                         only"
                    .into(),
            }),
        }
    }
}

/// Items between separators.
fn list(item: &str, separator: &str, least: u64, most: Option<u64>) -> String {
    let more = match (least.saturating_sub(1), most.map(|most| most.saturating_sub(1))) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("({separator} {item})*"),
        (from, None) => format!("({separator} {item}){{{from},}}"),
        (from, Some(to)) => format!("({separator} {item}){{{from},{to}}}"),
    };
    match (least, most) {
        (_, Some(0)) => String::new(),
        (0, _) => format!("({item} {more})?"),
        _ => format!("{item} {more}"),
    }
}

/// A value without members as a literal of Lark.
fn literal(quote: &str, value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(quoted(&format!("{quote}{text}{quote}"))),
        Json::Array(_) | Json::Object(_) => None,
        other => Some(quoted(&other.to_string())),
    }
}

//! Arguments as literals: `key=value, …`.

use serde_json::Value as Json;

use super::properties::{ANNOTATIONS, Member, is_any_boolean, is_definition, members};
use super::writer::Writer;
use super::{CallLiterals, WHAT};
use crate::error::GrammarError;
use crate::format::{escaped, quoted};

/// Schemas within others that are held. Values in deeper ones may be any.
const DEEPEST: usize = 16;

/// An escape sequence in a string of Python that means a character, or a backslash.
const ESCAPE: &str =
    "\\\\([^\\nxuU]|x[0-9a-fA-F]{2}|u[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|u[dD][0-7][0-9a-fA-F]{2})";

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
        None => format!(
            "text: /\"([^\"\\\\\\n]|{ESCAPE})*\"|'([^'\\\\\\n]|{ESCAPE})*'/\n\
             entry: text gap? \":\" gap? literal\n\
             entries: (entry (gap? \",\" gap? entry)*)?\n\
             dict: \"{{\" gap? entries gap? \"}}\"\n\
             literal: text | number | \"True\" | \"False\" | \"None\" | list | dict\n"
        ),
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
        // The values in a dictionary of Python have names in quotation marks.
        let is_dict = depth > 0 && form.quote.is_none();
        let Some(mut all) = members(schema) else { return self.not_held("members") };
        if form.is_sorted {
            // As templates sort them.
            all.sort_by_key(|member| member.name.to_lowercase());
        }
        if all.is_empty() {
            let is_closed = schema["additionalProperties"] == false;
            let any = if is_dict { "entries" } else { "members" };
            return Ok(if is_closed { "" } else { any }.into());
        }
        let separator = if is_dict { "gap? \",\" gap?".into() } else { quoted(form.separator) };
        let mut written = Vec::with_capacity(all.len());
        for Member { name, is_required, schema } in &all {
            let value = self.value(form, schema, depth + 1)?;
            let key = match is_dict {
                true => {
                    let [double, single] = ['"', '\''].map(|quote| quoted(&format!("{quote}{name}{quote}")));
                    format!("({double} | {single}) gap? \":\" gap?")
                }
                false => quoted(&format!("{name}{}", form.assign)),
            };
            let member = self.rule(&format!("{key} {value}"));
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
            return self.otherwise(form, schema, "literal");
        }
        let Some(fields) = schema.as_object() else { return Ok("literal".into()) };
        if let Some(place) = fields.get("$ref").and_then(Json::as_str) {
            let root = self.tool.parameters.as_ref().filter(|_| is_definition(place));
            let found = root.and_then(|root| root.pointer(&place[1..])).cloned();
            return match found {
                Some(schema) => self.value(form, &schema, depth + 1),
                None => self.otherwise(form, schema, "literal"),
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
            let written: Option<Vec<String>> =
                choices.iter().map(|value| literal(form.quote, value)).collect();
            return match written {
                Some(all) => Ok(format!("({})", all.join(" | "))),
                None => self.otherwise(form, schema, "literal"),
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
            Some("integer" | "number" | "boolean" | "null") => {
                let value = self.json_value(schema)?;
                let python = match fields.get("type").and_then(Json::as_str) {
                    _ if form.quote.is_some() => "",
                    _ if is_any_boolean(schema) => " | \"True\" | \"False\"",
                    Some("null") => " | \"None\"",
                    _ => "",
                };
                Ok(format!("({value}{python})"))
            }
            Some("array") => {
                if !has_only(&["items", "minItems", "maxItems"]) {
                    if form.quote.is_none() {
                        return self.json_value(schema);
                    }
                    self.not_held("")?;
                }
                let item = match fields.get("items") {
                    Some(items) => self.value(form, items, depth + 1)?,
                    None => "literal".into(),
                };
                let count = |name: &str| fields.get(name).and_then(Json::as_u64);
                let (separator, gap) = match form.quote {
                    Some(_) => (quoted(form.separator), ""),
                    None => ("gap? \",\" gap?".into(), "gap?"),
                };
                let list = list(&item, &separator, count("minItems").unwrap_or(0), count("maxItems"));
                Ok(self.rule(&format!("\"[\" {gap} {list} {gap} \"]\"")))
            }
            Some("object") if members(schema).is_some() => {
                let inner = self.object(form, schema, depth + 1)?;
                let gap = if form.quote.is_none() { "gap?" } else { "" };
                Ok(self.rule(&format!("\"{{\" {gap} {inner} {gap} \"}}\"")))
            }
            Some("object") => self.otherwise(form, schema, "\"{\" members \"}\""),
            Some("string") => self.otherwise(form, schema, "text"),
            _ => self.otherwise(form, schema, "literal"),
        }
    }

    /// A schema that the literals of a form cannot hold: as JSON, which those of Python include but for three words.
    fn otherwise(
        &mut self,
        form: &CallLiterals,
        schema: &Json,
        instead: &str,
    ) -> Result<String, GrammarError> {
        if form.quote.is_none() { self.json_value(schema) } else { self.not_held(instead) }
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
fn literal(quote: Option<&str>, value: &Json) -> Option<String> {
    match (value, quote) {
        (Json::String(text), Some(quote)) => Some(quoted(&format!("{quote}{text}{quote}"))),
        (Json::String(text), None) => {
            let double = quoted(&value.to_string());
            let is_plain = !text.contains(['\'', '\\']) && !text.contains(char::is_control);
            Some(if is_plain { format!("{double} | {}", quoted(&format!("'{text}'"))) } else { double })
        }
        (Json::Array(_) | Json::Object(_), _) => None,
        (Json::Bool(true), None) => Some("\"true\" | \"True\"".into()),
        (Json::Bool(false), None) => Some("\"false\" | \"False\"".into()),
        (Json::Null, None) => Some("\"null\" | \"None\"".into()),
        (other, _) => Some(quoted(&other.to_string())),
    }
}

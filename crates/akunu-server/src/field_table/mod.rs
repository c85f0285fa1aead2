//! The fields of requests: what is done with each, for every route that takes more than a name.
//!
//! Handlers refuse unsupported fields by these tables, `docs/server-fields.md` is written from them, and a
//! test sends a request for each row.

mod anthropic;
mod audio;
mod ollama;
mod ollama_models;
mod openai;
mod page;
mod texts;
mod tools;

use std::borrow::Cow;

use axum::http::HeaderValue;
use axum::response::Response;
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::form::Form;
use crate::job::Running;
use crate::record;
use crate::refusal::Refusal;
pub(crate) use anthropic::{COUNT_TOKENS, MESSAGES};
pub(crate) use audio::AUDIO;
pub(crate) use ollama::{
    CHAT as OLLAMA_CHAT, EMBED as OLLAMA_EMBED, EMBEDDINGS as OLLAMA_EMBEDDINGS, GENERATE,
};
pub(crate) use ollama_models::{COPY, CREATE, DELETE, PULL, SHOW};
pub(crate) use openai::{CHAT, COMPLETIONS, EMBEDDINGS, INFILL, RESPONSES};
pub use page::page;
pub(crate) use texts::{RERANK, TEI_EMBED, TEI_RERANK};
pub(crate) use tools::{
    APPLY_TEMPLATE, DETOKENIZE, INPUT_ITEMS, MCP_CALL, MODEL_FACTS, RESPONSE, SLOTS, SLOTS_LIST, SLOTS_QUERY,
    TOKENIZE,
};

/// All routes with tables, in the order of the page.
pub const ROUTES: &[&Route] = &[
    &CHAT,
    &COMPLETIONS,
    &INFILL,
    &RESPONSES,
    &EMBEDDINGS,
    &RERANK,
    &TEI_EMBED,
    &TEI_RERANK,
    &MESSAGES,
    &COUNT_TOKENS,
    &GENERATE,
    &OLLAMA_CHAT,
    &OLLAMA_EMBED,
    &OLLAMA_EMBEDDINGS,
    &SHOW,
    &CREATE,
    &COPY,
    &DELETE,
    &PULL,
    &AUDIO,
    &TOKENIZE,
    &DETOKENIZE,
    &APPLY_TEMPLATE,
    &SLOTS,
    &SLOTS_QUERY,
    &MODEL_FACTS,
    &SLOTS_LIST,
    &RESPONSE,
    &INPUT_ITEMS,
    &MCP_CALL,
];

/// What is done with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It has its effect, and a value of a wrong type is refused.
    Done,
    /// It has no effect, and its value is not looked at.
    Ignored,
    /// It has no effect, and the response's header [`WARNINGS`] names it.
    Warned,
    /// It is refused, unless its value asks for nothing.
    Refused,
}

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name; that of a field within an object has a dot, such as `stream_options.include_usage`.
    pub name: &'static str,
    pub status: Status,
    /// An example of a value, as JSON.
    pub example: &'static str,
    /// Fields of a request that the example needs, as the inside of a JSON object.
    pub with: &'static str,
    /// A JSON list of values that ask for nothing and are accepted although the field is refused; empty:
    /// false, and the empty text and list.
    pub unless: &'static str,
    /// A wrong value is refused although the field has no effect.
    pub is_checked: bool,
    /// What it does, why it is ignored, or what to do instead.
    pub what: &'static str,
}

const fn field(name: &'static str, status: Status, example: &'static str, what: &'static str) -> Field {
    Field { name, status, example, with: "", unless: "", is_checked: false, what }
}

const fn done(name: &'static str, example: &'static str, what: &'static str) -> Field {
    field(name, Status::Done, example, what)
}

const fn ignored(name: &'static str, example: &'static str, why: &'static str) -> Field {
    field(name, Status::Ignored, example, why)
}

const fn warned(name: &'static str, example: &'static str, why: &'static str) -> Field {
    field(name, Status::Warned, example, why)
}

const fn refused(name: &'static str, example: &'static str, advice: &'static str) -> Field {
    field(name, Status::Refused, example, advice)
}

impl Field {
    const fn with(mut self, with: &'static str) -> Field {
        self.with = with;
        self
    }

    const fn unless(mut self, unless: &'static str) -> Field {
        self.unless = unless;
        self
    }

    const fn checked(mut self) -> Field {
        self.is_checked = true;
        self
    }

    /// Whether a value asks for nothing.
    fn is_off(&self, value: &Json) -> bool {
        if self.unless.is_empty() {
            return match value {
                Json::Null => true,
                Json::Bool(flag) => !flag,
                Json::String(text) => text.is_empty(),
                Json::Array(list) => list.is_empty(),
                Json::Object(_) | Json::Number(_) => false,
            };
        }
        let unless: Json = serde_json::from_str(self.unless).unwrap_or_default();
        let is_same = |other: &Json| match (value.as_f64(), other.as_f64()) {
            (Some(number), Some(other)) => number == other,
            _ => value == other,
        };
        value.is_null() || unless.as_array().is_some_and(|list| list.iter().any(is_same))
    }

    fn refusal(&self) -> Refusal {
        let Field { name, what, .. } = self;
        Refusal::invalid(format!("'{name}' is not supported: {what}"))
            .param(*name)
            .code("unsupported_parameter")
    }
}

/// Fields that several routes may have in common, under a title.
#[derive(Debug)]
pub struct Group {
    pub title: &'static str,
    pub fields: &'static [Field],
}

/// A route, and the fields of its requests. No field is in two of its groups.
#[derive(Debug)]
pub struct Route {
    /// Paths with the same fields.
    pub paths: &'static [&'static str],
    pub groups: &'static [&'static Group],
    /// Beginnings of names of which only those in the table are known: a misspelt one would leave an answer
    /// unconstrained.
    pub closed: &'static [&'static str],
    pub method: &'static str,
    /// Requests are forms, and not JSON.
    pub is_form: bool,
    /// The fields are parameters in the query.
    pub is_query: bool,
    /// Objects of which fields that are not in the table have no effect, and are told as such.
    pub told: &'static [&'static str],
}

/// A route of JSON without fields.
const POST: Route = Route {
    paths: &[],
    groups: &[],
    closed: &[],
    method: "POST",
    is_form: false,
    is_query: false,
    told: &[],
};

/// A route that has parameters in its query, without them.
const GET: Route = Route { method: "GET", is_query: true, ..POST };

/// The header of a response that is not as its client may expect: it names fields without effect, and parts
/// of a transcript that were left out.
pub const WARNINGS: &str = "x-akunu-warnings";

/// The longest name of an unknown field that a warning has, and the most of them.
const LONGEST_NAME: usize = 40;
const MOST_NAMED: usize = 8;

/// What a request's sender may not expect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    /// Fields without effect.
    ignored: Vec<Cow<'static, str>>,
    /// Of what is done in another way.
    notes: Vec<&'static str>,
}

impl Warnings {
    /// Adds what has no effect.
    pub(crate) fn ignores(&mut self, what: impl Into<Cow<'static, str>>) {
        self.ignored.push(what.into());
    }

    /// Adds the fields of an object that are in no table. Names that no field could have, and more than a header should
    /// have, are counted.
    fn ignores_unknown(&mut self, object: &str, unknown: &[&str]) {
        let is_word = |name: &&&str| {
            (1..=LONGEST_NAME).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        };
        let named: Vec<String> =
            unknown.iter().filter(is_word).take(MOST_NAMED).map(|name| format!("{object}.{name}")).collect();
        let others = unknown.len() - named.len();
        self.ignored.extend(named.into_iter().map(Cow::Owned));
        self.ignored.extend((others > 0).then(|| format!("{others} more of '{object}'").into()));
    }

    /// Adds the header to a response.
    pub(crate) fn on(&self, mut response: Response) -> Response {
        let ignored = (!self.ignored.is_empty()).then(|| format!("ignored: {}", self.ignored.join(", ")));
        let all: Vec<String> =
            ignored.into_iter().chain(self.notes.iter().map(ToString::to_string)).collect();
        let all = all.join("; ");
        if let (false, Ok(value)) = (all.is_empty(), HeaderValue::from_str(&all)) {
            record::note(|record| record.warns(&all));
            response.headers_mut().insert(WARNINGS, value);
        }
        response
    }

    /// Adds what the answer to a request does in another way.
    pub(crate) fn of(mut self, running: &Running) -> Warnings {
        for (note, applies) in [
            (
                "tools are described in the system message, because the model's template does not write them",
                running.tools_are_text,
            ),
            (
                "reasoning is as without the request's setting, for which the model's template has no variable",
                running.ignores_reasoning,
            ),
        ] {
            self.notes.extend(applies.then_some(note));
        }
        self
    }
}

impl Route {
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> + use<'_> {
        self.groups.iter().flat_map(|group| group.fields)
    }

    /// Refuses fields that are not supported, and lists those without effect that are worth a warning.
    pub(crate) fn check(&self, fields: &Fields<'_>) -> Result<Warnings, Refusal> {
        let mut warnings = Warnings::default();
        for field in self.fields() {
            match field.status {
                Status::Done | Status::Ignored => {}
                Status::Warned if fields.at(field.name).is_some_and(|value| !field.is_off(value)) => {
                    warnings.ignores(field.name);
                }
                Status::Refused if fields.at(field.name).is_some_and(|value| !field.is_off(value)) => {
                    return Err(field.refusal());
                }
                Status::Warned | Status::Refused => {}
            }
        }
        for beginning in self.closed {
            self.check_closed(fields, beginning)?;
        }
        for object in self.told {
            let is_known =
                |name: &str| self.fields().any(|field| field.name.split_once('.') == Some((*object, name)));
            let unknown: Vec<&str> = fields.names(object).filter(|name| !is_known(name)).collect();
            warnings.ignores_unknown(object, &unknown);
        }
        Ok(warnings)
    }

    /// Refuses fields of a form that are not supported.
    pub(crate) fn check_form(&self, form: &Form) -> Result<(), Refusal> {
        let refused = |field: &&Field| field.status == Status::Refused && form.has(field.name);
        self.fields().find(refused).map_or(Ok(()), |field| Err(field.refusal()))
    }

    fn check_closed(&self, fields: &Fields<'_>, beginning: &str) -> Result<(), Refusal> {
        let (object, prefix) = beginning.rsplit_once('.').unwrap_or(("", beginning));
        let is_known = |name: &str| self.fields().any(|field| field.name == name);
        for name in fields.names(object).filter(|name| name.starts_with(prefix)) {
            let whole = if object.is_empty() { name.to_string() } else { format!("{object}.{name}") };
            if !is_known(&whole) {
                let known: Vec<&str> = self
                    .fields()
                    .filter(|field| field.status == Status::Done && field.name.starts_with(beginning))
                    .map(|field| field.name)
                    .collect();
                let message = format!("'{whole}' is not known; there are {}", known.join(", "));
                return Err(Refusal::invalid(message).param(whole).code("unknown_parameter"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rows_are_valid_json_and_there_once() {
        for route in ROUTES {
            let mut names = HashSet::new();
            for field in route.fields() {
                let place = format!("{}: {}", route.paths[0], field.name);
                assert!(names.insert(field.name), "{place} is there twice");
                let example: Json = serde_json::from_str(field.example).expect(&place);
                let with: Json = serde_json::from_str(&format!("{{{}}}", field.with)).expect(&place);
                assert!(with.is_object() && !field.what.contains('|'), "{place}");
                if !field.unless.is_empty() {
                    assert!(serde_json::from_str::<Vec<Json>>(field.unless).is_ok(), "{place}");
                }
                let is_checked = matches!(field.status, Status::Refused | Status::Warned);
                assert!(!is_checked || !field.is_off(&example), "{place}");
            }
        }
    }

    #[test]
    fn a_value_that_asks_for_nothing_is_accepted() {
        let check = |body: Json| CHAT.check(&Fields::new(&body)?).map(|warnings| warnings.ignored);
        for body in [
            serde_json::json!({ "functions": [], "audio": null, "min_tokens": 0, "modalities": ["text"] }),
            serde_json::json!({ "length_penalty": 1.0, "skip_special_tokens": true, "unknown": 1 }),
        ] {
            assert_eq!(check(body.clone()).unwrap(), Vec::<&str>::new(), "{body}");
        }
        let prediction = serde_json::json!({ "prediction": { "type": "content", "content": "a" } });
        assert_eq!(check(prediction).unwrap(), ["prediction"]);
        for (body, param) in [
            (serde_json::json!({ "skip_special_tokens": false }), "skip_special_tokens"),
            (serde_json::json!({ "modalities": ["text", "audio"] }), "modalities"),
            (
                serde_json::json!({ "stream_options": { "include_obfuscation": true } }),
                "stream_options.include_obfuscation",
            ),
            (serde_json::json!({ "guided_jsn": {} }), "guided_jsn"),
            (serde_json::json!({ "structured_outputs": { "regexp": "a" } }), "structured_outputs.regexp"),
        ] {
            assert_eq!(check(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}

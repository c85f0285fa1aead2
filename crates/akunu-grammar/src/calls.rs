//! Calls of tools in an answer, as a family of models writes them.
//!
//! What a family writes is data ([`CallForm`]), from which the rules of a grammar are made: once the mark of a call has been
//! generated, only calls of the given tools can follow it, with arguments that conform to their schemas.

use serde_json::{Value as Json, json};

use crate::error::GrammarError;
use crate::format::{Parts, Reasoning, ResponseFormat, Tool, escaped, quoted};

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// What may be around all calls of an answer.
    pub section: [&'static str; 2],
    /// Precedes a call, or a list of calls.
    pub open: &'static str,
    /// A call.
    pub call: &'static [CallPart],
    /// Calls are the elements of a JSON array.
    pub is_list: bool,
    /// Follows a call, or a list of calls.
    pub close: &'static str,
    /// The answer may also start with a call without `open`.
    pub is_bare: bool,
}

/// A part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPart {
    Text(&'static str),
    /// One of these texts, of which the last may be empty.
    OneOf(&'static [&'static str]),
    /// Parts that may be left out.
    Maybe(&'static [CallPart]),
    /// White space that may be left out.
    Gap,
    /// The tool's name.
    Name,
    /// The tool's name as a JSON string.
    QuotedName,
    /// The arguments as a JSON object.
    Arguments,
    /// The arguments between tags.
    Tagged(CallTags),
    /// A number of at most three digits.
    Number,
    /// Letters, digits, `_` and `-`.
    Id,
}

impl CallPart {
    fn tags(&self) -> Option<&CallTags> {
        if let CallPart::Tagged(tags) = self { Some(tags) } else { None }
    }
}

/// How each argument is written between tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTags {
    /// Around the name of an argument.
    pub key: [&'static str; 2],
    /// Around its value.
    pub value: [&'static str; 2],
    /// What follows the name of a string, and of any other value, if the second text of `key` does not.
    pub kinds: Option<[&'static str; 2]>,
}

/// `{"name": …, "arguments": …}`.
pub const NAME_AND_ARGUMENTS: &[CallPart] = &[
    CallPart::Text("{"),
    CallPart::Gap,
    CallPart::Text("\"name\":"),
    CallPart::Gap,
    CallPart::QuotedName,
    CallPart::Text(","),
    CallPart::Gap,
    CallPart::Text("\"arguments\":"),
    CallPart::Gap,
    CallPart::Arguments,
    CallPart::Gap,
    CallPart::Text("}"),
];

/// An answer with calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    pub form: CallForm,
    pub tools: Vec<Tool>,
    /// There is at most one call.
    pub is_single: bool,
    pub without: WithoutCalls,
}

/// What an answer without calls may be.
#[derive(Clone, Debug, PartialEq)]
pub enum WithoutCalls {
    /// Any text, which may also be before and after calls.
    Text,
    /// A text of this format.
    Format(Box<ResponseFormat>),
    /// There must be a call.
    Refused,
}

impl Calls {
    /// Allows any object as the arguments of tools that are not strict. False: it did already.
    pub fn relax(&mut self) -> bool {
        let held = self.tools.iter_mut().filter(|tool| !tool.is_strict && tool.parameters.is_some());
        held.map(|tool| tool.parameters = None).count() > 0
    }

    /// The rules of the whole text for calls in any text.
    pub(crate) fn in_text(
        &self,
        before: Option<&Reasoning>,
        parts: &mut Parts<'_>,
    ) -> Result<String, GrammarError> {
        let mut rules = self.rules(parts)?;
        let next = if self.is_single { "" } else { " rest" };
        let mut rest = format!("rest: TEXT? | opened calls{next}");
        if let Some(Reasoning { open, .. }) = before.filter(|reasoning| reasoning.anywhere) {
            rest += " | reasons thought rest";
            rules += &format!("reasons[lazy]: /(?s:.*){}/\n", escaped(open));
        }
        let mut first = "first: rest".to_string();
        if self.form.is_bare {
            let again = if self.is_single { "" } else { " first" };
            for (index, tool) in self.tools.iter().enumerate() {
                first += &format!(" | bare{index} rest{index}{again}");
                rules += &format!("bare{index}[lazy]: /{}/\n", self.bare_begin(tool));
            }
        }
        let start = match before {
            None => "first",
            Some(Reasoning { is_open: true, .. }) => "thought first",
            Some(Reasoning { anywhere: true, .. }) => "first",
            Some(Reasoning { open, .. }) => {
                rules += &format!("begins[lazy]: /\\s*{}/\n", escaped(open));
                "begins thought first | first"
            }
        };
        if let Some(Reasoning { close, .. }) = before {
            rules += &format!("thought[lazy]: /(?s:.*){}/\n", escaped(close));
        }
        rules += &format!("opened[lazy]: /(?s:.*){}/\nTEXT: /(?s:.+)/\n", escaped(self.form.open));
        Ok(format!("start: {start}\n{first}\n{rest}\n{rules}"))
    }

    /// Adds the rules of calls to `rules`, and returns the expression of an answer that is calls, or of the other format.
    pub(crate) fn alone(&self, rules: &mut String, parts: &mut Parts<'_>) -> Result<String, GrammarError> {
        let CallForm { section, open, is_bare, .. } = self.form;
        *rules += &self.rules(parts)?;
        let marked = format!("{} gap? calls", quoted(open));
        let begin = if is_bare { format!("({} gap?)? calls", quoted(open)) } else { marked.clone() };
        let more = match (self.is_single, is_bare) {
            (true, _) => String::new(),
            (false, true) => " (/;? ?/ calls)*".to_string(),
            (false, false) => format!(" (gap? {marked})*"),
        };
        let around = |text: &str, gap: [&str; 2]| match text {
            "" => String::new(),
            text => format!("({}{}{})?", gap[0], quoted(text), gap[1]),
        };
        let (before, after) = (around(section[0], ["", " gap?"]), around(section[1], ["gap? ", ""]));
        let calls = format!("{before} {begin}{more} {after}");
        match &self.without {
            WithoutCalls::Format(format) => Ok(format!("{calls} | {}", format.answer(parts)?)),
            WithoutCalls::Text | WithoutCalls::Refused => Ok(calls),
        }
    }

    /// The rule `calls`, of what follows the mark.
    fn rules(&self, parts: &mut Parts<'_>) -> Result<String, GrammarError> {
        if self.tools.is_empty() {
            return Err(GrammarError::Invalid { what: WHAT, reason: "there are no tools to call".into() });
        }
        let CallForm { call, close, is_list, .. } = self.form;
        let mut rules = String::new();
        if let Some(tags) = call.iter().find_map(CallPart::tags) {
            rules += &format!("any_text[lazy]: /(?s:.*){}/\n", escaped(tags.value[1]));
        }
        for (index, tool) in self.tools.iter().enumerate() {
            let mut writer = Writer { tool, index, parts, arguments: None, rules: &mut rules };
            let whole = writer.call(call)?;
            let behind =
                if self.form.is_bare { writer.expression(&call[name_end(call)..])? } else { String::new() };
            rules += &format!("tool{index}: {whole}\n");
            if self.form.is_bare {
                rules += &format!("rest{index}: {behind}\n");
            }
        }
        let any: Vec<String> = (0..self.tools.len()).map(|index| format!("tool{index}")).collect();
        let close = if close.is_empty() { String::new() } else { format!(" gap? {}", quoted(close)) };
        let more = if self.is_single { "" } else { " (\",\" gap? tool)*" };
        let calls = match is_list {
            true => format!("gap? \"[\" gap? tool{more} gap? \"]\""),
            false => "gap? tool".into(),
        };
        Ok(format!("calls: {calls}{close}\ntool: {}\n{rules}", any.join(" | ")))
    }

    /// The beginning of a call without a mark, up to its name, as a regular expression.
    fn bare_begin(&self, tool: &Tool) -> String {
        let call = self.form.call;
        let regexes = call[..name_end(call)].iter().map(|part| match part {
            CallPart::Text(text) => escaped(text),
            CallPart::QuotedName => escaped(&json_name(tool)),
            _ => "\\s{0,2}".into(),
        });
        format!("[;\\s]{{0,8}}{}", regexes.collect::<String>())
    }
}

pub(crate) const WHAT: &str = "schema of a tool's arguments";

/// The number of parts up to the tool's name.
fn name_end(call: &[CallPart]) -> usize {
    call.iter().position(|part| *part == CallPart::QuotedName).map_or(0, |at| at + 1)
}

fn json_name(tool: &Tool) -> String {
    Json::from(tool.name.as_str()).to_string()
}

/// Writes the call of a tool as an expression of Lark.
struct Writer<'w, 'p> {
    tool: &'w Tool,
    index: usize,
    parts: &'w mut Parts<'p>,
    /// The reference to the grammar of the arguments.
    arguments: Option<String>,
    rules: &'w mut String,
}

impl Writer<'_, '_> {
    /// Arguments whose schema cannot be held between tags are JSON, which the readers of such calls take too.
    fn call(&mut self, call: &[CallPart]) -> Result<String, GrammarError> {
        let is_tagged = call.iter().any(|part| part.tags().is_some());
        let is_plain = || self.tool.parameters.as_ref().is_none_or(|schema| properties(schema).is_some());
        if is_tagged && !is_plain() { self.expression(NAME_AND_ARGUMENTS) } else { self.expression(call) }
    }

    fn expression(&mut self, call: &[CallPart]) -> Result<String, GrammarError> {
        let mut expression = Vec::new();
        // Adjacent texts are one, because the lexer takes the longest: a name may begin with another.
        let mut literal = String::new();
        for part in call {
            let expressed = match part {
                CallPart::Text(text) => {
                    literal += text;
                    continue;
                }
                CallPart::Name => {
                    literal += &self.tool.name;
                    continue;
                }
                CallPart::QuotedName => {
                    literal += &json_name(self.tool);
                    continue;
                }
                CallPart::OneOf(texts) => {
                    let some = texts.iter().filter(|text| !text.is_empty()).map(|text| quoted(text));
                    let optional = if texts.contains(&"") { "?" } else { "" };
                    format!("({}){optional}", some.collect::<Vec<_>>().join(" | "))
                }
                CallPart::Maybe(parts) => format!("({})?", self.expression(parts)?),
                CallPart::Gap => "gap?".to_string(),
                CallPart::Arguments => self.arguments()?,
                CallPart::Number => "/[0-9]{1,3}/".into(),
                CallPart::Id => "/[A-Za-z0-9_-]{1,64}/".into(),
                CallPart::Tagged(tags) => self.tagged(tags)?,
            };
            if !literal.is_empty() {
                expression.push(quoted(&std::mem::take(&mut literal)));
            }
            expression.push(expressed);
        }
        if !literal.is_empty() {
            expression.push(quoted(&literal));
        }
        Ok(expression.join(" "))
    }

    /// The arguments as JSON. A schema that cannot be held is replaced by any object, unless it is strict.
    fn arguments(&mut self) -> Result<String, GrammarError> {
        if self.arguments.is_none() {
            let any = json!({ "type": "object" });
            let schema = self.tool.parameters.as_ref().unwrap_or(&any);
            let added = match self.parts.schema(WHAT, schema) {
                Err(error) if error != GrammarError::Cancelled && !self.tool.is_strict => {
                    self.parts.schema(WHAT, &any)
                }
                added => added,
            };
            self.arguments = Some(added?);
        }
        Ok(self.arguments.clone().unwrap_or_default())
    }

    /// The arguments between tags, in the order of the schema.
    fn tagged(&mut self, tags: &CallTags) -> Result<String, GrammarError> {
        let CallTags { key, value: [open, close], kinds } = *tags;
        let [text_kind, other_kind] = kinds.unwrap_or([key[1]; 2]);
        // Some templates have white space between a key and its value.
        let begin = |key: String| match open {
            "" => quoted(&key),
            open => format!("{} gap? {}", quoted(&key), quoted(open)),
        };
        let index = self.index;
        let schema = self.tool.parameters.as_ref();
        let all = schema.and_then(properties).unwrap_or_default();
        let is_closed = schema.is_some_and(|schema| schema["additionalProperties"] == false);
        if all.is_empty() && !is_closed {
            let (before, behind) = (quoted(key[0]), begin(text_kind.to_string()));
            return Ok(format!("({before} /[A-Za-z0-9_.-]{{1,64}}/ {behind} any_text gap?)*"));
        }
        let mut expression = Vec::new();
        for (number, property) in all.iter().enumerate() {
            let (kind, value) = match &property.value {
                Value::Text => (text_kind, "any_text".to_string()),
                Value::Texts(texts) => {
                    let texts: Vec<String> = texts.iter().map(|text| escaped(text)).collect();
                    let name = format!("value{index}x{number}");
                    *self.rules += &format!("{name}: /\\n?({})\\n?{}/\n", texts.join("|"), escaped(close));
                    (text_kind, name)
                }
                Value::Json(of) => {
                    let value = self.json_value(of)?;
                    // Some templates write these as Python does.
                    let is_boolean = of["type"] == "boolean" && of["enum"].is_null() && of["const"].is_null();
                    let python = if is_boolean && kinds.is_none() { " | \"True\" | \"False\"" } else { "" };
                    (other_kind, format!("gap? ({value}{python}) gap? {}", quoted(close)))
                }
            };
            let optional = if property.is_required { "" } else { "?" };
            let key = begin(format!("{}{}{kind}", key[0], property.name));
            expression.push(format!("({key} {value} gap?){optional}"));
        }
        Ok(expression.join(" "))
    }

    /// A value of a property's schema as JSON, or any value if it cannot be held and the tool is not strict.
    fn json_value(&mut self, schema: &Json) -> Result<String, GrammarError> {
        let mut schema = schema.clone();
        for defined in DEFINITIONS {
            let of = self.tool.parameters.as_ref().and_then(|all| all.get(defined));
            if let (Some(of), Some(fields)) = (of, schema.as_object_mut()) {
                fields.entry(defined).or_insert_with(|| of.clone());
            }
        }
        match self.parts.schema(WHAT, &schema) {
            Err(error) if error != GrammarError::Cancelled && !self.tool.is_strict => {
                self.parts.schema(WHAT, &Json::Bool(true))
            }
            added => added,
        }
    }
}

/// An argument that can be written between tags.
struct Property<'s> {
    name: &'s str,
    is_required: bool,
    value: Value<'s>,
}

enum Value<'s> {
    /// Any text.
    Text,
    /// One of these.
    Texts(Vec<&'s str>),
    /// JSON of this schema.
    Json(Json),
}

const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords without effect on what is valid.
const ANNOTATIONS: [&str; 7] =
    ["title", "description", "default", "examples", "deprecated", "$schema", "$comment"];

/// The arguments of a schema that says nothing else than which there are. `None`: they can be held as JSON only.
fn properties(schema: &Json) -> Option<Vec<Property<'_>>> {
    let schema = schema.as_object()?;
    let is_known = |key: &str| {
        ANNOTATIONS.contains(&key)
            || DEFINITIONS.contains(&key)
            || ["type", "properties", "required", "additionalProperties"].contains(&key)
    };
    let is_plain = schema.keys().all(|key| is_known(key))
        && schema.get("type").is_none_or(|kind| kind == "object")
        && schema.get("additionalProperties").is_none_or(Json::is_boolean);
    if !is_plain {
        return None;
    }
    let given = match schema.get("properties") {
        None => Vec::new(),
        Some(properties) => properties.as_object()?.iter().collect(),
    };
    let required: Vec<&str> = match schema.get("required") {
        None => Vec::new(),
        Some(list) => list.as_array()?.iter().map(Json::as_str).collect::<Option<_>>()?,
    };
    let is_word = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
    };
    let is_given = |name: &&str| given.iter().any(|(other, _)| other == name);
    if !required.iter().all(is_given) || !given.iter().all(|(name, _)| is_word(name)) {
        return None;
    }
    let mut all = Vec::with_capacity(given.len());
    for (name, schema) in given {
        all.push(Property { name, is_required: required.contains(&name.as_str()), value: value(schema)? });
    }
    Some(all)
}

fn value(schema: &Json) -> Option<Value<'_>> {
    if !refers_to_definitions(schema) {
        return None;
    }
    let Some(fields) = schema.as_object().filter(|fields| fields.get("type") == Some(&json!("string")))
    else {
        return Some(Value::Json(schema.clone()));
    };
    let mut others = fields.keys().filter(|key| *key != "type" && !ANNOTATIONS.contains(&key.as_str()));
    match (others.next().map(String::as_str), others.next()) {
        (None, _) => Some(Value::Text),
        (Some("enum"), None) => {
            let texts: Option<Vec<&str>> = fields["enum"].as_array()?.iter().map(Json::as_str).collect();
            texts.filter(|texts| !texts.is_empty()).map(Value::Texts)
        }
        (Some("const"), None) => Some(Value::Texts(vec![fields["const"].as_str()?])),
        _ => None,
    }
}

/// Whether all references are to what is defined beside the properties.
fn refers_to_definitions(schema: &Json) -> bool {
    match schema {
        Json::Object(fields) => fields.iter().all(|(key, value)| match (key.as_str(), value) {
            ("$ref", Json::String(place)) => {
                DEFINITIONS.iter().any(|defined| place.starts_with(&format!("#/{defined}/")))
            }
            (_, value) => refers_to_definitions(value),
        }),
        Json::Array(list) => list.iter().all(refers_to_definitions),
        _ => true,
    }
}

//! The grammar of one tool's call.

use serde_json::{Value as Json, json};

use super::properties::{DEFINITIONS, Value, fits_tags, is_any_boolean, properties};
use super::{CallPart, CallTags, NAME_AND_ARGUMENTS, WHAT, json_name};
use crate::error::GrammarError;
use crate::format::{Parts, Tool, escaped, quoted};

/// Writes the call of a tool as an expression of Lark.
pub(super) struct Writer<'w, 'p> {
    pub(super) tool: &'w Tool,
    pub(super) index: usize,
    parts: &'w mut Parts<'p>,
    /// The reference to the grammar of the arguments.
    arguments: Option<String>,
    pub(super) rules: &'w mut String,
    /// The number of rules of arguments so far.
    pub(super) count: usize,
}

impl<'w, 'p> Writer<'w, 'p> {
    pub(super) fn new(
        tool: &'w Tool,
        index: usize,
        parts: &'w mut Parts<'p>,
        rules: &'w mut String,
    ) -> Writer<'w, 'p> {
        Writer { tool, index, parts, arguments: None, rules, count: 0 }
    }

    /// Arguments whose schema cannot be held between tags are JSON, which the readers of such calls take too.
    pub(super) fn call(&mut self, call: &[CallPart]) -> Result<String, GrammarError> {
        let is_tagged = call.iter().any(|part| part.tags().is_some());
        let fits = || self.tool.parameters.as_ref().is_none_or(fits_tags);
        if is_tagged && !fits() { self.expression(NAME_AND_ARGUMENTS) } else { self.expression(call) }
    }

    pub(super) fn expression(&mut self, call: &[CallPart]) -> Result<String, GrammarError> {
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
                CallPart::Literals(form) => self.literals(form)?,
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

    /// The arguments as JSON.
    fn arguments(&mut self) -> Result<String, GrammarError> {
        if self.arguments.is_none() {
            let any = json!({ "type": "object" });
            let schema = self.tool.parameters.as_ref().unwrap_or(&any);
            self.arguments = Some(self.held_or(schema, &any)?);
        }
        Ok(self.arguments.clone().unwrap_or_default())
    }

    /// Values of a schema as JSON. One that cannot be held is replaced by another, unless the tool is strict.
    fn held_or(&mut self, schema: &Json, other: &Json) -> Result<String, GrammarError> {
        match self.parts.schema(WHAT, schema) {
            Err(error) if error != GrammarError::Cancelled && !self.tool.is_strict => {
                self.parts.schema(WHAT, other)
            }
            added => added,
        }
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
                    // Where the tags say what is a string, line ends beside it are a part of it.
                    let line = if kinds.is_none() { "\\n?" } else { "" };
                    let texts = texts.join("|");
                    *self.rules += &format!("{name}: /{line}({texts}){line}{}/\n", escaped(close));
                    (text_kind, name)
                }
                Value::Json(of) => {
                    let value = self.json_value(of)?;
                    // Some templates write these as Python does.
                    let python =
                        if is_any_boolean(of) && kinds.is_none() { " | \"True\" | \"False\"" } else { "" };
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
    pub(super) fn json_value(&mut self, schema: &Json) -> Result<String, GrammarError> {
        let mut schema = schema.clone();
        for defined in DEFINITIONS {
            let of = self.tool.parameters.as_ref().and_then(|all| all.get(defined));
            if let (Some(of), Some(fields)) = (of, schema.as_object_mut()) {
                fields.entry(defined).or_insert_with(|| of.clone());
            }
        }
        self.held_or(&schema, &Json::Bool(true))
    }
}

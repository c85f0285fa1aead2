//! The format that an answer must have, as grammars of the library.

use std::fmt::Write;
use std::io;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value as Json, json};

use crate::calls::{self, Calls, WithoutCalls};
use crate::error::GrammarError;
use crate::limits::Limits;
use crate::schema::{self, SchemaError};
use crate::{gbnf, lark};

/// The required format of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseFormat {
    /// Any JSON object.
    Object,
    /// A value that conforms to this JSON Schema.
    Schema(Json),
    /// An answer in which tools are called.
    Calls(Calls),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A grammar in Lark's syntax, as llguidance documents it.
    Lark(String),
    /// A grammar in llama.cpp's syntax.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// The JSON Schema of the arguments; `None`: any object.
    pub parameters: Option<Json>,
    /// A schema that cannot be held is refused. Otherwise any object is allowed in its place.
    pub is_strict: bool,
}

impl Tool {
    /// Reads a tool in the form of the OpenAI API; `None`: it has no name.
    pub fn from_openai(tool: &Json) -> Option<Tool> {
        let function = &tool["function"];
        let name = function["name"].as_str()?.to_string();
        let mut parameters = function.get("parameters").filter(|parameters| parameters.is_object()).cloned();
        if let Some(Json::Object(schema)) = &mut parameters {
            // Whatever the schema says: arguments are an object.
            schema.insert("type".into(), "object".into());
        }
        Some(Tool { name, parameters, is_strict: function["strict"] == true })
    }
}

/// Reasoning that may precede an answer, without a format.
#[derive(Clone, Debug, PartialEq)]
pub struct Reasoning {
    /// The tags around it.
    pub open: String,
    pub close: String,
    /// Headers that are neither reasoning nor answer.
    pub silent: Vec<String>,
    /// Reasoning may start anywhere before the answer, and repeatedly. Otherwise it may only start the text.
    pub anywhere: bool,
    /// The prompt ends with the opening tag.
    pub is_open: bool,
}

impl ResponseFormat {
    /// A grammar in llama.cpp's syntax, whose rules are defined with `::=`, or else in Lark's.
    pub fn from_grammar(text: &str) -> ResponseFormat {
        match text.contains("::=") {
            true => ResponseFormat::Gbnf(text.into()),
            false => ResponseFormat::Lark(text.into()),
        }
    }

    /// What it is, for messages.
    pub fn what(&self) -> &'static str {
        match self {
            ResponseFormat::Object | ResponseFormat::Schema(_) => "schema",
            ResponseFormat::Calls(_) => calls::WHAT,
            ResponseFormat::Regex(_) => "regular expression",
            ResponseFormat::Lark(_) | ResponseFormat::Gbnf(_) => "grammar",
            ResponseFormat::Choice(_) => "list of choices",
        }
    }

    /// Whether its answers are JSON.
    pub fn is_json(&self) -> bool {
        match self {
            ResponseFormat::Object | ResponseFormat::Schema(_) => true,
            ResponseFormat::Calls(Calls { without: WithoutCalls::Format(format), .. }) => format.is_json(),
            ResponseFormat::Calls(calls) => calls.without == WithoutCalls::Refused,
            _ => false,
        }
    }

    /// Refuses a source larger than the limit. It copies nothing.
    pub fn check_size(&self, limits: &Limits) -> Result<(), GrammarError> {
        let (what, bytes, limit) = (self.what(), self.bytes(), limits.source_bytes);
        let too_large = |reason| Err(GrammarError::TooLarge { what, reason });
        if bytes > limit {
            return too_large(format!("it has {bytes} bytes, and the limit is {limit}"));
        }
        match self {
            ResponseFormat::Calls(Calls { without: WithoutCalls::Format(format), .. }) => {
                format.check_size(limits)
            }
            ResponseFormat::Choice(texts) if texts.len() > lark::MAX_ALTERNATIVES => {
                let limit = lark::MAX_ALTERNATIVES;
                too_large(format!("it has {} texts, and the limit is {limit}", texts.len()))
            }
            _ => Ok(()),
        }
    }

    /// The size of its source.
    fn bytes(&self) -> usize {
        let json = |schema: &Json| {
            let mut size = Size(0);
            // Counting cannot fail.
            let _ = serde_json::to_writer(&mut size, schema);
            size.0
        };
        match self {
            ResponseFormat::Object => 0,
            ResponseFormat::Schema(schema) => json(schema),
            ResponseFormat::Calls(Calls { tools, .. }) => {
                let size = |tool: &Tool| tool.name.len() + tool.parameters.as_ref().map_or(0, json);
                tools.iter().map(size).sum()
            }
            ResponseFormat::Regex(text) | ResponseFormat::Lark(text) | ResponseFormat::Gbnf(text) => {
                text.len()
            }
            ResponseFormat::Choice(texts) => texts.iter().map(|text| text.len() + 3).sum(),
        }
    }

    /// The grammars of the whole text: optional reasoning, and the answer.
    pub(crate) fn grammars(
        &self,
        before: Option<&Reasoning>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<TopLevelGrammar, GrammarError> {
        let mut parts = Parts { grammars: vec![GrammarWithLexer::default()], is_cancelled };
        let rules = match self {
            ResponseFormat::Calls(calls) if calls.without == WithoutCalls::Text => {
                calls.in_text(before, &mut parts)? + &common()
            }
            ResponseFormat::Calls(calls) => {
                let mut rules = String::new();
                let answer = calls.alone(&mut rules, &mut parts)?;
                text(self.is_json(), before, &answer) + &rules
            }
            format => text(self.is_json(), before, &format.answer(&mut parts)?),
        };
        let mut grammars = parts.grammars;
        grammars[0] =
            GrammarWithLexer { name: Some("text".into()), lark_grammar: Some(rules), json_schema: None };
        Ok(TopLevelGrammar { grammars, max_tokens: None })
    }

    /// Converts it for the library without compiling it. For the fuzz target `grammar`, where compiling takes most of
    /// the time.
    #[cfg(fuzzing)]
    pub fn convert(&self) -> Result<(), GrammarError> {
        self.grammars(None, &|| false).map(drop)
    }

    /// Adds the grammars of the answer, and returns the expression of it.
    pub(crate) fn answer(&self, parts: &mut Parts<'_>) -> Result<String, GrammarError> {
        let invalid =
            |reason: &str| Err(GrammarError::Invalid { what: self.what(), reason: reason.to_string() });
        let lark = match self {
            ResponseFormat::Object => return parts.schema(self.what(), &json!({ "type": "object" })),
            ResponseFormat::Schema(given) => return parts.schema(self.what(), given),
            ResponseFormat::Calls(_) => {
                return invalid("calls cannot be the format of an answer without calls");
            }
            ResponseFormat::Regex(regex) => format!("start: /{}/", llguidance::regex_to_lark(regex, "")),
            ResponseFormat::Lark(text) => lark::prepare(text, |given| parts.convert(self.what(), given))?,
            ResponseFormat::Gbnf(text) => gbnf::to_lark(text)?,
            ResponseFormat::Choice(texts) if texts.iter().all(String::is_empty) => {
                return invalid("it has no text to choose");
            }
            ResponseFormat::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                // As a terminal: the library follows at most 2,000 alternatives of a rule.
                format!("start: CHOICE\nCHOICE: {}", texts.join(" | "))
            }
        };
        Ok(parts.lark(lark))
    }
}

/// The grammars of a text, to which others refer by their names.
pub(crate) struct Parts<'p> {
    grammars: Vec<GrammarWithLexer>,
    is_cancelled: &'p dyn Fn() -> bool,
}

impl Parts<'_> {
    /// Adds the values of a schema, and returns the reference.
    pub(crate) fn schema(&mut self, what: &'static str, given: &Json) -> Result<String, GrammarError> {
        let schema = self.convert(what, given)?;
        Ok(self.add(Some(schema), None))
    }

    fn lark(&mut self, grammar: String) -> String {
        self.add(None, Some(grammar))
    }

    fn add(&mut self, json_schema: Option<Json>, lark_grammar: Option<String>) -> String {
        let name = format!("part{}", self.grammars.len());
        let reference = format!("@{name}");
        self.grammars.push(GrammarWithLexer { name: Some(name), json_schema, lark_grammar });
        reference
    }

    fn convert(&self, what: &'static str, given: &Json) -> Result<Json, GrammarError> {
        match (self.is_cancelled)() {
            true => Err(GrammarError::Cancelled),
            false => schema(what, given),
        }
    }
}

/// White space between the tokens of a JSON text is optional and limited, since models may otherwise repeat it without end.
const WHITE_SPACE: &str = r" {1,2}|\n[ \t]{0,40}";

fn schema(what: &'static str, schema: &Json) -> Result<Json, GrammarError> {
    let grammar = schema::grammar(schema).map_err(|error| {
        let reason = error.to_string();
        match error {
            SchemaError::Unsatisfiable { .. } => GrammarError::Unsatisfiable { what, reason },
            SchemaError::TooLarge { reason } => GrammarError::TooLarge { what, reason },
            _ => GrammarError::Invalid { what, reason },
        }
    })?;
    let mut schema = grammar.grammars.into_iter().find_map(|grammar| grammar.json_schema).unwrap_or_default();
    schema["x-guidance"]["whitespace_pattern"] = WHITE_SPACE.into();
    Ok(schema)
}

/// Counts bytes.
struct Size(usize);

impl io::Write for Size {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A text as a literal of Lark.
pub(crate) fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

/// A text as a regular expression, which matches only it.
pub(crate) fn escaped(text: &str) -> String {
    let mut regex = String::new();
    for c in text.chars() {
        // Writing to a string cannot fail.
        let _ = match c.is_alphanumeric() {
            true => write!(regex, "{c}"),
            false => write!(regex, "\\u{{{:x}}}", c as u32),
        };
    }
    regex
}

/// The rules of the whole text.
fn text(is_json: bool, before: Option<&Reasoning>, answer: &str) -> String {
    let common = common();
    let Some(Reasoning { open, close, silent, anywhere, is_open }) = before else {
        let start = if is_json { "BLANKS? answer" } else { "answer" };
        return format!("start: {start}\nanswer: {answer}\n{common}");
    };
    // Reasoning that may only start the text is followed by the answer.
    let after = if *anywhere { "begin" } else { "BLANKS? answer" };
    let start = if *is_open { "thinking" } else { "begin" };
    let headers: String = silent.iter().map(|header| format!(" | {} begin", quoted(header))).collect();
    format!(
        "start: {start}\nbegin: BLANKS? answer | {} thinking{headers}\nthinking: thought {after}\n\
         thought[lazy]: /(?s:.*){}/\nanswer: {answer}\n{common}",
        quoted(open),
        escaped(close),
    )
}

/// The rules of white space.
fn common() -> String {
    format!("gap: /{WHITE_SPACE}/\nBLANKS: /[ \\n]{{1,2}}/\n")
}

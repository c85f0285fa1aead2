//! The format that an answer must have, as grammars of the library.

use std::fmt::Write;
use std::io;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value as Json, json};

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
    /// `{"name": …, "arguments": …}` for one of these tools.
    Call(Vec<Tool>),
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
}

impl Tool {
    /// Reads a tool in the form of the OpenAI API; `None`: it has no name.
    pub fn from_openai(tool: &Json) -> Option<Tool> {
        let function = &tool["function"];
        let name = function["name"].as_str()?.to_string();
        let parameters = function.get("parameters").filter(|parameters| parameters.is_object()).cloned();
        Some(Tool { name, parameters })
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
            ResponseFormat::Call(_) => "schema of a tool's arguments",
            ResponseFormat::Regex(_) => "regular expression",
            ResponseFormat::Lark(_) | ResponseFormat::Gbnf(_) => "grammar",
            ResponseFormat::Choice(_) => "list of choices",
        }
    }

    /// Whether its answers are JSON.
    pub fn is_json(&self) -> bool {
        matches!(self, ResponseFormat::Object | ResponseFormat::Schema(_) | ResponseFormat::Call(_))
    }

    /// Refuses a source larger than the limit. It copies nothing.
    pub fn check_size(&self, limits: &Limits) -> Result<(), GrammarError> {
        let (what, bytes, limit) = (self.what(), self.bytes(), limits.source_bytes);
        let too_large = |reason| Err(GrammarError::TooLarge { what, reason });
        if bytes > limit {
            return too_large(format!("it has {bytes} bytes, and the limit is {limit}"));
        }
        match self {
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
            ResponseFormat::Call(tools) => {
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
        let mut grammars = vec![GrammarWithLexer::default()];
        let answer = self.answer(&mut grammars, is_cancelled)?;
        grammars[0] = GrammarWithLexer {
            name: Some("text".into()),
            lark_grammar: Some(text(self.is_json(), before, &answer)),
            json_schema: None,
        };
        Ok(TopLevelGrammar { grammars, max_tokens: None })
    }

    /// Converts it for the library without compiling it. For the fuzz target `grammar`, where compiling takes most of
    /// the time.
    #[cfg(fuzzing)]
    pub fn convert(&self) -> Result<(), GrammarError> {
        self.grammars(None, &|| false).map(drop)
    }

    /// Adds the grammars of the answer, and returns the expression of it.
    fn answer(
        &self,
        grammars: &mut Vec<GrammarWithLexer>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<String, GrammarError> {
        let schema = |given: &Json| match is_cancelled() {
            true => Err(GrammarError::Cancelled),
            false => schema(self.what(), given),
        };
        let mut add = |json_schema: Option<Json>, lark_grammar: Option<String>| {
            let name = format!("part{}", grammars.len());
            let reference = format!("@{name}");
            grammars.push(GrammarWithLexer { name: Some(name), json_schema, lark_grammar });
            reference
        };
        let lark = match self {
            ResponseFormat::Object => {
                return Ok(add(Some(schema(&json!({ "type": "object" }))?), None));
            }
            ResponseFormat::Schema(given) => return Ok(add(Some(schema(given)?), None)),
            ResponseFormat::Call(tools) => {
                let mut calls = Vec::with_capacity(tools.len());
                for tool in tools {
                    let any = json!({ "type": "object" });
                    let parameters = tool.parameters.as_ref().unwrap_or(&any);
                    let arguments = add(Some(schema(parameters)?), None);
                    let name = quoted(&Json::from(tool.name.as_str()).to_string());
                    calls.push(format!(
                        r#""{{" gap? "\"name\"" ":" gap? {name} "," gap? "\"arguments\"" ":" gap? {arguments} gap? "}}""#
                    ));
                }
                if calls.is_empty() {
                    let reason = "there are no tools to call".into();
                    return Err(GrammarError::Invalid { what: self.what(), reason });
                }
                return Ok(calls.join(" | "));
            }
            ResponseFormat::Regex(regex) => format!("start: /{}/", llguidance::regex_to_lark(regex, "")),
            ResponseFormat::Lark(text) => lark::prepare(text, schema)?,
            ResponseFormat::Gbnf(text) => gbnf::to_lark(text)?,
            ResponseFormat::Choice(texts) => {
                if texts.iter().all(String::is_empty) {
                    let reason = "it has no text to choose".into();
                    return Err(GrammarError::Invalid { what: self.what(), reason });
                }
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                format!("start: {}", texts.join(" | "))
            }
        };
        Ok(add(None, Some(lark)))
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
fn escaped(text: &str) -> String {
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
    let blanks = r"BLANKS: /[ \n]{1,2}/";
    let gap = format!("gap: /{WHITE_SPACE}/");
    let Some(Reasoning { open, close, silent, anywhere, is_open }) = before else {
        let start = if is_json { "BLANKS? answer" } else { "answer" };
        return format!("start: {start}\nanswer: {answer}\n{gap}\n{blanks}\n");
    };
    // Reasoning that may only start the text is followed by the answer.
    let after = if *anywhere { "begin" } else { "BLANKS? answer" };
    let start = if *is_open { "thinking" } else { "begin" };
    let headers: String = silent.iter().map(|header| format!(" | {} begin", quoted(header))).collect();
    format!(
        "start: {start}\nbegin: BLANKS? answer | {} thinking{headers}\nthinking: thought {after}\n\
         thought[lazy]: /(?s:.*){}/\nanswer: {answer}\n{gap}\n{blanks}\n",
        quoted(open),
        escaped(close),
    )
}

//! Jinja2 for chat templates: Python's values, and the settings of transformers.
//!
//! ```text
//! source ─lexer─▶ tokens ─parser, expressions─▶ ast ─eval─▶ text and its untrusted byte ranges
//! ```
//!
//! Templates come with models from untrusted sources. All resources are limited (`limits`), recursion has a fixed
//! maximum depth, and compound values refer to each other by index on a heap (`value`), so that no template can crash
//! the process. `docs/decisions/0007-own-jinja.md` explains why no other implementation is used.

mod ast;
mod checks;
mod eval;
mod expressions;
mod filters;
mod format;
mod functions;
#[cfg(test)]
mod growth;
mod input;
mod json;
mod lexer;
mod limits;
mod methods;
mod numbers;
mod operators;
mod parser;
mod postfix;
mod python;
mod sequences;
mod text;
mod time;
mod value;

use std::ops::Range;
use std::time::Instant;

pub use time::LocalTime;

pub type JinjaResult<T> = Result<T, JinjaError>;

/// Maximum bytes of a message.
const MAX_MESSAGE: usize = 4096;

/// A message that a terminal shows as it is: a template's strings may have control characters, and any length.
fn printable(message: &str) -> String {
    let is_safe = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    let message = &message[..message.floor_char_boundary(MAX_MESSAGE)];
    message.chars().map(|c| if is_safe(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// The reason why a template could not be parsed or rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JinjaError {
    /// The template is not valid Jinja2.
    Syntax { line: usize, message: String },
    /// An operation that Python rejects. Line 0 means that the line is not known yet.
    Runtime { line: usize, message: String },
    /// `raise_exception(…)`.
    Raised(String),
    /// The template exceeded a resource limit.
    Limit(&'static str),
}

impl JinjaError {
    fn type_error(message: impl Into<String>) -> JinjaError {
        JinjaError::Runtime { line: 0, message: printable(&message.into()) }
    }

    /// Sets the line of the innermost statement.
    fn at(self, at: usize) -> JinjaError {
        match self {
            JinjaError::Runtime { line: 0, message } => JinjaError::Runtime { line: at, message },
            other => other,
        }
    }
}

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    parsed: parser::Parsed,
}

/// A variable that is passed to a template.
#[derive(Clone, Copy, Debug)]
pub struct Variable<'v> {
    pub name: &'v str,
    pub value: &'v serde_json::Value,
    /// Its strings are untrusted: special tokens in them are not recognised.
    pub untrusted: bool,
}

/// The rendered text, and the byte ranges that come from untrusted variables.
#[derive(Debug)]
pub struct Output {
    pub text: String,
    pub untrusted: Vec<Range<usize>>,
}

impl Template {
    pub fn new(source: &str) -> JinjaResult<Template> {
        Ok(Template { parsed: parser::parse(source)? })
    }

    /// Whether a name occurs in the template.
    pub fn mentions(&self, name: &str) -> bool {
        self.parsed.names.iter().any(|known| known == name)
    }

    /// The time at which a rendering that begins now ends at the latest.
    pub fn deadline() -> Instant {
        Instant::now() + limits::TIME
    }

    pub fn render(&self, variables: &[Variable<'_>], now: LocalTime) -> JinjaResult<Output> {
        self.render_until(variables, now, Template::deadline())
    }

    /// Several renderings may share a deadline.
    pub fn render_until(
        &self,
        variables: &[Variable<'_>],
        now: LocalTime,
        deadline: Instant,
    ) -> JinjaResult<Output> {
        eval::render(&self.parsed, variables, now, &mut limits::Limits::until(deadline))
    }

    /// Renders templates, each with a variable of its own, one after the other into one text, for which together there are
    /// the limits of one.
    pub fn render_parts<'t>(
        parts: impl IntoIterator<Item = (&'t Template, Variable<'t>)>,
        now: LocalTime,
        deadline: Instant,
    ) -> JinjaResult<Output> {
        let mut limits = limits::Limits::until(deadline);
        let mut all = Output { text: String::new(), untrusted: Vec::new() };
        for (template, variable) in parts {
            let part = eval::render(&template.parsed, &[variable], now, &mut limits)?;
            let at = all.text.len();
            if at + part.text.len() > limits::OUTPUT {
                return Err(JinjaError::Limit(limits::TOO_MUCH_TEXT));
            }
            all.untrusted.extend(part.untrusted.iter().map(|range| range.start + at..range.end + at));
            all.text.push_str(&part.text);
        }
        Ok(all)
    }
}

//! Jinja2 as chat templates use it, with Python's values, in what transformers sets it to.
//!
//! ```text
//! source ─lexer─▶ tokens ─parser, expressions─▶ ast ─eval─▶ text, and which of its bytes the template did not write
//! ```
//!
//! Templates come with models from strangers. Everything that they can use up is counted (`limits`), nothing
//! recurses further than a fixed depth, and values that hold each other are numbers on a heap (`value`), so that
//! none of them can bring the process down. `docs/decisions/0007-own-jinja.md` says why no other implementation is
//! used.

mod ast;
mod checks;
mod eval;
mod expressions;
mod filters;
mod format;
mod functions;
mod input;
mod json;
mod lexer;
mod limits;
mod methods;
mod operators;
mod parser;
mod postfix;
mod python;
mod sequences;
mod text;
mod time;
mod value;

use std::ops::Range;

pub use time::Moment;

pub type JinjaResult<T> = Result<T, JinjaError>;

/// Why a template gave no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JinjaError {
    /// It is not Jinja2.
    Syntax { line: usize, message: String },
    /// It did something that Python refuses. Line 0 is not known yet.
    Runtime { line: usize, message: String },
    /// `raise_exception(…)`.
    Raised(String),
    /// It would use up more than it may.
    Limit(&'static str),
}

impl JinjaError {
    fn type_error(message: impl Into<String>) -> JinjaError {
        JinjaError::Runtime { line: 0, message: message.into() }
    }

    /// Fills in the line of the innermost statement.
    fn at(self, at: usize) -> JinjaError {
        match self {
            JinjaError::Runtime { line: 0, message } => JinjaError::Runtime { line: at, message },
            other => other,
        }
    }
}

/// A template, ready to render.
#[derive(Debug)]
pub struct Template {
    parsed: parser::Parsed,
}

/// A variable that a template sees.
#[derive(Clone, Copy, Debug)]
pub struct Variable<'v> {
    pub name: &'v str,
    pub value: &'v serde_json::Value,
    /// Its strings come from outside: no special token is in them.
    pub outside: bool,
}

/// What came out: the text, and the bytes of it that were in a variable from outside.
#[derive(Debug)]
pub struct Output {
    pub text: String,
    pub outside: Vec<Range<usize>>,
}

impl Template {
    pub fn new(source: &str) -> JinjaResult<Template> {
        Ok(Template { parsed: parser::parse(source)? })
    }

    /// Whether the template speaks of a name at all.
    pub fn mentions(&self, name: &str) -> bool {
        self.parsed.names.iter().any(|known| known == name)
    }

    pub fn render(&self, variables: &[Variable<'_>], now: Moment) -> JinjaResult<Output> {
        eval::render(&self.parsed, variables, now)
    }
}

//! Grammars in llama.cpp's syntax (GBNF), converted to Lark.
//!
//! GBNF describes characters, and the library reads lexemes, of which it takes the longest. So adjacent regular parts become one lexeme
//! if no character that can continue it can also follow it. Otherwise its end is divided until each lexeme is a single character, of
//! which the library keeps all readings. Only what refers to itself becomes rules of Lark.

#[cfg(test)]
mod growth;
mod parse;
mod sets;
mod write;

use sets::Set;

use crate::error::GrammarError;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Literal(String),
    Class(Set),
    /// The index of a rule.
    Rule(usize),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// The rules, by index.
#[derive(Debug)]
struct Rules {
    names: Vec<String>,
    rules: Vec<Expr>,
    root: usize,
}

/// The same grammar for the library. Refuses left recursion, as llama.cpp does.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::rules(text)?;
    write::lark(&rules)
}

pub(crate) fn invalid<T>(reason: impl Into<String>) -> Result<T, GrammarError> {
    Err(GrammarError::Invalid { what: "grammar", reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lexemes_end_where_what_follows_cannot_continue_them() {
        let text = "root ::= (item \"\\n\")+ \"[\" root? \"]\"\nitem ::= [0-9] ws more?\nws ::= [ \\n]*\nmore ::= \"a\" root";
        // The white space can be continued by the line break after it, and the digit cannot.
        let expected = "(/[\\u{30}-\\u{39}]/ (/[\\u{a}-\\u{a}\\u{20}-\\u{20}]/ )*";
        let lark = to_lark(text).unwrap_or_default();
        assert!(lark.contains(expected), "{lark}");
    }
}

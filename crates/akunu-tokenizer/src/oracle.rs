//! Parts of this crate that the comparison with the library `tokenizers` (`oracle/`) takes one by one.

pub use crate::pretokenizer::patterns::families;

use crate::pretokenizer::PreTokenizer;
use crate::pretokenizer::patterns::PATTERNS;
use crate::regex::Regex;
use crate::unicode::Class;

/// The regular expressions that scanners stand for.
pub fn expressions() -> impl Iterator<Item = &'static str> {
    PATTERNS.iter().map(|(regex, _)| *regex)
}

/// The parts of a text by the scanner of one of [`expressions`].
pub fn split_by_expression(regex: &str, text: &str) -> Vec<String> {
    let step = PATTERNS.iter().find(|(known, _)| *known == regex).map(|(_, step)| *step);
    split(&PreTokenizer::of_steps(step.into_iter().collect()), text)
}

/// The parts of a text by a pre-tokenizer of GGUF, none if its name is not known.
pub fn split_as_family(name: &str, text: &str) -> Vec<String> {
    PreTokenizer::named(name).map_or_else(|_| Vec::new(), |family| split(&family, text))
}

fn split(pre_tokenizer: &PreTokenizer, text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let keep = &mut |part: &str| -> Result<(), std::convert::Infallible> {
        parts.push(part.to_string());
        Ok(())
    };
    match pre_tokenizer.split(text, keep) {
        Ok(()) => parts,
        Err(never) => match never {},
    }
}

/// A class of characters, and whether one is of it by our tables.
pub type CharacterClass = (&'static str, fn(char) -> bool);

/// Classes of characters by their regular expressions.
pub fn classes() -> [CharacterClass; 8] {
    [
        (r"\p{L}", |c| Class::of(c).is(Class::LETTER)),
        (r"[\p{Lu}\p{Lt}]", |c| Class::of(c).is(Class::UPPER.or(Class::TITLE))),
        (r"\p{Ll}", |c| Class::of(c).is(Class::LOWER)),
        (r"\p{N}", |c| Class::of(c).is(Class::NUMBER)),
        (r"\p{P}", |c| Class::of(c).is(Class::PUNCTUATION)),
        (r"\p{S}", |c| Class::of(c).is(Class::SYMBOL)),
        (r"\p{M}", |c| Class::of(c).is(Class::MARK)),
        (r"\s", |c| Class::of(c).is(Class::SPACE)),
    ]
}

/// A regular expression.
#[derive(Debug)]
pub struct Expression(Regex);

impl Expression {
    /// The error is the reason in plain words.
    pub fn new(pattern: &str) -> Result<Expression, String> {
        Regex::new(pattern).map(Expression)
    }

    /// The matches in a text. After `allowed` steps, states are remembered.
    pub fn matches(&self, text: &str, allowed: u64) -> Vec<(usize, usize)> {
        match self.0.matches(text, allowed) {
            Ok(found) => found,
            Err(error) => unreachable!("nothing cancels it, but {error}"),
        }
    }
}

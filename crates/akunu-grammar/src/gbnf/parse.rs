//! Reads GBNF. A rule begins at a name that `::=` follows, so line breaks are white space.

use std::collections::HashMap;

use super::sets::Set;
use super::{Expr, Rules, invalid};
use crate::error::GrammarError;

const MAX_RULES: usize = 500;
const MAX_PARTS: usize = 5_000;
/// The number of nested parentheses.
const MAX_DEPTH: usize = 64;
/// Characters and ranges of one class.
const MAX_RANGES: usize = 2_000;
const MAX_REPETITIONS: u32 = 10_000;

pub(super) fn rules(text: &str) -> Result<Rules, GrammarError> {
    let mut parser = Parser { rest: text, ..Parser::empty() };
    parser.skip_space();
    while !parser.rest.is_empty() {
        let Some(name) = parser.name() else { return parser.refuse("the name of a rule is expected") };
        parser.skip_space();
        if !parser.take("::=") {
            return parser.refuse("'::=' is expected after the name of a rule");
        }
        let index = parser.index(name)?;
        if parser.rules[index].is_some() {
            return invalid(format!("the rule \"{name}\" is defined twice"));
        }
        let rule = parser.choice(0)?;
        parser.rules[index] = Some(rule);
    }
    let Parser { indices, names, rules, .. } = parser;
    let Some(&root) = indices.get("root").filter(|root| rules[**root].is_some()) else {
        return invalid("it has no rule \"root\"");
    };
    if let Some(missing) = rules.iter().position(Option::is_none) {
        return invalid(format!("the rule \"{}\" is not defined", names[missing]));
    }
    Ok(Rules { names, rules: rules.into_iter().flatten().collect(), root })
}

struct Parser<'a> {
    rest: &'a str,
    indices: HashMap<&'a str, usize>,
    names: Vec<String>,
    /// `None`: not defined yet.
    rules: Vec<Option<Expr>>,
    /// Number of parts of all rules.
    parts: usize,
}

impl<'a> Parser<'a> {
    fn refuse<T>(&self, reason: &str) -> Result<T, GrammarError> {
        let at: String = self.rest.chars().take(20).collect();
        match at.is_empty() {
            true => invalid(format!("{reason}, at its end")),
            false => invalid(format!("{reason}, at {at:?}")),
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_space(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_in_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// Whether the definition of a rule follows.
    fn is_at_rule(&self) -> bool {
        let mut ahead = Parser { rest: self.rest, ..Parser::empty() };
        ahead.name().is_some() && {
            ahead.skip_space();
            ahead.rest.starts_with("::=")
        }
    }

    fn empty() -> Parser<'a> {
        Parser { rest: "", indices: HashMap::new(), names: Vec::new(), rules: Vec::new(), parts: 0 }
    }

    fn index(&mut self, name: &'a str) -> Result<usize, GrammarError> {
        let next = self.names.len();
        let index = *self.indices.entry(name).or_insert(next);
        if index == next {
            if next == MAX_RULES {
                let reason = format!("it has more than {MAX_RULES} rules");
                return Err(GrammarError::TooLarge { what: "grammar", reason });
            }
            self.names.push(name.into());
            self.rules.push(None);
        }
        Ok(index)
    }

    fn choice(&mut self, depth: usize) -> Result<Expr, GrammarError> {
        if depth > MAX_DEPTH {
            let reason = format!("it is nested more than {MAX_DEPTH} deep");
            return Err(GrammarError::TooLarge { what: "grammar", reason });
        }
        let mut ways = vec![self.sequence(depth)?];
        while self.take("|") {
            ways.push(self.sequence(depth)?);
        }
        Ok(if ways.len() == 1 { ways.remove(0) } else { Expr::Choice(ways) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr, GrammarError> {
        let mut parts = Vec::new();
        loop {
            self.skip_space();
            let part = match self.rest.chars().next() {
                None | Some('|' | ')') => break,
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.rest = &self.rest[1..];
                    Expr::Class(Set::all())
                }
                Some('(') => {
                    self.rest = &self.rest[1..];
                    let inner = self.choice(depth + 1)?;
                    if !self.take(")") {
                        return self.refuse("')' is expected");
                    }
                    inner
                }
                Some('<' | '!') => return self.refuse("tokens of a vocabulary are not supported"),
                Some(_) if self.is_at_rule() => break,
                Some(_) => match self.name() {
                    Some(name) => Expr::Rule(self.index(name)?),
                    None => return self.refuse("a text, a class, a rule or '(' is expected"),
                },
            };
            self.parts += 1;
            if self.parts > MAX_PARTS {
                let reason = format!("it has more than {MAX_PARTS} parts");
                return Err(GrammarError::TooLarge { what: "grammar", reason });
            }
            parts.push(self.repeated(part)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Sequence(parts) })
    }

    /// Reads the number of repetitions after a part.
    fn repeated(&mut self, mut part: Expr) -> Result<Expr, GrammarError> {
        // A second operator applies to the repeated part; more are of no use, and nest.
        for _ in 0..4 {
            self.skip_space();
            let (least, most) = match self.rest.chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let Some((inner, _)) = self.rest[1..].split_once('}') else {
                        return self.refuse("'}' is expected");
                    };
                    let counts = counts(inner);
                    let Some(counts) = counts else {
                        return self.refuse("a number of repetitions is expected, such as {2} or {1,3}");
                    };
                    self.rest = &self.rest[inner.len() + 1..];
                    counts
                }
                _ => return Ok(part),
            };
            self.rest = &self.rest[1..];
            if least > MAX_REPETITIONS || most.is_some_and(|most| most > MAX_REPETITIONS) {
                let reason = format!("it repeats a part more than {MAX_REPETITIONS} times");
                return Err(GrammarError::TooLarge { what: "grammar", reason });
            }
            part = Expr::Repeat(Box::new(part), least, most);
        }
        self.refuse("a part has too many numbers of repetitions")
    }

    fn literal(&mut self) -> Result<Expr, GrammarError> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        loop {
            if self.take("\"") {
                return Ok(Expr::Literal(text));
            }
            text.push(self.character()?);
        }
    }

    fn class(&mut self) -> Result<Expr, GrammarError> {
        self.rest = &self.rest[1..];
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.character()?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let last = match is_range {
                true => {
                    self.rest = &self.rest[1..];
                    self.character()?
                }
                false => first,
            };
            if last < first {
                return self.refuse("the range of a class is empty, before");
            }
            ranges.push((u32::from(first), u32::from(last)));
            if ranges.len() > MAX_RANGES {
                let reason = format!("a class has more than {MAX_RANGES} characters and ranges");
                return Err(GrammarError::TooLarge { what: "grammar", reason });
            }
        }
        let set = Set::new(ranges);
        let set = if is_negated { set.complement() } else { set };
        if set.is_empty() {
            return self.refuse("a class has no characters, before");
        }
        Ok(Expr::Class(set))
    }

    /// A character of a text or a class, which may be escaped.
    fn character(&mut self) -> Result<char, GrammarError> {
        let mut chars = self.rest.chars();
        let Some(first) = chars.next() else { return self.refuse("a text or a class has no end") };
        self.rest = chars.as_str();
        if first != '\\' {
            return Ok(first);
        }
        let Some(escape) = chars.next() else { return self.refuse("a text or a class has no end") };
        self.rest = chars.as_str();
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return self.refuse("an escape is unknown, before"),
        };
        let code = self.rest.get(..digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return self.refuse("an escape is not the code of a character");
        };
        self.rest = &self.rest[digits..];
        Ok(c)
    }
}

/// `n`, `n,` or `n,m`.
fn counts(text: &str) -> Option<(u32, Option<u32>)> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let (least, most) = match text.split_once(',') {
        None => (number(text)?, Some(number(text)?)),
        Some((least, most)) if most.trim().is_empty() => (number(least)?, None),
        // llama.cpp reads "{,m}" as from 0.
        Some((least, most)) if least.trim().is_empty() => (0, Some(number(most)?)),
        Some((least, most)) => (number(least)?, Some(number(most)?)),
    };
    most.is_none_or(|most| least <= most).then_some((least, most))
}

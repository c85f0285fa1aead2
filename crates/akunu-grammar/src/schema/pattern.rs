//! `pattern`: regular expressions of ECMA-262, as expressions of whole strings in the syntax of the crate `regex`.
//!
//! Both have the same operators, but other classes: here `.`, `\s` and `\d` mean what ECMA-262 says, and a class has no
//! operators or nested classes. Assertions other than `^` and `$` at the ends, and backreferences, are refused.

use super::budget::REPETITIONS;
use super::regexes::escape;

/// Nested groups.
const DEPTH: usize = 100;
const LENGTH: usize = 20_000;

const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
const SPACE: &str =
    "\\t-\\r \\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}\\x{FEFF}";
const ALL: &str = "(?s:.*)";

#[derive(Clone, Debug)]
enum Re {
    /// An expression without anchors.
    Text(String),
    Concat(Vec<Re>),
    Either(Vec<Re>),
    Start,
    End,
}

/// The expression of the whole strings in which `source` matches somewhere.
pub(super) fn whole(source: &str) -> Result<String, String> {
    if source.len() > LENGTH {
        return Err(format!("it is longer than {LENGTH} bytes"));
    }
    let chars: Vec<char> = source.chars().collect();
    let mut parser = Parser { chars: &chars, at: 0, depth: 0 };
    let re = parser.alternatives()?;
    if parser.at < chars.len() {
        return Err("a ) has no (".into());
    }
    write(&re, Edge::Open, Edge::Open)
}

/// Expressions of whole strings, of which a string has to match some and must not match others.
pub(super) struct Conditions {
    pub must: Vec<String>,
    pub must_not: Vec<String>,
}

/// What `whole` says, and lookaheads directly behind a `^` at the start, which are conditions of their own.
pub(super) fn conditions(source: &str) -> Result<Conditions, String> {
    let mut conditions = Conditions { must: Vec::new(), must_not: Vec::new() };
    let mut rest = source;
    let mut is_anchored = false;
    while let Some((is_positive, inner, after)) =
        rest.strip_prefix('^').or(is_anchored.then_some(rest)).and_then(lookahead)
    {
        // With several alternatives, it is a condition of the first one only.
        if top_level(after).1 {
            break;
        }
        let list = if is_positive { &mut conditions.must } else { &mut conditions.must_not };
        list.push(whole(&format!("^(?:{inner})"))?);
        (rest, is_anchored) = (after, true);
    }
    conditions.must.push(if is_anchored { whole(&format!("^{rest}"))? } else { whole(rest)? });
    Ok(conditions)
}

/// A lookahead at the start: whether it is positive, what it contains, and what follows.
fn lookahead(text: &str) -> Option<(bool, &str, &str)> {
    let is_positive = text.starts_with("(?=");
    let inner = text.strip_prefix("(?=").or_else(|| text.strip_prefix("(?!"))?;
    let end = top_level(inner).0?;
    Some((is_positive, &inner[..end], &inner[end + 1..]))
}

/// Where a parenthesis is closed that was not opened here, and whether there is a `|` before it outside of groups.
fn top_level(text: &str) -> (Option<usize>, bool) {
    let (mut depth, mut in_class, mut is_escaped, mut has_choice) = (0, false, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' if depth == 0 => return (Some(at), has_choice),
            ')' => depth -= 1,
            '|' if depth == 0 => has_choice = true,
            _ => {}
        }
    }
    (None, has_choice)
}

/// Whether something may stand before or after an expression.
#[derive(Clone, Copy, PartialEq)]
enum Edge {
    /// The text may go on here, unless there is an anchor.
    Open,
    /// It starts or ends here.
    Anchored,
    /// There is more of the expression.
    Inside,
}

fn has_anchor(re: &Re) -> bool {
    match re {
        Re::Text(_) => false,
        Re::Start | Re::End => true,
        Re::Concat(list) | Re::Either(list) => list.iter().any(has_anchor),
    }
}

fn write(re: &Re, left: Edge, right: Edge) -> Result<String, String> {
    let all = |edge| if edge == Edge::Open { ALL } else { "" };
    match re {
        Re::Text(text) => Ok(format!("{}{text}{}", all(left), all(right))),
        Re::Either(list) => {
            let list = list.iter().map(|re| write(re, left, right)).collect::<Result<Vec<_>, _>>()?;
            Ok(format!("(?:{})", list.join("|")))
        }
        Re::Start | Re::End => write(&Re::Concat(vec![re.clone()]), left, right),
        Re::Concat(list) => concat(list, left, right),
    }
}

fn concat(mut list: &[Re], mut left: Edge, mut right: Edge) -> Result<String, String> {
    const MIDDLE: &str = "^ and $ are supported only where the text starts or ends";
    while let [Re::Start, rest @ ..] = list {
        if left == Edge::Inside {
            return Err(MIDDLE.into());
        }
        (left, list) = (Edge::Anchored, rest);
    }
    while let [rest @ .., Re::End] = list {
        if right == Edge::Inside {
            return Err(MIDDLE.into());
        }
        (right, list) = (Edge::Anchored, rest);
    }
    let mut out = String::new();
    for (index, re) in list.iter().enumerate() {
        let before = if index == 0 { left } else { Edge::Inside };
        let after = if index + 1 == list.len() { right } else { Edge::Inside };
        if matches!(re, Re::Start | Re::End) {
            return Err(MIDDLE.into());
        }
        // Where it is inside, anchors in it fail.
        out.push_str(&write(re, before, after)?);
    }
    if list.is_empty() && (left == Edge::Open || right == Edge::Open) {
        out.push_str(ALL);
    }
    Ok(out)
}

struct Parser<'a> {
    chars: &'a [char],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn eat(&mut self, text: &str) -> bool {
        let matches = text.chars().enumerate().all(|(index, c)| self.chars.get(self.at + index) == Some(&c));
        self.at += if matches { text.chars().count() } else { 0 };
        matches
    }

    fn alternatives(&mut self) -> Result<Re, String> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("groups are nested more than {DEPTH} deep"));
        }
        let mut list = vec![self.sequence()?];
        while self.eat("|") {
            list.push(self.sequence()?);
        }
        self.depth -= 1;
        if let [only] = &mut list[..] {
            return Ok(std::mem::replace(only, Re::Start));
        }
        if list.iter().any(has_anchor) {
            return Ok(Re::Either(list));
        }
        let list =
            list.iter().map(|re| write(re, Edge::Inside, Edge::Inside)).collect::<Result<Vec<_>, _>>()?;
        Ok(Re::Text(format!("(?:{})", list.join("|"))))
    }

    fn sequence(&mut self) -> Result<Re, String> {
        let mut list = Vec::new();
        while let Some(c) = self.peek() {
            if matches!(c, '|' | ')') {
                break;
            }
            let term = self.term()?;
            let term = self.quantified(term)?;
            match (list.last_mut(), term) {
                (Some(Re::Text(before)), Re::Text(text)) => before.push_str(&text),
                (_, term) => list.push(term),
            }
        }
        Ok(Re::Concat(list))
    }

    fn term(&mut self) -> Result<Re, String> {
        Ok(match self.take() {
            Some('^') => Re::Start,
            Some('$') => Re::End,
            Some('(') => {
                self.group_kind()?;
                let inner = self.alternatives()?;
                if !self.eat(")") {
                    return Err("a ( is not closed".into());
                }
                match has_anchor(&inner) {
                    true => inner,
                    false => Re::Text(format!("(?:{})", write(&inner, Edge::Inside, Edge::Inside)?)),
                }
            }
            Some('.') => Re::Text("[^\\n\\r\\x{2028}\\x{2029}]".into()),
            Some('[') => Re::Text(self.class()?),
            Some('\\') => Re::Text(match self.class_escape()? {
                Some(class) => class,
                None => escape(self.char_escape()?),
            }),
            Some(c @ ('*' | '+' | '?')) => return Err(format!("{c} follows nothing that it could repeat")),
            Some(c) => Re::Text(escape(c)),
            None => Re::Text(String::new()),
        })
    }

    fn group_kind(&mut self) -> Result<(), String> {
        if !self.eat("?") || self.eat(":") {
            return Ok(());
        }
        for (text, what) in
            [("=", "lookahead"), ("!", "lookahead"), ("<=", "lookbehind"), ("<!", "lookbehind")]
        {
            if self.eat(text) {
                return Err(format!("it has a {what}"));
            }
        }
        if self.eat("<") || self.eat("P<") {
            while let Some(c) = self.take() {
                if c == '>' {
                    return Ok(());
                }
            }
        }
        Err("a group has an unknown kind".into())
    }

    fn quantified(&mut self, term: Re) -> Result<Re, String> {
        let start = self.at;
        let bounds = match self.take() {
            Some('*') => Some((0, None)),
            Some('+') => Some((1, None)),
            Some('?') => Some((0, Some(1))),
            Some('{') => self.bounds(),
            _ => None,
        };
        let Some((min, max)) = bounds else {
            self.at = start;
            return Ok(term);
        };
        self.eat("?");
        if matches!(self.peek(), Some('*' | '+' | '?')) {
            return Err("a repetition is repeated without a group".into());
        }
        if min.max(max.unwrap_or(0)) > REPETITIONS {
            return Err(format!("it repeats something more than {REPETITIONS} times"));
        }
        if max.is_some_and(|max| max < min) {
            return Err("a repetition's minimum is larger than its maximum".into());
        }
        let Re::Text(text) = term else { return Err("^ or $ is repeated".into()) };
        let max = max.map_or(String::new(), |max| max.to_string());
        Ok(Re::Text(format!("(?:{text}){{{min},{max}}}")))
    }

    fn bounds(&mut self) -> Option<(u64, Option<u64>)> {
        let min = self.number()?;
        let max = match self.eat(",") {
            true if self.peek() == Some('}') => None,
            true => Some(self.number()?),
            false => Some(min),
        };
        self.eat("}").then_some((min, max))
    }

    fn number(&mut self) -> Option<u64> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.chars[start..self.at].iter().collect();
        (!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX))
    }

    /// A class that an escape names, as a class.
    fn class_escape(&mut self) -> Result<Option<String>, String> {
        let Some(c) = self.peek() else { return Err("it ends in \\".into()) };
        let class = match c {
            'd' => format!("[{DIGIT}]"),
            'D' => format!("[^{DIGIT}]"),
            'w' => format!("[{WORD}]"),
            'W' => format!("[^{WORD}]"),
            's' => format!("[{SPACE}]"),
            'S' => format!("[^{SPACE}]"),
            'p' | 'P' => {
                self.at += 1;
                return self.property(c).map(Some);
            }
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(class))
    }

    fn property(&mut self, kind: char) -> Result<String, String> {
        if !self.eat("{") {
            return Err("\\p has no property".into());
        }
        let mut name = String::new();
        while let Some(c) = self.take().filter(|c| *c != '}') {
            name.push(c);
        }
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '=')) {
            return Err("\\p has no property".into());
        }
        Ok(format!("[\\{kind}{{{name}}}]"))
    }

    fn char_escape(&mut self) -> Result<char, String> {
        let Some(c) = self.take() else { return Err("it ends in \\".into()) };
        Ok(match c {
            't' => '\t',
            'n' => '\n',
            'v' => '\u{b}',
            'f' => '\u{c}',
            'r' => '\r',
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => '\0',
            'x' => self.hex(2)?,
            'u' if self.eat("{") => {
                let start = self.at;
                while self.peek().is_some_and(|c| c.is_ascii_hexdigit()) {
                    self.at += 1;
                }
                let digits: String = self.chars[start..self.at].iter().collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                code.filter(|_| self.eat("}")).ok_or("\\u{} has no character")?
            }
            'u' => self.unicode()?,
            'b' | 'B' => return Err("it has a word boundary".into()),
            '1'..='9' | 'k' => return Err("it has a backreference".into()),
            c if c.is_ascii_alphanumeric() => return Err(format!("\\{c} is unknown")),
            c => c,
        })
    }

    fn code(&mut self, digits: usize) -> Option<u32> {
        let text: String = self.chars.get(self.at..self.at + digits)?.iter().collect();
        let is_hex = text.chars().all(|c| c.is_ascii_hexdigit());
        let code = u32::from_str_radix(&text, 16).ok().filter(|_| is_hex)?;
        self.at += digits;
        Some(code)
    }

    fn hex(&mut self, digits: usize) -> Result<char, String> {
        self.code(digits).and_then(char::from_u32).ok_or("an escape has no character".into())
    }

    fn unicode(&mut self) -> Result<char, String> {
        let Some(first) = self.code(4) else { return Err("\\u has no 4 digits".into()) };
        let mut code = first;
        if (0xD800..0xDC00).contains(&first) && self.eat("\\u") {
            let second = self.code(4).filter(|code| (0xDC00..0xE000).contains(code));
            code = 0x10000 + ((first - 0xD800) << 10) + (second.ok_or("half a surrogate pair")? - 0xDC00);
        }
        char::from_u32(code).ok_or("half a surrogate pair".into())
    }

    fn class(&mut self) -> Result<String, String> {
        let is_negated = self.eat("^");
        let mut items = String::new();
        loop {
            match self.peek() {
                None => return Err("a [ is not closed".into()),
                Some(']') => break,
                Some(_) => items.push_str(&self.class_item()?),
            }
        }
        self.at += 1;
        Ok(match (items.is_empty(), is_negated) {
            (false, false) => format!("[{items}]"),
            (false, true) => format!("[^{items}]"),
            (true, false) => return Err("an empty class matches nothing".into()),
            (true, true) => "(?s:.)".into(),
        })
    }

    fn class_item(&mut self) -> Result<String, String> {
        let first = match self.class_char()? {
            Ok(c) => c,
            Err(class) => return Ok(class),
        };
        if self.peek() != Some('-') || matches!(self.chars.get(self.at + 1), None | Some(']')) {
            return Ok(escape(first));
        }
        self.at += 1;
        match self.class_char()? {
            Ok(last) if last < first => Err("a range of a class ends before it begins".into()),
            Ok(last) => Ok(format!("{}-{}", escape(first), escape(last))),
            Err(class) => Ok(format!("{}{}{class}", escape(first), escape('-'))),
        }
    }

    /// A character, or else a class.
    fn class_char(&mut self) -> Result<Result<char, String>, String> {
        let Some(c) = self.take() else { return Err("a [ is not closed".into()) };
        if c != '\\' {
            return Ok(Ok(c));
        }
        if let Some(class) = self.class_escape()? {
            return Ok(Err(class));
        }
        if self.eat("b") {
            return Ok(Ok('\u{8}'));
        }
        self.char_escape().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::regexes::Regexes;
    use super::*;

    #[test]
    fn expressions_match_as_in_ecma_262() {
        let mut regexes = Regexes::default();
        for (source, yes, no) in [
            ("b", "abc", "ac"),
            ("^b", "bc", "ab"),
            ("b$", "ab", "bc"),
            ("^$", "", "a"),
            ("^(a|b)+$", "abba", "abc"),
            ("(^a|b$)", "ax", "xa"),
            ("^a|b$", "xb", "bx"),
            ("^(?:^a|b)$", "b", "ab"),
            ("^[[a]]$", "[]", "a"),
            ("^[a&&b]$", "&", "c"),
            ("^[\\w-.]$", "-", "+"),
            ("^[a-c-]$", "-", "d"),
            ("^\\d$", "7", "٣"),
            ("^\\s$", "\u{feff}", "\u{85}"),
            ("^.$", "\u{85}", "\u{2028}"),
            ("^[^]$", "\n", "ab"),
            ("^\\u00e9\\ud83d\\ude00$", "é😀", "é"),
            ("^a{2}$", "aa", "aaa"),
            ("^a{,2}$", "a{,2}", "aa"),
            ("^x/y\\/z$", "x/y/z", "x/y\\/z"),
            ("^\\p{Lu}$", "É", "é"),
            ("", "anything\n", "-"),
            ("^a*?b$", "aab", "aa"),
            ("a|", "b", "-"),
        ] {
            let pattern: Rc<str> = whole(source).unwrap().into();
            assert_eq!(regexes.matches(&pattern, yes), Some(true), "{source} as {pattern} and {yes:?}");
            if no != "-" {
                assert_eq!(regexes.matches(&pattern, no), Some(false), "{source} as {pattern} and {no:?}");
            }
        }
    }

    #[test]
    fn lookaheads_at_the_start_are_conditions() {
        let found = conditions("^(?=.*[0-9])(?!a|[)]b)^?x").err();
        assert_eq!(found.as_deref(), Some("^ or $ is repeated"));
        let found = conditions("^(?=.*[0-9])(?!a|[)]b)c$").unwrap();
        assert_eq!(found.must, [whole("^(?:.*[0-9])").unwrap(), whole("^c$").unwrap()]);
        assert_eq!(found.must_not, [whole("^(?:a|[)]b)").unwrap()]);
        for source in ["^(?!a)b|c", "a(?!b)", "(?!a)b", "^((?!a)b)"] {
            assert!(conditions(source).is_err(), "{source}");
        }
    }

    #[test]
    fn what_is_not_regular_is_refused() {
        for source in [
            "a\\b", "(?=a)", "(?!a)b", "(?<=a)", "(a)\\1", "a^b", "a$b", "(^a)*", "[b-a]", "(", ")", "[",
            "a**",
        ] {
            assert!(whole(source).is_err(), "{source}");
        }
    }
}

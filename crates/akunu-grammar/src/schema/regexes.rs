//! Questions about regular expressions, answered within limits.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use llguidance::derivre::{Regex, RegexAst, RegexBuilder};

use super::complement::complement;

/// Work on one question.
const FUEL: u64 = 10_000;

#[derive(Default)]
pub(super) struct Regexes {
    compiled: HashMap<Rc<str>, Option<Regex>>,
    disjoint: HashMap<(Rc<str>, Rc<str>), bool>,
}

impl Regexes {
    /// Whether the whole text matches; `None` if the expression is too complex.
    pub fn matches(&mut self, pattern: &Rc<str>, text: &str) -> Option<bool> {
        let compile = || compile(RegexAst::Regex(pattern.to_string()));
        let compiled = self.compiled.entry(pattern.clone()).or_insert_with(compile);
        let regex = compiled.as_mut()?;
        let matches = catch_unwind(AssertUnwindSafe(|| regex.is_match(text))).ok();
        if matches.is_none() {
            *compiled = None;
        }
        matches
    }

    /// Whether no text matches both. `false` if it is not known.
    pub fn are_disjoint(&mut self, a: &Rc<str>, b: &Rc<str>) -> bool {
        let key = if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        let ask = || {
            let both = [a, b].map(|pattern| RegexAst::Regex(pattern.to_string()));
            compile(RegexAst::And(both.to_vec())).is_some_and(|mut regex| regex.always_empty())
        };
        *self.disjoint.entry(key).or_insert_with(ask)
    }

    /// The expression of all texts that do not match, if it is short.
    pub fn complement(&mut self, pattern: &Rc<str>) -> Option<Rc<str>> {
        self.matches(pattern, "")?;
        let regex = self.compiled.get_mut(pattern)?.as_mut()?;
        let found = catch_unwind(AssertUnwindSafe(|| complement(regex, pattern))).ok().flatten();
        found.map(Rc::from)
    }

    /// Whether every text matches. `false` if it is not known.
    pub fn is_universal(&mut self, pattern: &Rc<str>) -> bool {
        let other = RegexAst::Not(Box::new(RegexAst::Regex(pattern.to_string())));
        let text = RegexAst::Regex("(?s:.*)".into());
        compile(RegexAst::And(vec![text, other])).is_some_and(|mut regex| regex.always_empty())
    }
}

fn compile(ast: RegexAst) -> Option<Regex> {
    let compile = || {
        let mut builder = RegexBuilder::new();
        let expression = builder.mk(&ast).ok()?;
        builder.into_regex_limited(expression, FUEL).ok()
    };
    catch_unwind(AssertUnwindSafe(compile)).ok().flatten()
}

/// Steps for each 8 bytes that are matched: a repetition may be at each of its counts at once, and a long expression at
/// many of its places.
pub(super) fn weight(pattern: &str) -> usize {
    let numbers =
        pattern.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<usize>().ok());
    numbers.fold(1 + pattern.len() / 512, |sum, number| sum.saturating_add(number / 16))
}

/// The length in characters, as an expression of whole strings.
pub(super) fn length(min: u64, max: Option<u64>) -> Rc<str> {
    match max {
        Some(max) => format!("(?s:.{{{min},{max}}})").into(),
        None => format!("(?s:.{{{min},}})").into(),
    }
}

/// Characters by which an excluded string is recognised. Expressions in others are nested as deep.
const PREFIX: usize = 40;

/// All strings but these, as an expression of whole strings. It excludes all strings that begin as a long one does.
pub(super) fn all_but<'a>(strings: impl Iterator<Item = &'a str>) -> String {
    #[derive(Default)]
    struct Tree {
        is_end: bool,
        is_prefix: bool,
        next: std::collections::BTreeMap<char, Tree>,
    }

    fn write(tree: &Tree, out: &mut String) {
        let class: String = tree.next.keys().map(|c| escape(*c)).collect();
        out.push_str("(?:");
        match class.is_empty() {
            true => out.push_str("(?s:.)(?s:.*)"),
            false => out.push_str(&format!("[^{class}](?s:.*)")),
        }
        for (c, tree) in &tree.next {
            out.push('|');
            out.push_str(&escape(*c));
            match tree.is_prefix {
                // Nothing that goes on here: a class without characters.
                true => out.push_str("[^\\x{0}-\\x{10FFFF}]"),
                false => write(tree, out),
            }
        }
        out.push_str(if tree.is_end { ")" } else { "|)" });
    }

    let mut root = Tree::default();
    for string in strings {
        let mut end = &mut root;
        for c in string.chars().take(PREFIX) {
            end = end.next.entry(c).or_default();
        }
        end.is_end = true;
        end.is_prefix |= string.chars().nth(PREFIX).is_some();
    }
    let mut out = String::new();
    write(&root, &mut out);
    out
}

/// The character in an expression, inside and outside of classes.
pub(super) fn escape(c: char) -> String {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => c.to_string(),
        _ => format!("\\x{{{:X}}}", c as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_strings_but_some_are_matched() {
        let mut regexes = Regexes::default();
        let pattern: Rc<str> = all_but(["a", "ab", "xé]"].into_iter()).into();
        for (text, matches) in [
            ("", true),
            ("a", false),
            ("ab", false),
            ("abc", true),
            ("x", true),
            ("xé]", false),
            ("xé\n", true),
        ] {
            assert_eq!(regexes.matches(&pattern, text), Some(matches), "{text:?}");
        }
        let long = "a".repeat(100);
        let pattern: Rc<str> = all_but([long.as_str()].into_iter()).into();
        for (text, matches) in
            [(&long[..], false), (&long[1..], false), (&long[61..], true), ("", true), ("ab", true)]
        {
            assert_eq!(regexes.matches(&pattern, text), Some(matches), "{text:?}");
        }
        let empty: Rc<str> = all_but([""].into_iter()).into();
        assert_eq!(regexes.matches(&empty, ""), Some(false));
        assert_eq!(regexes.matches(&empty, "\n"), Some(true));
    }

    #[test]
    fn complements_match_what_the_expression_does_not() {
        let mut regexes = Regexes::default();
        let texts = [
            "",
            "a",
            "b",
            "ab",
            "aab",
            "aba",
            "12",
            "1x2",
            "é",
            "\n",
            "a\nb",
            "_",
            "\u{10ffff}",
            "\u{e000}",
            "ac",
        ];
        for source in
            ["a", "^a", "b$", "^[a-c]+$", "\\d\\d", "1.*2", "^....$", "^$", "(a|b)c?", "[^a]", "^\\w*$", ""]
        {
            let pattern: Rc<str> = super::super::pattern::whole(source).unwrap().into();
            let Some(other) = regexes.complement(&pattern) else {
                assert_eq!(source, "", "only this has no complement");
                continue;
            };
            for text in texts {
                let expected = regexes.matches(&pattern, text).map(|matches| !matches);
                assert_eq!(regexes.matches(&other, text), expected, "{source} as {other}: {text:?}");
            }
            assert!(regexes.are_disjoint(&pattern, &other), "{source} as {other}");
        }
        let many: Rc<str> = "(?:[ab]*a[ab]{10})".into();
        assert_eq!(regexes.complement(&many), None);
    }

    #[test]
    fn disjoint_expressions_are_recognised() {
        let mut regexes = Regexes::default();
        for (a, b, disjoint) in [("a+", "b+", true), ("a*", "b*", false), ("[0-9]{3}", "[0-9]{4}", true)] {
            assert_eq!(regexes.are_disjoint(&a.into(), &b.into()), disjoint, "{a} {b}");
        }
        for (pattern, universal) in
            [("(?s:.*)", true), ("(?s:.*)[^\\n]{0,}(?s:.*)", true), (".*", false), ("a*", false)]
        {
            assert_eq!(regexes.is_universal(&pattern.into()), universal, "{pattern}");
        }
    }
}

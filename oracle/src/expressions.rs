//! Regular expressions: the matches are those of the library.

use std::panic::{AssertUnwindSafe, catch_unwind};

use akunu_tokenizer::oracle::{Expression, expressions};
use proptest::prelude::*;
use tokenizers::utils::SysRegex;

use crate::pre_tokenizers;
use crate::random_expressions::{any_pattern, cases, short_text};

fn theirs(regex: &SysRegex, text: &str) -> Vec<(usize, usize)> {
    regex.find_iter(text).collect()
}

fn atom() -> impl Strategy<Value = String> {
    let atoms = concat!(
        r"a|a|b|b|c|1| |é|\n|.|.|\w|\d|\s|\S|\W|\D|\p{L}|\pN|\P{L}|\h|\H|[ab]|[^a]|[^\s\d]|[a-c&&[^b]]|",
        r"[[:alpha:]1]|[a-c--b]|[\w~~a]|[]a]|[^]a]|\b|\B|^|$|\A|\z|\Z|\G|\b{start}|\b{end}|\b{start-half}|",
        r"\b{end-half}|\<|\>|\x61|\x{62}|\u0063|\-|\.|\O|\t|()|(?:)|(?i)|(?-i)|(?s)|(?m)|(?U)|(?x)|(?-x)|",
        r"(?#a)|{|}|]|#|k|K|ſ|ß",
    );
    let atoms: Vec<String> = atoms.split('|').map(str::to_string).collect();
    prop_oneof![12 => prop::sample::select(atoms), 1 => Just("|".to_string())]
}

/// Expressions, some of which are not valid.
pub(crate) fn pattern() -> impl Strategy<Value = String> {
    let quantifiers: Vec<&str> =
        "?|*|+|??|*?|+?|?+|*+|++|{2}|{1,2}|{2,}|{,2}|{0}|{0,3}?|{2}+|{1,}?|{2,3}+|{ 2 }|{,}"
            .split('|')
            .collect();
    let groups: Vec<&str> =
        "(|(?:|(?:|(?>|(?=|(?!|(?<=|(?<!|(?i:|(?s:|(?m:|(?x:|(?U:|(?-i:|(?im-s:|(?<n>|(?P<n>|(?'n'"
            .split('|')
            .collect();
    atom().prop_recursive(5, 24, 4, move |inner| {
        let inner = inner.boxed();
        let groups = prop::sample::select(groups.clone());
        let quantifiers = prop::sample::select(quantifiers.clone());
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
            2 => prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| parts.join("|")),
            3 => (groups.clone(), inner.clone()).prop_map(|(open, inner)| format!("{open}{inner})")),
            3 => (groups, inner.clone(), quantifiers.clone())
                .prop_map(|(open, inner, quantifier)| format!("{open}{inner}){quantifier}")),
            2 => (inner, quantifiers).prop_map(|(inner, quantifier)| format!("{inner}{quantifier}")),
        ]
    })
}

/// The library's matches, unless it refuses the expression, or panics, which overflows in tests may do.
pub(crate) fn library(pattern: &str) -> Option<SysRegex> {
    catch_unwind(AssertUnwindSafe(|| SysRegex::new(pattern).ok())).ok().flatten()
}

fn is_refused_by_name(reason: &str) -> bool {
    ["is not supported", "minimum above its maximum"].iter().any(|name| reason.contains(name))
}

#[test]
fn random_expressions_match_as_in_the_library() {
    let texts = prop::collection::vec(short_text(), 4);
    proptest!(cases(3000), |(pattern in pattern(), texts in texts, allowed in 0..40u64)| {
        let Some(library) = library(&pattern) else {
            drop(Expression::new(&pattern));
            return Ok(());
        };
        let regex = match Expression::new(&pattern) {
            Ok(regex) => regex,
            Err(reason) => {
                prop_assert!(is_refused_by_name(&reason), "{}: {}", pattern, reason);
                return Ok(());
            }
        };
        for text in texts {
            let expected = theirs(&library, &text);
            for allowed in [u64::MAX, allowed] {
                let found = regex.matches(&text, allowed);
                prop_assert_eq!(&found, &expected, "{:?} in {:?}, {} allowed", &pattern, &text, allowed);
            }
        }
    });
}

/// Expressions that matched otherwise once.
#[test]
fn loops_of_nothing_match_as_in_the_library() {
    for (pattern, text) in [
        ("(?:1|()|.)*", "1a"),
        (r"(?U:\d|[^a]{,})*", "1b "),
        ("(?:(?:a|)(?:|c))*", "ac"),
        ("(?:(?:a*?|b)(?=c|))*c", "abacab"),
        ("(?:a?){2,}(?!b)|b", "aab"),
    ] {
        let (library, regex) = (SysRegex::new(pattern).unwrap(), Expression::new(pattern).unwrap());
        for allowed in [u64::MAX, 0] {
            assert_eq!(regex.matches(text, allowed), theirs(&library, text), "{pattern}");
        }
    }
}

/// Expressions of pre-tokenizers, normalizers and decoders, and some like them.
pub(crate) const EXPRESSIONS: &[&str] = &[
    r"\s+",
    r"^\s+|\s+$",
    r"\w+|[^\w\s]+",
    r"[^\s]+",
    r" {2,}",
    r"``|''",
    r"(?s).",
    r".{1,16}",
    r"[0-9][0-9][0-9]",
    r"[UZOB]",
    r"(?:\r?\n)+",
    r"[^\S\n]+|\n",
    r"\b\w+\b|\S",
    r"\p{Han}|[\p{Hiragana}\p{Katakana}]+",
    r"[\x{4E00}-\x{9FFF}\u3040-\u30FF]",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"(?i)'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])",
    r"(?<=\d)(?=(?:\d{3})+\b)",
    r"(?<!\p{L})\p{N}+(?!\p{L})",
    r"(?<=\p{Ll})(?=\p{Lu})|(?<=[.!?]\s{0,3})\p{Lu}",
    r"[^\r\n\p{L}\p{N}]?(?>\p{L}+)(?!\d)|\p{N}{1,3}+|\s++$|\s+?(?=\S)",
    r"(?x) \p{Lu}? \p{Ll}+ (?# a word) | [^\w\s]++ [\r\n]* # the rest
      | \s+ (?! \S ) | \s",
    r"(?:\p{L}\p{M}*)+(?:['’](?:\p{L}\p{M}*)+)*|(?:\r\n|\n|\r)|[[:punct:]--[_-]]|.",
];

#[test]
fn expressions_of_tokenizers_match_as_in_the_library() {
    let known = expressions();
    let all: Vec<(&str, SysRegex, Expression)> = (known.chain(EXPRESSIONS.iter().copied()))
        .map(|pattern| (pattern, SysRegex::new(pattern).unwrap(), Expression::new(pattern).unwrap()))
        .collect();
    proptest!(cases(400), |(text in pre_tokenizers::text(), allowed in 0..100u64)| {
        for (pattern, library, regex) in &all {
            let expected = theirs(library, &text);
            for allowed in [u64::MAX, allowed] {
                let found = regex.matches(&text, allowed);
                prop_assert_eq!(&found, &expected, "{:?} in {:?}, {} allowed", pattern, text, allowed);
            }
        }
    });
}

/// Each class contains the same characters as in the library, of all that there are.
#[test]
fn classes_contain_the_same_characters() {
    let all: String = ('\0'..=char::MAX).collect();
    for pattern in [r"\w", r"(?i)[k\p{Lu}]", r"[^\p{L}\p{N}\s]", r"[\p{Lu}\p{M}&&[^\p{Han}]]", r"(?i)ſ", "."]
    {
        let (library, regex) = (SysRegex::new(pattern).unwrap(), Expression::new(pattern).unwrap());
        assert!(regex.matches(&all, u64::MAX) == theirs(&library, &all), "{pattern}");
    }
}

#[test]
fn no_expression_panics() {
    proptest!(cases(3000), |(pattern in any_pattern(), text in short_text(), allowed in 0..40u64)| {
        match Expression::new(&pattern) {
            Ok(regex) => {
                let found = regex.matches(&text, u64::MAX);
                prop_assert_eq!(&regex.matches(&text, allowed), &found, "{:?} in {:?}", &pattern, &text);
                if let Some(library) = library(&pattern) {
                    prop_assert_eq!(&found, &theirs(&library, &text), "{:?} in {:?}", &pattern, &text);
                }
            }
            Err(reason) => {
                let is_right = library(&pattern).is_none() || is_refused_by_name(&reason);
                prop_assert!(is_right, "{:?}: {}", &pattern, reason);
                prop_assert!(!reason.contains(char::is_control), "{:?}", reason);
            }
        }
    });
}

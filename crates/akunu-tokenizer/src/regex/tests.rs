use proptest::prelude::*;

use super::*;
use crate::work::counted;
use random_expressions::{any_pattern, cases, short_text};

#[path = "../../tests/shared/random_expressions.rs"]
mod random_expressions;

/// Expressions, with the library's matches in texts. Made by `oracle/src/goldens.rs`.
fn golden() -> Vec<serde_json::Value> {
    serde_json::from_str(include_str!("../../tests/golden/expressions.json")).unwrap()
}

#[test]
fn expressions_match_as_in_the_library() {
    let mut checked = 0;
    for case in golden() {
        let (pattern, regex) = (&case["pattern"], Regex::new(case["pattern"].as_str().unwrap()).unwrap());
        for (text, expected) in case["texts"].as_object().unwrap() {
            let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
            let bounds: Vec<usize> = expected.as_array().unwrap().iter().map(number).collect();
            let expected: Vec<(usize, usize)> = bounds.chunks(2).map(|pair| (pair[0], pair[1])).collect();
            for allowed in [u64::MAX, 0, 7] {
                assert_eq!(
                    regex.matches(text, allowed).unwrap(),
                    expected,
                    "{pattern} in {text:?}, {allowed} allowed"
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 500, "{checked}");
}

#[test]
fn work_grows_linearly_with_the_text() {
    let patterns = [
        "(a*)*b",
        "(a|a)*b",
        "(a|aa)+$",
        "(?:a|a?)+b",
        "(?=(a*)*b)",
        "(?=(?=a*c|(?:a|a)*b).*c)",
        "(?>a*)b",
        "(?>(?:a|a)*)b",
        "a*+b",
        "a++b",
        "a*a*a*a*b",
        "(?<=(?:a|aa)*b)c",
        "(?<!(?:a|aa)*b)a",
        "a(?=.*b)",
        "a(?!.*b)",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"(?=(\d{3})+(?!\d))",
        "(?:a{1,3}){1,3}b",
        ".*?c",
        "(?:a|b)*?c",
        "(?:(?:a*)*|b)*c",
        "(?:a(?=(?:a|a)*c))*b",
        "(?>a+?b|a)",
        r"\s+$",
        r"\s+(?!\S)",
        r"\s*[\r\n]+|\s+(?!\S)",
        "(?:(?=(a*)*b)|a)",
        "(?m)^.*c$",
        "(?:a*b)?a",
        "(.*)*x",
        "(?=.*?b)a",
        "(?=(?:(?:a*)*c|a))",
        "(a?){3,}b|a",
        "(?:a{0,9}){9}b",
        "(?>(?=(a|a)*b)a|a*)c",
        r"\Ga*b",
        r"(?:a|a)*b|\Ga",
        "(?:(?>a*)(?!b)|a)*c",
        "(?<=a.*)b",
    ];
    let texts: [fn(usize) -> String; 5] = [
        |size| "a".repeat(size),
        |size| "a".repeat(size) + "b",
        |size| "ab".repeat(size / 2),
        |size| "1".repeat(size),
        |size| " ".repeat(size) + "a",
    ];
    for pattern in patterns {
        let regex = Regex::new(pattern).unwrap();
        for text in texts {
            let steps = |size: usize| {
                let text = text(size);
                counted(|| regex.each_match(&text, &mut Watch::new(), |_, _| Ok(())).unwrap())
            };
            let (once, twice) = (steps(2000), steps(4000));
            assert!(
                twice as f64 <= 2.3 * once as f64 && twice < 4000 * 600,
                "{pattern}: {once} steps, then {twice}"
            );
        }
    }
}

#[test]
fn random_expressions_take_linear_work() {
    for (case, unit) in golden().iter().zip(["a", "ab", "1", " ", "é", "a\n", "aab ", "k1"].iter().cycle()) {
        let pattern = case["pattern"].as_str().unwrap();
        let (regex, end) =
            (Regex::new(pattern).unwrap(), case["texts"].as_object().unwrap().keys().next().unwrap());
        let steps = |count: usize| {
            let text = unit.repeat(count) + end;
            counted(|| regex.each_match(&text, &mut Watch::new(), |_, _| Ok(())).unwrap())
        };
        let (once, twice) = (steps(1000), steps(2000));
        let is_linear = twice as f64 <= 2.3 * once as f64 + 20_000.0;
        assert!(is_linear, "{pattern:?} in {unit:?}: {once} steps, then {twice}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_in_plain_words() {
    for (pattern, reason) in [
        ("(a", "a group is opened that is not closed"),
        ("a)", "a group is closed at byte 1 that was not opened"),
        ("[a", "the class of characters at byte 0 is not closed"),
        ("[b-a]", "the class of characters \"[b-a]\" is not valid"),
        (r"\p{Klingon}", "the class of characters \"\\p{Klingon}\" is not valid: Unicode property not found"),
        (r"\p{L", "the name of a property is not closed"),
        ("*", "nothing that can be repeated is before the repetition at byte 0"),
        ("a{3,2}", "the repetition at byte 1 has a minimum above its maximum"),
        (r"(a)\1", "it has a backreference before byte 5, which is not supported"),
        (r"(?<n>a)\k<n>", "it has a backreference"),
        ("(?P<n>a)(?P=n)", "it has a backreference"),
        (r"(a)\g<1>", "it has a call of a group"),
        ("(?(a)b|c)", "it has a conditional"),
        (r"a\Kb", "it has \\K"),
        (r"(?<=\Ga)b", "it has \\G after its beginning, which is not supported"),
        ("(?<=(?=a)b*)c", "it has a lookbehind of variable length with a lookaround"),
        (
            r"((?:.|\b){2,}){2}",
            "it has a repetition with a minimum above 1 of what may match nothing, in another",
        ),
        ("(?q)", "the flags at byte 2 are not known"),
        (r"\q", "\\q before byte 2 is no known escape"),
        ("\\", "a backslash is its last character"),
        (r"\x{110000}", "the number of a character at byte 2 is not valid"),
        (r"\b{middle}", "the boundary \"middle\" is not known"),
        ("(?<>a)", "the name of a group before byte 3 is not valid"),
        ("(?#", "a comment is opened that is not closed"),
        ("a{100000}", "it is too large"),
        ("(?:(?:a{99}b){99}c){99}", "it is too large"),
        ("(?:abcdefgh){20000}", "it is too large"),
        ("(?:(?:(?:){99999999999}){99999999999}|a){99999999999}", "nothing that can be repeated"),
        ("(?:(?:(){99999999999}){99999999999}|a){99999999999}", "it is too large"),
        (&"(".repeat(101), "it has more than 100 groups in each other"),
        (&"a".repeat(MAX_PATTERN + 1), "it has 65537 bytes, and at most 65536 are supported"),
        (&"()".repeat(20_000).replacen(')', "){50000}", 20_000), ""),
    ] {
        let error = Regex::new(pattern).err();
        assert!(
            reason.is_empty() || error.as_ref().is_some_and(|error| error.starts_with(reason)),
            "{pattern:.60}: {error:?}"
        );
        assert!(
            error.iter().all(|error| error.len() < 200 && !error.contains(char::is_control)),
            "{error:?}"
        );
    }
}

#[test]
fn no_expression_panics() {
    proptest!(cases(3000), |(pattern in any_pattern(), text in short_text(), allowed in 0..40u64)| {
        match Regex::new(&pattern) {
            Ok(regex) => {
                let found = regex.matches(&text, u64::MAX).unwrap();
                prop_assert_eq!(&regex.matches(&text, allowed).unwrap(), &found, "{:?} in {:?}", &pattern, &text);
            }
            Err(reason) => {
                prop_assert!(!reason.contains(char::is_control), "{:?}", reason);
            }
        }
    });
}

#[test]
fn a_cancelled_text_ends_early() {
    let (regex, text) = (Regex::new("(a|a)*b").unwrap(), "a".repeat(20_000));
    let cancelled = crate::cancellable(&std::sync::Arc::new(true.into()), || {
        regex.each_match(&text, &mut Watch::new(), |_, _| panic!("there is no match"))
    });
    assert!(matches!(cancelled, Err(TokenizerError::Cancelled)), "{cancelled:?}");
}

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use tokenizers::utils::SysRegex;

use super::*;
use crate::pretokenizer::patterns;
use crate::work::counted;

fn theirs(regex: &SysRegex, text: &str) -> Vec<(usize, usize)> {
    regex.find_iter(text).collect()
}

/// Our matches. After `allowed` steps, states are remembered.
fn ours(regex: &Regex, text: &str, allowed: u64) -> Vec<(usize, usize)> {
    let (mut found, mut watch) = (Vec::new(), Watch::new());
    let mut matcher = Matcher::new(&regex.0, text, &mut watch).unwrap();
    matcher.allow(allowed);
    let keep = |start, end| {
        found.push((start, end));
        Ok(())
    };
    each_match(&mut matcher, text, keep).unwrap();
    found
}

/// The number of cases, or that of a longer run by hand.
fn cases(usual: u32) -> ProptestConfig {
    let cases = std::env::var("AKUNU_REGEX_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(usual),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        // The library has accidents of its own, which other cases on each day would find one after the other.
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        ..ProptestConfig::default()
    }
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
fn pattern() -> impl Strategy<Value = String> {
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

fn short_text() -> impl Strategy<Value = String> {
    let bits: Vec<&str> =
        "a|a|a|b|b|c|A|B|k|K|\u{212a}|s|ſ|ß|1|2| |  |\n|\n|é|É|-|.|{|}|]|#|\u{301}|中".split('|').collect();
    prop::collection::vec(prop::sample::select(bits), 0..9).prop_map(|bits| bits.concat())
}

/// The library's matches, unless it refuses the expression, or panics, which overflows in tests may do.
fn library(pattern: &str) -> Option<SysRegex> {
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
            drop(Regex::new(&pattern));
            return Ok(());
        };
        let regex = match Regex::new(&pattern) {
            Ok(regex) => regex,
            Err(reason) => {
                prop_assert!(is_refused_by_name(&reason), "{}: {}", pattern, reason);
                return Ok(());
            }
        };
        for text in texts {
            let expected = theirs(&library, &text);
            for allowed in [u64::MAX, allowed] {
                let found = ours(&regex, &text, allowed);
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
        let (library, regex) = (SysRegex::new(pattern).unwrap(), Regex::new(pattern).unwrap());
        for allowed in [u64::MAX, 0] {
            assert_eq!(ours(&regex, text, allowed), theirs(&library, text), "{pattern}");
        }
    }
}

/// Expressions of pre-tokenizers, normalizers and decoders, and some like them.
const EXPRESSIONS: &[&str] = &[
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
    let known = patterns::PATTERNS.iter().map(|(pattern, _)| *pattern);
    let all: Vec<(&str, SysRegex, Regex)> = (known.chain(EXPRESSIONS.iter().copied()))
        .map(|pattern| (pattern, SysRegex::new(pattern).unwrap(), Regex::new(pattern).unwrap()))
        .collect();
    proptest!(cases(400), |(text in patterns::tests::text(), allowed in 0..100u64)| {
        for (pattern, library, regex) in &all {
            let expected = theirs(library, &text);
            for allowed in [u64::MAX, allowed] {
                let found = ours(regex, &text, allowed);
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
        let (library, regex) = (SysRegex::new(pattern).unwrap(), Regex::new(pattern).unwrap());
        assert!(ours(&regex, &all, u64::MAX) == theirs(&library, &all), "{pattern}");
    }
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
    let units = prop::sample::select(vec!["a", "ab", "1", " ", "é", "a\n", "aab ", "k1"]);
    proptest!(cases(100), |(pattern in pattern(), unit in units, end in short_text())| {
        let Ok(regex) = Regex::new(&pattern) else { return Ok(()) };
        let steps = |count: usize| {
            let text = unit.repeat(count) + &end;
            counted(|| regex.each_match(&text, &mut Watch::new(), |_, _| Ok(())).unwrap())
        };
        let (once, twice) = (steps(1000), steps(2000));
        let is_linear = twice as f64 <= 2.3 * once as f64 + 20_000.0;
        prop_assert!(is_linear, "{:?} in {:?}: {} steps, then {}", &pattern, unit, once, twice);
    });
}

#[test]
fn what_cannot_be_done_is_refused_in_plain_words() {
    for (pattern, reason) in [
        ("(a", "a group is opened that is not closed"),
        ("a)", "a group is closed at byte 1 that was not opened"),
        ("[a", "the class of characters at byte 0 is not closed"),
        ("[b-a]", "the class of characters \"[b-a]\" is not valid"),
        (
            r"\p{Klingon}",
            "the class of characters \"\\\\p{Klingon}\" is not valid: Unicode property not found",
        ),
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
    let bits =
        "(|)|[|]|{|}|?|*|+|\\|^|$|.|-|&&|~~|--|:|<|>|=|!|#|,|'|P|p|x|i|u|U|b|B|1|99|a| |\n|é|中|(?|(?<|\\p{|\
        [[:|\\x{|(?i|(?x)|\\b{|{,"
            .split('|')
            .chain(["|"]);
    let bits = prop::sample::select(bits.collect::<Vec<_>>()).prop_map(str::to_string);
    let bit = prop_oneof![9 => bits, 1 => any::<char>().prop_map(String::from)];
    let pattern = prop::collection::vec(bit, 0..16).prop_map(|bits| bits.concat());
    proptest!(cases(3000), |(pattern in pattern, text in short_text(), allowed in 0..40u64)| {
        match Regex::new(&pattern) {
            Ok(regex) => {
                let found = ours(&regex, &text, u64::MAX);
                prop_assert_eq!(&ours(&regex, &text, allowed), &found, "{:?} in {:?}", &pattern, &text);
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

#[test]
fn a_cancelled_text_ends_early() {
    let (regex, text) = (Regex::new("(a|a)*b").unwrap(), "a".repeat(20_000));
    let cancelled = crate::cancellable(&std::sync::Arc::new(true.into()), || {
        regex.each_match(&text, &mut Watch::new(), |_, _| panic!("there is no match"))
    });
    assert!(matches!(cancelled, Err(TokenizerError::Cancelled)), "{cancelled:?}");
}

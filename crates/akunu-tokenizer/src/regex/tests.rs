use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use tokenizers::utils::SysRegex;

use super::*;

fn theirs(regex: &SysRegex, text: &str) -> Vec<(usize, usize)> {
    regex.find_iter(text).collect()
}

fn ours(regex: &Regex, text: &str, remembers: bool) -> Vec<(usize, usize)> {
    let (mut found, mut watch) = (Vec::new(), Watch::new());
    let mut matcher = Matcher::new(&regex.0, text, &mut watch).unwrap();
    if remembers {
        matcher.remember_all();
    }
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
        ..ProptestConfig::default()
    }
}

fn atom() -> impl Strategy<Value = String> {
    let atoms = r"a|a|b|b|c|1| |é|\n|.|.|\w|\d|\s|\S|\W|\D|\p{L}|\pN|\P{L}|\h|\H|[ab]|[^a]|[^\s\d]|[a-c&&[^b]]|[[:alpha:]1]|[a-c--b]|\
        [\w~~a]|[]a]|[^]a]|\b|\B|^|$|\A|\z|\Z|\G|\b{start}|\b{end}|\b{start-half}|\b{end-half}|\<|\>|\x61|\x{62}|\u0063|\-|\.|\O|\t|()|\
        (?:)|(?i)|(?-i)|(?s)|(?m)|(?U)|(?x)|(?-x)|(?#a)|{|}|]|#|k|K|ſ|ß";
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
    proptest!(cases(3000), |(pattern in pattern(), texts in prop::collection::vec(short_text(), 4))| {
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
            prop_assert_eq!(&ours(&regex, &text, false), &expected, "{:?} in {:?}", &pattern, &text);
            prop_assert_eq!(&ours(&regex, &text, true), &expected, "{:?} in {:?}, with a memory", &pattern, &text);
        }
    });
}

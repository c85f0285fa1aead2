//! Random expressions and texts for them.

use proptest::prelude::*;

/// The number of cases, or that of a longer run by hand.
pub fn cases(usual: u32) -> ProptestConfig {
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

pub fn short_text() -> impl Strategy<Value = String> {
    let bits: Vec<&str> =
        "a|a|a|b|b|c|A|B|k|K|\u{212a}|s|ſ|ß|1|2| |  |\n|\n|é|É|-|.|{|}|]|#|\u{301}|中".split('|').collect();
    prop::collection::vec(prop::sample::select(bits), 0..9).prop_map(|bits| bits.concat())
}

/// Characters that mean something in expressions, in any order.
pub fn any_pattern() -> impl Strategy<Value = String> {
    let bits =
        "(|)|[|]|{|}|?|*|+|\\|^|$|.|-|&&|~~|--|:|<|>|=|!|#|,|'|P|p|x|i|u|U|b|B|1|99|a| |\n|é|中|(?|(?<|\\p{|\
        [[:|\\x{|(?i|(?x)|\\b{|{,"
            .split('|')
            .chain(["|"]);
    let bits = prop::sample::select(bits.collect::<Vec<_>>()).prop_map(str::to_string);
    let bit = prop_oneof![9 => bits, 1 => any::<char>().prop_map(String::from)];
    prop::collection::vec(bit, 0..16).prop_map(|bits| bits.concat())
}

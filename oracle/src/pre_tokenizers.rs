//! Pre-tokenizers: our scanners split as the regular expressions that they stand for.

use akunu_tokenizer::oracle::{classes, expressions, families, split_as_family, split_by_expression};
use proptest::prelude::*;
use tokenizers::PreTokenizer as _;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, SplitDelimiterBehavior};
use tokenizers::utils::SysRegex;

fn library(split: &Split, text: &str) -> Vec<String> {
    let mut parts = PreTokenizedString::from(text);
    split.pre_tokenize(&mut parts).unwrap();
    let parts = parts.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
    parts.into_iter().map(|part| part.0.to_string()).collect()
}

pub(crate) fn text() -> impl Strategy<Value = String> {
    let bits = "a|Z|b|ſ|é|É|ß|'|'s|'S|'re|'LL|'ve|0|1|12|123|9|½|٣|Ⅷ| |  |\t|\n|\r|\r\n|\u{a0}|\u{3000}|\u{2003}|\u{85}|\
        \u{2028}|\u{b}|\u{c}|\u{1680}|.|,|!|?|/|-|_|$|+|`|~|^|(|)|[|]|\\|…|。|，|、|।|،|۔|「|：|！|“|‟|\u{301}|\u{93f}|\u{20dd}|\
        中|龥|鿿|ࠀ|ひ|カ|ゟ|한|퟿|ก|अ|ʰ|ª|ǅ|Ω|\u{2126}|\u{212a}|ж|Ж|€|🚀|\u{200d}|\u{fe0f}|\u{0}|\u{200b}|\u{e000}|𝐀|𞤀|𑢠|Ａ|ａ|ﬁ|ƻ|ǃ|ʔ|ᴬ|\
        ال|עִ|ไ|ㄱ|ㄅ|、|︰|々|〇|⺀|1234|12345|123456|1234567|٣٤٥٦|x|_|<sentinel:|<sentinel:12>|IMGIMGABZ|IMGIMG|Z|A|I|    |\
        \u{200c}|𠀀|豈";
    let bits: Vec<&'static str> = bits.split('|').chain(["|"]).collect();
    let random = any::<char>().prop_map(|c| if known(c) { c } else { '☃' }.to_string());
    let bit = prop_oneof![9 => prop::sample::select(bits).prop_map(str::to_string), 1 => random];
    prop_oneof![
        3 => prop::collection::vec(bit.clone(), 0..20).prop_map(|bits| bits.concat()),
        2 => prop::collection::vec((bit, 1usize..6), 0..6)
            .prop_map(|bits| bits.into_iter().map(|(bit, count)| bit.repeat(count)).collect()),
    ]
}

/// Whether a character is in both tables. Ours are of a later Unicode version.
fn known(c: char) -> bool {
    static UNASSIGNED: std::sync::LazyLock<SysRegex> =
        std::sync::LazyLock::new(|| SysRegex::new(r"\p{Cn}").unwrap());
    UNASSIGNED.find_iter(c.encode_utf8(&mut [0; 4])).next().is_none()
}

#[test]
fn characters_are_classed_as_in_regular_expressions() {
    let all: String = ('\0'..=char::MAX).filter(|&c| known(c)).collect();
    assert!(all.chars().count() > 280_000);
    let is_number = classes().into_iter().find(|(regex, _)| *regex == r"\p{N}").unwrap().1;
    let mut changed = std::collections::BTreeSet::new();
    for (regex, is_of_class) in classes() {
        let expected: std::collections::HashSet<usize> =
            SysRegex::new(regex).unwrap().find_iter(&all).map(|found| found.0).collect();
        for (at, c) in all.char_indices() {
            if is_of_class(c) != expected.contains(&at) {
                changed.insert(c);
            }
        }
    }
    // Lower case in the crate's tables, without case in later Unicode versions.
    assert_eq!(changed.into_iter().collect::<String>(), "ʕ");
    // The condition of the `Digits` pre-tokenizer.
    assert!(all.chars().all(|c| c.is_numeric() == is_number(c)));
}

/// Families with several consecutive expressions.
#[test]
fn families_split_as_their_consecutive_expressions() {
    let split = |regex: &&str| {
        Split::new(SplitPattern::Regex(regex.to_string()), SplitDelimiterBehavior::Isolated, false).unwrap()
    };
    let families: Vec<(&str, Vec<Split>)> =
        families().into_iter().map(|(name, list)| (name, list.iter().map(split).collect())).collect();
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(text in text())| {
        for (name, splits) in &families {
            let mut expected = vec![text.clone()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
            for split in splits {
                expected = expected.iter().flat_map(|part| library(split, part)).collect();
            }
            prop_assert_eq!(split_as_family(name, &text), expected, "{:?} by {}", text, name);
        }
    });
}

#[test]
fn every_expression_splits_as_the_tokenizers_crate() {
    let splits: Vec<(Split, &str)> = expressions()
        .map(|regex| {
            let pattern = SplitPattern::Regex(regex.to_string());
            (Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap(), regex)
        })
        .collect();
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(text in text())| {
        for (split, regex) in &splits {
            prop_assert_eq!(split_by_expression(regex, &text), library(split, &text), "{:?} by {}", text, regex);
        }
    });
}

//! The regular expressions of `tokenizer.json` files, and the equivalent scanners.

use super::numbers::DigitGroups;
use super::words::{Cased, Chameleon, Cl100k};
use super::{Step, sets};
use crate::unicode::Class;

const fn cl100k(contractions: bool, letters: Class, digits: usize, line_ends: bool) -> Step {
    Step::Cl100k(Cl100k { contractions, letters, digits, line_ends, cascade: false })
}

const fn cased(contractions: bool, digits: usize) -> Step {
    Step::Cased(Cased { contractions, digits, separate_han: false })
}

const UNLIMITED: usize = usize::MAX;

/// Only expressions with exactly this text are known.
#[rustfmt::skip]
pub(crate) const PATTERNS: &[(&str, Step)] = &[
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", Step::Gpt2),
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", Step::Gpt2),
    // Llama 3
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cl100k(true, Class::LETTER, 3, true)),
    // GPT-4 and derived vocabularies
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        cl100k(true, Class::LETTER, 3, true)),
    // Qwen 2 and 3
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cl100k(true, Class::LETTER, 1, true)),
    // Ling
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        cl100k(true, Class::LETTER, 1, true)),
    // Qwen 3.5
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cl100k(true, Class::LETTER.or(Class::MARK), 1, true)),
    // MiniCPM 5, after numbers
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cl100k(true, Class::LETTER, UNLIMITED, true)),
    (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cl100k(false, Class::LETTER, 1, true)),
    // Seed-Coder
    ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        cl100k(true, Class::LETTER, 1, false)),
    ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        cl100k(true, Class::LETTER, 1, false)),
    // GPT-4o, gpt-oss, Llama 4
    (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cased(true, 3)),
    // Mistral's tekken
    (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cased(false, 1)),
    // Kimi K2
    (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Step::Cased(Cased { contractions: true, digits: 3, separate_han: true })),
    // Jais 2
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        Step::Cl100k(Cl100k { contractions: true, letters: Class::LETTER, digits: 3, line_ends: true, cascade: true })),
    // EXAONE MoE
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        Step::ExaoneMoe),
    // Youtu: characters by script, then words
    ("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
        Step::Sets(&[sets::KOREAN, sets::CHINESE_PUNCTUATION, sets::BOPOMOFO, sets::CHINESE_AND_JAPANESE])),
    (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        cased(true, 1)),
    // Groups of three digits: Tiny Aya, SuperBPE, AFMoE
    (r"\d{1,3}(?=(?:\d{3})*\b)", Step::DigitGroups(DigitGroups::BeforeBoundary)),
    (r"(?=(\d{3})+(?!\d))", Step::DigitGroups(DigitGroups::Cuts)),
    (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", Step::DigitGroups(DigitGroups::Numbers)),
    ("[一-鿿㐀-䶿\u{8c48}-\u{faff}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+",
        Step::Set(sets::ASIAN)),
    // Chameleon
    ("<sentinel:[0-9]+>", Step::Chameleon(Chameleon::Sentinel)),
    ("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", Step::Chameleon(Chameleon::Image)),
    (r"([\t\n]|    |  )", Step::Chameleon(Chameleon::Indent)),
    (r"[\p{P}!-/:-@\[-`{-~]", Step::Chameleon(Chameleon::Sign)),
    // Spark 2.5
    ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\r\n]|\\s+(?!\\S)|\\s+",
        Step::DeepSeekV3 { line_ends: false }),
    // DeepSeek V3, three consecutive expressions
    (r"\p{N}{1,3}", Step::Numbers(3)),
    ("[一-龥\u{3040}-ゟ゠-ヿ]+", Step::Set(sets::CHINESE_AND_JAPANESE)),
    ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        Step::DeepSeekV3 { line_ends: true }),
    (r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        Step::DeepSeekV3 { line_ends: true }),
    // DeepSeek LLM and Coder
    ("[\r\n]", Step::LineEnd),
    (r"[\r\n]", Step::LineEnd),
    (r"\s?\p{L}+", Step::SpacedClass(Class::LETTER)),
    (r"\s?\p{P}+", Step::SpacedClass(Class::PUNCTUATION)),
    ("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1f7d}ᾀ-ᾴᾶ-ᾼ\u{1fbe}ῂ-ῄῆ-ῌῐ-\u{1fd3}ῖ-\u{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
        Step::SpacedSet(sets::CASED_LETTERS)),
    ("\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+", Step::SpacedSet(sets::ASCII_AND_FULLWIDTH_PUNCTUATION)),
    (r"\s+$", Step::TrailingSpace),
    ("[一-龥ࠀ-一가-\u{d7ff}]+", Step::Set(sets::CHINESE_AND_KOREAN)),
    (r"\p{N}+", Step::Numbers(UNLIMITED)),
    (r"\p{N}", Step::Numbers(1)),
    // BLOOM
    (" ?[^(\\s|[.,!?…。，、।۔،])]+", Step::Bloom),
    // Laguna
    (r"[^\n]+|[\n]+", Step::Lines),
];

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use tokenizers::PreTokenizer as _;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, SplitDelimiterBehavior};
    use tokenizers::utils::SysRegex;

    use super::*;
    use crate::pretokenizer::PreTokenizer;
    use crate::unicode::Class;

    fn library(split: &Split, text: &str) -> Vec<String> {
        let mut parts = PreTokenizedString::from(text);
        split.pre_tokenize(&mut parts).unwrap();
        let parts = parts.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        parts.into_iter().map(|part| part.0.to_string()).collect()
    }

    fn ours(step: Step, text: &str) -> Vec<String> {
        let mut parts = Vec::new();
        let keep = &mut |part: &str| -> Result<(), ()> {
            parts.push(part.to_string());
            Ok(())
        };
        PreTokenizer::of_steps(vec![step]).split(text, keep).unwrap();
        parts
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
        let classes = [
            (r"\p{L}", Class::LETTER),
            (r"[\p{Lu}\p{Lt}]", Class::UPPER.or(Class::TITLE)),
            (r"\p{Ll}", Class::LOWER),
            (r"\p{N}", Class::NUMBER),
            (r"\p{P}", Class::PUNCTUATION),
            (r"\p{S}", Class::SYMBOL),
            (r"\p{M}", Class::MARK),
            (r"\s", Class::SPACE),
        ];
        let all: String = ('\0'..=char::MAX).filter(|&c| known(c)).collect();
        assert!(all.chars().count() > 280_000);
        let mut changed = std::collections::BTreeSet::new();
        for (regex, class) in classes {
            let expected: std::collections::HashSet<usize> =
                SysRegex::new(regex).unwrap().find_iter(&all).map(|found| found.0).collect();
            for (at, c) in all.char_indices() {
                if Class::of(c).is(class) != expected.contains(&at) {
                    changed.insert(c);
                }
            }
        }
        // Lower case in the crate's tables, without case in later Unicode versions.
        assert_eq!(changed.into_iter().collect::<String>(), "ʕ");
        // The condition of the `Digits` pre-tokenizer.
        assert!(all.chars().all(|c| c.is_numeric() == Class::of(c).is(Class::NUMBER)));
    }

    /// Families with several consecutive expressions.
    #[test]
    fn families_split_as_their_consecutive_expressions() {
        let find = |step: Step| PATTERNS.iter().find(|(_, known)| *known == step).unwrap().0;
        let numbers = [
            find(Step::DigitGroups(DigitGroups::BeforeBoundary)),
            find(Step::DigitGroups(DigitGroups::Cuts)),
            find(Step::DigitGroups(DigitGroups::Numbers)),
        ];
        let families: [(&str, Vec<&str>); 6] = [
            ("tiny_aya", vec![numbers[0], find(cased(true, 3))]),
            ("superbpe", vec![r"\p{N}+", numbers[1]]),
            (
                "afmoe",
                vec![numbers[2], find(Step::Set(sets::ASIAN)), find(Step::DeepSeekV3 { line_ends: true })],
            ),
            (
                "youtu",
                vec![
                    find(Step::Sets(&[
                        sets::KOREAN,
                        sets::CHINESE_PUNCTUATION,
                        sets::BOPOMOFO,
                        sets::CHINESE_AND_JAPANESE,
                    ])),
                    find(cased(true, 1)),
                ],
            ),
            (
                "spark2_5",
                vec![
                    r"\p{N}{1,3}",
                    find(Step::Set(sets::CHINESE_AND_JAPANESE)),
                    find(Step::DeepSeekV3 { line_ends: false }),
                    r"\p{N}",
                ],
            ),
            (
                "chameleon",
                vec![
                    find(Step::Chameleon(Chameleon::Sentinel)),
                    find(Step::Chameleon(Chameleon::Image)),
                    find(Step::Chameleon(Chameleon::Indent)),
                    r"\p{N}",
                    find(Step::Chameleon(Chameleon::Sign)),
                    find(Step::Gpt2),
                ],
            ),
        ];
        let split = |regex: &&str| {
            Split::new(SplitPattern::Regex(regex.to_string()), SplitDelimiterBehavior::Isolated, false)
                .unwrap()
        };
        let families: Vec<(&str, Vec<Split>)> =
            families.iter().map(|(name, list)| (*name, list.iter().map(split).collect())).collect();
        let config = ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(text in text())| {
            for (name, splits) in &families {
                let mut expected = vec![text.clone()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
                for split in splits {
                    expected = expected.iter().flat_map(|part| library(split, part)).collect();
                }
                let mut parts = Vec::new();
                let keep = &mut |part: &str| -> Result<(), ()> {
                    parts.push(part.to_string());
                    Ok(())
                };
                PreTokenizer::named(name).unwrap().split(&text, keep).unwrap();
                prop_assert_eq!(parts, expected, "{:?} by {}", text, name);
            }
        });
    }

    #[test]
    fn every_expression_splits_as_the_tokenizers_crate() {
        let splits: Vec<(Split, &str, Step)> = PATTERNS
            .iter()
            .map(|&(regex, step)| {
                let pattern = SplitPattern::Regex(regex.to_string());
                (Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap(), regex, step)
            })
            .collect();
        let config = ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(text in text())| {
            for (split, regex, step) in &splits {
                prop_assert_eq!(ours(*step, &text), library(split, &text), "{:?} by {}", text, regex);
            }
        });
    }
}

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

/// Pre-tokenizers of several consecutive expressions.
#[cfg(feature = "oracle")]
pub fn families() -> Vec<(&'static str, Vec<&'static str>)> {
    let of = |step: Step| PATTERNS.iter().find(|(_, known)| *known == step).map_or("", |(regex, _)| *regex);
    let numbers = [
        of(Step::DigitGroups(DigitGroups::BeforeBoundary)),
        of(Step::DigitGroups(DigitGroups::Cuts)),
        of(Step::DigitGroups(DigitGroups::Numbers)),
    ];
    vec![
        ("tiny_aya", vec![numbers[0], of(cased(true, 3))]),
        ("superbpe", vec![r"\p{N}+", numbers[1]]),
        ("afmoe", vec![numbers[2], of(Step::Set(sets::ASIAN)), of(Step::DeepSeekV3 { line_ends: true })]),
        (
            "youtu",
            vec![
                of(Step::Sets(&[
                    sets::KOREAN,
                    sets::CHINESE_PUNCTUATION,
                    sets::BOPOMOFO,
                    sets::CHINESE_AND_JAPANESE,
                ])),
                of(cased(true, 1)),
            ],
        ),
        (
            "spark2_5",
            vec![
                r"\p{N}{1,3}",
                of(Step::Set(sets::CHINESE_AND_JAPANESE)),
                of(Step::DeepSeekV3 { line_ends: false }),
                r"\p{N}",
            ],
        ),
        (
            "chameleon",
            vec![
                of(Step::Chameleon(Chameleon::Sentinel)),
                of(Step::Chameleon(Chameleon::Image)),
                of(Step::Chameleon(Chameleon::Indent)),
                r"\p{N}",
                of(Step::Chameleon(Chameleon::Sign)),
                of(Step::Gpt2),
            ],
        ),
    ]
}

//! Pre-tokenization: before BPE, text is split into words, and merges never cross a word boundary. The rules depend on
//! the model family and are named by `tokenizer.ggml.pre`. An unknown name is an error, because wrong boundaries would
//! silently produce tokens that the model was not trained on.

mod numbers;
pub(crate) mod patterns;
mod sets;
mod words;

use std::borrow::Cow;

use crate::TokenizerError;
use crate::error::printable;
use crate::unicode::{Class, Reader};
use numbers::DigitGroups;
use words::{Cased, Chameleon, Cl100k};

/// A pattern. Each match becomes a piece, and so does the text between two matches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Gpt2,
    Cl100k(Cl100k),
    Cased(Cased),
    /// Whether punctuation includes following newlines.
    DeepSeekV3 {
        line_ends: bool,
    },
    ExaoneMoe,
    /// `\p{N}{1,n}`
    Numbers(usize),
    /// `[0-9][0-9][0-9]`
    ThreeDigits,
    /// `[\p{P}…]+`, including these ASCII characters.
    Punctuation(&'static [u8]),
    /// `\s?[class]+`
    SpacedClass(Class),
    /// `\s?[set]+`
    SpacedSet(Set),
    /// `[set]+`
    Set(Set),
    /// `[\r\n]`
    LineEnd,
    /// `[^\n]+|[\n]+`
    Lines,
    /// `\s+$`
    TrailingSpace,
    /// ` ?[^(\s|.,!?…。，、।۔،)]+`
    Bloom,
    /// `[a]+|[b]+|…`
    Sets(&'static [Set]),
    /// Groups of three digits, counted from the end of a number.
    DigitGroups(DigitGroups),
    Chameleon(Chameleon),
}

/// Sorted inclusive ranges.
type Set = &'static [(char, char)];

const fn cl100k(digits: usize) -> Step {
    Step::Cl100k(Cl100k { digits, ..CL100K })
}

const fn cased(contractions: bool, digits: usize) -> Step {
    Step::Cased(Cased { contractions, digits, separate_han: false })
}

const CL100K: Cl100k =
    Cl100k { contractions: true, letters: Class::LETTER, digits: 3, line_ends: true, cascade: false };
const UNLIMITED: usize = usize::MAX;
const LLAMA3: &[Step] = &[cl100k(3)];
const QWEN2: &[Step] = &[cl100k(1)];
const GPT2: &[Step] = &[Step::Gpt2];
const SINGLE_DIGITS: &[Step] = &[Step::Numbers(1), Step::Gpt2];
const O200K: &[Step] = &[cased(true, 3)];
const TEKKEN: &[Step] = &[cased(false, 1)];
const DEEPSEEK_V3: &[Step] =
    &[Step::Numbers(3), Step::Set(sets::CHINESE_AND_JAPANESE), Step::DeepSeekV3 { line_ends: true }];
const SPARK: &[Step] = &[
    Step::Numbers(3),
    Step::Set(sets::CHINESE_AND_JAPANESE),
    Step::DeepSeekV3 { line_ends: false },
    Step::Numbers(1),
];
const YOUTU: &[Step] = &[
    Step::Sets(&[sets::KOREAN, sets::CHINESE_PUNCTUATION, sets::BOPOMOFO, sets::CHINESE_AND_JAPANESE]),
    cased(true, 1),
];
const KIMI_K2: &[Step] = &[Step::Cased(Cased { contractions: true, digits: 3, separate_han: true })];
const TINY_AYA: &[Step] = &[Step::DigitGroups(DigitGroups::BeforeBoundary), cased(true, 3)];
const AFMOE: &[Step] =
    &[Step::DigitGroups(DigitGroups::Numbers), Step::Set(sets::ASIAN), Step::DeepSeekV3 { line_ends: true }];
const SUPERBPE: &[Step] = &[Step::Numbers(UNLIMITED), Step::DigitGroups(DigitGroups::Cuts)];
const CHAMELEON: &[Step] = &[
    Step::Chameleon(Chameleon::Sentinel),
    Step::Chameleon(Chameleon::Image),
    Step::Chameleon(Chameleon::Indent),
    Step::Numbers(1),
    Step::Chameleon(Chameleon::Sign),
    Step::Gpt2,
];
const DEEPSEEK_LLM: &[Step] = &[
    Step::LineEnd,
    Step::SpacedSet(sets::CASED_LETTERS),
    Step::SpacedSet(sets::ASCII_AND_FULLWIDTH_PUNCTUATION),
    Step::TrailingSpace,
    Step::Set(sets::CHINESE_AND_KOREAN),
    Step::Numbers(UNLIMITED),
];
const DEEPSEEK_CODER: &[Step] = &[
    Step::LineEnd,
    Step::SpacedClass(Class::LETTER),
    Step::SpacedClass(Class::PUNCTUATION),
    Step::Set(sets::CHINESE_AND_KOREAN),
    Step::Numbers(1),
];
const QWEN35: &[Step] =
    &[Step::Cl100k(Cl100k { letters: Class::LETTER.or(Class::MARK), digits: 1, ..CL100K })];
const NO_CONTRACTIONS: &[Step] = &[Step::Cl100k(Cl100k { contractions: false, digits: 1, ..CL100K })];
const SEED_CODER: &[Step] = &[Step::Cl100k(Cl100k { digits: 1, line_ends: false, ..CL100K })];
const JAIS2: &[Step] = &[Step::Cl100k(Cl100k { cascade: true, ..CL100K })];
const FALCON: &[Step] = &[Step::Punctuation(b"$+<=>^~|`"), Step::Gpt2, Step::ThreeDigits];
const DEFAULT: &[Step] =
    &[Step::Punctuation(b"$+<=>^~|"), Step::Gpt2, Step::Numbers(UNLIMITED), Step::ThreeDigits];

/// Every known name, by its steps.
const NAMES: &[(&[Step], &[&str])] = &[
    (DEFAULT, &["default"]),
    (
        LLAMA3,
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
            "dbrx",
            "smaug-bpe",
            "chatglm-bpe",
            "glm4",
            "glm5",
        ],
    ),
    (
        QWEN2,
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
            "grok-2",
        ],
    ),
    (QWEN35, &["qwen35"]),
    (
        GPT2,
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
    ),
    (
        SINGLE_DIGITS,
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
    ),
    (TEKKEN, &["tekken"]),
    (O200K, &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"]),
    (DEEPSEEK_LLM, &["deepseek-llm"]),
    (DEEPSEEK_CODER, &["deepseek-coder"]),
    (DEEPSEEK_V3, &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"]),
    (FALCON, &["falcon"]),
    (&[Step::Bloom], &["bloom", "poro-chat", "gpt3-finnish"]),
    (&[Step::Bloom, Step::Numbers(1)], &["viking"]),
    (SEED_CODER, &["seed-coder"]),
    (NO_CONTRACTIONS, &["ufakzeka"]),
    (&[Step::Numbers(3), cl100k(UNLIMITED)], &["minicpm5"]),
    (&[Step::Lines, cl100k(1)], &["laguna"]),
    (JAIS2, &["jais-2"]),
    (SPARK, &["spark2_5"]),
    (YOUTU, &["youtu"]),
    (KIMI_K2, &["kimi-k2"]),
    (TINY_AYA, &["tiny_aya", "cohere2moe"]),
    (AFMOE, &["afmoe"]),
    (SUPERBPE, &["superbpe"]),
    (CHAMELEON, &["chameleon"]),
    (&[Step::ExaoneMoe], &["exaone-moe"]),
];

/// Families whose vocabularies contain whole words that no merges produce.
pub(crate) fn ignores_merges(pre: &str) -> bool {
    const NAMES: [&str; 15] = [
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
        "minicpm5",
        "glm4",
        "glm5",
        "youtu",
        "granite-embed-multi-97m",
    ];
    NAMES.contains(&pre)
}

/// Families that begin texts with the begin-of-text token, unless the file states otherwise.
pub(crate) fn begins_with_bos(pre: &str) -> bool {
    const OTHERS: [&str; 5] = ["minicpm5", "glm4", "glm5", "youtu", "granite-embed-multi-97m"];
    pre == "chameleon" || ignores_merges(pre) && !OTHERS.contains(&pre)
}

/// Families whose published tokenizers compose text (NFC) before it is split.
pub(crate) fn composes(pre: &str) -> bool {
    const NAMES: [&str; 5] = ["qwen2", "qwen35", "mpt", "olmo", "command-r"];
    NAMES.contains(&pre)
}

/// The expressions of a pre-tokenizer in the form of `tokenizer.json`, if all of its steps have one.
pub(crate) fn expressions(name: &str) -> Option<Vec<&'static str>> {
    let (steps, _) = NAMES.iter().find(|(_, names)| names.contains(&name))?;
    let regex = |step: &Step| patterns::PATTERNS.iter().find(|(_, of)| of == step).map(|(regex, _)| *regex);
    steps.iter().map(regex).collect()
}

/// Splits text into words.
#[derive(Clone, Debug)]
pub(crate) struct PreTokenizer {
    steps: Cow<'static, [Step]>,
}

impl PreTokenizer {
    pub(crate) fn named(name: &str) -> Result<PreTokenizer, TokenizerError> {
        match NAMES.iter().find(|(_, names)| names.contains(&name)) {
            Some(&(steps, _)) => Ok(PreTokenizer { steps: steps.into() }),
            None => Err(TokenizerError::UnknownPreTokenizer {
                name: printable(name),
                known: PreTokenizer::names().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    pub(crate) fn of_steps(steps: Vec<Step>) -> PreTokenizer {
        PreTokenizer { steps: steps.into() }
    }

    /// The GGUF name of this pre-tokenizer, depending on `ignore_merges` and, if possible, on whether text is composed.
    /// Several names are equivalent; the one that implies the fewest other settings comes first in the table.
    pub(crate) fn name(&self, ignore_merges: bool, composed: bool) -> Option<&'static str> {
        let same = NAMES.iter().filter(|(steps, _)| *steps == &*self.steps);
        let names = same.flat_map(|(_, names)| names.iter().copied());
        let names = names.filter(|name| ignores_merges(name) == ignore_merges);
        names.clone().find(|name| composes(name) == composed).or_else(|| names.clone().next())
    }

    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().flat_map(|(_, names)| names.iter().copied())
    }

    /// One name for each pre-tokenizer.
    #[cfg(test)]
    pub(crate) fn distinct_names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter_map(|(_, names)| names.first().copied())
    }

    /// Passes the words of `text` to `emit` in order; their concatenation is the text.
    pub(crate) fn split<E>(&self, text: &str, emit: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        split(&self.steps, text, emit)
    }
}

fn split<E>(steps: &[Step], text: &str, emit: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    let Some((step, later)) = steps.split_first() else { return emit(text) };
    let reader = Reader::new(text);
    if let Step::DigitGroups(rule) = step {
        return rule.split(reader, &mut |start, end| split(later, &text[start..end], emit));
    }
    let mut done = 0;
    while done < text.len() {
        let (start, end) = step.find(reader, done).unwrap_or((text.len(), text.len()));
        if done < start {
            split(later, &text[done..start], emit)?;
        }
        if start < end {
            split(later, &text[start..end], emit)?;
        }
        done = end;
    }
    Ok(())
}

impl Step {
    /// The step of a regular expression in a `tokenizer.json`, if it is known.
    pub(crate) fn of_pattern(regex: &str) -> Option<Step> {
        patterns::PATTERNS.iter().find(|(text, _)| *text == regex).map(|&(_, step)| step)
    }

    /// Whether the matches cover every text completely.
    pub(crate) fn is_total(self) -> bool {
        matches!(self, Step::Gpt2 | Step::Cl100k(_) | Step::Cased(_))
    }

    /// The first match at or after `from`.
    fn find(self, text: Reader<'_>, from: usize) -> Option<(usize, usize)> {
        // Trying this pattern at each of many spaces would scan all following ones every time.
        if let Step::TrailingSpace = self {
            return trailing_space(text, from);
        }
        let mut at = from;
        loop {
            let end = self.end(text, at);
            if end > at {
                return Some((at, end));
            }
            (_, at) = text.char(at)?;
        }
    }

    /// The end of the match that starts at `at`; `at` if there is none.
    fn end(self, text: Reader<'_>, at: usize) -> usize {
        match self {
            Step::Gpt2 => words::gpt2(text, at),
            Step::Cl100k(rule) => rule.word(text, at),
            Step::Cased(rule) => rule.word(text, at),
            Step::DeepSeekV3 { line_ends } => words::deepseek_v3(text, at, line_ends),
            Step::ExaoneMoe => words::exaone_moe(text, at),
            Step::Sets(sets) => {
                let ends = sets.iter().map(|set| run(text, at, |c| within(set, c)));
                ends.max().unwrap_or(at)
            }
            Step::Chameleon(rule) => rule.end(text, at),
            // Handled separately in `split`.
            Step::DigitGroups(_) => at,
            Step::Numbers(max) => words::numbers(text, at, max),
            Step::ThreeDigits => {
                let three = (0..3).all(|i| text.byte(at + i).is_ascii_digit());
                if three { at + 3 } else { at }
            }
            Step::Punctuation(also) => run(text, at, |c| {
                Class::of(c).is(Class::PUNCTUATION) || c.is_ascii() && also.contains(&(c as u8))
            }),
            Step::SpacedClass(class) => after_space(text, at, |start| text.run(start, class)),
            Step::SpacedSet(set) => after_space(text, at, |start| run(text, start, |c| within(set, c))),
            Step::Set(set) => run(text, at, |c| within(set, c)),
            Step::LineEnd => at + matches!(text.byte(at), b'\r' | b'\n') as usize,
            Step::Lines if text.byte(at) == b'\n' => run(text, at, |c| c == '\n'),
            Step::Lines => run(text, at, |c| c != '\n'),
            Step::TrailingSpace => trailing_space(text, at).filter(|m| m.0 == at).map_or(at, |m| m.1),
            Step::Bloom => {
                let start = if text.byte(at) == b' ' { at + 1 } else { at };
                let end =
                    run(text, start, |c| !Class::of(c).is(Class::SPACE) && !sets::BLOOM_ENDS.contains(&c));
                if end > start { end } else { at }
            }
        }
    }
}

/// The end of the run of characters from `at` that `belongs` accepts.
fn run(text: Reader<'_>, mut at: usize, belongs: impl Fn(char) -> bool) -> usize {
    while let Some((c, next)) = text.char(at) {
        if !belongs(c) {
            break;
        }
        at = next;
    }
    at
}

/// An optional whitespace character followed by `rest`, or `rest` alone.
fn after_space(text: Reader<'_>, at: usize, rest: impl Fn(usize) -> usize) -> usize {
    let (class, next) = text.class(at);
    if class.is(Class::SPACE) {
        let end = rest(next);
        if end > next {
            return end;
        }
    }
    // The ideographic space also counts as punctuation in some sets, so try it without skipping it.
    rest(at)
}

fn within(set: Set, c: char) -> bool {
    let after = set.partition_point(|range| range.0 <= c);
    after > 0 && c <= set[after - 1].1
}

fn trailing_space(text: Reader<'_>, from: usize) -> Option<(usize, usize)> {
    let end = text.len();
    let start = from + text.tail(from).trim_end_matches(|c| Class::of(c).is(Class::SPACE)).len();
    Some((start, end)).filter(|_| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let keep = &mut |piece: &str| -> Result<(), ()> {
            pieces.push(piece.to_string());
            Ok(())
        };
        PreTokenizer::named(name).unwrap().split(text, keep).unwrap();
        pieces
    }

    /// The cases are described in `tests/golden/pretokenizers.py`.
    #[test]
    fn every_family_splits_as_hugging_face() {
        let golden = include_str!("../../tests/golden/pretokenizers.json");
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let texts = golden["texts"].as_array().unwrap();
        let families = golden["piece_chars"].as_object().unwrap();
        let mut wrong = Vec::new();
        for (name, cuts) in families {
            for (text, cut) in texts.iter().zip(cuts.as_array().unwrap()) {
                let text = text.as_str().unwrap();
                let sizes: Vec<u64> =
                    pieces(name, text).iter().map(|piece| piece.chars().count() as u64).collect();
                let expected: Vec<u64> =
                    cut.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
                if sizes != expected {
                    wrong.push(format!("{name} {text:?} expected {expected:?} is {sizes:?}"));
                }
            }
        }
        for (_, names) in NAMES {
            assert!(names.iter().any(|&name| families.contains_key(name)), "cases for one of {names:?}");
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    }

    proptest! {
        #[test]
        fn pieces_are_not_empty_and_together_are_the_text(text in "(\\PC|[ \n\r\t'a-zA-Z0-9!])*") {
            for name in PreTokenizer::names() {
                let pieces = pieces(name, &text);
                prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
                prop_assert_eq!(pieces.concat(), text.clone());
            }
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = PreTokenizer::named("llama-4\u{7}").unwrap_err().to_string();
        assert!(error.contains("`llama-4\\u{7}`") && error.contains("llama-bpe, llama3"), "{error}");
    }
}

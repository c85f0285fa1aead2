//! Pre-tokenization in the general form: a text is cut into words by one step after the other, as the file lists them.
//! What most files ask for is done in one pass instead (`recognise`).

use std::ops::Range;

use serde_json::Value;
use unicode_categories::UnicodeCategories;

use super::limit;
use super::normalize::push_marked_by;
use super::parts::{Pattern, character, flag, malformed, sequence, unknown_part};
use super::recognise::Prepend;
use crate::TokenizerError;
use crate::bytes::push_written;
use crate::cancel::Watch;
use crate::pretokenizer::{self, PreTokenizer};

#[derive(Debug)]
pub(super) struct Steps(Vec<Step>);

#[derive(Debug)]
enum Step {
    Cut {
        at: Delimiter,
        invert: bool,
        behavior: Behavior,
    },
    /// A known expression, whose matches and the text between them are words.
    Known(PreTokenizer),
    /// Words of so many characters.
    Length(usize),
    /// Runs of word characters, and of others except whitespace, which is removed.
    Words,
    Metaspace {
        mark: char,
        prepend: Prepend,
        split: bool,
    },
    ByteLevel {
        prefix_space: bool,
        cut: PreTokenizer,
    },
}

#[derive(Debug)]
enum Delimiter {
    Pattern(Pattern),
    Char(char),
    Class(fn(char) -> bool),
}

fn step(watch: &mut Watch) -> Result<(), TokenizerError> {
    crate::work::count(1);
    watch.step()
}

/// What becomes of the delimiters between words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

const KNOWN: &str = "BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength, Metaspace, Punctuation, \
                     Sequence, Split, Whitespace, WhitespaceSplit";

impl Steps {
    pub(super) fn of(value: &Value) -> Result<Steps, TokenizerError> {
        let mut steps = Vec::new();
        sequence(value, "pretokenizers").into_iter().try_for_each(|part| read(part, &mut steps))?;
        Ok(Steps(steps))
    }

    /// Passes the words of a text to `emit`, in order. `first`: the text begins a whole text.
    pub(super) fn words(
        &self,
        text: &str,
        first: bool,
        watch: &mut Watch,
        mut emit: impl FnMut(&str) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        crate::work::count(text.len());
        let mut words = Words { text: text.to_string(), ranges: Vec::new(), first };
        if !text.is_empty() {
            words.ranges.push(0..text.len());
        }
        for step in &self.0 {
            step.apply(&mut words, watch)?;
        }
        words.ranges.into_iter().try_for_each(|range| emit(&words.text[range]))
    }
}

/// A text that is cut into words.
struct Words {
    text: String,
    ranges: Vec<Range<usize>>,
    /// The first word begins a whole text.
    first: bool,
}

fn read(part: &Value, steps: &mut Vec<Step>) -> Result<(), TokenizerError> {
    let at = |class, behavior| Step::Cut { at: Delimiter::Class(class), invert: false, behavior };
    let step = match part["type"].as_str() {
        Some("BertPreTokenizer") => {
            steps.push(at(char::is_whitespace, Behavior::Removed));
            at(is_punctuation, Behavior::Isolated)
        }
        Some("WhitespaceSplit") => at(char::is_whitespace, Behavior::Removed),
        Some("Whitespace") => Step::Words,
        Some("Punctuation") => at(is_punctuation, behavior(part, Some(Behavior::Isolated))?),
        Some("Digits") => {
            let single = flag(part, "individual_digits", None)?;
            at(char::is_numeric, if single { Behavior::Isolated } else { Behavior::Contiguous })
        }
        Some("FixedLength") => match part.get("length").map_or(Some(5), Value::as_u64) {
            Some(length) if length > 0 => Step::Length(usize::try_from(length).unwrap_or(usize::MAX)),
            _ => return Err(malformed(part, "length")),
        },
        Some("Metaspace") => metaspace(part)?,
        Some("ByteLevel") => {
            let gpt2 = flag(part, "use_regex", Some(true))?.then_some(pretokenizer::Step::Gpt2);
            Step::ByteLevel {
                prefix_space: flag(part, "add_prefix_space", None)?,
                cut: PreTokenizer::of_steps(gpt2.into_iter().collect()),
            }
        }
        Some("Split") => split(part)?,
        Some("CharDelimiterSplit") => {
            let at = Delimiter::Char(character(part, "delimiter")?);
            Step::Cut { at, invert: false, behavior: Behavior::Removed }
        }
        _ => return Err(unknown_part("pre_tokenizer", part, KNOWN)),
    };
    steps.push(step);
    Ok(())
}

fn split(part: &Value) -> Result<Step, TokenizerError> {
    let (invert, behavior) = (flag(part, "invert", None)?, behavior(part, None)?);
    let known = part["pattern"]["Regex"].as_str().and_then(pretokenizer::Step::of_pattern);
    if let (Some(known), false, Behavior::Isolated) = (known, invert, behavior) {
        return Ok(Step::Known(PreTokenizer::of_steps(vec![known])));
    }
    Ok(Step::Cut { at: Delimiter::Pattern(Pattern::of(&part["pattern"])?), invert, behavior })
}

fn metaspace(part: &Value) -> Result<Step, TokenizerError> {
    let mut prepend = match part.get("prepend_scheme").map(Value::as_str) {
        None | Some(Some("always")) => Prepend::Always,
        Some(Some("first")) => Prepend::First,
        Some(Some("never")) => Prepend::Never,
        _ => return Err(malformed(part, "prepend_scheme")),
    };
    if !flag(part, "add_prefix_space", Some(true))? {
        if prepend != Prepend::Never && part.get("prepend_scheme").is_some() {
            return Err(malformed(part, "add_prefix_space"));
        }
        prepend = Prepend::Never;
    }
    let (mark, split) = (character(part, "replacement")?, flag(part, "split", Some(true))?);
    Ok(Step::Metaspace { mark, prepend, split })
}

fn behavior(part: &Value, default: Option<Behavior>) -> Result<Behavior, TokenizerError> {
    Ok(match (part["behavior"].as_str(), default) {
        (Some("Removed"), _) => Behavior::Removed,
        (Some("Isolated"), _) => Behavior::Isolated,
        (Some("MergedWithPrevious"), _) => Behavior::MergedWithPrevious,
        (Some("MergedWithNext"), _) => Behavior::MergedWithNext,
        (Some("Contiguous"), _) => Behavior::Contiguous,
        (None, Some(default)) if part.get("behavior").is_none() => default,
        _ => return Err(malformed(part, "behavior")),
    })
}

impl Step {
    fn apply(&self, words: &mut Words, watch: &mut Watch) -> Result<(), TokenizerError> {
        match self {
            Step::Cut { at, invert, behavior } => {
                let mut spans = Vec::new();
                words.cut(|text, ranges| {
                    at.spans(text, watch, &mut spans)?;
                    spans.iter_mut().for_each(|span| span.is_match ^= *invert);
                    behavior.words(&spans, ranges);
                    Ok(())
                })
            }
            Step::Known(known) => words.cut(|text, ranges| {
                let mut end = 0;
                known.split(text, &mut |word| {
                    step(watch)?;
                    ranges.push(end..end + word.len());
                    end += word.len();
                    Ok(())
                })
            }),
            Step::Length(length) => words.cut(|text, ranges| {
                let mut start = 0;
                while start < text.len() {
                    step(watch)?;
                    let rest = &text[start..];
                    let end = start + rest.char_indices().nth(*length).map_or(rest.len(), |(at, _)| at);
                    ranges.push(start..end);
                    start = end;
                }
                Ok(())
            }),
            Step::Words => words.cut(|text, ranges| {
                let mut before = None;
                for (at, c) in text.char_indices() {
                    step(watch)?;
                    let class = Some(is_word(c)).filter(|_| !c.is_whitespace());
                    let end = at + c.len_utf8();
                    match ranges.last_mut() {
                        Some(last) if class.is_some() && class == before => last.end = end,
                        _ if class.is_some() => ranges.push(at..end),
                        _ => {}
                    }
                    before = class;
                }
                Ok(())
            }),
            Step::Metaspace { mark, prepend, split } => words.rewrite(|word, first, out, ranges| {
                let wanted = *prepend == Prepend::Always || *prepend == Prepend::First && first;
                let mut start = out.len();
                if wanted && !word.starts_with([' ', *mark]) {
                    out.push(*mark);
                }
                push_marked_by(*mark, word, out);
                if *split {
                    let from = start;
                    for (at, _) in out[from..].match_indices(*mark) {
                        step(watch)?;
                        let at = from + at;
                        if at > start {
                            ranges.push(start..at);
                        }
                        start = at;
                    }
                }
                ranges.push(start..out.len());
                Ok(())
            }),
            Step::ByteLevel { prefix_space, cut } => words.rewrite(|word, _, out, ranges| {
                let spaced = (*prefix_space && !word.starts_with(' ')).then(|| format!(" {word}"));
                cut.split(spaced.as_deref().unwrap_or(word), &mut |word| {
                    step(watch)?;
                    let start = out.len();
                    push_written(word.as_bytes(), out);
                    ranges.push(start..out.len());
                    Ok(())
                })
            }),
        }
    }
}

impl Words {
    /// Cuts each word into the ranges that `cut` appends for it.
    fn cut(
        &mut self,
        mut cut: impl FnMut(&str, &mut Vec<Range<usize>>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let (mut ranges, mut of_word) = (Vec::with_capacity(self.ranges.len()), Vec::new());
        let first = self.ranges.first().map(|range| range.start);
        for word in &self.ranges {
            cut(&self.text[word.clone()], &mut of_word)?;
            let parts = of_word.drain(..).filter(|part| !part.is_empty());
            ranges.extend(parts.map(|part| word.start + part.start..word.start + part.end));
        }
        self.first &= first.is_some() && ranges.first().map(|range| range.start) == first;
        self.ranges = ranges;
        Ok(())
    }

    /// Replaces each word by what `rewrite` appends to the new text, in the ranges that it appends.
    fn rewrite(
        &mut self,
        mut rewrite: impl FnMut(&str, bool, &mut String, &mut Vec<Range<usize>>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let (mut text, mut ranges) = (String::new(), Vec::with_capacity(self.ranges.len()));
        for (at, word) in self.ranges.iter().enumerate() {
            rewrite(&self.text[word.clone()], self.first && at == 0, &mut text, &mut ranges)?;
            limit(text.len())?;
        }
        (self.text, self.ranges) = (text, ranges);
        Ok(())
    }
}

/// A delimiter, or the text between two.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
    is_match: bool,
}

impl Delimiter {
    /// The delimiters in a text and what is between them, in order.
    fn spans(&self, text: &str, watch: &mut Watch, spans: &mut Vec<Span>) -> Result<(), TokenizerError> {
        spans.clear();
        let mut done = 0;
        let mut found = |start, end| {
            if done < start {
                spans.push(Span { start: done, end: start, is_match: false });
            }
            spans.push(Span { start, end, is_match: true });
            done = end;
            Ok(())
        };
        let mut by_class = |class: &dyn Fn(char) -> bool, watch: &mut Watch| {
            text.char_indices().try_for_each(|(at, c)| {
                step(watch)?;
                if class(c) { found(at, at + c.len_utf8()) } else { Ok(()) }
            })
        };
        match self {
            Delimiter::Class(class) => by_class(class, watch)?,
            Delimiter::Char(wanted) => by_class(&|c| c == *wanted, watch)?,
            Delimiter::Pattern(pattern) => pattern.each_match(text, watch, found)?,
        }
        if done < text.len() {
            spans.push(Span { start: done, end: text.len(), is_match: false });
        }
        Ok(())
    }
}

impl Behavior {
    /// Appends the words that the spans of a text make.
    fn words(self, spans: &[Span], words: &mut Vec<Range<usize>>) {
        let range = |span: &Span| span.start..span.end;
        match self {
            Behavior::Isolated => words.extend(spans.iter().map(range)),
            Behavior::Removed => words.extend(spans.iter().filter(|span| !span.is_match).map(range)),
            Behavior::Contiguous => {
                for run in spans.chunk_by(|a, b| a.is_match == b.is_match) {
                    words.push(run[0].start..run[run.len() - 1].end);
                }
            }
            // Of several delimiters in a row the first is merged.
            Behavior::MergedWithPrevious => {
                let mut merge = false;
                for span in spans {
                    match words.last_mut() {
                        Some(last) if span.is_match && merge => last.end = span.end,
                        _ => words.push(range(span)),
                    }
                    merge = !span.is_match;
                }
            }
            // Of several delimiters in a row the last is merged.
            Behavior::MergedWithNext => {
                let merged = |at: usize| spans.get(at).is_some_and(|next| !next.is_match);
                let mut start = None;
                for (at, span) in spans.iter().enumerate() {
                    if span.is_match && merged(at + 1) {
                        start = Some(span.start);
                    } else {
                        words.push(start.take().unwrap_or(span.start)..span.end);
                    }
                }
            }
        }
    }
}

pub(super) fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || !c.is_ascii() && c.is_punctuation()
}

/// Whether regular expressions count the character as one of a word (`\w`).
pub(super) fn is_word(c: char) -> bool {
    c.is_alphabetic()
        || c.is_number_decimal_digit()
        || c.is_mark()
        || c.is_punctuation_connector()
        || matches!(c, '\u{200c}' | '\u{200d}')
}

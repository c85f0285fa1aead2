//! The patterns that split most text into words, each implemented as a scanner.
//!
//! A scanner takes a reader of a text and a position, and returns the end of the word that starts there, or the
//! position itself if there is no match. Each scanner quotes the regular expression from the model files that it
//! implements. `\s+(?!\S)` leaves the last of several spaces to the following word.

use super::{sets, within};
use crate::unicode::{Class, Reader};

const NUMBER: Class = Class::NUMBER;
const SPACE: Class = Class::SPACE;
const LETTER: Class = Class::LETTER;

/// GPT-2: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) fn gpt2(text: Reader<'_>, at: usize) -> usize {
    let end = contraction(text, at, false);
    if end > at {
        return end;
    }
    let start = if text.byte(at) == b' ' { at + 1 } else { at };
    let (class, _) = text.class(start);
    for kind in [LETTER, NUMBER, SPACE.or(LETTER).or(NUMBER).not()] {
        if class.is(kind) {
            return text.run(start, kind);
        }
    }
    spaces(text, at, false)
}

/// The differences between the many variants of cl100k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cl100k {
    /// Contractions such as `'s` are separate words, in upper and lower case.
    pub(super) contractions: bool,
    /// The characters of words: letters, with or without marks.
    pub(super) letters: Class,
    /// Maximum number of digits in a group.
    pub(super) digits: usize,
    /// Punctuation includes following newlines.
    pub(super) line_ends: bool,
    /// Runs of whitespace are split into powers of two.
    pub(super) cascade: bool,
}

impl Cl100k {
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    pub(super) fn word(self, text: Reader<'_>, at: usize) -> usize {
        if self.contractions {
            let end = contraction(text, at, true);
            if end > at {
                return end;
            }
        }
        let (class, next) = text.class(at);
        if may_lead(text, at, class) && text.class(next).0.is(self.letters) {
            return text.run(next, self.letters);
        }
        if class.is(self.letters) {
            return text.run(at, self.letters);
        }
        if class.is(NUMBER) {
            return numbers(text, at, self.digits);
        }
        let signs = SPACE.or(self.letters).or(NUMBER).not();
        let end = punctuation_after_space(text, at, signs);
        if end > at {
            return if self.line_ends { skip(text, end, b"\r\n") } else { end };
        }
        if self.cascade { cascade(text, at) } else { spaces(text, at, true) }
    }
}

/// o200k and tekken, which begin a new word where an upper-case letter follows a lower-case one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cased {
    /// Contractions such as `'s` are part of the preceding word.
    pub(super) contractions: bool,
    pub(super) digits: usize,
    /// Han characters are separate words, `[\p{Han}]+`, and not letters of other words; punctuation does not include a
    /// trailing `/`.
    pub(super) separate_han: bool,
}

impl Cased {
    /// ```text
    /// [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
    /// [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
    /// \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
    /// ```
    pub(super) fn word(self, text: Reader<'_>, at: usize) -> usize {
        let (class, next) = text.class(at);
        if self.separate_han && is_han(text, at) {
            let mut end = next;
            while is_han(text, end) {
                end = text.class(end).1;
            }
            return end;
        }
        let leads = may_lead(text, at, class);
        let mut end = None;
        if leads {
            end = self.upper_then_lower(text, next);
        }
        // A mark may be the leading character or part of the word; the former is tried first.
        end = end.or_else(|| self.upper_then_lower(text, at));
        if end.is_none() {
            let start = if leads && self.letter(text, next).0.is(CAPITAL) { next } else { at };
            end = Some(self.run(text, start, CAPITAL)).filter(|&end| end > start);
        }
        if let Some(end) = end {
            return if self.contractions { contraction(text, end, true) } else { end };
        }
        if class.is(NUMBER) {
            return numbers(text, at, self.digits);
        }
        let end = punctuation_after_space(text, at, SPACE.or(LETTER).or(NUMBER).not());
        if end > at {
            return skip(text, end, if self.separate_han { b"\r\n" } else { b"\r\n/" });
        }
        spaces(text, at, true)
    }

    /// The class of the character at `at`, or an empty class if it cannot be part of a word.
    #[inline]
    fn letter(self, text: Reader<'_>, at: usize) -> (Class, usize) {
        let (class, next) = text.class(at);
        if self.separate_han && is_han(text, at) { (Class::END, next) } else { (class, next) }
    }

    fn run(self, text: Reader<'_>, mut at: usize, set: Class) -> usize {
        if !self.separate_han {
            return text.run(at, set);
        }
        loop {
            let (class, next) = self.letter(text, at);
            if !class.is(set) {
                return at;
            }
            at = next;
        }
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
    ///
    /// Letters without case are in both sets. The first set is greedy; if no lower-case letter follows, it backtracks
    /// as little as possible, to the last letter without case.
    fn upper_then_lower(self, text: Reader<'_>, start: usize) -> Option<usize> {
        let (mut at, mut after_either) = (start, None);
        loop {
            let (class, next) = self.letter(text, at);
            if !class.is(CAPITAL) {
                break;
            }
            if class.is(EITHER) {
                after_either = Some(next);
            }
            at = next;
        }
        let end = self.run(text, at, SMALL);
        if end > at { Some(end) } else { after_either }
    }
}

fn is_han(text: Reader<'_>, at: usize) -> bool {
    // U+2E80, the first Han character, begins with this byte.
    text.byte(at) >= 0xe2 && text.char(at).is_some_and(|(c, _)| within(sets::HAN, c))
}

const EITHER: Class = Class::UNCASED.or(Class::MARK);
const CAPITAL: Class = Class::UPPER.or(Class::TITLE).or(EITHER);
const SMALL: Class = Class::LOWER.or(EITHER);

/// DeepSeek V3, after numbers and Chinese and Japanese text have been split off:
/// ```text
/// [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
///  ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
/// ```
///
/// Without `line_ends`, punctuation does not include newlines, and each newline is a word: the expression then ends in
/// ` ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+`.
pub(super) fn deepseek_v3(text: Reader<'_>, at: usize, line_ends: bool) -> usize {
    const SIGN: Class = Class::PUNCTUATION.or(Class::SYMBOL);
    const WORD: Class = LETTER.or(Class::MARK);
    if text.byte(at).is_ascii_punctuation() && text.byte(at + 1).is_ascii_alphabetic() {
        let mut end = at + 2;
        while text.byte(end).is_ascii_alphabetic() {
            end += 1;
        }
        return end;
    }
    let (class, next) = text.class(at);
    let leads = class.is(LETTER.or(SIGN).not()) && !matches!(text.byte(at), b'\r' | b'\n');
    if leads && text.class(next).0.is(WORD) {
        return text.run(next, WORD);
    }
    if class.is(WORD) {
        return text.run(at, WORD);
    }
    let end = punctuation_after_space(text, at, SIGN);
    if end > at {
        return if line_ends { skip(text, end, b"\r\n") } else { end };
    }
    if !line_ends && matches!(text.byte(at), b'\r' | b'\n') {
        return at + 1;
    }
    spaces(text, at, line_ends)
}

/// EXAONE MoE, whose words may contain single spaces:
/// ```text
/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|
///  ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+
/// ```
pub(super) fn exaone_moe(text: Reader<'_>, at: usize) -> usize {
    let end = contraction(text, at, true);
    if end > at {
        return end;
    }
    let (class, next) = text.class(at);
    let start = if may_lead(text, at, class) && text.class(next).0.is(LETTER) { next } else { at };
    if text.class(start).0.is(LETTER) {
        let mut end = start;
        loop {
            let from = if end > start && text.byte(end) == b' ' { end + 1 } else { end };
            let (class, next) = text.class(from);
            if !class.is(LETTER) {
                return end;
            }
            end = text.run(next, Class::MARK);
        }
    }
    if class.is(NUMBER) {
        return next;
    }
    let end = punctuation_after_space(text, at, SPACE.or(LETTER).or(NUMBER).not());
    if end > at {
        return end + matches!(text.byte(end), b'\r' | b'\n' | b'/') as usize;
    }
    spaces(text, at, true)
}

/// The patterns that Chameleon splits off before its words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Chameleon {
    /// `<sentinel:[0-9]+>`
    Sentinel,
    /// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`
    Image,
    /// `([\t\n]|    |  )`
    Indent,
    /// ``[\p{P}!-/:-@\[-`{-~]``
    Sign,
}

impl Chameleon {
    /// The end of the match at `at`; `at` if there is none.
    pub(super) fn end(self, text: Reader<'_>, at: usize) -> usize {
        let tail = || text.tail(at).as_bytes();
        let found = match self {
            Chameleon::Sentinel if text.byte(at) == b'<' => {
                tail().strip_prefix(b"<sentinel:").and_then(|rest| {
                    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                    (digits > 0 && rest.get(digits) == Some(&b'>')).then_some(10 + digits + 1)
                })
            }
            Chameleon::Image if text.byte(at) == b'I' => tail().strip_prefix(b"IMGIMG").and_then(|rest| {
                let letters = rest.iter().take_while(|byte| matches!(byte, b'A'..=b'I')).count();
                ((1..=4).contains(&letters) && rest.get(letters) == Some(&b'Z')).then_some(6 + letters + 1)
            }),
            Chameleon::Indent => match text.byte(at) {
                b'\t' | b'\n' => Some(1),
                b' ' if (1..4).all(|i| text.byte(at + i) == b' ') => Some(4),
                b' ' if text.byte(at + 1) == b' ' => Some(2),
                _ => None,
            },
            Chameleon::Sign => {
                let (class, next) = text.class(at);
                let sign = text.byte(at).is_ascii_punctuation() || class.is(Class::PUNCTUATION);
                sign.then_some(next - at)
            }
            _ => None,
        };
        at + found.unwrap_or(0)
    }
}

/// `\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`
fn cascade(text: Reader<'_>, start: usize) -> usize {
    const MAX: usize = 512;
    let (mut at, mut count, mut after_line_end) = (start, 0, None);
    // A preceding match that ends with a space means that no newline follows in this run. So a long run is not searched
    // again for each of its words.
    let no_line_end = text.before(start).is_some_and(|c| Class::of(c).is(SPACE) && !matches!(c, '\r' | '\n'));
    // The end of each character that a word may have to end at; beyond that only newlines matter.
    let mut ends = [start; MAX + 1];
    loop {
        let (class, next) = text.class(at);
        if !class.is(SPACE) || no_line_end && count > MAX {
            break;
        }
        if matches!(text.byte(at), b'\r' | b'\n') {
            after_line_end = Some(next);
        }
        (at, count) = (next, count + 1);
        if count <= MAX {
            ends[count] = at;
        }
    }
    // The last space is left to the following word.
    let usable = if at == text.len() { count } else { count.saturating_sub(1) };
    let taken = (2..=9).rev().map(|power| 1 << power).find(|&size| size <= usable);
    after_line_end.unwrap_or_else(|| ends[taken.unwrap_or(usable.clamp(1, 2)).min(count)])
}

/// `[^\r\n\p{L}\p{N}]`: a character that may precede a word as a part of it.
#[inline(always)]
fn may_lead(text: Reader<'_>, at: usize, class: Class) -> bool {
    class.is(LETTER.or(NUMBER).not()) && !matches!(text.byte(at), b'\r' | b'\n')
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, optionally in any case; `at` if there is no match.
#[inline]
fn contraction(text: Reader<'_>, at: usize, any_case: bool) -> usize {
    if text.byte(at) != b'\'' {
        return at;
    }
    let letter = |at| if any_case { text.byte(at).to_ascii_lowercase() } else { text.byte(at) };
    match (letter(at + 1), letter(at + 2)) {
        (b's' | b't' | b'm' | b'd', _) => at + 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => at + 3,
        // The long s (ſ) equals s in a case-insensitive match.
        _ if any_case && text.char(at + 1).is_some_and(|(c, _)| c == 'ſ') => at + 1 + 'ſ'.len_utf8(),
        _ => at,
    }
}

/// `\p{N}{1,max}`
pub(super) fn numbers(text: Reader<'_>, mut at: usize, max: usize) -> usize {
    for _ in 0..max {
        let (class, next) = text.class(at);
        if !class.is(NUMBER) {
            break;
        }
        at = next;
    }
    at
}

/// ` ?[signs]+`
#[inline]
fn punctuation_after_space(text: Reader<'_>, at: usize, signs: Class) -> usize {
    let start = if text.byte(at) == b' ' { at + 1 } else { at };
    let end = text.run(start, signs);
    if end > start { end } else { at }
}

/// `[set]*`
#[inline]
fn skip(text: Reader<'_>, mut at: usize, set: &[u8]) -> usize {
    while at < text.len() && set.contains(&text.byte(at)) {
        at += 1;
    }
    at
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`, the first alternative only with `line_ends`.
fn spaces(text: Reader<'_>, start: usize, line_ends: bool) -> usize {
    let (mut at, mut last, mut after_line_end) = (start, start, None);
    loop {
        let (class, next) = text.class(at);
        if !class.is(SPACE) {
            break;
        }
        last = at;
        if line_ends && matches!(text.byte(at), b'\r' | b'\n') {
            after_line_end = Some(next);
        }
        at = next;
    }
    match after_line_end {
        Some(end) => end,
        // All but the last character, unless it is the only one or at the end of the text.
        None if at < text.len() && last > start => last,
        None => at,
    }
}

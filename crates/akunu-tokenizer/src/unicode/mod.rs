//! Character classes: tables for all of Unicode, and a reader that classifies the characters of a text.

mod tables;

/// A set of character classes: one bit each, in the order that `tables/generate.py` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u16);

impl Class {
    /// The class of the position after the end of a text. Not contained in any set, not even in a complement.
    pub(crate) const END: Class = Class(0);
    pub(crate) const UPPER: Class = Class(1);
    pub(crate) const LOWER: Class = Class(1 << 1);
    pub(crate) const TITLE: Class = Class(1 << 2);
    /// Letters without case, and modifier letters.
    pub(crate) const UNCASED: Class = Class(1 << 3);
    pub(crate) const NON_SPACING_MARK: Class = Class(1 << 4);
    pub(crate) const OTHER_MARK: Class = Class(1 << 5);
    /// `\p{N}`.
    pub(crate) const NUMBER: Class = Class(1 << 6);
    /// `\p{P}`.
    pub(crate) const PUNCTUATION: Class = Class(1 << 7);
    /// `\p{S}`.
    pub(crate) const SYMBOL: Class = Class(1 << 8);
    /// `\s`.
    pub(crate) const SPACE: Class = Class(1 << 9);
    /// Control characters that are not `\s`, formatting characters, private use.
    pub(crate) const CONTROL: Class = Class(1 << 10);
    const UNASSIGNED: Class = Class(1 << 11);

    /// `\p{L}`.
    pub(crate) const LETTER: Class = Class::UPPER.or(Class::LOWER).or(Class::TITLE).or(Class::UNCASED);
    /// `\p{M}`.
    pub(crate) const MARK: Class = Class::NON_SPACING_MARK.or(Class::OTHER_MARK);

    pub(crate) const fn or(self, other: Class) -> Class {
        Class(self.0 | other.0)
    }

    /// The complement, without the end of the text.
    pub(crate) const fn not(self) -> Class {
        Class(!self.0 & (Class::UNASSIGNED.0 * 2 - 1))
    }

    /// Whether this character belongs to `set`.
    #[inline(always)]
    pub(crate) const fn is(self, set: Class) -> bool {
        self.0 & set.0 != 0
    }

    #[inline]
    pub(crate) fn of(c: char) -> Class {
        let code = c as usize;
        Class(1 << if code < BASIC_LEN { BASIC[code] } else { search(c as u32) })
    }
}

/// The Basic Multilingual Plane as a flat table, so that nearly every character needs only one load.
const BASIC_LEN: usize = 0x10000;
static BASIC: [u8; BASIC_LEN] = write_out();

const fn write_out() -> [u8; BASIC_LEN] {
    let mut out = [0; BASIC_LEN];
    let mut run = 0;
    let mut code = 0;
    while code < BASIC_LEN {
        while run + 1 < tables::RUNS.len() && tables::RUNS[run + 1].0 as usize <= code {
            run += 1;
        }
        out[code] = tables::RUNS[run].1;
        code += 1;
    }
    out
}

fn search(code: u32) -> u8 {
    // The first run starts at 0, so there is always a run that starts at or before `code`.
    let after = tables::RUNS.partition_point(|run| run.0 <= code);
    tables::RUNS[after - 1].1
}

/// Appends a character's canonical decomposition without non-spacing marks: `é` → `e`.
pub(crate) fn without_marks(c: char, out: &mut String) {
    let code = c as u32;
    if Class::of(c).is(Class::NON_SPACING_MARK) {
        return;
    }
    // Hangul syllables are decomposed arithmetically: leading consonant, vowel, and an optional trailing consonant.
    if let Some(index) = code.checked_sub(0xac00).filter(|&index| index < 11172) {
        let parts = [0x1100 + index / 588, 0x1161 + index % 588 / 28, 0x11a7 + index % 28];
        let count = if index.is_multiple_of(28) { 2 } else { 3 };
        out.extend(parts[..count].iter().filter_map(|&part| char::from_u32(part)));
    } else if let Ok(at) = tables::BARE.binary_search_by_key(&code, |entry| entry.0) {
        out.extend(char::from_u32(tables::BARE[at].1));
    } else if let Ok(at) = tables::BARE_SEVERAL.binary_search_by_key(&code, |entry| entry.0) {
        out.extend(tables::BARE_SEVERAL[at].1.iter().filter(|&&c| c != 0).filter_map(|&c| char::from_u32(c)));
    } else {
        out.push(c);
    }
}

/// Reads the characters of a text by byte positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'t> {
    text: &'t str,
    bytes: &'t [u8],
}

impl<'t> Reader<'t> {
    pub(crate) fn new(text: &'t str) -> Reader<'t> {
        Reader { text, bytes: text.as_bytes() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The text from the character at `at` on.
    pub(crate) fn tail(&self, at: usize) -> &'t str {
        &self.text[at..]
    }

    /// The character that ends at `at`.
    pub(crate) fn before(&self, at: usize) -> Option<char> {
        self.text[..at].chars().next_back()
    }

    /// The byte at `at`; 0 past the end.
    #[inline(always)]
    pub(crate) fn byte(&self, at: usize) -> u8 {
        crate::work::count(1);
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// The character that starts at `at`, and the position after it; `None` at the end.
    #[inline]
    pub(crate) fn char(&self, at: usize) -> Option<(char, usize)> {
        crate::work::count(1);
        let first = *self.bytes.get(at)?;
        if first < 0x80 {
            return Some((first as char, at + 1));
        }
        // The bytes come from a `str`, so continuation bytes are present and valid.
        let tail = |n: usize| (self.byte(at + n) & 0x3f) as u32;
        let (code, len) = match first {
            0x80..0xe0 => ((first as u32 & 0x1f) << 6 | tail(1), 2),
            0xe0..0xf0 => ((first as u32 & 0x0f) << 12 | tail(1) << 6 | tail(2), 3),
            _ => ((first as u32 & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4),
        };
        Some((char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), at + len))
    }

    /// The class of the character that starts at `at`, and the position after it.
    #[inline]
    pub(crate) fn class(&self, at: usize) -> (Class, usize) {
        crate::work::count(1);
        match self.bytes.get(at) {
            Some(&byte) if byte < 0x80 => (Class(1 << BASIC[byte as usize]), at + 1),
            Some(_) => match self.char(at) {
                Some((c, next)) => (Class::of(c), next),
                None => (Class::END, at),
            },
            None => (Class::END, at),
        }
    }

    /// The end of the run of `set` that starts at `at`; `at` if there is none.
    #[inline]
    pub(crate) fn run(&self, mut at: usize, set: Class) -> usize {
        loop {
            let (class, next) = self.class(at);
            if !class.is(set) {
                return at;
            }
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_one_class() {
        for code in 0..0x110000 {
            if let Some(c) = char::from_u32(code) {
                assert_eq!(Class::of(c).0.count_ones(), 1, "{code:x}");
            }
        }
        for byte in 0..=127u8 {
            let (c, class) = (byte as char, Class::of(byte as char));
            assert_eq!(class.is(Class::LETTER), c.is_ascii_alphabetic(), "{c:?}");
            assert_eq!(class.is(Class::UPPER), c.is_ascii_uppercase(), "{c:?}");
            assert_eq!(class.is(Class::NUMBER), c.is_ascii_digit(), "{c:?}");
            assert_eq!(class.is(Class::SPACE), c.is_whitespace(), "{c:?}");
            assert_eq!(class.is(Class::PUNCTUATION.or(Class::SYMBOL)), c.is_ascii_punctuation(), "{c:?}");
        }
    }

    #[test]
    fn white_space_agrees_with_the_standard_library() {
        for c in '\0'..=char::MAX {
            assert_eq!(Class::of(c).is(Class::SPACE), c.is_whitespace(), "{c:?}");
        }
    }

    #[test]
    fn the_reader_reads_what_chars_reads() {
        let text = "aé€𝄞\u{0}한 z";
        let (reader, mut at) = (Reader::new(text), 0);
        for expected in text.chars() {
            let (c, next) = reader.char(at).unwrap();
            assert_eq!(c, expected);
            assert_eq!(reader.class(at), (Class::of(c), next));
            at = next;
        }
        assert_eq!(reader.char(at), None);
        assert_eq!(reader.class(at), (Class::END, at));
        assert!(!Class::END.is(Class::SPACE.not()));
    }

    #[test]
    fn marks_are_removed() {
        let empty = |text: &str| {
            let mut out = String::new();
            text.chars().for_each(|c| without_marks(c, &mut out));
            out
        };
        assert_eq!(empty("Führer ậ e\u{301} ½"), "Fuhrer a e ½");
        assert_eq!(empty("한글").chars().count(), 6);
    }
}

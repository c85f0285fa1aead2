//! JSON strings, parsed byte by byte: well-formed UTF-8 and escapes, without unpaired surrogates.

/// The allowed number of characters of a string; an escape counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TextRule {
    pub(super) min: u32,
    /// `u32::MAX`: no limit.
    pub(super) max: u32,
}

impl TextRule {
    pub(super) const ANY: TextRule = TextRule { min: 0, max: u32::MAX };

    /// The state after this many characters. Counts that make no difference are merged.
    pub(super) fn counted(self, count: u32) -> u32 {
        if self.max == u32::MAX { count.min(self.min) } else { count }
    }
}

/// The position in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TextAt {
    /// Between characters.
    Body,
    /// In a character with this many bytes missing, the next of them in this range.
    Tail { more: u8, least: u8, most: u8 },
    /// After a backslash.
    Escape,
    /// In `\uXXXX`, with this many digits missing.
    Digits(u8),
    /// As above, after a first digit D: a second digit from 8 on would be a surrogate.
    DigitsOfD,
}

/// The result of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Within(TextAt),
    /// A character is complete.
    Whole,
    /// The closing quote.
    End,
}

/// `None`: the byte is not allowed.
pub(super) fn step(at: TextAt, byte: u8) -> Option<Step> {
    let tail = |more, least, most| Some(Step::Within(TextAt::Tail { more, least, most }));
    match (at, byte) {
        (TextAt::Body, b'"') => Some(Step::End),
        (TextAt::Body, b'\\') => Some(Step::Within(TextAt::Escape)),
        (TextAt::Body, 0x20..=0x7f) => Some(Step::Whole),
        (TextAt::Body, 0xc2..=0xdf) => tail(1, 0x80, 0xbf),
        (TextAt::Body, 0xe0) => tail(2, 0xa0, 0xbf),
        (TextAt::Body, 0xed) => tail(2, 0x80, 0x9f),
        (TextAt::Body, 0xe1..=0xef) => tail(2, 0x80, 0xbf),
        (TextAt::Body, 0xf0) => tail(3, 0x90, 0xbf),
        (TextAt::Body, 0xf1..=0xf3) => tail(3, 0x80, 0xbf),
        (TextAt::Body, 0xf4) => tail(3, 0x80, 0x8f),
        (TextAt::Tail { more, least, most }, _) if (least..=most).contains(&byte) => match more {
            1 => Some(Step::Whole),
            _ => tail(more - 1, 0x80, 0xbf),
        },
        (TextAt::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Some(Step::Whole),
        (TextAt::Escape, b'u') => Some(Step::Within(TextAt::Digits(4))),
        (TextAt::Digits(4), b'd' | b'D') => Some(Step::Within(TextAt::DigitsOfD)),
        (TextAt::DigitsOfD, b'0'..=b'7') => Some(Step::Within(TextAt::Digits(2))),
        (TextAt::Digits(1), _) if byte.is_ascii_hexdigit() => Some(Step::Whole),
        (TextAt::Digits(left), _) if byte.is_ascii_hexdigit() => Some(Step::Within(TextAt::Digits(left - 1))),
        _ => None,
    }
}

/// The number of characters of a text that needs no escapes in a string.
pub(super) fn plain_len(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_plain = |c: char| c != '"' && c != '\\' && c >= ' ';
    text.chars().all(is_plain).then(|| text.chars().count() as u32)
}

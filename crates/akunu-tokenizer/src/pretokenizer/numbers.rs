//! Groups of three digits, counted from the end of a number: 1 234 567.

use super::{sets, within};
use crate::unicode::{Class, Reader};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DigitGroups {
    /// `\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))`: all numbers.
    Numbers,
    /// `\d{1,3}(?=(?:\d{3})*\b)`: digits that are not followed by a letter.
    BeforeBoundary,
    /// `(?=(\d{3})+(?!\d))`, which matches the empty string: splits before each group.
    Cuts,
}

fn is_digit(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_digit() } else { within(sets::DECIMAL_DIGITS, c) }
}

/// `\w`
fn is_word(c: char) -> bool {
    const CONNECTORS: &str = "_‿⁀⁔︳︴﹍﹎﹏＿";
    const JOINERS: [char; 2] = ['\u{200c}', '\u{200d}'];
    c.is_alphabetic()
        || is_digit(c)
        || Class::of(c).is(Class::MARK)
        || CONNECTORS.contains(c)
        || JOINERS.contains(&c)
}

impl DigitGroups {
    /// Passes the parts of `text` to `emit` as ranges. One pass: the length of each run is determined once.
    pub(super) fn split<E>(
        self,
        text: Reader<'_>,
        emit: &mut impl FnMut(usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut done, mut at) = (0, 0);
        while let Some((c, next)) = text.char(at) {
            if !self.counts(c) {
                at = next;
                continue;
            }
            let (mut end, mut count) = (next, 1);
            while let Some((_, next)) = text.char(end).filter(|(c, _)| self.counts(*c)) {
                (end, count) = (next, count + 1);
            }
            let wanted =
                self != DigitGroups::BeforeBoundary || text.char(end).is_none_or(|(c, _)| !is_word(c));
            // The text before the first digit is a separate part, except for patterns that match the empty string.
            let mut cut = |done: &mut usize, at: usize| {
                let start = std::mem::replace(done, at);
                if start < at { emit(start, at) } else { Ok(()) }
            };
            if wanted {
                let mut left: usize = count;
                while at < end {
                    if left.is_multiple_of(3) || left == count && self != DigitGroups::Cuts {
                        cut(&mut done, at)?;
                    }
                    at = text.char(at).map_or(end, |(_, next)| next);
                    left -= 1;
                }
                if self != DigitGroups::Cuts {
                    cut(&mut done, end)?;
                }
            }
            at = end;
        }
        if done < text.len() { emit(done, text.len()) } else { Ok(()) }
    }

    fn counts(self, c: char) -> bool {
        match self {
            DigitGroups::Numbers => Class::of(c).is(Class::NUMBER),
            DigitGroups::BeforeBoundary | DigitGroups::Cuts => is_digit(c),
        }
    }
}

//! Sets of characters.

use std::collections::HashMap;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use super::peek::Peek;
use crate::error::printable;

/// Maximum number of ranges in all sets of an expression together: `\w` has about 800.
const MAX_RANGES: usize = 1 << 20;
/// Maximum number of different classes. Each may take a millisecond to compile.
const MAX_CLASSES: usize = 2000;

#[derive(Debug)]
pub(super) struct Set {
    /// The ranges above ASCII, sorted.
    ranges: Vec<(char, char)>,
    /// The bytes that characters of the set begin with: those of ASCII, and others.
    pub(super) lead: Peek,
}

impl Set {
    fn new(class: &ClassUnicode) -> Set {
        let mut set = Set { ranges: Vec::new(), lead: Peek::NONE };
        for range in class.iter() {
            let (start, end) = (range.start(), range.end());
            if end > '\u{7f}' {
                set.ranges.push((start.max('\u{80}'), end));
            }
            let lead = |c: char| c.encode_utf8(&mut [0; 4]).as_bytes()[0];
            let bytes = (lead(start)..=lead(end)).filter(|byte| !(0x80..0xc0).contains(byte));
            bytes.for_each(|byte| set.lead.insert(byte));
        }
        set
    }

    #[inline]
    pub(super) fn contains(&self, c: char) -> bool {
        if c.is_ascii() {
            return self.lead.contains(c as u8);
        }
        let at = self.ranges.partition_point(|range| range.1 < c);
        self.ranges.get(at).is_some_and(|range| range.0 <= c)
    }

    /// The position after the character at `at`, if that is in the set.
    #[inline]
    pub(super) fn after(&self, text: &str, at: usize) -> Option<usize> {
        let byte = *text.as_bytes().get(at)?;
        if byte < 0x80 {
            return self.lead.contains(byte).then_some(at + 1);
        }
        let c = text[at..].chars().next()?;
        self.contains(c).then(|| at + c.len_utf8())
    }

    /// The position before the character that ends at `at`, if that is in the set.
    pub(super) fn before(&self, text: &str, at: usize) -> Option<usize> {
        let c = text[..at].chars().next_back()?;
        self.contains(c).then(|| at - c.len_utf8())
    }
}

/// The different sets of an expression.
#[derive(Debug, Default)]
pub(super) struct Sets {
    classes: Vec<ClassUnicode>,
    of_ranges: HashMap<Vec<(char, char)>, u32>,
    /// The set of each class as written, and whether case is ignored.
    of_text: HashMap<(String, bool), u32>,
    ranges: usize,
}

impl Sets {
    pub(super) fn intern(&mut self, class: ClassUnicode) -> Result<u32, String> {
        let ranges: Vec<(char, char)> = class.iter().map(|range| (range.start(), range.end())).collect();
        if let Some(&set) = self.of_ranges.get(&ranges) {
            return Ok(set);
        }
        self.ranges += class.ranges().len();
        if self.ranges > MAX_RANGES {
            return Err("its classes of characters are too large".into());
        }
        let set = self.classes.len() as u32;
        self.of_ranges.insert(ranges, set);
        self.classes.push(class);
        Ok(set)
    }

    /// The set of a class in the syntax of `regex-syntax`.
    pub(super) fn of_text(&mut self, text: &str, fold: bool) -> Result<u32, String> {
        let key = (text.to_string(), fold);
        if let Some(&set) = self.of_text.get(&key) {
            return Ok(set);
        }
        if self.of_text.len() == MAX_CLASSES {
            return Err(format!("it has more than {MAX_CLASSES} different classes of characters"));
        }
        let set = self.intern(class(text, fold)?)?;
        self.of_text.insert(key, set);
        Ok(set)
    }

    pub(super) fn of_char(&mut self, c: char) -> Result<u32, String> {
        self.intern(ClassUnicode::new([ClassUnicodeRange::new(c, c)]))
    }

    pub(super) fn union(&mut self, sets: &[u32]) -> Result<u32, String> {
        let mut union = ClassUnicode::empty();
        let members = sets.iter().filter_map(|&set| self.classes.get(set as usize));
        members.for_each(|class| class.iter().for_each(|range| union.push(*range)));
        self.intern(union)
    }

    pub(super) fn finish(&self) -> Vec<Set> {
        self.classes.iter().map(Set::new).collect()
    }
}

fn class(text: &str, fold: bool) -> Result<ClassUnicode, String> {
    let invalid = || format!("the class of characters \"{}\" is not valid", printable(text));
    let hir = ParserBuilder::new().case_insensitive(fold).build().parse(text).map_err(|error| {
        let reason = match &error {
            regex_syntax::Error::Parse(error) => error.kind().to_string(),
            regex_syntax::Error::Translate(error) => error.kind().to_string(),
            _ => return invalid(),
        };
        format!("{}: {}", invalid(), printable(&reason))
    })?;
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => Ok(class.clone()),
        // A class of one character.
        HirKind::Literal(literal) => {
            let mut chars = std::str::from_utf8(&literal.0).map_err(|_| invalid())?.chars();
            match (chars.next(), chars.next()) {
                (Some(c), None) => Ok(ClassUnicode::new([ClassUnicodeRange::new(c, c)])),
                _ => Err(invalid()),
            }
        }
        HirKind::Class(Class::Bytes(class)) => class.to_unicode_class().ok_or_else(invalid),
        // A range up to a bracket that is not escaped, which ends the class for `regex-syntax` but not for the parser.
        _ => Err(format!(
            "the class \"{}\" has a bracket that is not escaped, which is not supported",
            printable(text)
        )),
    }
}

/// A character and those that differ from it in case only, as a class; `None` if there are no others.
pub(super) fn folded(c: char) -> Option<String> {
    let text = regex_syntax::escape(c.encode_utf8(&mut [0; 4]));
    let has_case = class(&text, true).is_ok_and(|class| class.literal().is_none());
    has_case.then_some(text)
}

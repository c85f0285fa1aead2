//! SentencePiece normalization: text is rewritten with the vocabulary's `precompiled_charsmap` (`nmt_nfkc` and others),
//! and extra spaces are removed.

use crate::TokenizerError;
use crate::sentencepiece::SPACE_MARK;
use crate::trie::Trie;

/// A trie of texts and their replacements: a double array with 32 bits per node, and the replacements, each terminated
/// by a zero byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl CharsMap {
    /// An empty table changes nothing.
    pub(crate) fn read(bytes: &[u8]) -> Result<CharsMap, TokenizerError> {
        if bytes.is_empty() {
            return Ok(CharsMap::default());
        }
        let broken = |what| TokenizerError::Normalization { what };
        let (len, rest) = bytes.split_first_chunk::<4>().ok_or(broken("has no length"))?;
        let len = u32::from_le_bytes(*len) as usize;
        let (trie, replacements) = rest.split_at_checked(len).ok_or(broken("is shorter than its trie"))?;
        let (units, odd) = trie.as_chunks::<4>();
        if units.is_empty() || !odd.is_empty() {
            return Err(broken("has a trie of the wrong size"));
        }
        if std::str::from_utf8(replacements).is_err() {
            return Err(broken("contains replacements that are not UTF-8"));
        }
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Ok(CharsMap { units, replacements: replacements.to_vec() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// The longest prefix of `text` in the table: its length and its replacement.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut found = None;
        self.each(text, |len, start| {
            found = Some((len, start));
            true
        });
        let (len, start) = found?;
        Some((len, self.replacement(start)?))
    }

    /// The replacement of the shortest prefix of `text` in the table.
    pub(crate) fn shortest(&self, text: &[u8]) -> Option<&str> {
        let mut found = None;
        self.each(text, |_, start| {
            found = Some(start);
            false
        });
        self.replacement(found?)
    }

    /// Calls `found` with the length of each prefix of `text` in the table and the place of its replacement, shortest
    /// first, until it returns `false`.
    fn each(&self, text: &[u8], mut found: impl FnMut(usize, u32) -> bool) {
        let Some(&root) = self.units.first() else { return };
        let mut node = offset(root);
        for (at, &byte) in text.iter().enumerate() {
            crate::work::count(1);
            node ^= u32::from(byte);
            let Some(&unit) = self.units.get(node as usize) else { break };
            if unit & 0x8000_00ff != u32::from(byte) {
                break;
            }
            node ^= offset(unit);
            let leaf = self.units.get(node as usize).filter(|_| unit & 0x100 != 0);
            if leaf.is_some_and(|leaf| !found(at + 1, leaf & 0x7fff_ffff)) {
                break;
            }
        }
    }

    fn replacement(&self, start: u32) -> Option<&str> {
        let rest = self.replacements.get(start as usize..)?;
        let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).ok()
    }
}

/// Offset of a node's children, relative to it.
fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 0x200) >> 6)
}

/// The normalization of a text before it is tokenized.
#[derive(Debug)]
pub(crate) struct Normalizer {
    pub(crate) map: CharsMap,
    /// Remove leading and trailing spaces, and collapse repeated ones.
    pub(crate) remove_extra_spaces: bool,
    /// Texts of user-defined tokens, which are not rewritten.
    pub(crate) kept: Trie,
}

impl Normalizer {
    /// Appends the normalized text, with spaces instead of space marks.
    pub(crate) fn apply(&self, text: &str, add_space: bool, out: &mut String) {
        if self.map.is_empty() && !self.remove_extra_spaces {
            // Kept texts differ from others only in what follows.
            if add_space {
                out.push(' ');
            }
            return push_marked(text, out);
        }
        let mut rest = text;
        if self.remove_extra_spaces {
            while let Some((" ", after)) = self.step(rest) {
                rest = after;
            }
            if rest.is_empty() {
                return;
            }
        }
        let start = out.len();
        if add_space {
            out.push(' ');
        }
        let mut after_space = self.remove_extra_spaces;
        while let Some((new, after)) = self.step(rest) {
            let new = if after_space { new.trim_start_matches(' ') } else { new };
            push_marked(new, out);
            if self.remove_extra_spaces && !new.is_empty() {
                after_space = new.ends_with(' ');
            }
            rest = after;
        }
        if self.remove_extra_spaces {
            out.truncate(start + out[start..].trim_end_matches(' ').len());
        }
    }

    /// What the beginning of a text becomes, and the text after it; `None` for an empty text.
    fn step<'t>(&'t self, text: &'t str) -> Option<(&'t str, &'t str)> {
        let width = text.chars().next()?.len_utf8();
        if let Some((_, len)) = self.kept.longest(text.as_bytes(), 0, |_| true) {
            return Some(text.split_at(len));
        }
        match self.map.longest(text.as_bytes()) {
            // An invalid table may contain a partial character, which is not a match.
            Some((len, new)) if len > 0 && text.is_char_boundary(len) => Some((new, &text[len..])),
            _ => Some(text.split_at(width)),
        }
    }
}

/// Tokens are stored with spaces, so a space mark in a text also becomes a space.
fn push_marked(text: &str, out: &mut String) {
    for (at, part) in text.split(SPACE_MARK).enumerate() {
        if at > 0 {
            out.push(' ');
        }
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table made by hand: `a` becomes `xy`, `ab` nothing.
    fn table() -> Vec<u8> {
        // The root's children are at 256 ^ byte, those of `a` at 512 ^ byte, of `ab` at 768 ^ byte.
        let mut units = vec![0u32; 1024];
        units[0] = 256 << 10;
        let (a, ab) = (256 ^ 0x61, 512 ^ 0x62);
        units[a] = ((a ^ 512) as u32) << 10 | 0x100 | 0x61;
        units[512] = 0x8000_0000;
        units[ab] = ((ab ^ 768) as u32) << 10 | 0x100 | 0x62;
        units[768] = 0x8000_0003;
        let mut bytes = 4096u32.to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(b"xy\0\0");
        bytes
    }

    #[test]
    fn the_longest_entry_of_the_table_matches() {
        let map = CharsMap::read(&table()).unwrap();
        let mut normalizer = Normalizer { map, remove_extra_spaces: false, kept: Trie::new() };
        let applied = |normalizer: &Normalizer| {
            let mut out = String::new();
            normalizer.apply("aéabb", false, &mut out);
            out
        };
        assert_eq!(applied(&normalizer), "xyéb");
        normalizer.kept.insert(b"ab", 0);
        assert_eq!(applied(&normalizer), "xyéabb");
    }

    #[test]
    fn invalid_tables_are_errors_or_change_nothing() {
        let whole = table();
        for bytes in [&whole[..3], &whole[..100], &[1, 0, 0, 0, 0][..], &[0, 0, 0, 0]] {
            assert!(CharsMap::read(bytes).is_err());
        }
        for at in (4..whole.len()).step_by(3) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            if let Ok(map) = CharsMap::read(&bytes) {
                let normalizer = Normalizer { map, remove_extra_spaces: false, kept: Trie::new() };
                normalizer.apply("aéabb€", false, &mut String::new());
            }
        }
    }

    #[test]
    fn extra_spaces_are_removed_if_requested() {
        let applied = |remove_extra_spaces, text| {
            let mut out = String::new();
            let kept = Trie::new();
            Normalizer { map: CharsMap::default(), remove_extra_spaces, kept }.apply(text, true, &mut out);
            out
        };
        assert_eq!(applied(true, "  a   b▁c "), " a b c");
        assert_eq!(applied(true, "  "), "");
        assert_eq!(applied(false, " a  b "), "  a  b ");
    }
}

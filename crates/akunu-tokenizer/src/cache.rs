//! A cache of recent words and their tokens. Most words of a text are found here.

use crate::hash::Seed;

/// Maximum length of cached words: a word is stored as a 128-bit number, with its bytes and its length in the top byte.
const MAX_WORD: usize = 15;
/// Maximum number of tokens of cached words.
const MAX_TOKENS: usize = 4;
/// 256 KiB: fits into a second-level cache and holds the words of most texts.
const SLOTS: usize = 8192;
const UNUSED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// 0, which is not the key of any word, if the slot is empty.
    word: u128,
    ids: [u32; MAX_TOKENS],
}

/// A direct-mapped cache: each word has one slot, and replaces its previous content.
#[derive(Debug)]
pub(crate) struct WordCache {
    seed: Seed,
    /// Empty if there was no memory for it.
    slots: Vec<Slot>,
}

impl Default for WordCache {
    fn default() -> WordCache {
        let mut slots = Vec::new();
        if slots.try_reserve_exact(SLOTS).is_ok() {
            slots.resize(SLOTS, Slot { word: 0, ids: [UNUSED; MAX_TOKENS] });
        }
        WordCache { seed: Seed::random(), slots }
    }
}

fn key(word: &[u8]) -> Option<u128> {
    if word.is_empty() || word.len() > MAX_WORD {
        return None;
    }
    let mut bytes = [0; 16];
    bytes[..word.len()].copy_from_slice(word);
    bytes[MAX_WORD] = word.len() as u8;
    Some(u128::from_le_bytes(bytes))
}

impl WordCache {
    fn place(&self, key: u128) -> usize {
        (self.seed.hash_word(key) >> 32) as usize % SLOTS
    }

    /// Appends the tokens of the word if it is cached.
    #[inline]
    pub(crate) fn append(&self, word: &[u8], ids: &mut Vec<u32>) -> bool {
        let Some(key) = key(word) else { return false };
        let Some(slot) = self.slots.get(self.place(key)) else { return false };
        if slot.word != key {
            return false;
        }
        let count = slot.ids.iter().position(|&id| id == UNUSED).unwrap_or(MAX_TOKENS);
        ids.extend_from_slice(&slot.ids[..count]);
        true
    }

    pub(crate) fn keep(&mut self, word: &[u8], tokens: &[u32]) {
        if let Some(key) = key(word)
            && tokens.len() <= MAX_TOKENS
        {
            let mut ids = [UNUSED; MAX_TOKENS];
            ids[..tokens.len()].copy_from_slice(tokens);
            let place = self.place(key);
            if let Some(slot) = self.slots.get_mut(place) {
                *slot = Slot { word: key, ids };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_words_are_cached_and_no_others() {
        let mut cache = WordCache::default();
        cache.keep(b"word", &[1, 2]);
        cache.keep(b"a", &[3, 4, 5, 6]);
        cache.keep(b"sixteen letters!", &[7]);
        cache.keep(b"five", &[1, 2, 3, 4, 5]);
        let mut ids = Vec::new();
        for (word, known) in [
            ("word", true),
            ("a", true),
            ("sixteen letters!", false),
            ("five", false),
            ("", false),
            ("wor", false),
        ] {
            assert_eq!(cache.append(word.as_bytes(), &mut ids), known, "{word}");
        }
        assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    }
}

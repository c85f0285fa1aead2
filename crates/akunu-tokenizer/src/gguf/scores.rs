//! Derives scores from merges. SentencePiece's BPE merges to the token with the highest score, whereas a list of merges
//! gives a rank to each pair. If the list was derived from scores, equivalent scores can be recovered.

use std::collections::{HashMap, HashSet};

use crate::{TokenKind, Vocabulary};

/// One score per token, such that merging by scores is equivalent to the list of merges. `None` if that is not certain:
/// if the merges of a token are not consecutive, or a pair that forms a token is not in the list.
pub(super) fn of_merges(vocabulary: &Vocabulary) -> Option<Vec<f32>> {
    let normal = |id: &usize| vocabulary.kinds.get(*id).is_some_and(|kind| *kind == TokenKind::Normal);
    let ids: HashMap<&str, usize> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| normal(id))
        .map(|(id, text)| (text, id))
        .collect();
    // Characters get scores below all merges, since they are never the result of a merge.
    let mut scores = vec![-(vocabulary.merges.len() as f32); vocabulary.tokens.len()];
    let (mut pairs, mut turn, mut last) = (HashSet::with_capacity(vocabulary.merges.len()), 0u32, None);
    let mut made = HashSet::new();
    for merge in vocabulary.merges.iter() {
        let (left, right) = merge.split_once(' ')?;
        let whole = format!("{left}{right}");
        let id = *ids.get(whole.as_str())?;
        if last != Some(id) {
            if !made.insert(id) {
                return None;
            }
            turn += 1;
            (scores[id], last) = (-(turn as f32), Some(id));
        }
        pairs.insert((left, right));
    }
    for (text, id) in &ids {
        let mut places = text.char_indices().map(|(at, _)| at).skip(1).peekable();
        if places.peek().is_some() && !made.contains(id) {
            return None;
        }
        for at in places {
            let (left, right) = text.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) && !pairs.contains(&(left, right)) {
                return None;
            }
        }
    }
    Some(scores)
}

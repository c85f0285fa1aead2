//! DRY: lowers the logits of tokens that would extend a repetition, the more the longer it is.
//!
//! The text ends in some tokens that also occur earlier; the longest such suffix before each earlier token is found for all
//! of them in linear time (the Z function of the reversed text). No repetition reaches across a breaker, and breakers
//! themselves are never lowered.

use std::sync::Arc;

use super::Sampling;

/// The tokens that repetitions do not reach across.
#[derive(Clone, Default, PartialEq)]
pub struct Breakers(Arc<[bool]>);

impl Breakers {
    /// By id, whether a token is one.
    pub fn new(is_breaker: impl IntoIterator<Item = bool>) -> Breakers {
        Breakers(is_breaker.into_iter().collect())
    }

    fn contains(&self, id: u32) -> bool {
        self.0.get(id as usize).is_some_and(|is_breaker| *is_breaker)
    }
}

impl std::fmt::Debug for Breakers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = self.0.iter().enumerate().filter(|(_, is_breaker)| **is_breaker).map(|(id, _)| id);
        f.debug_set().entries(ids).finish()
    }
}

/// What is subtracted at most, so that sums of logits stay finite.
const MAX_PENALTY: f32 = 1e30;

#[derive(Clone, Debug)]
pub(super) struct Repetition {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: Breakers,
    /// By position from the end: how many tokens before it are also the end of the text.
    matches: Vec<usize>,
    /// The longest repetition that an id extends, by id.
    longest: Vec<(u32, usize)>,
}

impl Repetition {
    pub(super) fn new(sampling: &Sampling) -> Repetition {
        Repetition {
            multiplier: sampling.dry_multiplier,
            base: sampling.dry_base,
            // A repetition has at least one token.
            allowed_length: sampling.dry_allowed_length.max(1),
            last_n: sampling.dry_last_n,
            breakers: sampling.dry_breakers.clone().unwrap_or_default(),
            matches: Vec::new(),
            longest: Vec::new(),
        }
    }

    /// Adds what is subtracted from the token after `history` to biases, which have each id once, ascending.
    pub(super) fn add_to(&mut self, history: &[u32], biases: &mut Vec<(u32, f32)>) {
        self.find(&history[history.len().saturating_sub(self.last_n)..]);
        for &(id, length) in &self.longest {
            let penalty = self.penalty(length);
            match biases.binary_search_by_key(&id, |bias| bias.0) {
                Ok(at) => biases[at].1 -= penalty,
                Err(at) => biases.insert(at, (id, -penalty)),
            }
        }
    }

    fn penalty(&self, length: usize) -> f32 {
        let mut penalty = self.multiplier;
        for _ in self.allowed_length..length {
            penalty *= self.base;
            if penalty >= MAX_PENALTY || self.base == 1.0 {
                break;
            }
        }
        penalty.min(MAX_PENALTY)
    }

    /// Finds the ids that extend a repetition that is long enough.
    fn find(&mut self, text: &[u32]) {
        self.longest.clear();
        let reversed = |at: usize| text[text.len() - 1 - at];
        let most = text.iter().rev().take_while(|id| !self.breakers.contains(**id)).count();
        if most < self.allowed_length {
            return;
        }
        // The part from `start` to `end` is known to be the same as the beginning.
        let (mut start, mut end) = (0, 0);
        self.matches.clear();
        self.matches.push(text.len());
        for at in 1..text.len() {
            let mut length = if at < end { self.matches[at - start].min(end - at) } else { 0 };
            while at + length < text.len() && reversed(length) == reversed(at + length) {
                length += 1;
            }
            if at + length > end {
                (start, end) = (at, at + length);
            }
            self.matches.push(length);
            let (next, length) = (reversed(at - 1), length.min(most));
            if length >= self.allowed_length && !self.breakers.contains(next) {
                self.longest.push((next, length));
            }
        }
        // Of equal ids, the longest first.
        self.longest.sort_unstable_by_key(|&(id, length)| (id, std::cmp::Reverse(length)));
        self.longest.dedup_by_key(|(id, _)| *id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use akunu_plan::random::philox;

    /// Every earlier position, compared token by token.
    fn naive(text: &[u32], allowed: usize, breakers: &[bool]) -> Vec<(u32, usize)> {
        let mut found: Vec<(u32, usize)> = Vec::new();
        for (at, &next) in text.iter().enumerate().skip(1) {
            let pairs = text[..at].iter().rev().zip(text.iter().rev());
            let length = pairs.take_while(|(a, b)| a == b && !breakers[**a as usize]).count();
            if length < allowed || breakers[next as usize] {
                continue;
            }
            match found.iter_mut().find(|(id, _)| *id == next) {
                Some((_, longest)) => *longest = length.max(*longest),
                None => found.push((next, length)),
            }
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn repetitions_are_those_of_a_comparison_token_by_token() {
        let mut draws = (0..).map(|i| philox([i, 0, 0, 0], [5, 0])[0]);
        let mut draw = |n: u32| draws.next().map_or(0, |x| x % n);
        let mut count = 0;
        for case in 0..3000 {
            let ids = 1 + draw(4);
            let text: Vec<u32> = (0..draw(60)).map(|_| draw(ids)).collect();
            let breakers: Vec<bool> = (0..ids).map(|_| case % 2 == 0 && draw(5) == 0).collect();
            let allowed = 1 + draw(4) as usize;
            let mut repetition = Repetition::new(&Sampling {
                dry_allowed_length: allowed,
                dry_breakers: Some(Breakers::new(breakers.clone())),
                ..Sampling::default()
            });
            repetition.find(&text);
            assert_eq!(repetition.longest, naive(&text, allowed, &breakers), "{text:?} {breakers:?}");
            count += repetition.longest.len();
        }
        assert!(count > 1000);
    }

    #[test]
    fn penalties_grow_with_the_repetition_and_add_to_biases() {
        let sampling = Sampling { dry_multiplier: 0.8, dry_base: 2.0, ..Sampling::default() };
        let mut repetition = Repetition::new(&sampling);
        // "1 2 3" was followed by 4, and "2 3" by 5.
        let mut biases = vec![(0, 1.0), (5, 1.0)];
        repetition.add_to(&[1, 2, 3, 4, 2, 3, 5, 1, 2, 3], &mut biases);
        assert_eq!(biases, [(0, 1.0), (4, -1.6), (5, 1.0 - 0.8)]);
        repetition.add_to(&[7; 3000], &mut biases);
        assert_eq!(biases.last(), Some(&(7, -MAX_PENALTY)));
    }
}

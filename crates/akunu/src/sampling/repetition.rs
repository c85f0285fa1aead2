//! DRY: lowers the logits of tokens that would extend a repetition, the more the longer it is.
//!
//! The text ends in some tokens that also occur earlier; for each token that has followed such a repetition, the
//! longest is found. No repetition reaches across a breaker, and breakers themselves are never lowered.
//!
//! If the whole text counts, an automaton of its suffixes grows with it. If only a part at its end counts, that part is
//! searched for each token, in linear time.

use std::sync::Arc;

use akunu_plan::DeviceError;

use super::suffixes::Suffixes;
use super::{Sampling, WORKING_MEMORY};
use crate::memory::grow;

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
/// So many tokens are added to the automaton for one token that is sampled, so that a long prompt does not delay one.
const ADDED: usize = 4096;
/// So many tokens of a text tell that it continues the one that the automaton knows.
const COMPARED: usize = 64;

#[derive(Debug)]
pub(super) struct Repetition {
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: Breakers,
    /// What is subtracted for a repetition of `allowed_length` tokens and for each longer one, as far as needed.
    penalties: Vec<f32>,
    /// The text that the automaton knows.
    text: Vec<u32>,
    suffixes: Option<Suffixes>,
    /// By position from the end: how many tokens before it are also the end of the text.
    matches: Vec<u32>,
    /// The longest repetition that an id extends, by id.
    longest: Vec<(u32, u32)>,
}

impl Repetition {
    pub(super) fn new(sampling: &Sampling) -> Repetition {
        Repetition {
            base: sampling.dry_base,
            // A repetition has at least one token.
            allowed_length: sampling.dry_allowed_length.max(1),
            last_n: sampling.dry_last_n,
            breakers: sampling.dry_breakers.clone().unwrap_or_default(),
            penalties: vec![sampling.dry_multiplier.min(MAX_PENALTY)],
            text: Vec::new(),
            suffixes: None,
            matches: Vec::new(),
            longest: Vec::new(),
        }
    }

    /// Appends what is added to the logits of the token after `history`: each id once, ascending.
    pub(super) fn add_to(
        &mut self,
        history: &[u32],
        biases: &mut Vec<(u32, f32)>,
    ) -> Result<(), DeviceError> {
        self.find(history)?;
        grow(WORKING_MEMORY, biases, self.longest.len())?;
        for at in 0..self.longest.len() {
            let (id, length) = self.longest[at];
            biases.push((id, -self.penalty(length as usize)?));
        }
        Ok(())
    }

    fn penalty(&mut self, length: usize) -> Result<f32, DeviceError> {
        let further = length - self.allowed_length;
        while self.penalties.len() <= further && !self.has_all_penalties() {
            grow(WORKING_MEMORY, &mut self.penalties, 1)?;
            self.penalties.push(self.next_penalty());
        }
        Ok(self.penalties[further.min(self.penalties.len() - 1)])
    }

    fn next_penalty(&self) -> f32 {
        (self.penalties[self.penalties.len() - 1] * self.base).min(MAX_PENALTY)
    }

    /// Whether longer repetitions have the last of the penalties too.
    fn has_all_penalties(&self) -> bool {
        self.penalties.last() == Some(&self.next_penalty())
    }

    /// Finds the ids that extend a repetition that is long enough.
    fn find(&mut self, history: &[u32]) -> Result<(), DeviceError> {
        self.longest.clear();
        // What is not put back, because there is no memory, begins anew.
        let suffixes = self.suffixes.take();
        match history.len() <= self.last_n {
            true => self.suffixes = Some(self.follow(suffixes, history)?),
            false => self.text = Vec::new(),
        }
        match &self.suffixes {
            Some(suffixes) if self.text.len() == history.len() => {
                let (longest, breakers) = (&mut self.longest, &self.breakers);
                suffixes.followers(as_u32(self.allowed_length), |id, length| {
                    match breakers.contains(id) {
                        true => Ok(()),
                        false => push(longest, (id, length)),
                    }
                })?;
            }
            _ => self.search(&history[history.len().saturating_sub(self.last_n)..])?,
        }
        // Of equal ids, the longest first.
        self.longest.sort_unstable_by_key(|&(id, length)| (id, std::cmp::Reverse(length)));
        self.longest.dedup_by_key(|(id, _)| *id);
        Ok(())
    }

    /// Adds what is new in `history` to the automaton of the text before, or some of it, if it is long.
    fn follow(&mut self, before: Option<Suffixes>, history: &[u32]) -> Result<Suffixes, DeviceError> {
        let known = self.text.len();
        let end = known.saturating_sub(COMPARED);
        let goes_on = history.get(end..known) == Some(&self.text[end..]);
        let mut suffixes = match before.filter(|_| goes_on) {
            Some(suffixes) => suffixes,
            None => {
                self.text.clear();
                Suffixes::new()?
            }
        };
        debug_assert!(history.starts_with(&self.text), "a sampler is for one text");
        // From this length on, the penalty is the same.
        let longest = match self.has_all_penalties() {
            true => as_u32(self.allowed_length.saturating_add(self.penalties.len() - 1)),
            false => u32::MAX,
        };
        for &id in history[self.text.len()..].iter().take(ADDED) {
            push(&mut self.text, id)?;
            suffixes.push(id, if self.breakers.contains(id) { 0 } else { longest })?;
        }
        Ok(suffixes)
    }

    /// As the automaton does, by the Z function of the reversed text.
    fn search(&mut self, text: &[u32]) -> Result<(), DeviceError> {
        let reversed = |at: usize| text[text.len() - 1 - at];
        let most = text.iter().rev().take_while(|id| !self.breakers.contains(**id)).count();
        if most < self.allowed_length {
            return Ok(());
        }
        // The part from `start` to `end` is known to be the same as the beginning.
        let (mut start, mut end) = (0, 0);
        self.matches.clear();
        grow(WORKING_MEMORY, &mut self.matches, text.len())?;
        self.matches.push(as_u32(text.len()));
        for at in 1..text.len() {
            let mut length = if at < end { (self.matches[at - start] as usize).min(end - at) } else { 0 };
            while at + length < text.len() && reversed(length) == reversed(at + length) {
                length += 1;
            }
            if at + length > end {
                (start, end) = (at, at + length);
            }
            self.matches.push(as_u32(length));
            let (next, length) = (reversed(at - 1), length.min(most));
            if length >= self.allowed_length && !self.breakers.contains(next) {
                push(&mut self.longest, (next, as_u32(length)))?;
            }
        }
        Ok(())
    }
}

fn push<T>(items: &mut Vec<T>, item: T) -> Result<(), DeviceError> {
    grow(WORKING_MEMORY, items, 1)?;
    items.push(item);
    Ok(())
}

/// A length in tokens: no text is longer than this.
fn as_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use akunu_plan::random::philox;

    /// Every earlier position, compared token by token.
    fn naive(text: &[u32], sampling: &Sampling, is_breaker: &[bool]) -> Vec<(u32, f32)> {
        let allowed = sampling.dry_allowed_length.max(1);
        let text = &text[text.len().saturating_sub(sampling.dry_last_n)..];
        let mut found: Vec<(u32, usize)> = Vec::new();
        for (at, &next) in text.iter().enumerate().skip(1) {
            let pairs = text[..at].iter().rev().zip(text.iter().rev());
            let length = pairs.take_while(|(a, b)| a == b && !is_breaker[**a as usize]).count();
            if length < allowed || is_breaker[next as usize] {
                continue;
            }
            match found.iter_mut().find(|(id, _)| *id == next) {
                Some((_, longest)) => *longest = length.max(*longest),
                None => found.push((next, length)),
            }
        }
        found.sort_unstable();
        let penalty = |length| {
            let all =
                (allowed..length).fold(sampling.dry_multiplier, |penalty, _| penalty * sampling.dry_base);
            all.min(MAX_PENALTY)
        };
        found.into_iter().map(|(id, length)| (id, -penalty(length))).collect()
    }

    fn draws(seed: u32) -> impl FnMut(u32) -> u32 {
        let mut draws = (0..).map(move |i| philox([i, 0, 0, 0], [seed, 0])[0]);
        move |n| draws.next().map_or(0, |x| x % n)
    }

    fn found(repetition: &mut Repetition, text: &[u32]) -> Vec<(u32, f32)> {
        let mut biases = Vec::new();
        repetition.add_to(text, &mut biases).unwrap_or_else(|error| panic!("{error}"));
        biases
    }

    #[test]
    fn repetitions_are_those_of_a_comparison_token_by_token() {
        let mut draw = draws(5);
        let mut count = 0;
        for case in 0..1500 {
            let ids = 1 + draw(4);
            let mut text: Vec<u32> = (0..draw(60)).map(|_| draw(ids)).collect();
            // Some are loops with few exceptions.
            let period = 1 + draw(5) as usize;
            for at in period..if case % 3 == 0 { text.len() } else { 0 } {
                text[at] = if draw(10) > 0 { text[at - period] } else { text[at] };
            }
            let breakers: Vec<bool> = (0..ids).map(|_| case % 2 == 0 && draw(5) == 0).collect();
            let mut of = |values: &[f32]| values[draw(values.len() as u32) as usize];
            let sampling = Sampling {
                dry_multiplier: of(&[0.8, 5.0, 1e-45, 1e29, 1e35]),
                dry_base: of(&[1.0, 1.0001, 1.75, 3.0, 1e20]),
                dry_allowed_length: of(&[0.0, 1.0, 2.0, 4.0]) as usize,
                dry_last_n: [usize::MAX, usize::MAX, 0, 7, 30][draw(5) as usize],
                dry_breakers: Some(Breakers::new(breakers.clone())),
                ..Sampling::default()
            };
            let mut repetition = Repetition::new(&sampling);
            let mut length = 0;
            // The text grows by some tokens, or none, and sometimes begins anew.
            while length <= text.len() {
                let text = &text[..length];
                let expected = naive(text, &sampling, &breakers);
                assert_eq!(found(&mut repetition, text), expected, "{text:?} {sampling:?}");
                count += expected.len();
                length = if draw(60) == 0 { length / 2 } else { length + [0, 1, 1, 1, 3][draw(5) as usize] };
            }
        }
        assert!(count > 10_000, "{count}");
    }

    #[test]
    fn a_long_prompt_is_searched_until_the_automaton_has_all_of_it() {
        let mut draw = draws(6);
        let text: Vec<u32> = (0..3 * ADDED + 40).map(|_| draw(12)).collect();
        let sampling = Sampling { dry_multiplier: 1.0, ..Sampling::default() };
        let (mut repetition, mut other) = (Repetition::new(&sampling), Repetition::new(&sampling));
        for (calls, length) in (text.len() - 20..text.len()).enumerate() {
            let biases = found(&mut repetition, &text[..length]);
            assert_eq!(repetition.text.len(), length.min((calls + 1) * ADDED));
            // A search alone.
            other.last_n = length - 1;
            assert_eq!(biases, found(&mut other, &text[..length]));
            assert!(other.suffixes.is_none() && !biases.is_empty());
        }
    }

    #[test]
    fn penalties_grow_with_the_repetition_and_add_to_biases() {
        let sampling = Sampling { dry_multiplier: 0.8, dry_base: 2.0, ..Sampling::default() };
        // "1 2 3" was followed by 4, and "2 3" by 5.
        let biases = found(&mut Repetition::new(&sampling), &[1, 2, 3, 4, 2, 3, 5, 1, 2, 3]);
        assert_eq!(biases, [(4, -1.6), (5, -0.8)]);
        assert_eq!(found(&mut Repetition::new(&sampling), &[7; 3000]), [(7, -MAX_PENALTY)]);
    }

    /// `cargo test --release -p akunu --lib dry_costs -- --ignored --nocapture`
    #[test]
    #[ignore = "prints times"]
    #[allow(clippy::print_stdout)]
    fn what_dry_costs_per_token() {
        const TOKENS: usize = 256;
        let mut draw = draws(7);
        for kind in ["words", "a loop of 20 tokens"] {
            for length in [1 << 10, 1 << 14, 1 << 16] {
                let mut text: Vec<u32> = Vec::new();
                while text.len() < length + TOKENS {
                    match kind {
                        // Ids as frequent as words are, and one in 20 begins a phrase that was there before.
                        "words" if text.len() > 20 && draw(20) == 0 => {
                            let at = draw(text.len() as u32 - 10) as usize;
                            text.extend_from_within(at..at + 2 + draw(8) as usize);
                        }
                        "words" => {
                            text.push(50_000f64.powf(f64::from(draw(1 << 20)) / f64::from(1 << 20)) as u32)
                        }
                        _ => text.push(text.len() as u32 % 20),
                    }
                }
                let mut repetition =
                    Repetition::new(&Sampling { dry_multiplier: 0.8, ..Sampling::default() });
                let calls = 0..length.div_ceil(ADDED);
                let first = median(calls.map(|_| timed(&mut repetition, &text[..length])));
                let later = length + 1..=length + TOKENS;
                let followed = median(later.clone().map(|end| timed(&mut repetition, &text[..end])));
                // The part that counts begins at the second token.
                let searched = median(later.map(|end| {
                    repetition.last_n = end - 1;
                    timed(&mut repetition, &text[..end])
                }));
                println!(
                    "{kind}, {length} tokens: {first:.1?} for the first ones, then {followed:.2?}; searched: \
                     {searched:.1?}"
                );
            }
        }
    }

    fn median(times: impl Iterator<Item = Duration>) -> Duration {
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        times[times.len() / 2]
    }

    fn timed(repetition: &mut Repetition, text: &[u32]) -> Duration {
        let start = Instant::now();
        found(repetition, text);
        start.elapsed()
    }
}

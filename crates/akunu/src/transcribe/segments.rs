//! From the tokens of a window to segments with times, and to where the next window begins.

use std::ops::Range;

/// A part of a window's tokens. Times are in steps of timestamps from the window's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub tokens: Vec<u32>,
    pub steps: Range<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub parts: Vec<Part>,
    /// How far the next window is, in steps: up to the last timestamp if a part after it is not complete.
    pub advance: u32,
    /// The window's last part ends with a single timestamp: there is no speech after it.
    pub is_complete: bool,
}

/// Splits where two timestamps meet, as OpenAI does. `steps`: how much of the window is audio.
pub(super) fn split(tokens: &[u32], timestamps: &Range<u32>, steps: u32) -> Parts {
    let is_timestamp = |&id: &u32| id >= timestamps.start;
    let step = |id: u32| id.saturating_sub(timestamps.start);
    let is_complete = matches!(tokens, [.., before, last] if !is_timestamp(before) && is_timestamp(last));
    let mut cuts: Vec<usize> =
        (1..tokens.len()).filter(|&i| is_timestamp(&tokens[i - 1]) && is_timestamp(&tokens[i])).collect();
    if cuts.is_empty() {
        let last = tokens.iter().rev().find(|id| is_timestamp(id)).map_or(0, |&id| step(id));
        let end = if last > 0 { last } else { steps };
        let parts = vec![Part { tokens: tokens.to_vec(), steps: 0..end }];
        return Parts { parts, advance: steps, is_complete };
    }
    if is_complete {
        cuts.push(tokens.len());
    }
    let mut from = 0;
    let mut parts = Vec::with_capacity(cuts.len());
    for to in cuts {
        let part = &tokens[from..to];
        parts.push(Part { tokens: part.to_vec(), steps: step(part[0])..step(part[part.len() - 1]) });
        from = to;
    }
    let last = step(tokens[from - 1]);
    // A window that does not advance would be repeated.
    let advance = if is_complete || last == 0 { steps } else { last.min(steps) };
    Parts { parts, advance, is_complete }
}

/// The range of tokens that only repeats what is before it, if a text ends up in a loop: at least three repetitions of
/// the same, together at least 12 tokens. Timestamps are not compared.
pub(super) fn repeated(tokens: &[u32], timestamps: &Range<u32>) -> Option<Range<usize>> {
    const LEAST: usize = 12;
    let text: Vec<usize> = (0..tokens.len()).filter(|&i| tokens[i] < timestamps.start).collect();
    let at = |i: usize| tokens[text[i]];
    let mut found: Option<Range<usize>> = None;
    for period in 1..=text.len() / 4 {
        let mut from = period;
        while from < text.len() {
            let mut to = from;
            while to < text.len() && at(to) == at(to - period) {
                to += 1;
            }
            let is_loop = to - from >= (3 * period).max(LEAST);
            if is_loop && found.as_ref().is_none_or(|other| to - from > other.len()) {
                found = Some(from..to);
            }
            from = to + 1;
        }
    }
    found.map(|Range { start, end }| text[start - 1] + 1..text[end - 1] + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Range<u32> = 1000..2501;

    fn at(step: u32) -> u32 {
        1000 + step
    }

    fn steps(parts: &Parts) -> Vec<Range<u32>> {
        parts.parts.iter().map(|part| part.steps.clone()).collect()
    }

    #[test]
    fn parts_are_between_pairs_of_timestamps() {
        let tokens = [at(0), 5, 6, at(100), at(120), 7, at(200), at(200), 8];
        let parts = split(&tokens, &TIMES, 1500);
        assert_eq!(steps(&parts), [0..100, 120..200]);
        assert_eq!(parts.parts[1].tokens, [at(120), 7, at(200)]);
        // Text 8 is not complete: the next window begins at its timestamp.
        assert_eq!((parts.advance, parts.is_complete), (200, false));
    }

    #[test]
    fn a_single_timestamp_at_the_end_completes_a_window() {
        let parts = split(&[at(0), 5, at(100), at(120), 7, at(200)], &TIMES, 1500);
        assert_eq!(steps(&parts), [0..100, 120..200]);
        assert_eq!((parts.advance, parts.is_complete), (1500, true));
    }

    #[test]
    fn without_pairs_there_is_one_part() {
        for (tokens, end) in [
            (&[at(0), 5, 6][..], 700),
            (&[at(0), 5, at(300)], 300),
            (&[5, 6], 700),
            (&[at(0)], 700),
            (&[], 700),
        ] {
            let parts = split(tokens, &TIMES, 700);
            assert_eq!(steps(&parts), vec![0..end; 1]);
            assert_eq!(parts.advance, 700);
        }
    }

    #[test]
    fn windows_always_advance() {
        assert_eq!(split(&[at(0), at(0), 5], &TIMES, 1500).advance, 1500);
    }

    #[test]
    fn loops_are_found_and_their_first_time_is_kept() {
        let looped: Vec<u32> = [1, 2].into_iter().chain([7, 8, 9].repeat(6)).chain([3]).collect();
        assert_eq!(repeated(&looped, &TIMES), Some(5..20));
        let timed: Vec<u32> = (0..9).flat_map(|i| [at(i * 10), 7, 8, at(i * 10 + 10)]).collect();
        let range = repeated(&timed, &TIMES).unwrap();
        let mut rest = timed.clone();
        rest.drain(range);
        assert_eq!(rest, [at(0), 7, 8, at(90)]);
        for fine in [&[1, 1, 1, 1][..], &[1, 2, 1, 2, 1, 2], &[], &[4]] {
            assert_eq!(repeated(fine, &TIMES), None);
        }
    }
}

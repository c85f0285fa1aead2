//! Stop strings in streamed text. Text that may be the beginning of a stop string is held back until it is certain.

/// Finds the first of several strings in streamed text.
///
/// The match that ends first counts, and the longest of those that end together, so the result does not depend on how the text is split.
#[derive(Debug)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    /// Text that was not sent yet. Push to it, then [`StopStrings::scan`].
    pub(crate) held: String,
    /// How much of it has been searched.
    scanned: usize,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes at the start of `held` that can be sent.
    pub(crate) certain: usize,
    /// The stop string that begins there.
    pub(crate) stop: Option<usize>,
}

impl StopStrings {
    /// `room` is how many bytes one push may add without allocating.
    pub(crate) fn new(stops: Vec<String>, room: usize) -> StopStrings {
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        StopStrings { stops, held: String::with_capacity(longest + room), scanned: 0 }
    }

    /// One of them.
    pub(crate) fn get(&self, index: usize) -> &str {
        &self.stops[index]
    }

    /// Searches what has been pushed since the last scan.
    pub(crate) fn scan(&mut self) -> Scan {
        let text = self.held.as_bytes();
        for end in self.scanned + 1..=text.len() {
            let ending = |stop: &&(usize, &String)| text[..end].ends_with(stop.1.as_bytes());
            let by_len = |stop: &(usize, &String)| stop.1.len();
            let found = self.stops.iter().enumerate().filter(|stop| ending(&stop)).max_by_key(by_len);
            if let Some((index, stop)) = found {
                return Scan { certain: end - stop.len(), stop: Some(index) };
            }
        }
        self.scanned = text.len();
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.as_bytes().starts_with(&text[*at..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = text.len().saturating_sub(longest.saturating_sub(1));
        let certain = (first..text.len()).find(may_begin).unwrap_or(text.len());
        Scan { certain, stop: None }
    }

    /// Removes text that was sent.
    pub(crate) fn release(&mut self, certain: usize) {
        self.held.drain(..certain);
        self.scanned = self.scanned.saturating_sub(certain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text before the stop string, and which one it was.
    fn run(stops: &[String], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopStrings::new(stops.to_vec(), 8);
        let mut out = String::new();
        for piece in pieces {
            matcher.held.push_str(piece);
            let Scan { certain, stop } = matcher.scan();
            out.push_str(&matcher.held[..certain]);
            matcher.release(certain);
            if stop.is_some() {
                return (out, stop);
            }
        }
        out.push_str(&matcher.held);
        (out, None)
    }

    fn strings(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|s| s.to_string()).collect()
    }

    #[test]
    fn the_match_that_ends_first_counts_and_the_longest_of_those() {
        let stops = strings(&["abcd", "bc", "abc"]);
        assert_eq!(run(&stops, &["xabcd"]), ("x".into(), Some(2)));
        assert_eq!(run(&stops, &["x", "a", "b", "c", "d"]), ("x".into(), Some(2)));
    }

    #[test]
    fn a_prefix_that_fails_is_released_at_once() {
        let stops = strings(&["</end>"]);
        let mut matcher = StopStrings::new(stops, 8);
        matcher.held.push_str("a </en");
        assert_eq!(matcher.scan(), Scan { certain: 2, stop: None });
        matcher.release(2);
        matcher.held.push('!');
        assert_eq!(matcher.scan(), Scan { certain: 5, stop: None });
    }

    #[test]
    fn a_stop_may_begin_inside_a_failed_one() {
        let stops = strings(&["aab"]);
        assert_eq!(run(&stops, &["a", "a", "a", "b"]), ("a".into(), Some(0)));
    }

    #[test]
    fn text_is_split_between_characters() {
        let stops = strings(&["→é", "ü"]);
        assert_eq!(run(&stops, &["a→", "è→", "é"]), ("a→è".into(), Some(0)));
    }

    proptest! {
        /// Compares with a search of the whole text for the first end.
        #[test]
        fn any_split_gives_the_same(
            pieces in prop::collection::vec("[abü→]{0,4}", 0..12),
            stops in prop::collection::vec("[abü→]{1,4}", 0..4),
        ) {
            let whole: String = pieces.concat();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let ends = |stop: &String| whole.find(stop.as_str()).map(|at| at + stop.len());
            let first = stops.iter().filter_map(ends).min();
            let expected = match first {
                None => whole.clone(),
                Some(end) => {
                    let longest = stops.iter().filter(|s| whole[..end].ends_with(s.as_str())).map(String::len).max();
                    whole[..end - longest.unwrap()].to_string()
                }
            };
            let (out, stop) = run(&stops, &pieces);
            prop_assert_eq!(&out, &expected);
            prop_assert_eq!(stop.is_some(), first.is_some());
            prop_assert_eq!(run(&stops, &[&whole]), (out, stop));
        }
    }
}

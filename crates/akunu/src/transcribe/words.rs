//! Words of a transcript with their times, from the frames at which its tokens begin.
//!
//! Splitting, punctuation and the limits of durations are those of OpenAI's implementation.

use akunu_tokenizer::TIMESTAMP_STEP;

/// Languages that are written without spaces between words.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// ASCII punctuation. A part of a text is punctuation if it is found in here, so `()` is and `)(` is not.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Punctuation that belongs to the word after it, or before it.
const PREPENDED: &str = "\"'“¿([{-";
const APPENDED: &str = "\"'.。,，!！?？:：”)]}、";
const SENTENCE_ENDS: &str = ".。!！?？";

/// The longest median duration of words that limits are derived from, in seconds.
const LONGEST_MEDIAN: f64 = 0.7;

/// A token of the text with its bytes, which may be a part of a character.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub id: u32,
    pub bytes: &'a [u8],
    /// Its probability after the tokens before it, among the tokens of text.
    pub probability: f32,
}

/// A word, with its time in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub text: String,
    pub tokens: Vec<u32>,
    pub start: f64,
    pub end: f64,
    pub probability: f64,
}

/// The probability of a token among those below `end`: text without control tokens and timestamps.
pub fn probability(logits: &[f32], end: u32, token: u32) -> f32 {
    let text = &logits[..logits.len().min(end as usize)];
    let Some(&logit) = text.get(token as usize) else { return 0.0 };
    let total: f64 = text.iter().map(|other| f64::from(other - logit).exp()).sum();
    (1.0 / total) as f32
}

/// The words of a text, with times from the window's beginning. `begins` has the frame at which each token begins, and
/// then that at which the last one ends; without these, there are no words.
pub fn words(tokens: &[Token<'_>], language: &str, begins: &[usize]) -> Vec<Word> {
    let seconds = |token: usize| begins.get(token).map(|&frame| frame as f64 * TIMESTAMP_STEP);
    let mut first = 0;
    let mut words = vec![];
    for (text, count) in split(tokens, language) {
        let (part, next) = (&tokens[first..first + count], first + count);
        let (Some(start), Some(end)) = (seconds(first), seconds(next)) else { break };
        let total: f64 = part.iter().map(|token| f64::from(token.probability)).sum();
        let tokens = part.iter().map(|token| token.id).collect();
        words.push(Word { text, tokens, start, end, probability: total / count as f64 });
        first = next;
    }
    words
}

/// The words of a text, and the number of tokens of each.
pub fn split(tokens: &[Token<'_>], language: &str) -> Vec<(String, usize)> {
    let parts = split_characters(tokens);
    if WITHOUT_SPACES.contains(&language) {
        return parts;
    }
    let mut words: Vec<(String, usize)> = vec![];
    for (text, count) in parts {
        match words.last_mut() {
            Some(word) if !text.starts_with(' ') && !PUNCTUATION.contains(trim(&text)) => {
                word.0 += &text;
                word.1 += count;
            }
            _ => words.push((text, count)),
        }
    }
    words
}

/// The shortest parts of a text that are whole characters. Bytes that are no character in the whole text either are
/// parts with a replacement character.
fn split_characters(tokens: &[Token<'_>]) -> Vec<(String, usize)> {
    let whole: Vec<u8> = tokens.iter().flat_map(|token| token.bytes).copied().collect();
    let whole: Vec<char> = String::from_utf8_lossy(&whole).chars().collect();
    let (mut parts, mut bytes, mut count, mut chars) = (vec![], vec![], 0, 0);
    for (index, token) in tokens.iter().enumerate() {
        bytes.extend_from_slice(token.bytes);
        count += 1;
        let text = String::from_utf8_lossy(&bytes);
        let replaced = text.chars().position(|c| c == char::REPLACEMENT_CHARACTER);
        let stays = |at: usize| whole.get(chars + at).is_none_or(|&c| c == char::REPLACEMENT_CHARACTER);
        if replaced.is_none_or(stays) || index + 1 == tokens.len() {
            chars += text.chars().count();
            parts.push((text.into_owned(), count));
            bytes.clear();
            count = 0;
        }
    }
    parts
}

/// Python's `str.strip`, to which four control characters are spaces too.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

/// Joins punctuation with the words that it belongs to.
pub fn merge_punctuation(words: &mut Vec<Word>) {
    let mut following = words.len().saturating_sub(1);
    for previous in (0..following).rev() {
        let text = &words[previous].text;
        if text.starts_with(' ') && PREPENDED.contains(trim(text)) {
            let (text, tokens) = take(&mut words[previous]);
            words[following].text.insert_str(0, &text);
            words[following].tokens.splice(0..0, tokens);
        } else {
            following = previous;
        }
    }
    let mut previous = 0;
    for following in 1..words.len() {
        if !words[previous].text.ends_with(' ') && APPENDED.contains(&words[following].text) {
            let (text, tokens) = take(&mut words[following]);
            words[previous].text += &text;
            words[previous].tokens.extend(tokens);
        } else {
            previous = following;
        }
    }
    words.retain(|word| !word.text.is_empty());
}

fn take(word: &mut Word) -> (String, Vec<u32>) {
    (std::mem::take(&mut word.text), std::mem::take(&mut word.tokens))
}

/// A part of a transcript, in seconds from the beginning of the audio.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub start: f64,
    pub end: f64,
    /// How many of the window's text tokens it has.
    pub tokens: usize,
    pub words: Vec<Word>,
}

/// Distributes the words of a window to its segments, and corrects the times of both: pauses before sentences and
/// segments are not parts of words.
///
/// `offset`: when the window begins. `last_speech`: the end of the last segment before, which becomes that of these.
pub fn assign(mut words: Vec<Word>, segments: &mut [Timed], offset: f64, last_speech: &mut f64) {
    let limits = Limits::new(&words);
    limits.shorten_at_sentences(&mut words);
    merge_punctuation(&mut words);
    let hundredths = |seconds: f64| ((offset + seconds) * 100.0).round() / 100.0;
    let mut words = words.into_iter();
    for segment in segments {
        let mut count = 0;
        segment.words.clear();
        while count < segment.tokens {
            let Some(word) = words.next() else { break };
            count += word.tokens.len();
            let (start, end) = (hundredths(word.start), hundredths(word.end));
            segment.words.push(Word { start, end, ..word });
        }
        limits.fit(segment, last_speech);
    }
}

/// Durations of words in seconds.
#[derive(Clone, Copy, Debug)]
struct Limits {
    median: f64,
    longest: f64,
}

impl Limits {
    fn new(words: &[Word]) -> Limits {
        let durations = words.iter().map(|word| word.end - word.start);
        let mut durations: Vec<f64> = durations.filter(|&duration| duration != 0.0).collect();
        durations.sort_unstable_by(f64::total_cmp);
        let middle = durations.len() / 2;
        let median = match durations.len() {
            0 => 0.0,
            len if len.is_multiple_of(2) => (durations[middle - 1] + durations[middle]) / 2.0,
            _ => durations[middle],
        };
        let median = median.min(LONGEST_MEDIAN);
        Limits { median, longest: median * 2.0 }
    }

    /// Marks at the end of a sentence, and the words after them, are not longer than the limit.
    fn shorten_at_sentences(&self, words: &mut [Word]) {
        for i in 1..words.len() {
            let ends_sentence = |word: &Word| SENTENCE_ENDS.contains(&word.text);
            if words[i].end - words[i].start <= self.longest {
                continue;
            }
            if ends_sentence(&words[i]) {
                words[i].end = words[i].start + self.longest;
            } else if ends_sentence(&words[i - 1]) {
                words[i].start = words[i].end - self.longest;
            }
        }
    }

    /// Shortens long words at the edges of a segment; the segment's times become those of its words, unless these are
    /// too long even then.
    fn fit(&self, segment: &mut Timed, last_speech: &mut f64) {
        let Some(first) = segment.words.first() else { return };
        let after_pause = first.end - *last_speech > self.median * 4.0;
        let second_end = segment.words.get(1).map(|second| second.end);
        let is_long = first.end - first.start > self.longest
            || second_end.is_some_and(|end| end - first.start > self.longest * 2.0);
        if after_pause && is_long {
            self.shorten_first(&mut segment.words);
        }
        let first = &mut segment.words[0];
        if segment.start < first.end && segment.start - 0.5 > first.start {
            first.start = (first.end - self.median).min(segment.start).max(0.0);
        } else {
            segment.start = first.start;
        }
        let last = segment.words.len() - 1;
        let last = &mut segment.words[last];
        if segment.end > last.start && segment.end + 0.5 < last.end {
            last.end = (last.start + self.median).max(segment.end);
        } else {
            segment.end = last.end;
        }
        *last_speech = segment.end;
    }

    fn shorten_first(&self, words: &mut [Word]) {
        if let [first, second, ..] = words
            && second.end - second.start > self.longest
        {
            let boundary = (second.end / 2.0).max(second.end - self.longest);
            first.end = boundary;
            second.start = boundary;
        }
        if let Some(first) = words.first_mut() {
            first.start = (first.end - self.longest).max(0.0);
        }
    }
}

//! Vocabularies that list the bytes of their tokens by rank, as whisper.cpp's GGML files and tiktoken's do: byte-level
//! BPE in which the lowest id of all merged pairs is merged first. The list of merges follows from the tokens.

use std::collections::HashMap;

use akunu_format::Strings;

use crate::bytes::written;
use crate::languages::LANGUAGES;
use crate::speech::TIMESTAMPS;
use crate::{Model, SpecialTokens, TokenKind, TokenizerError, Vocabulary};

/// Tokens of Whisper's English vocabulary; the smallest with control tokens that files do not list.
const ENGLISH: usize = 51_864;
/// Of them, text. Multilingual vocabularies have one more, which is empty.
const ENGLISH_TEXT: usize = 50_256;
/// Control tokens and timestamps, without languages.
const CONTROLS: usize = 8 + TIMESTAMPS as usize;

/// Finding the merge of a token takes time in proportion to the square of its length. Whisper's longest has 128 bytes.
const LONGEST: usize = 512;

impl Vocabulary {
    /// The vocabulary of a Whisper model with `rows` embeddings. The control tokens of published vocabularies are not
    /// listed: which ones there are follows from the number of rows. Those of smaller vocabularies are listed.
    pub fn from_speech_ranks(tokens: &[&[u8]], rows: usize) -> Result<Vocabulary, TokenizerError> {
        let wrong = |problem: String| Err(TokenizerError::TokenList { problem });
        let is_published = rows >= ENGLISH;
        let text =
            if is_published { ENGLISH_TEXT + usize::from(rows > ENGLISH) } else { tokens.len().min(rows) };
        let languages = rows.saturating_sub(text + CONTROLS);
        if tokens.len() < text {
            return wrong(format!("it lists {} tokens of text, and {text} are needed", tokens.len()));
        }
        if is_published && languages > LANGUAGES.len() {
            let most = text + CONTROLS + LANGUAGES.len();
            return wrong(format!(
                "the model has {rows} tokens, but the largest known vocabulary has {most}"
            ));
        }
        if !is_published && tokens.len() > rows {
            return wrong(format!("it lists {} tokens, but the model has {rows}", tokens.len()));
        }
        let tokens = &tokens[..text];
        if let Some((id, token)) = tokens.iter().enumerate().find(|(_, token)| token.len() > LONGEST) {
            return Err(TokenizerError::TokenTooLong { id, len: token.len(), max: LONGEST });
        }
        let mut vocabulary = Vocabulary::new(Model::ByteLevel, "gpt-2");
        for token in tokens {
            let control = std::str::from_utf8(token).ok().filter(|text| is_control(text));
            vocabulary.kinds.push(match control {
                Some(_) => TokenKind::Control,
                None if token.is_empty() => TokenKind::Unused,
                None => TokenKind::Normal,
            });
            match control {
                Some(text) => vocabulary.tokens.push(&[text]),
                None => vocabulary.tokens.push(&[&written(token)]),
            }
        }
        vocabulary.merges = merges(tokens, &vocabulary.kinds);
        if is_published {
            controls(languages).for_each(|control| vocabulary.tokens.push(&["<|", &control, "|>"]));
            vocabulary.kinds.resize(vocabulary.tokens.len(), TokenKind::Control);
        }
        let end = vocabulary.tokens.iter().position(|text| text == "<|endoftext|>").map(|id| id as u32);
        vocabulary.special = SpecialTokens { bos: end, eos: end, ..SpecialTokens::default() };
        Ok(vocabulary)
    }
}

/// The names of the control tokens after the text, in order.
fn controls(languages: usize) -> impl Iterator<Item = String> {
    let codes = LANGUAGES.iter().take(languages).map(|(code, _)| *code);
    let after = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"];
    let names = ["endoftext", "startoftranscript"].into_iter().chain(codes).chain(after).map(str::to_string);
    names.chain((0..TIMESTAMPS).map(|step| format!("{}.{:02}", step / 50, step % 50 * 2)))
}

fn is_control(text: &str) -> bool {
    text.len() > 4 && text.starts_with("<|") && text.ends_with("|>")
}

/// For each token of text the two tokens that it is merged from, by rank.
fn merges(tokens: &[&[u8]], kinds: &[TokenKind]) -> Strings {
    let normal = || (0u32..).zip(tokens).filter(|(id, _)| kinds[*id as usize] == TokenKind::Normal);
    let mut ranks: HashMap<&[u8], u32> = HashMap::with_capacity(tokens.len());
    for (id, token) in normal() {
        ranks.entry(token).or_insert(id);
    }
    let mut merges = Strings::new();
    for (id, token) in normal() {
        if ranks[token] == id
            && let Some(at) = last_merge(&ranks, token)
        {
            let (left, right) = token.split_at(at);
            if ranks.contains_key(left) && ranks.contains_key(right) {
                merges.push(&[&written(left), " ", &written(right)]);
            }
        }
    }
    merges
}

/// Where the last merge of a token joins its two parts. `None` for a byte, and for a token that other tokens do not
/// merge to.
fn last_merge(ranks: &HashMap<&[u8], u32>, token: &[u8]) -> Option<usize> {
    if token.len() < 2 {
        return None;
    }
    let rank = |part: &[u8]| if part.len() < token.len() { ranks.get(part).copied() } else { None };
    // The starts of the parts, each with the rank of its merge with the next part.
    let mut starts: Vec<usize> = (0..=token.len()).collect();
    let mut pairs: Vec<Option<u32>> = token.windows(2).map(rank).collect();
    while pairs.len() > 1 {
        let merged = (0..pairs.len()).filter(|&at| pairs[at].is_some()).min_by_key(|&at| pairs[at])?;
        starts.remove(merged + 1);
        pairs.remove(merged);
        for at in [merged.checked_sub(1), Some(merged)].into_iter().flatten() {
            if let Some(pair) = pairs.get_mut(at) {
                *pair = rank(&token[starts[at]..starts[at + 2]]);
            }
        }
    }
    Some(starts[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_merges_are_those_that_lead_to_the_tokens() {
        let tokens: Vec<&[u8]> =
            vec![b"a", b"b", b"c", b"bc", b"ab", b"abc", b"aa", b"aaa", b"xy", b"", b"<|aa|>"];
        let vocabulary = Vocabulary::from_speech_ranks(&tokens, 20).unwrap();
        let merges: Vec<&str> = vocabulary.merges.iter().collect();
        // `ab` and `c` never meet, since `bc` is merged first; `x` and `y` have no tokens.
        assert_eq!(merges, ["b c", "a b", "a bc", "a a", "aa a"]);
        assert_eq!(vocabulary.kinds[9..], [TokenKind::Unused, TokenKind::Control]);
    }

    #[test]
    fn timestamps_are_written_with_two_decimals() {
        let all: Vec<String> = controls(1).collect();
        assert_eq!(all.len(), CONTROLS + 1);
        assert_eq!(all[8..12], ["notimestamps", "0.00", "0.02", "0.04"]);
        assert_eq!(all[all.len() - 2..], ["29.98", "30.00"]);
    }
}

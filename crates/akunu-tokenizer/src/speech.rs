//! The control tokens of a model that transcribes, in a vocabulary of Whisper's form: text, then
//!
//! ```text
//! <|endoftext|> <|startoftranscript|> <|en|> … <|yue|> <|translate|> <|transcribe|> <|startoflm|> <|startofprev|>
//! <|nospeech|> <|notimestamps|> <|0.00|> <|0.02|> … <|30.00|>
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use crate::{EncodeOptions, Tokenizer, TokenizerError};

/// Seconds from one timestamp to the next.
pub const TIMESTAMP_STEP: f64 = 0.02;

/// From 0 s to 30 s.
pub(crate) const TIMESTAMPS: u32 = 1501;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechTokens {
    /// `<|startoftranscript|>`.
    pub start: u32,
    /// `<|endoftext|>`. All tokens before it are text, and none after it.
    pub end: u32,
    /// The codes of languages (`en`) with their tokens, in the vocabulary's order. Not empty even in models of English
    /// only, whose prompts have none of them.
    pub languages: Vec<(String, u32)>,
    pub transcribe: Option<u32>,
    pub translate: Option<u32>,
    /// `<|startofprev|>`: text before the window follows.
    pub previous: Option<u32>,
    /// `<|startoflm|>`.
    pub start_of_lm: Option<u32>,
    /// `<|nospeech|>` or `<|nocaptions|>`: its probability at the start is that of no speech.
    pub no_speech: Option<u32>,
    pub no_timestamps: u32,
    /// `<|0.00|>` and so on, in steps of [`TIMESTAMP_STEP`].
    pub timestamps: Range<u32>,
}

impl SpeechTokens {
    /// `None` if it is not such a vocabulary. `rows`: those of the model's embedding; older vocabularies do not list the
    /// timestamps, which are then the rows after `<|notimestamps|>`.
    pub fn new(tokenizer: &dyn Tokenizer, rows: usize) -> Option<SpeechTokens> {
        let (mut start, mut end, mut no_timestamps, mut first) = (None, None, None, None);
        let [mut transcribe, mut translate, mut previous, mut start_of_lm, mut no_speech] = [None; 5];
        let mut languages = Vec::new();
        for id in 0..tokenizer.vocab_size() as u32 {
            let Some(name) = tokenizer.token_text(id).and_then(control_name) else { continue };
            let role = match name {
                "startoftranscript" => &mut start,
                "endoftext" => &mut end,
                "transcribe" => &mut transcribe,
                "translate" => &mut translate,
                "startofprev" => &mut previous,
                "startoflm" => &mut start_of_lm,
                "nospeech" | "nocaptions" => &mut no_speech,
                "notimestamps" => &mut no_timestamps,
                "0.00" => &mut first,
                // The tokens of languages follow the start.
                _ if start.is_some_and(|start| id == start + 1 + languages.len() as u32) => {
                    if is_code(name) {
                        languages.push((name.to_string(), id));
                    }
                    continue;
                }
                _ => continue,
            };
            role.get_or_insert(id);
        }
        let (start, end, no_timestamps) = (start?, end?, no_timestamps?);
        let first = first.unwrap_or(no_timestamps.saturating_add(1));
        let is_last = [start, no_timestamps, first].iter().all(|&id| id > end);
        is_last.then(|| SpeechTokens {
            start,
            end,
            languages,
            transcribe,
            translate,
            previous,
            start_of_lm,
            no_speech,
            no_timestamps,
            timestamps: first
                ..u32::try_from(rows).unwrap_or(u32::MAX).min(first.saturating_add(TIMESTAMPS)).max(first),
        })
    }

    pub fn language(&self, code: &str) -> Option<u32> {
        self.languages.iter().find(|(other, _)| other == code).map(|(_, id)| *id)
    }

    pub fn is_timestamp(&self, id: u32) -> bool {
        self.timestamps.contains(&id)
    }

    /// Whether a token is part of what is said, and neither a control token nor a timestamp.
    pub fn is_text(&self, id: u32) -> bool {
        id < self.end
    }

    /// The seconds of a timestamp, from the beginning of the window.
    pub fn seconds(&self, id: u32) -> Option<f64> {
        self.is_timestamp(id).then(|| f64::from(id - self.timestamps.start) * TIMESTAMP_STEP)
    }
}

/// `en` of `<|en|>`.
fn control_name(text: &str) -> Option<&str> {
    text.strip_prefix("<|")?.strip_suffix("|>")
}

/// Codes of languages have two or three letters.
fn is_code(name: &str) -> bool {
    matches!(name.len(), 2 | 3) && name.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Symbols that are suppressed if they are one token.
const SYMBOLS: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (' (\" \
                       (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";

/// Symbols whose first token is suppressed, since that token begins only symbols of music and the like.
const MUSIC: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";

/// Tokens of text that is not said, such as the names of speakers and descriptions of sounds in brackets, sorted.
/// OpenAI's implementation suppresses them by default. Usual punctuation is not among them.
pub fn non_speech_tokens(tokenizer: &dyn Tokenizer) -> Result<Vec<u32>, TokenizerError> {
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions::default());
    let mut found = BTreeSet::new();
    // Hyphens and apostrophes are text within words, but not at their beginning.
    for text in [" -", " '"] {
        found.extend(encode(text)?.first());
    }
    for (symbols, is_music) in [(SYMBOLS, false), (MUSIC, true)] {
        for symbol in symbols.split(' ') {
            for text in [symbol.to_string(), format!(" {symbol}")] {
                let ids = encode(&text)?;
                if ids.len() == 1 || is_music {
                    found.extend(ids.first());
                }
            }
        }
    }
    Ok(found.into_iter().collect())
}

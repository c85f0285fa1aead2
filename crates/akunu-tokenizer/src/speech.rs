//! The control tokens of a model that transcribes, in a vocabulary of Whisper's form.

use std::ops::Range;

use crate::Tokenizer;

/// Seconds from one timestamp to the next.
pub const TIMESTAMP_STEP: f64 = 0.02;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechTokens {
    /// `<|startoftranscript|>`.
    pub start: u32,
    /// `<|endoftext|>`.
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
        let find = |text: &str| tokenizer.find_token(text);
        let (start, no_timestamps) = (find("<|startoftranscript|>")?, find("<|notimestamps|>")?);
        let end = find("<|endoftext|>")?;
        let first = no_timestamps + 1;
        let language = |id: u32| {
            let code = tokenizer.token_text(id)?.strip_prefix("<|")?.strip_suffix("|>")?;
            Some((code.to_string(), id))
        };
        let languages = (start + 1..).map_while(language);
        let languages = languages
            .take_while(|(name, _)| !matches!(name.as_str(), "translate" | "transcribe" | "startoflm"))
            .collect();
        Some(SpeechTokens {
            start,
            end,
            languages,
            transcribe: find("<|transcribe|>"),
            translate: find("<|translate|>"),
            previous: find("<|startofprev|>"),
            start_of_lm: find("<|startoflm|>"),
            no_speech: find("<|nospeech|>").or_else(|| find("<|nocaptions|>")),
            no_timestamps,
            timestamps: first..(rows as u32).min(first + 1501).max(first),
        })
    }

    pub fn language(&self, code: &str) -> Option<u32> {
        self.languages.iter().find(|(other, _)| other == code).map(|(_, id)| *id)
    }
}

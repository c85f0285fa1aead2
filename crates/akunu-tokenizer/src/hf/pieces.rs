//! The bytes that each token adds to a text, from the file's `decoder`. Steps that look at single tokens are applied
//! once per token; the only step that looks at a whole text is the removal of the space prefix.

use std::collections::HashMap;

use akunu_format::Strings;
use serde_json::Value;

use crate::bytes::{append_bytes, byte_of_hex};
use crate::error::printable;
use crate::hash::Pieces;
use crate::{TokenKind, TokenizerError};

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Characters encode bytes.
    ByteLevel,
    Replace(String, String),
    /// The mark is a space, and nothing in the first token of a text if `strip`.
    Metaspace {
        mark: String,
        strip: bool,
    },
    /// `<0x0A>` is a byte.
    ByteFallback,
    /// Tokens with the prefix continue a word; others begin one, with a space.
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    /// Every token begins with a space.
    Spaced,
    /// At most this many spaces at the beginning of every token are removed.
    Strip(usize),
}

#[derive(Debug, Default)]
pub(super) struct Steps {
    steps: Vec<Step>,
    space_prefix: bool,
    /// The tokens were joined: the following steps apply to the whole text.
    fused: bool,
}

impl Steps {
    /// Parses a `decoder`.
    pub(super) fn of(decoder: &Value) -> Result<Steps, TokenizerError> {
        let mut steps = Steps::default();
        match decoder {
            decoder if !decoder.is_null() => steps.read(decoder)?,
            _ => (steps.steps, steps.space_prefix) = (vec![Step::Spaced], true),
        }
        Ok(steps)
    }

    /// Whether decoding removes a space at the beginning of a text.
    pub(super) fn have_space_prefix(&self) -> bool {
        self.space_prefix
    }

    /// `surface` gives the texts of tokens that differ from those in the vocabulary.
    pub(super) fn pieces<'s>(
        &self,
        texts: &Strings,
        kinds: &[TokenKind],
        surface: impl Fn(u32) -> Option<&'s str>,
    ) -> Pieces {
        let mut pieces = Pieces::default();
        for ((id, text), kind) in (0u32..).zip(texts.iter()).zip(kinds) {
            let text = surface(id).unwrap_or(text);
            pieces.push_with(|out| {
                let hidden = matches!(kind, TokenKind::Control | TokenKind::Unknown);
                if !hidden && !text.is_empty() {
                    self.apply(text, false, out);
                }
            });
        }
        pieces
    }

    /// What tokens add at the beginning of a text, if it is not `pieces` without a space in front.
    pub(super) fn firsts<'s>(
        &self,
        texts: &Strings,
        kinds: &[TokenKind],
        surface: impl Fn(u32) -> Option<&'s str>,
        pieces: &Pieces,
    ) -> HashMap<u32, Vec<u8>> {
        let mut firsts = HashMap::new();
        let differs = |step: &Step| matches!(step, Step::Metaspace { .. } | Step::WordPiece { .. });
        if !self.steps.iter().any(differs) {
            return firsts;
        }
        for ((id, text), kind) in (0u32..).zip(texts.iter()).zip(kinds) {
            let bytes = pieces.get(id).unwrap_or_default();
            let text = surface(id).unwrap_or(text);
            if matches!(kind, TokenKind::Control | TokenKind::Unknown) || text.is_empty() {
                continue;
            }
            let mut first = Vec::new();
            self.apply(text, true, &mut first);
            let usual = bytes.strip_prefix(b" ").filter(|_| self.space_prefix).unwrap_or(bytes);
            if first != usual {
                firsts.insert(id, first);
            }
        }
        firsts
    }

    fn read(&mut self, decoder: &Value) -> Result<(), TokenizerError> {
        let text = |key: &str| decoder[key].as_str().map(str::to_string);
        let kind = decoder["type"].as_str().unwrap_or_default();
        // A step on the whole text can be applied to its tokens only if it looks at single characters.
        let is_single = decoder["pattern"]["String"].as_str().is_some_and(|from| from.chars().count() == 1);
        let is_replacement = kind == "Replace" && is_single && !self.steps.contains(&Step::ByteLevel);
        if self.fused && !is_replacement && !matches!(kind, "Sequence" | "Fuse" | "Strip") {
            return Err(refused(&format!("with the step `{}` after the tokens are joined", printable(kind))));
        }
        match kind {
            "Sequence" => {
                for part in decoder["decoders"].as_array().into_iter().flatten() {
                    self.read(part)?;
                }
            }
            "ByteLevel" => {
                self.steps.push(Step::ByteLevel);
                self.fused = true;
            }
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Fuse" => self.fused = true,
            "Replace" => match (decoder["pattern"]["String"].as_str(), text("content")) {
                (Some(from), Some(to)) if !from.is_empty() => {
                    self.steps.push(Step::Replace(from.to_string(), to));
                }
                _ => return Err(refused("with a regular expression")),
            },
            "Strip" => self.read_strip(decoder)?,
            "Metaspace" => {
                let mark = text("replacement").unwrap_or_else(|| "▁".into());
                if mark.is_empty() {
                    return Err(refused("with an empty space mark"));
                }
                let never =
                    decoder["prepend_scheme"] == "never" || decoder["add_prefix_space"] == Value::Bool(false);
                self.steps.push(Step::Metaspace { mark, strip: !never });
                self.space_prefix |= !never;
            }
            "WordPiece" => {
                let prefix = text("prefix").unwrap_or_else(|| "##".into());
                let cleanup = decoder["cleanup"].as_bool().unwrap_or(true);
                self.steps.push(Step::WordPiece { prefix, cleanup });
                self.space_prefix = true;
            }
            "BPEDecoder" => {
                let suffix = text("suffix").filter(|suffix| !suffix.is_empty());
                self.steps.push(Step::Replace(suffix.unwrap_or_else(|| "</w>".into()), " ".into()));
            }
            other => return Err(refused(&format!("of the type `{}`", printable(other)))),
        }
        Ok(())
    }

    fn read_strip(&mut self, strip: &Value) -> Result<(), TokenizerError> {
        let count = |key: &str| strip[key].as_u64().map_or(0, |count| count as usize);
        match (count("start"), count("stop"), self.fused) {
            (0, 0, _) => {}
            _ if strip["content"] != " " => return Err(refused("that removes characters other than spaces")),
            (1, 0, true) => self.space_prefix = true,
            (start, 0, false) => self.steps.push(Step::Strip(start)),
            _ => return Err(refused("that removes several spaces, or spaces at the end")),
        }
        Ok(())
    }

    /// Appends the bytes of a token, `first` or later in a text.
    fn apply(&self, text: &str, first: bool, out: &mut Vec<u8>) {
        let mut text = text.to_string();
        for step in &self.steps {
            match step {
                // The result is bytes, not necessarily UTF-8, so no text step can follow.
                Step::ByteLevel => return append_bytes(&text, out),
                Step::ByteFallback => {
                    if let Some(byte) = byte_of_hex(&text) {
                        return out.push(byte);
                    }
                }
                Step::Replace(from, to) => text = text.replace(from, to),
                Step::Metaspace { mark, strip } => {
                    text = text.replace(mark, if *strip && first { "" } else { " " });
                }
                Step::Spaced => text.insert(0, ' '),
                Step::Strip(most) => {
                    let spaces = text.len() - text.trim_start_matches(' ').len();
                    text.drain(..spaces.min(*most));
                }
                Step::WordPiece { prefix, cleanup } => {
                    text = match text.strip_prefix(prefix) {
                        _ if first => text,
                        Some(rest) => rest.to_string(),
                        None => format!(" {text}"),
                    };
                    if *cleanup {
                        text = clean_up(&text);
                    }
                }
            }
        }
        out.extend_from_slice(text.as_bytes());
    }
}

/// Removes spaces before punctuation, as the WordPiece decoder does.
fn clean_up(text: &str) -> String {
    const PAIRS: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    PAIRS.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}

fn refused(what: &str) -> TokenizerError {
    TokenizerError::Unsupported { what: format!("a decoder {what}") }
}

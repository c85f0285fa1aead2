//! Normalization of a text before pre-tokenization. What most files ask for has a form of its own; any other file's
//! normalizer is a list of steps.

use serde_json::Value;
use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::char::is_combining_mark;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};
use unicode_segmentation::UnicodeSegmentation;

use super::limit;
use super::parts::{Pattern, flag, sequence, text, unknown_part};
use crate::TokenizerError;
use crate::bytes::push_written;
use crate::cancel::Watch;
use crate::charsmap::CharsMap;
use crate::wordpiece::is_cjk;

#[derive(Debug)]
pub(super) enum Normalizer {
    None,
    Nfc,
    /// Replaces spaces with `▁` and adds one in front.
    Marks {
        prepend: bool,
    },
    Bert(Bert),
    Steps(Vec<Step>),
}

/// BERT's normalizer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bert {
    /// Remove control characters, and convert other whitespace to spaces.
    pub(super) clean_text: bool,
    /// Add spaces around Chinese characters.
    pub(super) chinese: bool,
    pub(super) strip_accents: bool,
    pub(super) lowercase: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    Bert(Bert),
    ByteLevel,
    Lowercase,
    Form(Form),
    Nmt,
    Precompiled(CharsMap),
    Prepend(String),
    Replace { pattern: Pattern, content: String },
    Strip { left: bool, right: bool },
    StripAccents,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

const KNOWN: &str = "BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, \
                     Sequence, Strip, StripAccents";

impl Normalizer {
    pub(super) fn of(value: &Value) -> Result<Normalizer, TokenizerError> {
        let steps: Vec<Step> =
            sequence(value, "normalizers").into_iter().map(step).collect::<Result<_, _>>()?;
        Ok(match &steps[..] {
            [] => Normalizer::None,
            [Step::Form(Form::Nfc)] => Normalizer::Nfc,
            [Step::Bert(bert)] => Normalizer::Bert(*bert),
            [last] if last.marks_spaces() => Normalizer::Marks { prepend: false },
            [Step::Prepend(mark), last] if mark == "▁" && last.marks_spaces() => {
                Normalizer::Marks { prepend: true }
            }
            _ => Normalizer::Steps(steps),
        })
    }

    /// The normalized text: either `text` itself, or written to `out`, which is empty.
    pub(super) fn apply<'t>(
        &self,
        text: &'t str,
        out: &'t mut String,
        watch: &mut Watch,
    ) -> Result<&'t str, TokenizerError> {
        match self {
            Normalizer::None => return Ok(text),
            Normalizer::Nfc => {
                if is_composed(text) {
                    return Ok(text);
                }
                out.push_str(&compose(text));
            }
            Normalizer::Marks { prepend } => {
                if *prepend && !text.is_empty() {
                    out.push('▁');
                }
                push_marked(text, out);
            }
            Normalizer::Bert(bert) => bert.apply(text, out),
            Normalizer::Steps(steps) => {
                let mut before = text.to_string();
                for step in steps {
                    watch.step()?;
                    out.clear();
                    step.apply(&before, out, watch)?;
                    limit(out.len())?;
                    std::mem::swap(&mut before, out);
                }
                *out = before;
            }
        }
        Ok(out)
    }
}

fn step(part: &Value) -> Result<Step, TokenizerError> {
    let has = |key: &str| part.get(key).is_some();
    // Files of the first versions have no types.
    let kind = match part["type"].as_str() {
        Some(kind) => kind,
        None if has("clean_text") => "BertNormalizer",
        None if has("strip_left") => "Strip",
        None if has("precompiled_charsmap") => "Precompiled",
        None if has("pattern") => "Replace",
        None if has("prepend") => "Prepend",
        None => "",
    };
    Ok(match kind {
        "BertNormalizer" => {
            let lowercase = flag(part, "lowercase", None)?;
            Step::Bert(Bert {
                clean_text: flag(part, "clean_text", None)?,
                chinese: flag(part, "handle_chinese_chars", None)?,
                strip_accents: flag(part, "strip_accents", Some(lowercase))?,
                lowercase,
            })
        }
        "ByteLevel" => Step::ByteLevel,
        "Lowercase" => Step::Lowercase,
        "NFC" => Step::Form(Form::Nfc),
        "NFD" => Step::Form(Form::Nfd),
        "NFKC" => Step::Form(Form::Nfkc),
        "NFKD" => Step::Form(Form::Nfkd),
        "Nmt" => Step::Nmt,
        "Precompiled" => Step::Precompiled(CharsMap::read(&base64(text(part, "precompiled_charsmap")?)?)?),
        "Prepend" => Step::Prepend(text(part, "prepend")?.to_string()),
        "Replace" => Step::Replace {
            pattern: Pattern::of(&part["pattern"])?,
            content: text(part, "content")?.to_string(),
        },
        "Strip" => {
            Step::Strip { left: flag(part, "strip_left", None)?, right: flag(part, "strip_right", None)? }
        }
        "StripAccents" => Step::StripAccents,
        _ => return Err(unknown_part("normalizer", part, KNOWN)),
    })
}

impl Step {
    fn marks_spaces(&self) -> bool {
        matches!(self, Step::Replace { pattern: Pattern::Text(space), content } if space == " " && content == "▁")
    }

    /// Appends the normalized text to `out`, which is empty.
    fn apply(&self, text: &str, out: &mut String, watch: &mut Watch) -> Result<(), TokenizerError> {
        match self {
            Step::Bert(bert) => bert.apply(text, out),
            Step::ByteLevel => push_written(text.as_bytes(), out),
            Step::Lowercase => out.extend(text.chars().flat_map(char::to_lowercase)),
            Step::Form(form) => form.apply(text, out),
            Step::Nmt => out.extend(text.chars().filter_map(nmt)),
            Step::Precompiled(map) => precompiled(map, text, out, watch)?,
            Step::Prepend(prefix) => {
                if !text.is_empty() {
                    out.push_str(prefix);
                    out.push_str(text);
                }
            }
            Step::Replace { pattern, content } => {
                let mut end = 0;
                pattern.each_match(text, watch, |start, stop| {
                    out.push_str(&text[end..start]);
                    out.push_str(content);
                    end = stop;
                    limit(out.len())
                })?;
                out.push_str(&text[end..]);
            }
            Step::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                out.push_str(if *right { text.trim_end() } else { text });
            }
            Step::StripAccents => out.extend(text.chars().filter(|&c| !is_combining_mark(c))),
        }
        Ok(())
    }
}

impl Form {
    fn apply(self, text: &str, out: &mut String) {
        match self {
            Form::Nfc => out.extend(text.nfc().map(|(c, _)| c)),
            Form::Nfd => out.extend(text.nfd().map(|(c, _)| c)),
            Form::Nfkc => out.extend(text.nfkc().map(|(c, _)| c)),
            Form::Nfkd => out.extend(text.nfkd().map(|(c, _)| c)),
        }
    }
}

impl Bert {
    fn apply(&self, text: &str, out: &mut String) {
        // Characters are normalized independently, except for the order of following marks; ASCII contains no marks.
        for run in text.as_bytes().chunk_by(|a, b| a.is_ascii() == b.is_ascii()) {
            match std::str::from_utf8(run) {
                Ok(run) if !run.is_ascii() => self.apply_to(run, out),
                _ => self.apply_to_ascii(run, out),
            }
        }
    }

    fn apply_to_ascii(&self, text: &[u8], out: &mut String) {
        for &byte in text {
            let c = match byte {
                b'\t' | b'\n' | b'\r' if self.clean_text => ' ',
                0..0x20 | 0x7f if self.clean_text => continue,
                byte => byte as char,
            };
            out.push(if self.lowercase { c.to_ascii_lowercase() } else { c });
        }
    }

    fn apply_to(&self, text: &str, out: &mut String) {
        let space = |c: char| if self.clean_text && c.is_whitespace() { ' ' } else { c };
        let spread = |c: char| match self.chinese && is_cjk(c) {
            true => [Some(' '), Some(c), Some(' ')],
            false => [Some(c), None, None],
        };
        let clean = text.chars().filter(|&c| !(self.clean_text && is_unclean(c))).map(space);
        let clean = clean.flat_map(spread).flatten();
        let mut push = |c: char| match self.lowercase {
            true => out.extend(c.to_lowercase()),
            false => out.push(c),
        };
        match self.strip_accents {
            true => clean.nfd().map(|(c, _)| c).filter(|c| !c.is_mark_nonspacing()).for_each(&mut push),
            false => clean.for_each(&mut push),
        }
    }
}

/// Whether BERT's normalizer removes the character: control characters and others without a class, but not line ends.
fn is_unclean(c: char) -> bool {
    matches!(c, '\0' | char::REPLACEMENT_CHARACTER) || !matches!(c, '\t' | '\n' | '\r') && c.is_other()
}

/// SentencePiece's normalization for translation of one character, which may remove it.
fn nmt(c: char) -> Option<char> {
    match c {
        '\u{1}'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{8f}' | '\u{9f}' => None,
        '\t'
        | '\n'
        | '\u{c}'
        | '\r'
        | '\u{1680}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'
        | '\u{2029}'
        | '▁'
        | '\u{feff}'
        | '\u{fffd}' => Some(' '),
        c => Some(c),
    }
}

/// Rewrites short graphemes as a whole, other text by single characters, each by the shortest entry of the table that
/// it begins with.
fn precompiled(
    map: &CharsMap,
    text: &str,
    out: &mut String,
    watch: &mut Watch,
) -> Result<(), TokenizerError> {
    for grapheme in text.graphemes(true) {
        watch.step()?;
        limit(out.len())?;
        if grapheme.len() < 6
            && let Some(new) = map.shortest(grapheme.as_bytes())
        {
            out.push_str(new);
            continue;
        }
        for c in grapheme.chars() {
            match map.shortest(c.encode_utf8(&mut [0; 4]).as_bytes()) {
                Some(new) => out.push_str(new),
                None => out.push(c),
            }
        }
    }
    Ok(())
}

/// The bytes of a text in Base64 (RFC 4648), padded.
fn base64(text: &str) -> Result<Vec<u8>, TokenizerError> {
    let broken = || TokenizerError::Normalization { what: "is not Base64" };
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    if !text.len().is_multiple_of(4) || digits.len() % 4 == 1 {
        return Err(broken());
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.as_bytes().chunks(4) {
        let mut word = 0;
        for &byte in group {
            word = word << 6 | u32::from(digit(byte).ok_or_else(broken)?);
        }
        word <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..group.len()]);
    }
    Ok(bytes)
}

/// Whether the text is certainly in NFC.
pub(crate) fn is_composed(text: &str) -> bool {
    // No character below U+0300 composes, and the first byte of U+0300 is 0xCC.
    text.bytes().all(|byte| byte < 0xcc) || is_nfc_quick(text.chars()) == IsNormalized::Yes
}

/// The text in NFC.
pub(crate) fn compose(text: &str) -> String {
    text.nfc().map(|(c, _)| c).collect()
}

/// Appends `text` with spaces replaced by space marks.
pub(super) fn push_marked(text: &str, out: &mut String) {
    push_marked_by('▁', text, out);
}

pub(super) fn push_marked_by(mark: char, text: &str, out: &mut String) {
    out.reserve(text.len());
    for (at, part) in text.split(' ').enumerate() {
        if at > 0 {
            out.push(mark);
        }
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_written() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob")]
        {
            assert_eq!(base64(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(base64("+/+/").unwrap(), [0xfb, 0xff, 0xbf]);
        for text in ["Z", "Zg", "Zg=", "Z===", "Zm9v=", "Zm 9", "Zm9vé"] {
            assert!(base64(text).is_err(), "{text}");
        }
    }
}

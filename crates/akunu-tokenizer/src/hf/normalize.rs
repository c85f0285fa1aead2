//! Normalization of a text before pre-tokenization. Common normalizers are implemented here; for others the normalizer
//! of the `tokenizers` crate is called.

use serde_json::{Value, json};
use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::recognise::{Unknown, is, sequence};

#[derive(Debug)]
pub(super) enum Normalizer {
    None,
    Nfc,
    /// Replaces spaces with `▁` and adds one in front.
    Marks {
        prepend: bool,
    },
    /// BERT's normalizer; for ASCII it removes control characters, and lower-cases if requested.
    Bert {
        inner: Box<NormalizerWrapper>,
        lowercase: bool,
    },
    Other(Box<NormalizerWrapper>),
}

impl PartialEq for Normalizer {
    fn eq(&self, other: &Normalizer) -> bool {
        matches!((self, other), (Normalizer::None, Normalizer::None) | (Normalizer::Nfc, Normalizer::Nfc))
    }
}

impl Normalizer {
    pub(super) fn of(value: &Value) -> Result<Normalizer, Unknown> {
        let parts = sequence(value, "normalizers");
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        match &parts[..] {
            [] => return Ok(Normalizer::None),
            [part] if is(part, "NFC", &[]) => return Ok(Normalizer::Nfc),
            [part] if **part == replace => return Ok(Normalizer::Marks { prepend: false }),
            [first, second] if **first == prepend && **second == replace => {
                return Ok(Normalizer::Marks { prepend: true });
            }
            _ => {}
        }
        let inner: NormalizerWrapper =
            serde_json::from_value(value.clone()).map_err(|_| "a normalizer of an unknown kind")?;
        let inner = Box::new(inner);
        if let NormalizerWrapper::BertNormalizer(bert) = &*inner
            && bert.clean_text
        {
            let lowercase = bert.lowercase;
            return Ok(Normalizer::Bert { inner, lowercase });
        }
        Ok(Normalizer::Other(inner))
    }

    /// The normalized text: either `text` itself, or written to `out`, which is empty.
    pub(super) fn apply<'t>(&self, text: &'t str, out: &'t mut String) -> Result<&'t str, tokenizers::Error> {
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
            Normalizer::Bert { inner, lowercase } => {
                // Characters are normalized independently, except for the order of following marks; ASCII contains no
                // marks.
                for run in text.as_bytes().chunk_by(|a, b| a.is_ascii() == b.is_ascii()) {
                    match std::str::from_utf8(run) {
                        Ok(run) if !run.is_ascii() => ask(inner, run, out)?,
                        _ => push_clean_ascii(run, *lowercase, out),
                    }
                }
            }
            Normalizer::Other(inner) => ask(inner, text, out)?,
        }
        Ok(out)
    }
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

fn ask(inner: &NormalizerWrapper, text: &str, out: &mut String) -> Result<(), tokenizers::Error> {
    let mut normalized = NormalizedString::from(text);
    inner.normalize(&mut normalized)?;
    out.push_str(normalized.get());
    Ok(())
}

/// Removes control characters, and converts other whitespace to spaces.
fn push_clean_ascii(text: &[u8], lowercase: bool, out: &mut String) {
    for &byte in text {
        match byte {
            b'\t' | b'\n' | b'\r' => out.push(' '),
            0..0x20 | 0x7f => {}
            byte if lowercase => out.push(byte.to_ascii_lowercase() as char),
            byte => out.push(byte as char),
        }
    }
}

/// Appends `text` with spaces replaced by space marks.
pub(super) fn push_marked(text: &str, out: &mut String) {
    out.reserve(text.len());
    for (at, part) in text.split(' ').enumerate() {
        if at > 0 {
            out.push('▁');
        }
        out.push_str(part);
    }
}

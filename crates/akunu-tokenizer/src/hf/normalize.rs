//! What is done to a text before it is cut into words. The usual ways are written out here; for the others the
//! `tokenizers` crate's own normalizer is asked.

use serde_json::{Value, json};
use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::recognise::{Unknown, is, sequence};

#[derive(Debug)]
pub(super) enum Normalizer {
    None,
    Nfc,
    /// Spaces become `▁`, and one more goes in front.
    Marks {
        prepend: bool,
    },
    /// BERT's; of ASCII it removes controls, and folds its case if asked to.
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

    /// `text` as the model sees it: as it is, or written to `out`, which is empty.
    pub(super) fn apply<'t>(&self, text: &'t str, out: &'t mut String) -> Result<&'t str, tokenizers::Error> {
        match self {
            Normalizer::None => return Ok(text),
            Normalizer::Nfc => {
                if is_composed(text) {
                    return Ok(text);
                }
                out.extend(text.nfc().map(|(c, _)| c));
            }
            Normalizer::Marks { prepend } => {
                if *prepend && !text.is_empty() {
                    out.push('▁');
                }
                push_marked(text, out);
            }
            Normalizer::Bert { inner, lowercase } => {
                // Each character by itself, but for the order of marks that follow one of them; ASCII has no marks.
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

/// Is it NFC for certain?
pub(crate) fn is_composed(text: &str) -> bool {
    // Nothing below U+0300 composes, and its first byte is 0xCC.
    text.bytes().all(|byte| byte < 0xcc) || is_nfc_quick(text.chars()) == IsNormalized::Yes
}

fn ask(inner: &NormalizerWrapper, text: &str, out: &mut String) -> Result<(), tokenizers::Error> {
    let mut normalized = NormalizedString::from(text);
    inner.normalize(&mut normalized)?;
    out.push_str(normalized.get());
    Ok(())
}

/// Without controls, white space as spaces.
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

/// Appends `text` with marks for spaces.
pub(super) fn push_marked(text: &str, out: &mut String) {
    out.reserve(text.len());
    for (at, part) in text.split(' ').enumerate() {
        if at > 0 {
            out.push('▁');
        }
        out.push_str(part);
    }
}

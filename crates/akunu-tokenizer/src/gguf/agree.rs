//! Checks that two tokenizers give the same ids, before a file is written: a wrong vocabulary would look like a bad
//! model.

use crate::error::printable;
use crate::{EncodeOptions, Tokenizer};

/// Approximate number of vocabulary tokens that are compared.
const TRIED: usize = 3000;

const TEXTS: [&str; 12] = [
    "",
    " ",
    "Hello world, it's 2026!",
    "  two  spaces\n\n\tand\r\nlines \n ",
    "The HTTPServer's 3.14159 = 12345678 / ½",
    "naïve Straße Ελληνικά Быстрая лиса",
    "中文文本，测试。日本語の文章です。한국어",
    "العربية עברית हिन्दी ไทย",
    "🚀 👩🏽‍🚀 🇩🇪",
    "def f(x):\n    return x[0] + 1  # ok\n",
    "a_b_c <b>tag</b> @user #tag C:\\dir",
    "\u{a0}\u{3000}\u{200b}…—“quoted”",
];

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checks {
    /// Compare only texts that are composed (NFC) already.
    pub(crate) composed: bool,
    /// Compare decoded text too. GGUF's WordPiece keeps the spaces before punctuation.
    pub(crate) shown: bool,
    /// Compare the special tokens around a text too.
    pub(crate) around: bool,
    /// Compare pairs of texts, with their special tokens.
    pub(crate) pairs: bool,
}

/// Returns the first difference, if any.
pub(crate) fn check(
    original: &dyn Tokenizer,
    read_back: &dyn Tokenizer,
    checks: Checks,
) -> Result<(), String> {
    let count = original.vocab_size();
    let step = count.div_ceil(TRIED).max(1);
    let mut state = 1u64;
    let mut any = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) as usize % count.max(1)) as u32
    };
    TEXTS.iter().try_for_each(|text| same(original, read_back, text, checks))?;
    if checks.pairs {
        same_pair(original, read_back)?;
    }
    for id in (0..count).step_by(step) {
        let id = id as u32;
        let text = original.decode(&[id, any(), any()]);
        same(original, read_back, &text, checks)?;
        // Repetitions of a short token, where ties between merges matter.
        let short = original.decode(&[id]);
        if (1..=2).contains(&short.chars().count()) {
            let most = if id < 512 { 67 } else { 9 };
            for count in 2..most {
                same(original, read_back, &short.repeat(count), checks)?;
            }
        }
    }
    (1..200).try_for_each(|count| same(original, read_back, &" ".repeat(count), checks))
}

fn same_pair(original: &dyn Tokenizer, read_back: &dyn Tokenizer) -> Result<(), String> {
    let options = EncodeOptions { add_special: true, parse_special: false };
    let ids = |tokenizer: &dyn Tokenizer| {
        let pair = tokenizer.encode_pair(TEXTS[2], TEXTS[3], options);
        pair.map(|pair| pair.ids).map_err(|error| error.to_string())
    };
    let same = ids(original)? == ids(read_back)?;
    if same { Ok(()) } else { Err("different ids for pairs of texts".to_string()) }
}

fn same(
    original: &dyn Tokenizer,
    read_back: &dyn Tokenizer,
    text: &str,
    checks: Checks,
) -> Result<(), String> {
    if checks.composed && !crate::hf::is_composed(text) {
        return Ok(());
    }
    for [add_special, parse_special] in [[checks.around, true], [false, false]] {
        let options = EncodeOptions { add_special, parse_special };
        let ids = original.encode(text, options).map_err(|error| error.to_string())?;
        let again = read_back.encode(text, options).map_err(|error| error.to_string())?;
        // The decoded form of unknown text is specific to SentencePiece.
        let shown = checks.shown && !ids.iter().any(|&id| original.special().unknown == Some(id));
        if ids != again || shown && original.decode(&ids) != read_back.decode(&ids) {
            return Err(format!("different ids for `{}`", printable(text)));
        }
    }
    Ok(())
}

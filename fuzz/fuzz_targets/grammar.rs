//! Arbitrary text as a grammar; its first byte says which: `r` a regular expression, `g` GBNF, `l` Lark, `c` lines to
//! choose from. Each answer that it allows is UTF-8 where the grammar describes characters, and one of a regular
//! expression is matched by it in the crate `regex`.
#![no_main]

use std::sync::{Arc, LazyLock};

use akunu_grammar::{Client, Grammar, Limits, ResponseFormat, Session, Vocabulary, Workers};
use libfuzzer_sys::fuzz_target;
use regex::RegexBuilder;

/// One token for each byte.
static BYTES: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    Arc::new(Vocabulary::new(&tokens, Limits::default()).expect("a vocabulary of bytes"))
});
static WORKERS: LazyLock<Arc<Workers>> = LazyLock::new(Arc::default);

/// Steps of an answer. One that is not complete by then is not checked.
const STEPS: usize = 48;

/// An answer, chosen by pseudo-random numbers.
fn answer(grammar: &Arc<Grammar>, mut state: u64) -> Option<Vec<u8>> {
    let mut session = Session::new(WORKERS.clone(), grammar.clone());
    let mut text = Vec::new();
    while text.len() < STEPS {
        if session.is_over() {
            return Some(text);
        }
        let mask = session.mask().ok()?;
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let choice = (state >> 33) as usize;
        if mask.may_end && choice % 3 != 0 {
            return Some(text);
        }
        let allowed: Vec<u8> = (0..=255).filter(|&byte| mask.contains(byte.into())).collect();
        let byte = *allowed.get(choice / 3 % allowed.len().max(1))?;
        text.push(byte);
        session.push(byte.into());
    }
    None
}

/// Whether a grammar allows a text.
fn allows(grammar: &Arc<Grammar>, text: &[u8]) -> bool {
    let mut session = Session::new(WORKERS.clone(), grammar.clone());
    for &byte in text {
        if session.is_over() || !session.mask().is_ok_and(|mask| mask.contains(byte.into())) {
            return false;
        }
        session.push(byte.into());
    }
    session.is_over() || session.mask().is_ok_and(|mask| mask.may_end)
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, source)) = data.split_first() else { return };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let format = match kind {
        b'r' => ResponseFormat::Regex(source.into()),
        b'g' => ResponseFormat::Gbnf(source.into()),
        b'l' => ResponseFormat::Lark(source.into()),
        b'c' => ResponseFormat::Choice(source.lines().map(str::to_string).collect()),
        _ => return,
    };
    let Ok(grammar) = WORKERS.compile(&BYTES, &format, None, Client::default()) else { return };
    let grammar = Arc::new(grammar);
    let seed = data.iter().fold(0, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let Some(text) = answer(&grammar, seed) else { return };
    assert!(allows(&grammar, &text), "{text:?} is allowed once, and not again");
    let shown = String::from_utf8_lossy(&text);
    match format {
        ResponseFormat::Gbnf(_) => assert!(std::str::from_utf8(&text).is_ok(), "{text:?}"),
        ResponseFormat::Choice(texts) => assert!(texts.iter().any(|choice| *choice == shown), "{shown:?}"),
        ResponseFormat::Regex(source) => {
            let Ok(whole) = RegexBuilder::new(&format!(r"\A(?:{source})\z")).size_limit(1 << 20).build()
            else {
                return;
            };
            assert!(whole.is_match(&shown), "{shown:?}");
        }
        _ => {}
    }
});

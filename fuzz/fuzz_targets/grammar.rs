//! Arbitrary text as a grammar; its first byte says which: `r` a regular expression, `g` GBNF, `l` Lark, `c` lines to
//! choose from. Each answer that it allows is UTF-8 where the grammar describes characters, and one of a regular
//! expression is matched by it in the crate `regex`.
#![no_main]

use akunu_fuzz::{allows, answer, compile, on_a_large_stack, seed};
use akunu_grammar::ResponseFormat;
use libfuzzer_sys::fuzz_target;
use regex::RegexBuilder;

/// Steps of an answer. One that is not complete by then is not checked.
const STEPS: usize = 32;

/// Of so many inputs one is compiled, which takes a hundred times as long as our own parsers.
const COMPILED: u64 = 8;

fuzz_target!(|data: &[u8]| on_a_large_stack(|| check(data)));

fn check(data: &[u8]) {
    let Some((kind, source)) = data.split_first() else { return };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let format = match kind {
        b'r' => ResponseFormat::Regex(source.into()),
        b'g' => ResponseFormat::Gbnf(source.into()),
        b'l' => ResponseFormat::Lark(source.into()),
        b'c' => ResponseFormat::Choice(source.lines().map(str::to_string).collect()),
        _ => return,
    };
    let seed = seed(data);
    if (seed >> 40) % COMPILED != 0 {
        let _ = format.convert();
        return;
    }
    let Some(grammar) = compile(&format) else { return };
    let pick = |allowed: &[u8], choice: usize| allowed.get(choice % allowed.len().max(1)).copied();
    let Some(text) = answer(&grammar, seed, STEPS, 3, pick) else { return };
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
}

//! Damaged vocabulary files: each is an error or a vocabulary that keeps the promises of every other one. The files are
//! the seeds of the fuzz target, which does the same with coverage (`fuzz/`).

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use akunu_format::{Gguf, Region};
use akunu_tokenizer::{
    EncodeOptions, HfTokenizer, NativeTokenizer, Sidecar, StreamDecoder, TokenKind, Tokenizer,
    TokenizerError, Vocabulary, from_gguf,
};

/// Damaged copies of each file.
const COPIES: usize = 2000;

fn open(bytes: &[u8]) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    Ok(match bytes {
        [b'{', ..] => Box::new(HfTokenizer::from_bytes(bytes, &Sidecar::default())?),
        [b'G', b'G', ..] => {
            Box::new(from_gguf(Gguf::from_region(Region::from_vec(bytes.to_vec()))?.metadata())?)
        }
        _ => Box::new(NativeTokenizer::new(Vocabulary::from_sentencepiece(bytes)?)?),
    })
}

fn check(tokenizer: &dyn Tokenizer, in_json: bool, text: &str) {
    for (add_special, parse_special) in [(false, false), (true, true)] {
        let Ok(ids) = tokenizer.encode(text, EncodeOptions { add_special, parse_special }) else { return };
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
        ids.iter().for_each(|&id| decoder.push(tokenizer, id, &mut out));
        decoder.finish(&mut out);
        assert_eq!(out, tokenizer.decode(&ids));
        // A file may mark the unknown token as a control token, of which text without a token still consists.
        let unknown = tokenizer.special().unknown;
        let is_control =
            |id: u32| !in_json && unknown != Some(id) && tokenizer.token_kind(id) == Some(TokenKind::Control);
        let ends = |id: u32| is_control(id) || tokenizer.is_end_of_generation(id);
        assert!(parse_special || !ids.iter().any(|&id| ends(id)), "{text:?} is {ids:?}");
    }
}

fn seeds() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tokenizer");
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    seeds
}

#[test]
fn a_damaged_vocabulary_is_refused_or_works() {
    const TEXTS: [&str; 3] = ["the cat. é </s>  two", "(c)d ab cd<user>\n▁x▁ aaaa", "<unk><s>\0\u{301}中"];
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let seeds = seeds();
    assert_eq!(seeds.len(), 10);
    let mut opened = 0;
    for seed in &seeds {
        let whole = std::fs::read(seed).unwrap();
        open(&whole).unwrap_or_else(|error| panic!("{}: {error}", seed.display()));
        for _ in 0..COPIES {
            let mut bytes = whole.clone();
            for _ in 0..1 + next(3) {
                let at = next(bytes.len());
                match next(5) {
                    0 => bytes[at] = next(256) as u8,
                    1 => bytes[at] ^= 1 << next(8),
                    2 => bytes.truncate(at.max(1)),
                    3 => drop(bytes.remove(at)),
                    _ => {
                        let (from, len) = (next(bytes.len()), 1 + next(8));
                        let part = bytes[from..bytes.len().min(from + len)].to_vec();
                        bytes.splice(at..at, part);
                    }
                }
                bytes.truncate(1 << 16);
                if bytes.is_empty() {
                    bytes.push(0);
                }
            }
            if let Ok(tokenizer) = open(&bytes) {
                opened += 1;
                TEXTS.iter().for_each(|text| check(&*tokenizer, bytes[0] == b'{', text));
            }
        }
    }
    assert!(opened > COPIES / 2, "only {opened} damaged files were opened");
}

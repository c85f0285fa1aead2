//! Measures the speed of a vocabulary: encodes a text file repeatedly on one core, and some texts that are slow to
//! merge.
//!
//!     cargo run --release -p akunu-tokenizer --example speed -- VOCABULARY TEXT.txt

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use akunu_format::Gguf;
use akunu_tokenizer::{EncodeOptions, HfTokenizer, StreamDecoder, Tokenizer, from_gguf, from_model_file};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(vocabulary), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: speed VOCABULARY.(gguf|json|model) TEXT.txt".into());
    };
    let start = Instant::now();
    let tokenizer: Box<dyn Tokenizer> = if vocabulary.ends_with(".json") {
        Box::new(HfTokenizer::open(&vocabulary)?)
    } else if vocabulary.ends_with(".model") {
        Box::new(from_model_file(&vocabulary)?)
    } else {
        Box::new(from_gguf(Gguf::open(Path::new(&vocabulary))?.metadata())?)
    };
    println!("load           {:>8.1} ms   {}", start.elapsed().as_secs_f64() * 1e3, tokenizer.describe());

    let text = String::from_utf8_lossy(&std::fs::read(text)?).into_owned();
    let mut ids = Vec::new();
    let mut encode = |runs| {
        best(runs, || {
            ids.clear();
            tokenizer.encode_into(black_box(&text), EncodeOptions::default(), &mut ids)
        })
    };
    let (first, seconds) = (encode(1)?, encode(7)?);
    let bytes_per_token = text.len() as f64 / ids.len().max(1) as f64;
    report("encode, first", text.len(), first, "nothing in any cache");
    report("encode", text.len(), seconds, &format!("{} tokens, {bytes_per_token:.2} bytes each", ids.len()));

    let mut out = String::with_capacity(text.len() + 1);
    let seconds = best(7, || {
        out.clear();
        let mut decoder = StreamDecoder::new();
        ids.iter().for_each(|&id| decoder.push(&*tokenizer, id, &mut out));
        decoder.finish(&mut out);
        Ok(())
    })?;
    let same = if out == text { "gives the text again" } else { "DIFFERS from the text" };
    report("stream decode", out.len(), seconds, same);

    let megabyte = 1 << 20;
    for (name, unit) in [
        ("spaces", " "),
        ("line ends", "\n"),
        ("a", "a"),
        ("ab", "ab"),
        ("digits", "7"),
        ("signs", "="),
        ("Chinese", "中"),
        ("base64", ""),
    ] {
        let hard = if unit.is_empty() { base64(megabyte) } else { unit.repeat(megabyte / unit.len()) };
        let seconds = best(3, || {
            ids.clear();
            tokenizer.encode_into(black_box(&hard), EncodeOptions::default(), &mut ids)
        })?;
        report(name, hard.len(), seconds, "one repeated");
    }
    Ok(())
}

/// Random letters, digits and signs in one line.
fn base64(len: usize) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        SIGNS[(state >> 58) as usize] as char
    };
    (0..len).map(|_| next()).collect()
}

/// Duration of the fastest of several runs, in seconds.
fn best(
    runs: usize,
    mut run: impl FnMut() -> Result<(), akunu_tokenizer::TokenizerError>,
) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn report(name: &str, bytes: usize, seconds: f64, note: &str) {
    println!("{name:<14} {:>8.1} ms {:>8.1} MB/s   {note}", seconds * 1e3, bytes as f64 / seconds / 1e6);
}

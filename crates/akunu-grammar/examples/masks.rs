//! Measures masks over the vocabulary of a GGUF file, for schemas with values in the form of MaskBench on the standard input,
//! or for random answers to one schema:
//!
//! ```text
//! zcat maskbench-shared.jsonl.gz | cargo run --release -p akunu-grammar --example masks -- VOCAB.gguf EVERY
//! cargo run --release -p akunu-grammar --example masks -- VOCAB.gguf SCHEMA.json ANSWERS TOKENS
//! ```
//!
//! `EVERY` takes every n-th schema. The first valid value of each is written token by token, as its tokenizer divides it.
//! The tokens of random answers are chosen uniformly from those that may follow, as by a model with random weights.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu_format::Gguf;
use akunu_format::blocks::Rng;
use akunu_grammar::{Client, GrammarError, Limits, ResponseFormat, Session, Vocabulary, Workers};
use akunu_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value as Json;

const USAGE: &str = "usage: masks VOCAB.gguf EVERY, or masks VOCAB.gguf SCHEMA.json ANSWERS TOKENS";

#[derive(Default)]
struct Times {
    compiles: Vec<Duration>,
    begins: Vec<Duration>,
    /// From the request of a mask to its receipt.
    masks: Vec<Duration>,
    pushes: Vec<Duration>,
    refused: usize,
    stopped: usize,
    failed: Vec<GrammarError>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, given @ ..] = &arguments[..] else { return Err(USAGE.into()) };
    let gguf = Gguf::open(Path::new(path))?;
    let tokenizer = akunu_tokenizer::from_gguf(gguf.metadata())?;
    let text = |id: u32| {
        let bytes = tokenizer.token_bytes(id).filter(|_| !tokenizer.is_control(id));
        bytes.unwrap_or_default().to_vec()
    };
    let tokens: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32).map(text).collect();
    let start = Instant::now();
    let vocabulary = Arc::new(Vocabulary::new(&tokens, Limits::default())?);
    println!("{} tokens, prepared in {:?}", tokens.len(), start.elapsed());

    let (workers, mut times) = (Arc::new(Workers::default()), Times::default());
    match given {
        [every] => {
            for line in std::io::stdin().lock().lines().step_by(every.parse()?) {
                let line: Json = serde_json::from_str(&line?)?;
                let tests = line["tests"].as_array().into_iter().flatten();
                let Some(value) = tests.into_iter().find(|test| test["valid"] == true) else { continue };
                let options = EncodeOptions { add_special: false, parse_special: false };
                let ids = tokenizer.encode(&value["data"].to_string(), options)?;
                let format = ResponseFormat::Schema(line["schema"].clone());
                one(&workers, &vocabulary, &format, &ids, &mut times);
            }
        }
        [schema, answers, length] => {
            let format = ResponseFormat::Schema(serde_json::from_slice(&std::fs::read(schema)?)?);
            let grammar = Arc::new(workers.compile(&vocabulary, &format, None, Client::default())?);
            let (answers, length): (usize, usize) = (answers.parse()?, length.parse()?);
            let mut random = Rng::new(1);
            for _ in 0..answers {
                let session = Session::new(workers.clone(), grammar.clone());
                walk(session, tokens.len() as u32, length, &mut random, &mut times)?;
            }
        }
        _ => return Err(USAGE.into()),
    }
    let Times { refused, stopped, failed, .. } = &times;
    println!("{refused} schemas refused, {stopped} values stopped, {} failed: {failed:?}", failed.len());
    for (name, all) in [
        ("compile", &mut times.compiles),
        ("begin", &mut times.begins),
        ("mask", &mut times.masks),
        ("push", &mut times.pushes),
    ] {
        all.sort_unstable();
        let mean = all.iter().sum::<Duration>() / all.len().max(1) as u32;
        let at = |share: f64| all.get((all.len() as f64 * share) as usize).or(all.last());
        println!(
            "{name}: {} times, mean {mean:?}, median {:?}, 99% {:?}, 99.9% {:?}, all {:?}",
            all.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            all.last()
        );
    }
    Ok(())
}

/// Writes a random answer.
fn walk(
    mut session: Session,
    vocab: u32,
    length: usize,
    random: &mut Rng,
    times: &mut Times,
) -> Result<(), GrammarError> {
    let mut start = Instant::now();
    for _ in 0..length {
        let mask = session.mask()?;
        times.masks.push(start.elapsed());
        let allowed: Vec<u32> = (0..vocab).filter(|&id| mask.contains(id)).collect();
        let Some(&id) = allowed.get(random.next_u64() as usize % allowed.len().max(1)) else { break };
        start = Instant::now();
        session.push_later(id);
        times.pushes.push(start.elapsed());
    }
    Ok(())
}

fn one(
    workers: &Arc<Workers>,
    vocabulary: &Arc<Vocabulary>,
    format: &ResponseFormat,
    ids: &[u32],
    times: &mut Times,
) {
    let start = Instant::now();
    let Ok(grammar) = workers.compile(vocabulary, format, None, Client::default()) else {
        times.refused += 1;
        return;
    };
    times.compiles.push(start.elapsed());
    let start = Instant::now();
    let mut session = Session::new(workers.clone(), Arc::new(grammar));
    times.begins.push(start.elapsed());
    for &id in ids {
        let start = Instant::now();
        match session.mask() {
            Ok(mask) if mask.contains(id) => {}
            Ok(_) => {
                times.stopped += 1;
                return;
            }
            Err(error) => return times.failed.push(error),
        }
        times.masks.push(start.elapsed());
        let start = Instant::now();
        session.push(id);
        times.pushes.push(start.elapsed());
        if session.is_over() {
            return;
        }
    }
}

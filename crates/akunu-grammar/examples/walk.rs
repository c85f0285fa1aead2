//! Measures masks of a random walk through a JSON schema: each token is chosen uniformly from those that may follow, as by a model
//! with random weights.
//!
//! ```text
//! cargo run --release -p akunu-grammar --example walk -- VOCAB.gguf SCHEMA.json ANSWERS TOKENS
//! ```
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu_format::Gguf;
use akunu_grammar::{Client, Limits, ResponseFormat, Session, Vocabulary, Workers};
use akunu_tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, schema, answers, tokens] = &arguments[..] else {
        return Err("usage: walk VOCAB.gguf SCHEMA.json ANSWERS TOKENS".into());
    };
    let gguf = Gguf::open(Path::new(path))?;
    let tokenizer = akunu_tokenizer::from_gguf(gguf.metadata())?;
    let text = |id: u32| {
        let bytes = tokenizer.token_bytes(id).filter(|_| !tokenizer.is_control(id));
        bytes.unwrap_or_default().to_vec()
    };
    let texts: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32).map(text).collect();
    let start = Instant::now();
    let vocabulary = Arc::new(Vocabulary::new(&texts, Limits::default())?);
    println!("{} tokens, prepared in {:?}", texts.len(), start.elapsed());

    let workers = Arc::new(Workers::default());
    let format = ResponseFormat::Schema(serde_json::from_slice(&std::fs::read(schema)?)?);
    let grammar = Arc::new(workers.compile(&vocabulary, &format, None, Client::default())?);
    let (mut times, mut random) = (Vec::new(), 1u64);
    for answer in 0..answers.parse()? {
        let mut session = Session::new(workers.clone(), grammar.clone());
        let mut written = Vec::new();
        let mut start = Instant::now();
        for _ in 0..tokens.parse()? {
            let mask = session.mask()?;
            let took = start.elapsed();
            let allowed: Vec<u32> = (0..texts.len() as u32).filter(|&id| mask.contains(id)).collect();
            times.push((took, allowed.len(), written.len()));
            if std::env::var_os("SHOW").is_some() {
                println!("{took:?} {} {:?}", allowed.len(), String::from_utf8_lossy(&written));
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let Some(&id) = allowed.get((random >> 33) as usize % allowed.len().max(1)) else { break };
            written.extend_from_slice(&texts[id as usize]);
            start = Instant::now();
            session.push_later(id);
        }
        if answer == 0 {
            println!("{}", String::from_utf8_lossy(&written));
        }
    }
    times.sort_unstable();
    let count = times.len();
    let mean = times.iter().map(|(took, ..)| *took).sum::<Duration>() / count.max(1) as u32;
    let at = |share: f64| times[((count as f64 * share) as usize).min(count - 1)].0;
    let over = |limit: u64| {
        let limit = Duration::from_micros(limit);
        100.0 * times.iter().filter(|(took, ..)| *took > limit).count() as f64 / count as f64
    };
    println!(
        "{count} masks, mean {mean:?}, median {:?}, 90% {:?}, 99% {:?}, 99.9% {:?}, longest {:?}; longer than 1, 2, 5 ms: {:.2}, {:.2}, {:.2}%",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0),
        over(1000),
        over(2000),
        over(5000),
    );
    Ok(())
}

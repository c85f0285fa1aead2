//! Measures the throughput of many streams: streams MODEL [COUNT [TOKENS [PROMPT]]].
//!
//! Each of COUNT requests has a prompt of PROMPT random ids, and generates TOKENS.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use akunu::random::Draws;
use akunu::schedule::{Event, Request, Scheduler, SchedulerOptions};
use akunu::{BackendOptions, Engine, EngineOptions, GenerateOptions, Model};

#[derive(Default)]
struct Seen {
    tokens: usize,
    first: Vec<Duration>,
    failed: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("streams MODEL [COUNT [TOKENS [PROMPT]]]")?;
    let mut number = |otherwise| arguments.next().map_or(Ok(otherwise), |text| text.parse::<usize>());
    let (count, tokens, prompt) = (number(16)?, number(64)?, number(64)?);

    let backends = BackendOptions::from_variables(|name| std::env::var_os(name));
    let options = EngineOptions { backends, context: Some(prompt + tokens), ..EngineOptions::default() };
    let engine = Engine::new(Arc::new(Model::open(path)?), &options.batching(count))?;
    let vocab = engine.vocab_size() as u32;
    let (scheduler, handle) =
        Scheduler::new(engine, &SchedulerOptions { queue: count, ..Default::default() })?;

    let seen = Arc::new(Mutex::new(Seen::default()));
    let start = Instant::now();
    for stream in 0..count {
        let mut draws = Draws::new(stream as u64, 0);
        let ids = (0..prompt as u32).map(|i| draws.bits(i) % vocab).collect();
        let options = GenerateOptions { max_tokens: Some(tokens), ignore_eos: true, ..Default::default() };
        let (seen, mut first) = (seen.clone(), true);
        let on_event = move |event: Event<'_>| {
            let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match event {
                Event::Piece { ids, .. } => {
                    seen.tokens += ids.len();
                    if std::mem::take(&mut first) {
                        seen.first.push(start.elapsed());
                    }
                }
                Event::Failed(error) => seen.failed.push(error.to_string()),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        handle.submit(Request { prompt: ids, options, ..Request::default() }, Box::new(on_event))?;
    }
    handle.close();
    scheduler.run();
    let seconds = start.elapsed().as_secs_f64();
    let seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let all_read = seen.first.iter().max().copied().unwrap_or_default();
    println!(
        "{count} streams, {} tokens in {seconds:.2} s: {:.1} tokens/s",
        seen.tokens,
        seen.tokens as f64 / seconds
    );
    println!("first tokens by {:.2} s; {:?}", all_read.as_secs_f64(), handle.stats());
    if seen.failed.is_empty() { Ok(()) } else { Err(seen.failed.join("\n").into()) }
}

//! Measures the host's time for the steps of a scheduler, on a device that computes nothing: scheduler [COUNT...].
//!
//! A step decodes one token of each sequence: admission, rows, sampling settings, text and events are included, the device
//! is not. Exits with 1 if a step takes longer than 5 µs for each sequence. The last two columns are the whole time until all
//! sequences have their first token, with prompts of their own, and with prompts of which the first 500 tokens are alike.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use akunu::schedule::{Event, OnEvent, Request, Scheduler, SchedulerOptions};
use akunu::{Engine, EngineOptions, GenerateOptions, Model, Sampling};
use akunu_plan::mock::MockDevice;
use akunu_plan::{Capabilities, InPlace, KeyOrder};

const COUNTS: [usize; 5] = [16, 64, 256, 1024, 4096];
/// Tokens of a prompt, and of an answer: the first answer is longer than it takes to process all prompts, with at least a
/// row for each sequence in a pass.
const PROMPT: usize = 32;
const ANSWER: usize = 400;
/// Tokens that prompts have in common before their own ones.
const COMMON: usize = 500;
/// The most microseconds of a step for each sequence.
const LIMIT: f64 = 5.0;

/// What the device "finds": ids that are whole words, so that each token is a piece of text.
static WORDS: OnceLock<Vec<u32>> = OnceLock::new();

fn answer(bytes: &mut [u8]) {
    let words = WORDS.get().map_or(&[0][..], Vec::as_slice);
    for (id, word) in bytes.chunks_exact_mut(4).zip(words.iter().cycle()) {
        id.copy_from_slice(&word.to_le_bytes());
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        name: "mock",
        detail: String::new(),
        folds: false,
        half_products: None,
        packed_products: None,
        eight_products: None,
        keys: KeyOrder::PositionMajor,
        block: 16,
        in_place: InPlace::All,
        samples: true,
        chain: 1,
        prefill_rows: 512,
        workspace_bytes: 0,
        workspace_row_bytes: 0,
        streaming_bytes: 0,
        ranks: 1,
        host: None,
        stages: Vec::new(),
        available_bytes: Some(u64::MAX),
    }
}

/// When the first sequence got its tokens, and how many all sequences had got until then.
type Seen = Arc<Mutex<Vec<(Instant, usize)>>>;

#[derive(Debug)]
struct Times {
    /// Of a step in which all sequences get a token, in the median.
    step: Duration,
    /// From the first step to the first token of the last sequence.
    prompts: Duration,
}

/// `common`: tokens with which all prompts begin.
fn measure(
    model: &Arc<Model>,
    count: usize,
    sampling: &Sampling,
    common: usize,
) -> Result<Times, Box<dyn Error>> {
    let options = EngineOptions { context: Some(common + PROMPT + ANSWER), ..EngineOptions::default() };
    let device = MockDevice::new(capabilities()).unrecorded(answer);
    let engine = Engine::on_device(model.clone(), Box::new(device), &options.batching(count))?;
    let vocab = engine.vocab_size();
    // The passes are as large as the table.
    let options =
        SchedulerOptions { queue: count, stall: Some(Duration::from_secs(3600)), ..Default::default() };
    let (mut scheduler, handle) = Scheduler::new(engine, &options)?;
    let (seen, tokens) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    for sequence in 0..count {
        let own = (0..PROMPT).map(|i| (sequence * 7919 + i * 104_729) % vocab);
        let prompt = (0..common).map(|i| i % vocab).chain(own).map(|id| id as u32).collect();
        let sampling = Sampling { seed: sequence as u64, ..sampling.clone() };
        let options = GenerateOptions {
            max_tokens: Some(ANSWER),
            ignore_eos: true,
            sampling,
            ..GenerateOptions::default()
        };
        let (seen, tokens) = (seen.clone(), tokens.clone());
        let on_event: OnEvent = Box::new(move |event| {
            if let Event::Piece { ids, .. } = event {
                let all = tokens.fetch_add(ids.len(), Ordering::Relaxed);
                if sequence == 0 {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push((Instant::now(), all));
                }
            }
            ControlFlow::Continue(())
        });
        handle.submit(Request { prompt, options, ..Request::default() }, on_event)?;
    }
    let start = Instant::now();
    scheduler.drain();
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let full = |pair: &&[(Instant, usize)]| pair[1].1 - pair[0].1 == count;
    let first = seen.windows(2).find(full).map(|pair| pair[0].0);
    let mut steps: Vec<Duration> = seen.windows(2).filter(full).map(|pair| pair[1].0 - pair[0].0).collect();
    steps.sort_unstable();
    match (first, steps.get(steps.len() / 2)) {
        (Some(first), Some(&step)) => Ok(Times { step, prompts: first - start }),
        _ => Err("no step had a token for each sequence".into()),
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let counts = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    let counts = if counts.is_empty() { COUNTS.to_vec() } else { counts };
    let model = Arc::new(Model::embedded()?);
    let words = model.encode("the old owl told a story about the little fox and the moon")?;
    WORDS.get_or_init(|| words.into_iter().skip(2).collect());
    let sampled = Sampling { temperature: 0.8, ..Sampling::default() };
    let limited = Sampling { top_k: 40, top_p: 0.95, min_p: 0.05, repeat_penalty: 1.1, ..sampled.clone() };
    println!("µs of the host for each sequence:");
    println!(
        "{:>9} {:>12} {:>13} {:>15} {:>16} {:>13}",
        "sequences", "greedy step", "sampled step", "penalties, step", "prompt, sampled", "alike, prompt"
    );
    let mut slowest = 0f64;
    for count in counts {
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        let greedy = micros(measure(&model, count, &Sampling::default(), 0)?.step);
        let times = measure(&model, count, &sampled, 0)?;
        let with_penalties = micros(measure(&model, count, &limited, 0)?.step);
        let (step, prompts) = (micros(times.step), micros(times.prompts));
        let alike = micros(measure(&model, count, &sampled, COMMON)?.prompts);
        println!(
            "{count:>9} {greedy:>12.3} {step:>13.3} {with_penalties:>15.3} {prompts:>16.1} {alike:>13.1}"
        );
        slowest = slowest.max(greedy).max(step).max(with_penalties);
    }
    if slowest > LIMIT {
        println!("a step takes {slowest:.1} µs for each sequence, and {LIMIT} is the limit");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

//! Decoding does not allocate after a warm-up: greedy or sampled, with penalties, stop strings and text, alone or in a batch.
//!
//! A separate program, because the allocator counts for the whole process, and the test harness allocates too. `AKUNU_TEST_DEVICE`
//! selects another device than the CPU; requests to its driver are counted too.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use akunu::schedule::{Event, Request, Scheduler, SchedulerOptions};
use akunu::{BackendOptions, DeviceChoice, Engine, EngineOptions, GenerateOptions, KvType, Model, Sampling};
use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::open_model;
use akunu_format::quantise::Mix;
use akunu_plan::Paging;
use akunu_testing::{CountingAllocator, allocations, some_of};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The embedded model.
fn tales() -> Arc<Model> {
    Arc::new(Model::embedded().unwrap())
}

type Case = (&'static str, Sampling, &'static [&'static str]);

fn cases() -> Vec<Case> {
    let sampled =
        Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.02, seed: 7, ..Default::default() };
    let edited = Sampling {
        repeat_penalty: 1.1,
        frequency_penalty: 0.2,
        presence_penalty: 0.1,
        logit_bias: vec![(3, -1.0)],
        ..sampled.clone()
    };
    vec![
        ("greedy", Sampling::default(), &[]),
        ("greedy with stop strings", Sampling::default(), &["no such text", " the giraffe"]),
        ("sampled", sampled, &[]),
        ("whole distribution", Sampling { temperature: 1.0, ..Default::default() }, &[]),
        ("top-p alone", Sampling { temperature: 1.2, top_p: 0.9, ..Default::default() }, &[]),
        ("penalties and biases", edited, &["no such text"]),
    ]
}

fn wanted(sampling: &Sampling, stop_strings: &[&str]) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(200),
        ignore_eos: true,
        sampling: sampling.clone(),
        stop_strings: stop_strings.iter().map(|text| (*text).to_string()).collect(),
        ..Default::default()
    }
}

/// The number of generated tokens, and of host allocations after a warm-up.
fn generate(engine: &mut Engine, (name, sampling, stop_strings): &Case) -> (usize, usize) {
    let options = wanted(sampling, stop_strings);
    let prompt = tales().encode("Once upon a time").unwrap();
    let mut session = engine.session().unwrap();
    let mut text = String::with_capacity(1 << 16);
    let mut counts = Vec::with_capacity(400);
    engine
        .generate(&mut session, &prompt, &options, &mut |piece| {
            text.push_str(piece.text);
            counts.push((piece.ids.len(), allocations()));
            ControlFlow::Continue(())
        })
        .unwrap();
    let tokens: usize = counts[3..].iter().map(|c| c.0).sum();
    assert!(tokens > 80, "{name}: {tokens} tokens");
    (tokens, counts[counts.len() - 1].1 - counts[2].1)
}

/// The number of tokens in prompts of several lengths, and of host allocations.
fn feed(engine: &mut Engine) -> (usize, usize) {
    let mut session = engine.session().unwrap();
    let ids: Vec<u32> = (3..203).collect();
    let before = allocations();
    let mut tokens = 0;
    for len in [1, 7, 33, 200] {
        session.clear();
        tokens += engine.prefill(&mut session, &ids[..len]).unwrap().fed;
    }
    (tokens, allocations() - before)
}

/// The same for all cases in a batch, from the time all have some tokens until the first has all.
fn together(engine: Engine, cases: &[Case]) -> (usize, usize, Engine) {
    let (scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
    let prompt = tales().encode("Once upon a time").unwrap();
    let counts: Vec<_> = cases.iter().map(|_| Arc::new(Mutex::new(Vec::with_capacity(400)))).collect();
    for ((_, sampling, stop_strings), counts) in cases.iter().zip(&counts) {
        let counts = counts.clone();
        let on_event = move |event: Event<'_>| {
            if let Event::Piece { ids, .. } = event {
                counts.lock().unwrap().push((ids.len(), allocations()));
            }
            ControlFlow::Continue(())
        };
        let options = wanted(sampling, stop_strings);
        let request = Request { prompt: prompt.clone(), options, ..Request::default() };
        handle.submit(request, Box::new(on_event)).unwrap();
    }
    drop(handle);
    let engine = scheduler.run();
    let counts: Vec<Vec<(usize, usize)>> =
        counts.iter().map(|counts| counts.lock().unwrap().clone()).collect();
    let begun = counts.iter().map(|counts| counts[3].1).max().unwrap();
    let ended = counts.iter().map(|counts| counts[counts.len() - 2].1).min().unwrap();
    let tokens = counts.iter().flatten().filter(|count| (begun..=ended).contains(&count.1));
    (tokens.map(|count| count.0).sum(), ended - begun, engine)
}

fn check(device: DeviceChoice, threads: usize, kv: KvType) {
    let backends = BackendOptions::from_variables(|name| std::env::var_os(name));
    let context = Some(256);
    let options =
        EngineOptions { device, threads: Some(threads), kv, context, backends, ..EngineOptions::default() };
    let mut engine = Engine::new(tales(), &options).unwrap();
    let what = format!("{device}, {threads} threads, KV {}", kv.name());
    let cases = cases();
    feed(&mut engine);
    for case in &cases {
        generate(&mut engine, case);
    }

    let before = engine.device().driver_memory().unwrap();
    let mut all = 0;
    for case in &cases {
        let (tokens, allocations) = generate(&mut engine, case);
        assert_eq!(allocations, 0, "{what}: the host's allocations for {tokens} tokens, {}", case.0);
        all += tokens;
    }
    let (fed, allocations) = feed(&mut engine);
    assert_eq!(allocations, 0, "{what}: the host's allocations for prompts");
    assert_eq!(engine.device().driver_memory().unwrap(), before, "{what}: the driver's memory");
    drop(engine);
    let engine = Engine::new(tales(), &options.batching(cases.len())).unwrap();
    let (_, _, engine) = together(engine, &cases);
    let (tokens, allocations, _) = together(engine, &cases);
    assert!(tokens > 300, "{what}: {tokens} tokens together");
    assert_eq!(allocations, 0, "{what}: the host's allocations for {tokens} tokens together");
    let driver = if before.is_some() { " and nothing asked of the driver" } else { "" };
    println!(
        "{what}: no allocation{driver} in {all} tokens generated alone, {tokens} together and {fed} fed"
    );
}

/// Experts that are read from the file when they are needed, in steps and in prompts.
fn check_paged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/olmoe");
    let weights = open_model(&folder).unwrap();
    let recipe =
        ConvertOptions { mix: Mix::find("Q8_0").unwrap(), pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(weights.as_ref(), &recipe).unwrap();
    conversion.write(std::fs::File::create(&file).unwrap(), 1, &false.into(), &mut |_| {}).unwrap();
    let model = Arc::new(Model::open(&file).unwrap());
    let base = EngineOptions {
        device: DeviceChoice::Cpu,
        threads: Some(2),
        context: Some(64),
        ..EngineOptions::default()
    };
    let whole = Engine::new(model.clone(), &base).unwrap();
    let least = Paging::possible(whole.plan(), model.weights()).unwrap().least_memory();
    let mut engine = Engine::new(model, &EngineOptions { expert_memory: Some(least), ..base }).unwrap();
    let ids: Vec<u32> = (0..40).map(|i| (3 + i * 5) % 64).collect();
    let mut session = engine.session().unwrap();
    let mut counts = Vec::with_capacity(2);
    for _ in 0..2 {
        let before = allocations();
        session.clear();
        engine.prefill(&mut session, &ids[..33]).unwrap();
        for end in 34..40 {
            engine.chain(&mut session, &ids[..end], None, 1, &[], None).unwrap();
        }
        counts.push(allocations() - before);
    }
    let misses = engine.device().expert_reads().unwrap().misses;
    assert!(misses > 0 && counts[1] == 0, "{counts:?} allocations, {misses} experts read");
    println!("paged experts: no allocation, {misses} experts read");
}

fn main() {
    check_paged();
    let device = std::env::var("AKUNU_TEST_DEVICE").map_or(DeviceChoice::Cpu, |name| name.parse().unwrap());
    let threads: &[usize] = if device == DeviceChoice::Cpu { &[1, 2] } else { &[1] };
    let kvs = [KvType::F16, KvType::Q8_0];
    let all = kvs.into_iter().flat_map(|kv| threads.iter().map(move |threads| (*threads, kv)));
    for (threads, kv) in some_of(all, 3) {
        check(device, threads, kv);
    }
}

//! Random requests on one engine: each gets the same result as alone, whichever others run.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::common::{tales, tales_engine};
use crate::split::split_engine;
use akunu::schedule::{Event, Handle, Request, Scheduler, SchedulerOptions};
use akunu::{
    Constraint, Constraints, Engine, EngineOptions, FinishReason, GenerateOptions, Overflow, ResponseFormat,
    Sampling, Timings,
};
use akunu_testing::few_or_many;
use proptest::prelude::*;
use serde_json::json;

/// The events of a request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    pieces: Vec<(String, Vec<u32>)>,
    /// The reason, or the error's text.
    end: Option<Result<FinishReason, String>>,
}

impl Outcome {
    fn ids(&self) -> Vec<u32> {
        self.pieces.iter().flat_map(|piece| piece.1.clone()).collect()
    }

    fn text(&self) -> String {
        self.pieces.iter().map(|piece| piece.0.as_str()).collect()
    }
}

/// When a request is ended early.
#[derive(Clone, Copy, Debug)]
enum EarlyEnd {
    Never,
    /// Returns `Break` for this piece.
    Break(usize),
    /// Sets the cancellation flag at this piece.
    Cancel(usize),
}

#[derive(Clone, Debug)]
struct TestRequest {
    request: Request,
    early_end: EarlyEnd,
    /// Submitted when all requests together have had this many pieces, or when none is left.
    after_pieces: usize,
}

/// The result of a request alone.
fn alone(engine: &mut Engine, test: &TestRequest) -> Outcome {
    let mut session = engine.session().unwrap();
    let mut outcome = Outcome::default();
    let options = GenerateOptions { cancel: None, ..test.request.options.clone() };
    let generated = engine.generate(&mut session, &test.request.prompt, &options, &mut |piece| {
        outcome.pieces.push((piece.text.to_string(), piece.ids.to_vec()));
        match test.early_end {
            EarlyEnd::Break(at) if outcome.pieces.len() > at => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    outcome.end = Some(generated.map(|generated| generated.finish).map_err(|error| error.to_string()));
    outcome
}

/// The running test: events arrive on the engine's thread, and submit further requests.
struct Run {
    handle: Handle,
    pending: Vec<(usize, TestRequest)>,
    outcome: Vec<Outcome>,
    timings: Vec<Timings>,
    pieces: usize,
    running: usize,
}

type Shared = Arc<Mutex<Run>>;

/// Submits the requests that are due.
fn submit_due(run: &Shared) {
    loop {
        let mut locked = run.lock().unwrap();
        let (pieces, empty) = (locked.pieces, locked.running == 0);
        let due = locked.pending.iter().position(|(_, v)| v.after_pieces <= pieces);
        let Some(due) = due.or((empty && !locked.pending.is_empty()).then_some(0)) else {
            if locked.pending.is_empty() {
                // Dropping the handle ends the scheduler.
                locked.handle.close();
            }
            return;
        };
        let (number, test) = locked.pending.remove(due);
        locked.running += 1;
        let handle = locked.handle.clone();
        drop(locked);
        let (run, early_end) = (run.clone(), test.early_end);
        let cancel = test.request.options.cancel.clone();
        let on_event =
            Box::new(move |event: Event<'_>| handle_event(&run, number, early_end, cancel.as_deref(), event));
        handle.submit(test.request, on_event).unwrap();
    }
}

fn handle_event(
    run: &Shared,
    number: usize,
    early_end: EarlyEnd,
    cancel: Option<&AtomicBool>,
    event: Event<'_>,
) -> ControlFlow<()> {
    let mut locked = run.lock().unwrap();
    let outcome = &mut locked.outcome[number];
    assert_eq!(outcome.end, None, "nothing comes after the end");
    let mut flow = ControlFlow::Continue(());
    match event {
        Event::Started { .. } | Event::StepEnd => {}
        Event::Piece { text, ids, logprobs } => {
            assert!(logprobs.is_empty());
            outcome.pieces.push((text.to_string(), ids.to_vec()));
            match early_end {
                EarlyEnd::Break(at) if outcome.pieces.len() > at => flow = ControlFlow::Break(()),
                EarlyEnd::Cancel(at) => {
                    cancel.unwrap().store(outcome.pieces.len() > at, Ordering::Relaxed);
                }
                _ => {}
            }
            locked.pieces += 1;
        }
        Event::Finished(finished) => {
            outcome.end = Some(Ok(finished.finish));
            locked.timings[number] = finished.timings;
            locked.running -= 1;
        }
        Event::Failed(error) => {
            outcome.end = Some(Err(error.to_string()));
            locked.running -= 1;
        }
    }
    drop(locked);
    submit_due(run);
    flow
}

/// Runs all requests on an engine with few slots.
fn together(engine: Engine, options: &SchedulerOptions, requests: &[TestRequest]) -> (Run, Engine) {
    let (scheduler, handle) = Scheduler::new(engine, options).unwrap();
    let run = Arc::new(Mutex::new(Run {
        handle,
        pending: requests.iter().cloned().enumerate().collect(),
        outcome: vec![Outcome::default(); requests.len()],
        timings: vec![Timings::default(); requests.len()],
        pieces: 0,
        running: 0,
    }));
    submit_due(&run);
    let engine = scheduler.run();
    (Arc::into_inner(run).expect("listeners are dropped").into_inner().unwrap(), engine)
}

fn prompts() -> impl Strategy<Value = Vec<u32>> {
    // Prefixes of one text with different continuations.
    let text = "Once upon a time there was a little fox who lived near the river. One day the fox found a red ball in";
    let text = tales().encode(text).unwrap();
    assert!(text.len() > 20 && text.len() < 36, "{}", text.len());
    (1..text.len(), prop::collection::vec(3..500u32, 0..12))
        .prop_map(move |(shared, rest)| [&text[..shared], &rest].concat())
}

fn samplings() -> impl Strategy<Value = Sampling> {
    let greedy = Just(Sampling::default());
    let drawn =
        (any::<u64>(), 0.3..1.5f32, 0..40usize, 0.5..1.0f32).prop_map(|(seed, temperature, top_k, top_p)| {
            Sampling { seed, temperature, top_k, top_p, ..Default::default() }
        });
    let penalised =
        (drawn.clone(), 1.0..1.5f32, 0.0..0.5f32, 1..80usize).prop_map(|(drawn, repeat, frequency, last)| {
            Sampling { repeat_penalty: repeat, frequency_penalty: frequency, repeat_last_n: last, ..drawn }
        });
    let steered =
        (drawn.clone(), 0.5..5.0f32).prop_map(|(drawn, tau)| Sampling { mirostat_tau: tau, ..drawn });
    prop_oneof![2 => greedy, 1 => drawn, 1 => penalised, 1 => steered]
}

/// Constraints, created once.
fn constraints() -> impl Strategy<Value = Arc<Constraint>> {
    static FORMS: OnceLock<Vec<Arc<Constraint>>> = OnceLock::new();
    let schemas = [
        json!({ "type": "object", "properties": { "name": { "type": "string" }, "age": { "type": "integer" } }, "required": ["name"] }),
        json!({ "type": "array", "items": { "enum": ["fox", "dog", 7] }, "maxItems": 3 }),
        json!({}),
    ];
    let all = Constraints::new(tales());
    let make = |schema| all.get(&ResponseFormat::Schema(schema), None, None).unwrap();
    prop::sample::select(FORMS.get_or_init(|| schemas.map(make).to_vec()).clone())
}

fn requests() -> impl Strategy<Value = TestRequest> {
    let stops = prop::collection::vec(prop_oneof![Just("the "), Just("ing"), Just(". "), Just("zzz")], 0..3);
    let overflow = prop_oneof![
        Just(Overflow::Stop),
        Just(Overflow::Error),
        (0..10usize).prop_map(|keep| Overflow::Shift { keep }),
    ];
    let common = (samplings(), prop::option::weighted(0.2, constraints()));
    let options = (prop::option::weighted(0.8, 0..40usize), common, stops, overflow, any::<bool>());
    let options =
        options.prop_map(|(most, (sampling, constraint), stops, overflow, ignore_eos)| GenerateOptions {
            constraint,
            // A text with shifting needs a limit.
            max_tokens: most.or(matches!(overflow, Overflow::Shift { .. }).then_some(70)),
            sampling,
            stop_strings: stops.into_iter().map(String::from).collect(),
            ignore_eos,
            overflow,
            cancel: Some(Arc::new(AtomicBool::new(false))),
            ..Default::default()
        });
    let early_end = prop_oneof![
        3 => Just(EarlyEnd::Never),
        1 => (0..20usize).prop_map(EarlyEnd::Break),
        1 => (0..20usize).prop_map(EarlyEnd::Cancel),
    ];
    let scores = prop::option::weighted(0.2, 0..3usize);
    (prompts(), options, early_end, 0..60usize, -1..2i32, 0..3u64, 0..2u64, scores).prop_map(
        |(prompt, options, early_end, after_pieces, priority, owner, salt, prompt_logprobs)| {
            // Each has its own flag, even if proptest clones it.
            let options = GenerateOptions { cancel: Some(Arc::new(AtomicBool::new(false))), ..options };
            let request = Request { prompt, options, priority, owner, salt, prompt_logprobs };
            TestRequest { request, early_end, after_pieces }
        },
    )
}

/// Compares the events of a request with those alone, up to where it was ended.
fn check(test: &TestRequest, outcome: &Outcome, alone: &Outcome) {
    if matches!(test.early_end, EarlyEnd::Cancel(_)) && outcome.end == Some(Ok(FinishReason::Cancelled)) {
        // Text that was held back is released earlier; ids and text are a prefix of the whole.
        assert!(alone.ids().starts_with(&outcome.ids()), "{test:?}: {outcome:?}, alone {alone:?}");
        let text = outcome.text();
        let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let whole = tales().decode(&[&test.request.prompt[..], &alone.ids()].concat()).unwrap();
        assert!(whole.contains(text), "{test:?}: {outcome:?}, alone {alone:?}");
        return;
    }
    assert_eq!(outcome, alone, "{test:?}");
}

/// Shifted, the context has fewer tokens than the prompt had, whose log probabilities are known by then.
#[test]
fn an_answer_whose_prompt_is_scored_is_shifted_as_alone() {
    let options = GenerateOptions {
        max_tokens: Some(70),
        ignore_eos: true,
        overflow: Overflow::Shift { keep: 0 },
        ..Default::default()
    };
    let prompt = tales()
        .encode("Once upon a time there was a little fox who lived near the river. One day the fox found a red ball in the garden")
        .unwrap();
    assert!((25..48).contains(&prompt.len()), "{}", prompt.len());
    let request = Request { prompt, options, prompt_logprobs: Some(2), ..Request::default() };
    let test = TestRequest { request, early_end: EarlyEnd::Never, after_pieces: 0 };
    let small = |o: &mut EngineOptions| o.context = Some(48);
    let many = tales_engine(|o| {
        small(o);
        *o = o.clone().batching(2);
    });
    let (run, _) = together(many, &SchedulerOptions::default(), std::slice::from_ref(&test));
    check(&test, &run.outcome[0], &alone(&mut tales_engine(small), &test));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: few_or_many(5, 25), failure_persistence: None, ..Default::default() })]

    #[test]
    fn each_gets_what_it_gets_alone_whatever_joins_or_leaves(
        requests in prop::collection::vec(requests(), 1..9),
        slots in 1..5usize,
        chunk in 5..40usize,
        chain in 1..9usize,
        threads in 1..4usize,
        stall in prop_oneof![Just(0u64), Just(1), Just(1000)],
        // Of one block or of two, in a cache with blocks for all slots, or only some more than one slot needs.
        context in prop_oneof![Just(48usize), Just(100)],
        spare in prop::option::of(0..5u32),
        // Layers of a CPU beside the device.
        on_host in 0..4usize,
    ) {
        let small = |o: &mut EngineOptions| {
            (o.context, o.chunk, o.chain) = (Some(context), Some(chunk), Some(chain));
        };
        let mut engine = tales_engine(small);
        let cache = engine.plan().cache;
        let block_bytes = engine.plan().memory.kv / u64::from(cache.count);
        let kv_memory = spare.map(|spare| block_bytes * u64::from(cache.slot_blocks + spare));
        let many = split_engine(2 * on_host, |o| {
            small(o);
            (o.threads, o.kv_memory) = (Some(threads), kv_memory);
            *o = o.clone().batching(slots);
        });
        let options = SchedulerOptions { stall: Some(Duration::from_millis(stall)), ..Default::default() };
        let (run, mut many) = together(many, &options, &requests);
        let mut generated = 0;
        for (test, outcome) in requests.iter().zip(&run.outcome) {
            check(test, outcome, &alone(&mut engine, test));
            generated += outcome.ids().len() as u64;
        }
        let stats = run.handle.stats();
        prop_assert_eq!((stats.waiting, stats.running, stats.reading), (0, 0, 0));
        prop_assert_eq!(stats.generated_tokens, generated);
        // No block is lost: none is in use, and a sequence may have as many as it needs.
        prop_assert_eq!(stats.kv_tokens, 0);
        let mut session = many.session().unwrap();
        many.prefill(&mut session, &vec![7; context]).unwrap();
        prop_assert_eq!(stats.finished + stats.failed, requests.len() as u64);
        let reused: usize = run.timings.iter().map(|timings| timings.reused_tokens).sum();
        prop_assert!(stats.reused_tokens >= reused as u64);
    }
}

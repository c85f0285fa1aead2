//! Sliding-window layers with blocks of their own: the same bits as with blocks for the whole text, in less memory.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::common::{bits, checked_in, options};
use akunu::schedule::{Event, Request, Scheduler, SchedulerOptions};
use akunu::{DeviceChoice, Engine, EngineOptions, Error, GenerateOptions, Model, Overflow, Session};
use akunu_testing::fewest_or;

const CONTEXT: usize = 512;
const VOCAB: u32 = 64;

/// Some or all layers of these have windows.
const MODELS: [&str; 4] =
    ["gemma3-hd128-pattern", "mistral-hd96-gqa2-window", "cohere2-window", "gemma2-hd64-softcap"];

/// A model with windows of another size.
fn model(name: &str, window: usize) -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let from = checked_in("models").join(name);
    std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config = crate::common::json(from.join("config.json"));
    config["sliding_window"] = window.into();
    config["max_position_embeddings"] = (2 * CONTEXT).into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    // The file stays mapped.
    Arc::new(Model::open(folder.path()).unwrap())
}

fn small(slots: usize) -> EngineOptions {
    EngineOptions {
        context: Some(CONTEXT),
        chunk: Some(32),
        chain: Some(8),
        ..options(DeviceChoice::Cpu).batching(slots)
    }
}

fn with_windows(model: &Arc<Model>, slots: usize) -> Engine {
    let engine = Engine::new(model.clone(), &small(slots)).unwrap();
    assert!(engine.plan().cache.windows.is_some());
    engine
}

/// With passes of a whole context, windows have no blocks of their own.
fn whole(model: &Arc<Model>) -> Engine {
    let engine = Engine::new(model.clone(), &EngineOptions { chunk: Some(CONTEXT), ..small(1) }).unwrap();
    assert_eq!(engine.plan().cache.windows, None);
    engine
}

fn ids(seed: u32, n: usize) -> Vec<u32> {
    let mut state = u64::from(seed) * 7919 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        3 + (state >> 33) as u32 % (VOCAB - 3)
    };
    (0..n).map(|_| next()).collect()
}

fn prefill(engine: &mut Engine, session: &mut Session, ids: &[u32]) -> (usize, Vec<u32>) {
    let reused = engine.prefill(session, ids).unwrap().reused;
    (reused, bits(engine))
}

#[test]
fn long_texts_get_the_same_bits_in_less_memory() {
    for (name, window) in MODELS.into_iter().flat_map(|name| [(name, 6), (name, 100)]) {
        let model = model(name, window);
        let (mut ring, mut whole) = (with_windows(&model, 1), whole(&model));
        assert_eq!(ring.device().allocated_bytes(), ring.plan().memory.allocated());
        let cache = ring.plan().cache;
        // What a row sees, one more, and one for a pass of 32 rows.
        let count = (window + 62) / 64 + 2 + 1;
        assert_eq!((cache.count, cache.windows.unwrap().count), (8, count as u32), "{name}");
        let sliding = (0..ring.plan().config.layer_count)
            .filter(|layer| ring.plan().arch.layer_window(&ring.plan().config, *layer).is_some())
            .count();
        let blocks = sliding * count + (ring.plan().config.layer_count - sliding) * 8;
        let all = whole.plan().memory.kv as usize;
        assert_eq!(
            ring.plan().memory.kv as usize,
            all / 8 / whole.plan().config.layer_count * blocks,
            "{name}"
        );

        let text = ids(1, CONTEXT);
        let (mut a, mut b) = (ring.session().unwrap(), whole.session().unwrap());
        for len in [1, 5, 64, 65, 130, 131, 257, 400] {
            let (found, expected) =
                (prefill(&mut ring, &mut a, &text[..len]), prefill(&mut whole, &mut b, &text[..len]));
            assert_eq!(found, expected, "{name} {window} {len}");
        }
        let mut history = text[..401].to_vec();
        while history.len() < CONTEXT {
            let steps = 8.min(CONTEXT - history.len());
            let found = ring.chain(&mut a, &history, None, steps, &[], None).unwrap().to_vec();
            let expected = whole.chain(&mut b, &history, None, steps, &[], None).unwrap();
            assert_eq!(found, expected, "{name} {window}");
            assert_eq!(bits(&mut ring), bits(&mut whole), "{name} {window}");
            history.extend(found);
        }
    }
}

/// Requests of `(prompt, tokens to generate)`, all at once. Returns the ids of each, and how many prompt tokens were
/// in the cache.
fn together(engine: Engine, requests: &[(Vec<u32>, usize)]) -> (Vec<Vec<u32>>, u64, Engine) {
    let options = SchedulerOptions { queue: requests.len(), ..SchedulerOptions::default() };
    let (scheduler, handle) = Scheduler::new(engine, &options).unwrap();
    let found = Arc::new(Mutex::new(vec![vec![]; requests.len()]));
    for (number, (prompt, n)) in requests.iter().enumerate() {
        let found = found.clone();
        let listener = move |event: Event<'_>| {
            match event {
                Event::Piece { ids, .. } => found.lock().unwrap()[number].extend_from_slice(ids),
                Event::Failed(error) => panic!("{number}: {error}"),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        let request = Request { prompt: prompt.clone(), options: tokens(*n), ..Request::default() };
        handle.submit(request, Box::new(listener)).unwrap();
    }
    handle.close();
    let engine = scheduler.run();
    let stats = handle.stats();
    assert_eq!((stats.finished as usize, stats.kv_tokens), (requests.len(), 0));
    let found = found.lock().unwrap().clone();
    (found, stats.reused_tokens, engine)
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

#[test]
fn each_request_gets_what_it_gets_alone_and_all_blocks_come_back() {
    let all = MODELS.into_iter().flat_map(|name| [(name, 7), (name, 90)]);
    // With the fewest cases three of the models, each with one of the windows.
    for (name, window) in all.step_by(fewest_or(3, 1, 1)) {
        let model = model(name, window);
        // Texts that begin alike, some in the middle of others, and some of their own.
        let requests: Vec<(Vec<u32>, usize)> = (0..24)
            .map(|i| {
                let common = &ids(100 + i % 3, 330)[..[330, 70, 200, 128][i as usize % 4]];
                ([common, &ids(i, 1 + i as usize * 5 % 90)].concat(), 1 + i as usize * 7 % 80)
            })
            .collect();
        let mut one = whole(&model);
        let expected: Vec<Vec<u32>> = requests
            .iter()
            .map(|(prompt, n)| {
                let mut session = one.session().unwrap();
                one.generate(&mut session, prompt, &tokens(*n), &mut |_| ControlFlow::Continue(()))
                    .unwrap()
                    .ids
            })
            .collect();
        for slots in [1, 3, 5].into_iter().step_by(fewest_or(2, 1, 1)) {
            let (found, reused, mut engine) = together(with_windows(&model, slots), &requests);
            assert_eq!(found, expected, "{name} {window} {slots}");
            // The more slots, the more windows of others are still there.
            assert!(reused >= [0, 150, 1000][slots / 2], "{name} {window} {slots}: {reused}");
            // All sequences at once have what they may need.
            let mut sessions: Vec<Session> = (0..slots).map(|_| engine.session().unwrap()).collect();
            let mut session = one.session().unwrap();
            for (number, of_many) in sessions.iter_mut().enumerate() {
                let text = ids(number as u32, CONTEXT);
                let found = prefill(&mut engine, of_many, &text);
                assert_eq!(found.1, prefill(&mut one, &mut session, &text).1);
            }
        }
    }
}

#[test]
fn a_common_prefix_is_processed_once() {
    let model = model(MODELS[0], 100);
    let system = ids(1000, 256);
    let requests: Vec<(Vec<u32>, usize)> =
        (0..40).map(|i| ([&system[..], &ids(i, 20)].concat(), 30)).collect();
    let (_, reused, _) = together(with_windows(&model, 8), &requests);
    assert_eq!(reused, 39 * 256);
}

#[test]
fn shifts_move_windows_as_they_move_the_rest() {
    for (name, window) in MODELS.into_iter().flat_map(|name| [(name, 6), (name, 70)]) {
        let model = model(name, window);
        let (mut ring, mut whole) = (with_windows(&model, 2), whole(&model));
        let (mut a, mut b) = (ring.session().unwrap(), whole.session().unwrap());
        let shifts =
            [(500, 0, 1), (511, 5, 200), (500, 64, 64), (450, 3, 63), (512, 0, 300), (400, 100, 130)];
        let more = [(512, 1, 256), (511, 0, 505), (300, 20, 17), (350, 0, 20), (400, 0, 65)];
        for (round, (len, keep, discard)) in shifts.into_iter().chain(more).enumerate() {
            let what = format!("{name} {window}: {discard} of {len} after {keep}");
            let text = [a.tokens(), &ids(round as u32, len - a.len())].concat();
            assert_eq!(prefill(&mut ring, &mut a, &text), prefill(&mut whole, &mut b, &text), "{what}");
            // Another sequence uses what is moved.
            let mut other = ring.session().unwrap();
            ring.copy_prefix(&a, &mut other, len).unwrap();
            let next = [&text[..], &[9]].concat();
            let before = (len < CONTEXT).then(|| prefill(&mut ring, &mut other, &next).1);
            ring.shift(&mut a, keep, discard).unwrap();
            whole.shift(&mut b, keep, discard).unwrap();
            if let Some(before) = before {
                other.truncate(len);
                assert_eq!(prefill(&mut ring, &mut other, &next), (len, before), "{what}");
            }
            let text = [a.tokens(), &[7]].concat();
            assert_eq!(prefill(&mut ring, &mut a, &text), prefill(&mut whole, &mut b, &text), "{what}");
        }
    }
}

#[test]
fn a_context_that_is_full_shifts_as_without() {
    let overflow = Overflow::Shift { keep: 4 };
    let options = GenerateOptions { overflow, ..tokens(1200) };
    let model = model(MODELS[0], 50);
    let generate = |mut engine: Engine| {
        let mut session = engine.session().unwrap();
        let prompt = ids(5, 500);
        engine.generate(&mut session, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap().ids
    };
    assert_eq!(generate(with_windows(&model, 1)), generate(whole(&model)));
}

#[test]
fn a_shift_must_leave_what_the_next_row_sees() {
    let model = model(MODELS[0], 70);
    let mut engine = with_windows(&model, 1);
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &ids(1, 500)).unwrap();
    let refused = engine.shift(&mut session, 400, 32);
    assert!(matches!(refused, Err(Error::OutsideWindow { at: 468, window: 70, .. })), "{refused:?}");
    assert_eq!(session.len(), 500);
    engine.shift(&mut session, 400, 31).unwrap();
    let shifting = |keep| GenerateOptions { overflow: Overflow::Shift { keep }, ..tokens(1) };
    session.clear();
    let mut run =
        |keep| engine.generate(&mut session, &ids(1, 9), &shifting(keep), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(run(CONTEXT - 69), Err(Error::Setting { .. })));
    run(CONTEXT - 70).unwrap();
}

#[test]
fn a_session_is_cut_where_it_can_go_on() {
    let model = model(MODELS[0], 6);
    let (mut ring, mut whole) = (with_windows(&model, 2), whole(&model));
    let (mut a, mut b) = (ring.session().unwrap(), ring.session().unwrap());
    let text = ids(1, 500);
    let mut alone = whole.session().unwrap();
    let expected = prefill(&mut whole, &mut alone, &text[..450]).1;
    assert_eq!(ring.plan().cache.windows.unwrap().count, 7);
    ring.prefill(&mut a, &text).unwrap();
    // The blocks of positions from 64 on are still there.
    assert_eq!([450, 70, 69, 68, 5].map(|len| a.reach(len)), [450, 70, 69, 0, 0]);
    let refused = ring.copy_prefix(&a, &mut b, 68);
    assert!(matches!(refused, Err(Error::OutsideWindow { at: 68, .. })), "{refused:?}");
    ring.copy_prefix(&a, &mut b, 69).unwrap();
    assert_eq!(prefill(&mut ring, &mut a, &text[..450]), (449, expected.clone()));
    assert_eq!(prefill(&mut ring, &mut b, &text[..450]), (69, expected.clone()));
    a.truncate(68);
    assert!(a.is_empty());
    assert_eq!(prefill(&mut ring, &mut a, &text[..450]), (0, expected));
}

//! Layers with a state: passes may end anywhere, texts that begin alike share what is processed up to the end of a block, and a
//! sequence goes on only where its state is.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{bits, checked_in, generate, options, together};
use akunu::schedule::Request;
use akunu::{
    DeviceChoice, Engine, EngineOptions, Error, Feed, GenerateOptions, Model, Overflow, Session, open_device,
};
use akunu_device_testing::FailingDevice;
use akunu_testing::fewest_or;

const CONTEXT: usize = 512;
const VOCAB: u32 = 64;
const BLOCK: usize = 64;
const MODELS: [&str; 2] = ["granite4-h-moe", "granite4-h-dense"];

fn model(name: &str) -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let from = checked_in("models").join(name);
    std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config = crate::common::json(from.join("config.json"));
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

fn engine(model: &Arc<Model>, slots: usize) -> Engine {
    Engine::new(model.clone(), &small(slots)).unwrap()
}

/// Every prompt is one pass.
fn whole(model: &Arc<Model>) -> Engine {
    Engine::new(model.clone(), &EngineOptions { chunk: Some(CONTEXT), ..small(1) }).unwrap()
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

/// The logits after a text that is processed in one pass.
fn alone(engine: &mut Engine, ids: &[u32]) -> Vec<u32> {
    let mut session = engine.session().unwrap();
    prefill(engine, &mut session, ids).1
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

#[test]
fn passes_of_any_size_and_chains_give_the_same_bits() {
    for name in MODELS {
        let model = model(name);
        let (mut parts, mut whole) = (engine(&model, 1), whole(&model));
        assert_eq!(parts.device().allocated_bytes(), parts.plan().memory.allocated());
        // That of the position before a pass, the next, and one for a pass of 32 rows.
        assert_eq!(parts.plan().cache.windows.unwrap().count, 3);
        let text = ids(1, CONTEXT);
        let mut session = parts.session().unwrap();
        for (len, reused) in [(1, 0), (5, 1), (64, 5), (65, 64), (130, 65), (131, 130), (257, 131)] {
            let expected = alone(&mut whole, &text[..len]);
            assert_eq!(prefill(&mut parts, &mut session, &text[..len]), (reused, expected), "{name} {len}");
        }
        let mut history = text[..258].to_vec();
        while history.len() < 400 {
            let found = parts.chain(&mut session, &history, None, 7, &[], None).unwrap().to_vec();
            history.extend(&found);
            let expected = alone(&mut whole, &history[..history.len() - 1]);
            assert_eq!(bits(&mut parts), expected, "{name} {}", history.len());
        }
    }
}

#[test]
fn each_request_gets_what_it_gets_alone() {
    for name in MODELS.into_iter().take(fewest_or(1, 2, 2)) {
        let model = model(name);
        // Texts that begin alike, some in the middle of others, and some of their own.
        let requests: Vec<Request> = (0..24)
            .map(|i| {
                let common = &ids(100 + i % 3, 330)[..[330, 70, 200, 128][i as usize % 4]];
                let prompt = [common, &ids(i, 1 + i as usize * 5 % 90)].concat();
                Request { prompt, options: tokens(1 + i as usize * 7 % 80), ..Request::default() }
            })
            .collect();
        let mut one = whole(&model);
        let expected: Vec<Result<Vec<u32>, String>> = requests
            .iter()
            .map(|request| Ok(generate(&mut one, &request.prompt, &request.options).1.ids))
            .collect();
        for slots in [1, 3, 5] {
            let (found, mut engine) = together(engine(&model, slots), &requests);
            assert_eq!(found, expected, "{name} {slots}");
            let mut sessions: Vec<Session> = (0..slots).map(|_| engine.session().unwrap()).collect();
            assert!(engine.session().is_err());
            sessions.clear();
        }
    }
}

#[test]
fn a_conversation_is_not_processed_again() {
    let model = model(MODELS[0]);
    let (mut engine, mut whole) = (engine(&model, 2), whole(&model));
    let mut session = engine.session().unwrap();
    let mut history = ids(3, 200);
    engine.prefill(&mut session, &history).unwrap();
    // The state is after the last token, and a chain ends there.
    history.extend(ids(4, 20));
    assert_eq!(prefill(&mut engine, &mut session, &history).0, 200);
    history.push(9);
    let found = engine.chain(&mut session, &history, None, 8, &[], None).unwrap().to_vec();
    history.extend(&found);
    history.extend(ids(5, 10));
    let expected = alone(&mut whole, &history);
    assert_eq!(prefill(&mut engine, &mut session, &history), (228, expected));
    // Another text, which is different from position 210 on, goes on at the last block before.
    let other = [&history[..210], &ids(6, 30)].concat();
    let expected = alone(&mut whole, &other);
    assert_eq!(prefill(&mut engine, &mut session, &other), (192, expected));
    // The same text again: its last token is processed for the logits, which the state has had already.
    let expected = bits(&mut engine);
    assert_eq!(prefill(&mut engine, &mut session, &other), (192, expected));
}

#[test]
fn texts_that_begin_alike_share_whole_blocks() {
    let model = model(MODELS[0]);
    let system = ids(1000, 4 * BLOCK + 20);
    let requests: Vec<Request> = (0..20)
        .map(|i| Request {
            prompt: [&system[..], &ids(i, 20)].concat(),
            options: tokens(20),
            ..Request::default()
        })
        .collect();
    let (found, mut engine) = together(engine(&model, 8), &requests);
    let mut one = whole(&model);
    for (found, request) in found.iter().zip(&requests) {
        assert_eq!(found.as_ref().unwrap(), &generate(&mut one, &request.prompt, &request.options).1.ids);
    }
    // What the last one had is still there for a session of its own.
    let (mut a, mut b) = (engine.session().unwrap(), engine.session().unwrap());
    engine.prefill(&mut a, &system).unwrap();
    let expected = bits(&mut engine);
    let refused = engine.copy_prefix(&a, &mut b, 4 * BLOCK + 1);
    assert!(matches!(refused, Err(Error::OutsideWindow { .. })), "{refused:?}");
    engine.copy_prefix(&a, &mut b, 4 * BLOCK).unwrap();
    assert_eq!(prefill(&mut engine, &mut b, &system), (4 * BLOCK, expected));
}

#[test]
fn what_a_state_cannot_do_is_refused() {
    let model = model(MODELS[1]);
    let mut engine = engine(&model, 1);
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &ids(1, 100)).unwrap();
    assert!(matches!(engine.shift(&mut session, 4, 20), Err(Error::CannotShift)));
    let shifting = GenerateOptions { overflow: Overflow::Shift { keep: 4 }, ..tokens(1) };
    session.clear();
    let refused =
        engine.generate(&mut session, &ids(1, 9), &shifting, &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::CannotShift)), "{refused:?}");
    let kept = EngineOptions { kv_host: Some(1 << 20), ..small(1) };
    let refused = Engine::new(model.clone(), &kept);
    assert!(matches!(refused, Err(Error::WindowsStay { .. })), "{:?}", refused.err());
}

#[test]
fn a_failed_pass_leaves_a_session_that_has_to_be_cut() {
    let model = model(MODELS[0]);
    let device = FailingDevice::new(open_device(DeviceChoice::Cpu, Some(1), &Default::default()).unwrap());
    let failing = device.failing();
    let mut engine = Engine::on_device(model.clone(), Box::new(device), &small(1)).unwrap();
    let mut session = engine.session().unwrap();
    let text = ids(1, 140);
    engine.prefill(&mut session, &text[..100]).unwrap();
    failing.store(true, Ordering::Relaxed);
    let mut feed =
        |session: &mut Session| engine.pass(&mut [Feed { session, ids: &text[100..110], logits: 1 }]);
    assert!(matches!(feed(&mut session), Err(Error::Device(_))));
    assert_eq!(session.len(), 100);
    // The pass may have changed the state.
    assert!(matches!(feed(&mut session), Err(Error::StateLost { len: 100 })));
    session.truncate(100);
    assert_eq!(session.len(), 64);
    let mut whole = whole(&model);
    let expected = alone(&mut whole, &text);
    assert_eq!(prefill(&mut engine, &mut session, &text), (64, expected));
}

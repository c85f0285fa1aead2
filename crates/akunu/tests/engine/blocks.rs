//! The KV cache in blocks: many sequences in little memory, and prompts that begin alike.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{generate, tales_engine};
use akunu::schedule::{Event, Handle, Request, Scheduler, SchedulerOptions, Stats};
use akunu::{BackendOptions, DeviceChoice, Engine, EngineOptions, Error, GenerateOptions};
use akunu_device_testing::FailingDevice;
use akunu_testing::{few_or_many, fewest_or};

/// The embedded model with a context of 256, in blocks of 64, and a cache of `blocks` blocks.
fn engine(slots: usize, blocks: u64) -> Engine {
    let kv_memory = Some(blocks * block_bytes());
    tales_engine(|o| *o = EngineOptions { kv_memory, ..o.clone().batching(slots) })
}

fn block_bytes() -> u64 {
    let plan = tales_engine(|_| {}).plan().clone();
    assert_eq!((plan.cache.block, plan.cache.slot_blocks, plan.cache.count), (64, 4, 4));
    plan.memory.kv / 4
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

/// `n` ids that differ from those of other kinds.
fn ids(kind: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 10 + (kind * 97 + i * 7) % 1000).collect()
}

/// The most of some statistics while requests run, and how many did at once.
#[derive(Clone, Copy, Debug, Default)]
struct Most {
    kv_tokens: usize,
    at_once: usize,
    paused: usize,
}

/// Runs requests of `(prompt, tokens to generate)`. Returns the ids of each, the statistics at the end, and their maxima.
fn run(engine: Engine, requests: &[(Vec<u32>, usize)]) -> (Vec<Vec<u32>>, Stats, Most) {
    let options = SchedulerOptions { queue: requests.len(), ..SchedulerOptions::default() };
    let (scheduler, handle) = Scheduler::new(engine, &options).unwrap();
    let found = Arc::new(Mutex::new((vec![vec![]; requests.len()], Most::default())));
    for (number, (prompt, n)) in requests.iter().enumerate() {
        let (found, stats) = (found.clone(), handle.clone());
        let listener = move |event: Event<'_>| {
            let (ids, most) = &mut *found.lock().unwrap();
            match event {
                Event::Piece { ids: more, .. } => ids[number].extend_from_slice(more),
                Event::Failed(error) => panic!("{number}: {error}"),
                _ => {}
            }
            let Stats { kv_tokens, running, reading, paused, .. } = Handle::stats(&stats);
            most.kv_tokens = most.kv_tokens.max(kv_tokens);
            most.at_once = most.at_once.max(running + reading);
            most.paused = most.paused.max(paused);
            ControlFlow::Continue(())
        };
        let request = Request { prompt: prompt.clone(), options: tokens(*n), ..Request::default() };
        handle.submit(request, Box::new(listener)).unwrap();
    }
    handle.close();
    scheduler.run();
    let (ids, most) = found.lock().unwrap().clone();
    (ids, handle.stats(), most)
}

fn alone(requests: &[(Vec<u32>, usize)]) -> Vec<Vec<u32>> {
    let mut engine = tales_engine(|_| {});
    requests.iter().map(|(prompt, n)| generate(&mut engine, prompt, &tokens(*n)).1.ids).collect()
}

#[test]
fn memory_is_what_was_asked_for_in_whole_blocks() {
    let bytes = block_bytes();
    let planned = |kv_memory| {
        let engine = tales_engine(|o| *o = EngineOptions { slots: 3, kv_memory, ..o.clone() });
        assert_eq!(engine.device().allocated_bytes(), engine.plan().memory.allocated());
        (engine.plan().cache.count, engine.plan().memory.kv)
    };
    assert_eq!(planned(Some(5 * bytes + bytes / 2)), (5, 5 * bytes));
    // The most is a context for each slot, which is the default.
    assert_eq!(planned(Some(u64::MAX)), (12, 12 * bytes));
    assert_eq!(planned(None), (12, 12 * bytes));
}

#[test]
fn a_cache_that_has_no_context_is_refused() {
    let bytes = block_bytes();
    let options =
        EngineOptions { context: Some(256), kv_memory: Some(4 * bytes - 1), ..EngineOptions::default() };
    let error = Engine::new(crate::common::tales(), &options).unwrap_err().to_string();
    let expected =
        format!("has 192 positions, fewer than the context of 256; it needs at least {} bytes", 4 * bytes);
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn many_short_texts_run_at_once_in_the_memory_of_a_few_contexts() {
    // Of 256 contexts there would be 1024 blocks. Most texts need one, some two.
    let count = fewest_or(64, 96, 256);
    let requests: Vec<(Vec<u32>, usize)> =
        (0..count).map(|kind| (ids(kind, 8 + kind % 40), 6 + (kind % 5) as usize * 5)).collect();
    let (found, stats, most) = run(engine(256, 64), &requests);
    assert_eq!(found, alone(&requests));
    assert_eq!(
        (stats.finished, stats.failed, stats.kv_tokens, stats.kv_capacity),
        (count.into(), 0, 0, 64 * 64)
    );
    assert!(most.kv_tokens <= 64 * 64 && most.at_once > 40, "{most:?}");
    assert!(stats.kv_kept > 0);
}

#[test]
fn requests_wait_for_the_blocks_that_they_may_need() {
    // Each needs three of five blocks.
    let requests: Vec<(Vec<u32>, usize)> = (0..5).map(|kind| (ids(kind, 120), 60)).collect();
    let (found, stats, most) = run(engine(4, 5), &requests);
    assert_eq!(found, alone(&requests));
    assert_eq!((stats.failed, most.at_once), (0, 1));
}

/// Each states that it may need a whole context, and the cache has one and a half. One goes on to its end, the others as
/// far as there are blocks.
#[test]
fn long_texts_run_at_once_and_pause_while_there_are_no_blocks() {
    let requests: Vec<(Vec<u32>, usize)> = (0..6).map(|kind| (ids(kind, 20 + kind), 230)).collect();
    let (found, stats, most) = run(engine(4, 6), &requests);
    assert_eq!(found, alone(&requests));
    assert_eq!((stats.finished, stats.failed, stats.kv_tokens), (6, 0, 0));
    assert!(most.at_once == 3 && most.paused == 2 && most.kv_tokens <= 6 * 64, "{most:?}");
}

/// When the text that is sure to reach its end has ended, some of its blocks belong to others that began alike.
#[test]
fn long_texts_that_begin_alike_pause_and_end() {
    let system = ids(1000, 130);
    let requests: Vec<(Vec<u32>, usize)> = (0..9)
        .map(|kind| match kind % 3 {
            0 => (ids(kind, 10 + kind), 30),
            1 => ([&system[..70], &ids(kind, 6)].concat(), 180 - kind as usize),
            _ => ([&system[..], &ids(kind, 3)].concat(), 123),
        })
        .collect();
    let expected = alone(&requests);
    for blocks in (4..9).step_by(fewest_or(4, 1, 1)) {
        let (found, stats, most) = run(engine(5, blocks), &requests);
        assert_eq!(found, expected, "{blocks}");
        assert_eq!((stats.finished, stats.failed, stats.kv_tokens), (9, 0, 0));
        assert!(most.kv_tokens <= blocks as usize * 64, "{most:?}");
    }
}

#[test]
fn a_common_system_prompt_is_processed_and_stored_once() {
    let system = ids(1000, 150);
    let count = few_or_many(50, 100);
    let requests: Vec<(Vec<u32>, usize)> =
        (0..count).map(|kind| ([&system[..], &ids(kind, 20)].concat(), 22)).collect();
    let (found, stats, most) = run(engine(100, 110), &requests);
    assert_eq!(found, alone(&requests));
    assert_eq!(stats.prompt_tokens, 150 + u64::from(count) * 20);
    assert_eq!(stats.reused_tokens, (u64::from(count) - 1) * 150);
    // Two blocks for all, and one for each: without sharing, three for each of 36.
    assert!(most.at_once > 36 && most.kv_tokens <= 110 * 64, "{most:?}");
}

/// Some passes fail. Requests whose pass failed say so, the others get what they get alone, and afterwards all
/// blocks can be used again.
#[test]
fn failed_passes_lose_no_blocks_and_harm_no_others() {
    let device = akunu::open_device(DeviceChoice::Cpu, Some(1), &BackendOptions::default()).unwrap();
    let device = FailingDevice::new(device);
    let failing = device.failing();
    let options =
        EngineOptions { context: Some(256), kv_memory: Some(9 * block_bytes()), ..EngineOptions::default() };
    let mut engine =
        Engine::on_device(crate::common::tales(), Box::new(device), &options.batching(6)).unwrap();
    let system = ids(1000, 70);
    let requests: Vec<(Vec<u32>, usize)> =
        (0..40).map(|kind| ([&system[..], &ids(kind, 10 + kind)].concat(), 5 + kind as usize % 30)).collect();
    let expected = alone(&requests);
    let mut seen = [0, 0];
    for round in 0..3 {
        let (scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
        let found = Arc::new(Mutex::new(vec![(vec![], None); requests.len()]));
        let pieces = Arc::new(AtomicUsize::new(0));
        for (number, (prompt, n)) in requests.iter().enumerate() {
            let (found, pieces, failing) = (found.clone(), pieces.clone(), failing.clone());
            let listener = move |event: Event<'_>| {
                let (ids, error) = &mut found.lock().unwrap()[number];
                match event {
                    Event::Piece { ids: more, .. } => ids.extend_from_slice(more),
                    Event::Failed(failed) => *error = Some(failed.to_string()),
                    _ => {}
                }
                let count = pieces.fetch_add(1, Ordering::Relaxed);
                failing.fetch_or(round < 2 && count % 16 == 15, Ordering::Relaxed);
                ControlFlow::Continue(())
            };
            let request = Request { prompt: prompt.clone(), options: tokens(*n), ..Request::default() };
            handle.submit(request, Box::new(listener)).unwrap();
        }
        handle.close();
        engine = scheduler.run();
        assert_eq!(handle.stats().kv_tokens, 0);
        for ((ids, error), expected) in found.lock().unwrap().iter().zip(&expected) {
            match error {
                None => assert_eq!(ids, expected),
                Some(error) => {
                    assert!(error.contains("failed on purpose") && expected.starts_with(ids), "{error}")
                }
            }
            seen[usize::from(error.is_some())] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn a_session_without_blocks_says_what_to_do() {
    let mut engine = engine(2, 5);
    let (mut first, mut second) = (engine.session().unwrap(), engine.session().unwrap());
    engine.prefill(&mut first, &ids(1, 200)).unwrap();
    let full = engine.prefill(&mut second, &ids(2, 65));
    assert!(matches!(full, Err(Error::CacheFull { positions: 320 })), "{full:?}");
    engine.prefill(&mut second, &ids(2, 64)).unwrap();
    first.truncate(128);
    engine.prefill(&mut second, &ids(2, 128)).unwrap();
    drop(second);
    engine.prefill(&mut first, &ids(1, 256)).unwrap();
}

#[test]
fn sessions_share_what_was_copied_until_one_of_them_changes_it() {
    let mut engine = engine(3, 5);
    let prompt = ids(1, 200);
    let mut first = engine.session().unwrap();
    engine.prefill(&mut first, &prompt).unwrap();
    let expected = bits(engine.last_logits().unwrap());
    // Four blocks are in use; a copy of three whole ones needs no more.
    let mut second = engine.session().unwrap();
    engine.copy_prefix(&first, &mut second, 192).unwrap();
    engine.prefill(&mut second, &[&prompt[..192], &[5, 6]].concat()).unwrap();
    let mut third = engine.session().unwrap();
    assert!(matches!(engine.copy_prefix(&first, &mut third, 193), Err(Error::CacheFull { .. })));
    assert!(third.is_empty());
    // Within the blocks that it shares, a session changes a copy.
    drop(third);
    second.truncate(128);
    first.truncate(100);
    engine.prefill(&mut second, &[&prompt[..128], &[9; 60]].concat()).unwrap();
    engine.prefill(&mut first, &prompt[..150]).unwrap();
    second.clear();
    engine.prefill(&mut first, &prompt).unwrap();
    assert_eq!(bits(engine.last_logits().unwrap()), expected);
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

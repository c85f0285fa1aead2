//! A model on several ranks, through the engine: what it generates, what it keeps, and what happens when a rank fails.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{bits, generate, options, prompt, shares_and_forgets_prefixes, tales, together};
use akunu::schedule::Request;
use akunu::{BackendOptions, DeviceChoice, Engine, EngineOptions, Error, GenerateOptions, Sampling};
use akunu_device_testing::FailingDevice;
use akunu_fleet::Fleet;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, Group, Member};

fn on(device: DeviceChoice, ranks: usize) -> EngineOptions {
    let options = options(device);
    let backends = BackendOptions { ranks: Some(ranks), ..options.backends.clone() };
    EngineOptions { context: Some(256), backends, ..options }
}

fn engine(device: DeviceChoice, ranks: usize) -> Engine {
    Engine::new(tales(), &on(device, ranks)).unwrap()
}

fn tokens(n: usize, sampling: Sampling) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, sampling, ..Default::default() }
}

fn greedy(n: usize) -> GenerateOptions {
    tokens(n, Sampling { temperature: 0.0, ..Sampling::default() })
}

#[test]
fn ranks_compute_the_logits_of_one_device() {
    let ids = prompt(1, 40);
    let alone = engine(DeviceChoice::Reference, 1).logits(&ids, false, None).unwrap();
    let largest = alone.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
    for ranks in [2, 4, 8] {
        let found = engine(DeviceChoice::Reference, ranks).logits(&ids, false, None).unwrap();
        let differ = alone.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Weights are quantised: an activation may be rounded to the next code.
        assert!(differ / largest < 0.02, "{ranks} ranks: {}", differ / largest);
    }
}

#[test]
fn chains_steps_batches_and_runs_of_ranks_are_the_same_bits() {
    let samplings = [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling { seed: 7, temperature: 0.8, ..Sampling::default() },
    ];
    for sampling in samplings {
        let wanted = tokens(20, sampling);
        let alone: Vec<(Vec<u32>, Vec<u32>)> = (0..4)
            .map(|kind| {
                let mut engine = engine(DeviceChoice::Cpu, 2);
                let ids = generate(&mut engine, &prompt(kind, 30), &wanted).1.ids;
                (ids, bits(&mut engine))
            })
            .collect();
        let single = EngineOptions { chain_time: Duration::ZERO, chunk: Some(7), ..on(DeviceChoice::Cpu, 2) };
        let mut single = Engine::new(tales(), &single).unwrap();
        for (kind, (ids, last)) in alone.iter().enumerate() {
            assert_eq!(generate(&mut single, &prompt(kind as u32, 30), &wanted).1.ids, *ids);
            assert_eq!(bits(&mut single), *last);
        }
        let batched = Engine::new(tales(), &on(DeviceChoice::Cpu, 2).batching(4)).unwrap();
        let request =
            |kind| Request { prompt: prompt(kind, 30), options: wanted.clone(), ..Request::default() };
        let requests: Vec<Request> = (0..4).map(request).collect();
        let (found, _) = together(batched, &requests);
        for (found, (ids, _)) in found.into_iter().zip(&alone) {
            assert_eq!(found.unwrap(), *ids);
        }
    }
}

#[test]
fn sessions_share_prefixes_and_forget_tokens_on_all_ranks() {
    let mut engine = Engine::new(tales(), &EngineOptions { slots: 2, ..on(DeviceChoice::Cpu, 4) }).unwrap();
    shares_and_forgets_prefixes(&mut engine);
}

/// Blocks of all ranks leave for the host's memory, and come back.
#[test]
fn the_host_keeps_the_blocks_of_all_ranks() {
    let block = engine(DeviceChoice::Cpu, 2).plan().cache.block_bytes() as u64;
    let plain = engine(DeviceChoice::Cpu, 2).plan().memory.kv;
    let options =
        EngineOptions { kv_memory: Some(plain), kv_host: Some(40 * block), ..on(DeviceChoice::Cpu, 2) };
    let mut kept = Engine::new(tales(), &options).unwrap();
    for kind in [0, 1, 2, 0, 1] {
        let ids = prompt(kind, 120);
        let found = generate(&mut kept, &ids, &greedy(10)).1.ids;
        let fresh = generate(&mut engine(DeviceChoice::Cpu, 2), &ids, &greedy(10)).1.ids;
        assert_eq!(found, fresh, "text {kind}");
    }
    let stats = kept.tier_stats();
    assert!(stats.moved_tokens > 0 && stats.returned_tokens > 0, "{stats:?}");
}

/// The switch that makes a rank's next submission fail.
type Switch = Arc<Mutex<Option<Arc<AtomicBool>>>>;

fn with_a_failing_rank(rank: usize, panics: bool) -> (Engine, Arc<AtomicBool>) {
    let switch = Switch::default();
    let of_rank = switch.clone();
    let open = move |member: Member| {
        let fails = member.rank() == rank;
        let device = FailingDevice::new(Box::new(ReferenceDevice::new().in_group(member)));
        if fails {
            let flag = if panics { device.panicking() } else { device.failing() };
            *of_rank.lock().unwrap() = Some(flag);
        }
        Ok(Box::new(device) as Box<dyn Device>)
    };
    let fleet = Fleet::open(Group::members(2, 1), Arc::new(open)).unwrap();
    let options = EngineOptions { context: Some(64), ..options(DeviceChoice::Reference) };
    let engine = Engine::on_device(tales(), Box::new(fleet), &options).unwrap();
    let switch = switch.lock().unwrap().clone().unwrap();
    (engine, switch)
}

#[test]
fn a_rank_that_fails_ends_what_runs_and_what_comes_later() {
    for (rank, panics) in [(0, false), (1, false), (0, true), (1, true)] {
        let (mut engine, switch) = with_a_failing_rank(rank, panics);
        engine.logits(&[1, 2, 3], false, None).unwrap();
        switch.store(true, Ordering::Relaxed);
        let failed = engine.logits(&[1, 2, 3], false, None).unwrap_err().to_string();
        let reason = if panics { "it panicked" } else { "it failed on purpose" };
        assert!(failed.contains(&format!("rank {rank} of 2 failed")) && failed.contains(reason), "{failed}");
        let later = engine.logits(&[1, 2, 3], false, None).unwrap_err().to_string();
        assert!(later.contains("no longer usable") && later.contains("load it again"), "{later}");
    }
}

/// Nobody waits for a rank that cannot be opened.
#[test]
fn a_rank_that_is_not_opened_is_an_error() {
    for (failing, panics) in [(0, false), (1, false), (0, true), (1, true)] {
        let open = move |member: Member| {
            if member.rank() == failing {
                assert!(!panics, "on purpose");
                return Err(akunu_plan::DeviceError::Cancelled);
            }
            // As GPUs do, which exchange addresses.
            let _ = member.meet();
            Ok(Box::new(ReferenceDevice::new().in_group(member)) as Box<dyn Device>)
        };
        assert!(Fleet::open(Group::members(3, 1), Arc::new(open)).is_err());
    }
}

#[test]
fn a_request_on_a_failed_rank_ends_with_the_reason() {
    let (engine, switch) = with_a_failing_rank(1, false);
    switch.store(true, Ordering::Relaxed);
    let request = Request { prompt: prompt(0, 8), options: greedy(4), ..Request::default() };
    let (found, _) = together(engine, &[request]);
    assert!(found[0].as_ref().unwrap_err().contains("rank 1 of 2 failed"), "{found:?}");
}

#[test]
fn what_cannot_be_shared_out_is_refused_with_its_name() {
    let refused = |ranks| match Engine::new(tales(), &on(DeviceChoice::Cpu, ranks)) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{ranks} ranks were accepted"),
    };
    let heads = "3 ranks cannot share the model's 8 heads equally; --pipeline-parallel gives each device whole layers instead";
    assert_eq!(refused(3), heads);
    assert_eq!(refused(0), "the number of ranks is 0; it must be from 1 to 16");
    let backends = BackendOptions { ranks: Some(1), cards: vec![0, 1], ..BackendOptions::default() };
    let refused = akunu::open_device(DeviceChoice::Cpu, None, &backends).unwrap_err().to_string();
    assert_eq!(refused, "the number of ranks is 1 for 2 cards; it must be one for each card");
    assert!(matches!(Engine::new(tales(), &on(DeviceChoice::Cpu, 17)), Err(Error::Setting { .. })));
}

#[test]
fn memory_of_a_rank_is_what_the_plan_says() {
    for ranks in [2, 4] {
        for device in [DeviceChoice::Cpu, DeviceChoice::Reference] {
            let engine = engine(device, ranks);
            assert_eq!(
                engine.device().allocated_bytes(),
                engine.plan().memory.allocated(),
                "{device}, {ranks} ranks"
            );
        }
    }
}

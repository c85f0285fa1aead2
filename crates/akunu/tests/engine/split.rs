//! Models of which the CPU computes a part beside a device.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{checked_in, generate, options, tales};
use akunu::schedule::Request;
use akunu::{DeviceChoice, Engine, EngineOptions, Error, GenerateOptions, Model, Note, Overflow, Sampling};
use akunu_cpu::{CpuDevice, CpuOptions};
use akunu_device_testing::FailingDevice;
use akunu_fleet::Hybrid;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, OnHost};

use crate::ranks::together;

fn cpu() -> Box<dyn Device> {
    Box::new(CpuDevice::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap())
}

/// The CPU as a device, and again as its host: what both compute together has the bits of one.
fn two_cpus() -> Box<dyn Device> {
    Box::new(Hybrid::new(cpu(), cpu()))
}

fn leaving(layers_on_host: usize) -> EngineOptions {
    let gpu_layers = Some(tales().config().layer_count - layers_on_host);
    EngineOptions { context: Some(256), gpu_layers, ..options(DeviceChoice::Cpu) }
}

fn split(layers_on_host: usize, change: impl FnOnce(EngineOptions) -> EngineOptions) -> Engine {
    Engine::on_device(tales(), two_cpus(), &change(leaving(layers_on_host))).unwrap()
}

fn alone() -> Engine {
    Engine::new(tales(), &EngineOptions { context: Some(256), ..options(DeviceChoice::Cpu) }).unwrap()
}

fn prompt(kind: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 10 + (kind * 97 + i * 7) % 1000).collect()
}

fn tokens(n: usize, temperature: f32) -> GenerateOptions {
    let sampling = Sampling { seed: 7, temperature, ..Sampling::default() };
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, sampling, ..Default::default() }
}

fn bits(engine: &mut Engine) -> Vec<u32> {
    engine.last_logits().unwrap().iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn what_is_generated_has_the_bits_of_one_device() {
    let layers = tales().config().layer_count;
    for temperature in [0.0, 0.8] {
        let wanted = tokens(24, temperature);
        let mut one = alone();
        let expected = generate(&mut one, &prompt(1, 60), &wanted).1.ids;
        for on_host in [1, layers - 1, layers] {
            let mut engine = split(on_host, |options| EngineOptions { chunk: Some(7), ..options });
            assert_eq!(engine.plan().options.host, OnHost { layers: on_host, experts: 0 });
            assert_eq!(generate(&mut engine, &prompt(1, 60), &wanted).1.ids, expected);
            assert_eq!(bits(&mut engine), bits(&mut one));
        }
    }
}

#[test]
fn a_batch_gives_what_each_request_gives_alone() {
    let wanted = tokens(20, 0.8);
    let request = |kind| Request { prompt: prompt(kind, 30), options: wanted.clone(), ..Request::default() };
    let requests: Vec<Request> = (0..4).map(request).collect();
    let (found, _) = together(split(2, |options| options.batching(4)), &requests);
    for (kind, found) in found.into_iter().enumerate() {
        assert_eq!(found.unwrap(), generate(&mut alone(), &prompt(kind as u32, 30), &wanted).1.ids);
    }
}

#[test]
fn sessions_share_prefixes_and_shift_on_both_sides() {
    let mut engine = split(1, |options| EngineOptions { slots: 2, ..options });
    let ids = prompt(3, 100);
    let mut first = engine.session().unwrap();
    engine.prefill(&mut first, &ids).unwrap();
    let expected = bits(&mut engine);
    let mut second = engine.session().unwrap();
    engine.copy_prefix(&first, &mut second, 70).unwrap();
    engine.prefill(&mut second, &ids).unwrap();
    assert_eq!(bits(&mut engine), expected);
    first.truncate(33);
    engine.prefill(&mut first, &ids).unwrap();
    assert_eq!(bits(&mut engine), expected);

    // A context that is full is shifted in the caches of both.
    let wanted = GenerateOptions { overflow: Overflow::Shift { keep: 4 }, ..tokens(100, 0.0) };
    let mut one = alone();
    let expected = generate(&mut one, &prompt(2, 200), &wanted).1.ids;
    let mut engine = split(1, |options| options);
    assert_eq!(generate(&mut engine, &prompt(2, 200), &wanted).1.ids, expected);
}

#[test]
fn experts_are_computed_beside_the_rest() {
    for name in ["qwen3-moe", "deepseek-v3", "gpt-oss", "qwen2-moe-shared"] {
        let model = Arc::new(Model::open(checked_in("models").join(name)).unwrap());
        let ids: Vec<u32> = (1..30).collect();
        let base = EngineOptions { context: Some(64), chunk: Some(9), ..options(DeviceChoice::Cpu) };
        let expected = Engine::new(model.clone(), &base).unwrap().logits(&ids, false, None).unwrap();
        for experts in [1, usize::MAX] {
            let options = EngineOptions { cpu_experts: Some(experts), ..base.clone() };
            let mut engine = Engine::on_device(model.clone(), two_cpus(), &options).unwrap();
            let found = engine.logits(&ids, false, None).unwrap();
            let same = expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{name} with the experts of {experts} layers");
        }
    }
}

/// Without a stated part, the smallest that fits is chosen, and said.
#[test]
fn models_that_do_not_fit_are_split() {
    let base = EngineOptions { context: Some(128), ..options(DeviceChoice::Cpu) };
    let large = FailingDevice::new(cpu()).with_memory(1 << 40);
    let whole = akunu::plan(&tales(), large.capabilities(), &base).unwrap().memory;
    let all = whole.peak() - whole.workspace;
    let mut before = 0;
    for percent in [100, 99, 80, 70] {
        let device = FailingDevice::new(cpu()).with_memory(all * percent / 100);
        let mut engine = Engine::on_device(tales(), Box::new(device), &base).unwrap();
        let host = engine.plan().options.host;
        assert!(host.layers >= before && (host.layers == 0) == (percent == 100), "{percent}%: {host:?}");
        before = host.layers;
        let noted = engine.notes().iter().any(|note| matches!(note, Note::Split { .. }));
        assert_eq!(noted, host.layers > 0);
        let ids = prompt(4, 50);
        let found = engine.logits(&ids, false, None).unwrap();
        let expected = alone().logits(&ids, false, None).unwrap();
        assert!(expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
    let tiny = FailingDevice::new(cpu()).with_memory(1000);
    let refused = Engine::on_device(tales(), Box::new(tiny), &base).unwrap_err();
    assert!(matches!(refused, Error::DoesNotFit { .. }), "{refused}");
}

#[test]
fn what_needs_the_whole_cache_on_one_device_is_refused() {
    let mut engine = split(1, |options| options);
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &prompt(1, 20)).unwrap();
    let refused = engine.save_session(&session, Path::new("nowhere")).unwrap_err();
    assert!(matches!(refused, Error::LayersOnHost { .. }), "{refused}");
    let tiers = EngineOptions { kv_host: Some(1 << 30), ..leaving(1) };
    let refused = Engine::on_device(tales(), two_cpus(), &tiers).unwrap_err();
    assert!(matches!(refused, Error::LayersOnHost { .. }), "{refused}");
    let no_gpu = Engine::new(tales(), &leaving(1)).unwrap_err();
    assert!(matches!(no_gpu, Error::NoGpuBesideCpu), "{no_gpu}");
    // All layers on the device need no other one.
    Engine::new(tales(), &leaving(0)).unwrap();
}

#[test]
fn a_side_that_fails_ends_the_pass_with_its_reason() {
    let failing = FailingDevice::new(Box::new(ReferenceDevice::new()));
    let switch = failing.failing();
    let base = EngineOptions { gpu_layers: Some(1), context: Some(64), ..options(DeviceChoice::Reference) };
    let mut engine = Engine::on_device(tales(), Box::new(failing), &base).unwrap();
    engine.logits(&[1, 2, 3], false, None).unwrap();
    switch.store(true, std::sync::atomic::Ordering::Relaxed);
    let failed = engine.logits(&[1, 2, 3], false, None).unwrap_err().to_string();
    assert!(failed.contains("it failed on purpose"), "{failed}");
    engine.logits(&[1, 2, 3], false, None).unwrap();
}

#[test]
fn steps_are_single_on_two_sides() {
    let engine =
        split(1, |options| EngineOptions { chain: Some(8), chain_time: Duration::from_secs(1), ..options });
    assert_eq!(engine.plan().options.chain, 1);
}

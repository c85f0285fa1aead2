//! Models whose layers several devices share out, through the engine.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{bits, generate, options, prompt, shares_and_forgets_prefixes, tales, together};
use akunu::schedule::Request;
use akunu::{
    BackendOptions, DeviceChoice, Engine, EngineOptions, Error, GenerateOptions, Overflow, ProfileOptions,
    Sampling,
};
use akunu_device_testing::FailingDevice;
use akunu_fleet::Hybrid;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, ModelPlan};

fn on(devices: usize) -> EngineOptions {
    let options = options(DeviceChoice::Cpu);
    let backends = BackendOptions { stages: Some(devices), ..options.backends.clone() };
    EngineOptions { context: Some(256), threads: Some(1), backends, ..options }
}

fn engine(devices: usize, change: impl FnOnce(EngineOptions) -> EngineOptions) -> Engine {
    Engine::new(tales(), &change(on(devices))).unwrap()
}

fn tokens(n: usize, temperature: f32) -> GenerateOptions {
    let sampling = Sampling { seed: 7, temperature, ..Sampling::default() };
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, sampling, ..Default::default() }
}

#[test]
fn what_is_generated_has_the_bits_of_one_device() {
    for temperature in [0.0, 0.8] {
        let wanted = tokens(24, temperature);
        let mut one = engine(1, |options| options);
        let expected = generate(&mut one, &prompt(1, 60), &wanted).1.ids;
        for devices in [2, 3, 4] {
            let mut staged = engine(devices, |options| EngineOptions { chunk: Some(7), ..options });
            assert_eq!(staged.plan().options.stages.len(), devices - 1);
            assert_eq!(generate(&mut staged, &prompt(1, 60), &wanted).1.ids, expected);
            assert_eq!(bits(&mut staged), bits(&mut one));
        }
    }
}

#[test]
fn a_batch_gives_what_each_request_gives_alone() {
    let wanted = tokens(20, 0.8);
    let request = |kind| Request { prompt: prompt(kind, 30), options: wanted.clone(), ..Request::default() };
    let requests: Vec<Request> = (0..4).map(request).collect();
    let (found, _) = together(engine(3, |options| options.batching(4)), &requests);
    for (kind, found) in found.into_iter().enumerate() {
        let alone = generate(&mut engine(1, |options| options), &prompt(kind as u32, 30), &wanted);
        assert_eq!(found.unwrap(), alone.1.ids);
    }
}

#[test]
fn sessions_share_prefixes_and_shift_on_all_devices() {
    let mut staged = engine(4, |options| EngineOptions { slots: 2, ..options });
    shares_and_forgets_prefixes(&mut staged);
    // A context that is full is shifted in the caches of all.
    let wanted = GenerateOptions { overflow: Overflow::Shift { keep: 4 }, ..tokens(100, 0.0) };
    let expected = generate(&mut engine(1, |options| options), &prompt(2, 200), &wanted).1.ids;
    assert_eq!(generate(&mut engine(3, |options| options), &prompt(2, 200), &wanted).1.ids, expected);
}

#[test]
fn devices_are_compared_with_the_reference_and_profiled() {
    let report = akunu::verify(&tales(), &on(3), &[1, 2, 3, 4, 5], &mut |_, _| {}).unwrap();
    assert!(report.first_bad().is_none() && !report.differences.is_empty());
    let mut staged = engine(3, |options| options);
    let timings = staged.profile(ProfileOptions { passes: 1, ..ProfileOptions::default() }).unwrap();
    let of = |label: &str| timings.iter().filter(|timing| timing.label == label).count();
    assert_eq!([of("embed (stage 0)"), of("logits")], [1; 2]);
    assert!(timings.iter().any(|timing| timing.label.ends_with("attention (stage 1)")));
}

#[test]
fn what_needs_one_device_is_refused() {
    let mut staged = engine(2, |options| options);
    let mut session = staged.session().unwrap();
    staged.prefill(&mut session, &prompt(1, 20)).unwrap();
    let refused = staged.save_session(&session, Path::new("nowhere")).unwrap_err();
    assert!(matches!(refused, Error::LayersOnHost { .. }), "{refused}");
    let refused = |options: EngineOptions| Engine::new(tales(), &options).unwrap_err().to_string();
    let tiers = refused(EngineOptions { kv_host: Some(1 << 30), ..on(2) });
    assert!(tiers.contains("--pipeline-parallel"), "{tiers}");
    let host = refused(EngineOptions { gpu_layers: Some(1), ..on(2) });
    assert!(host.contains("cannot leave layers or experts to the CPU"), "{host}");
    let both = BackendOptions { ranks: Some(2), ..on(2).backends };
    assert!(refused(EngineOptions { backends: both, ..on(2) }).contains("the number of stages"));
    let layers = tales().config().layer_count;
    let many = refused(on(layers + 1));
    assert!(many.contains(&format!("cannot share out the {layers} layers")), "{many}");
    assert!(refused(on(17)).contains("the number of stages is 17"));
    // What tensor parallelism cannot divide is told of the other way.
    let ranks = BackendOptions { ranks: Some(7), stages: None, ..on(1).backends };
    let ranks = refused(EngineOptions { backends: ranks, ..on(1) });
    assert!(ranks.contains("--pipeline-parallel gives each device whole layers"), "{ranks}");
}

/// The switch of a device that makes its next submission fail.
type Switch = Arc<Mutex<Option<Arc<AtomicBool>>>>;

/// What follows a failure of a device is as if nothing had been.
#[test]
fn a_device_that_fails_ends_the_pass_with_its_reason() {
    let wanted = tokens(12, 0.8);
    let expected = generate(&mut engine(1, |options| options), &prompt(5, 40), &wanted).1.ids;
    for failing in 0..3 {
        let switch = Switch::default();
        let of_device = switch.clone();
        let cpu = || akunu_cpu::CpuOptions { threads: Some(1), ..akunu_cpu::CpuOptions::default() };
        let open = move |index: usize| -> Result<Box<dyn Device>, _> {
            let device = FailingDevice::new(Box::new(akunu_cpu::CpuDevice::new(cpu())?));
            if index == failing {
                *of_device.lock().unwrap() = Some(device.failing());
            }
            Ok(Box::new(device))
        };
        let staged = Hybrid::stages(3, open).unwrap();
        let mut staged = Engine::on_device(tales(), Box::new(staged), &on(3)).unwrap();
        let switch = switch.lock().unwrap().clone().unwrap();
        switch.store(true, Ordering::Relaxed);
        let failed = staged.logits(&[1, 2, 3], false, None).unwrap_err().to_string();
        assert!(failed.contains(&format!("device {failing} of 3: it failed on purpose")), "{failed}");
        assert_eq!(generate(&mut staged, &prompt(5, 40), &wanted).1.ids, expected);
    }
}

/// Devices with so much memory each.
fn with_memory(bytes: [u64; 2]) -> Box<dyn Device> {
    let open = move |index: usize| -> Result<Box<dyn Device>, _> {
        let device = FailingDevice::new(Box::new(ReferenceDevice::new())).with_memory(bytes[index]);
        Ok(Box::new(device))
    };
    Box::new(Hybrid::stages(2, open).unwrap())
}

/// What each device needs while it loads.
fn needed(plan: &ModelPlan) -> Vec<u64> {
    plan.memory_of_devices().map(|memory| memory.peak() - memory.workspace).collect()
}

#[test]
fn each_device_needs_the_memory_of_its_part() {
    let base = EngineOptions { backends: BackendOptions::default(), ..on(1) };
    let plan_on = |bytes, options| akunu::plan(&tales(), with_memory(bytes).capabilities(), options).unwrap();
    let both = needed(&plan_on([1 << 40; 2], &base));
    let enough = [both[0].max(both[1]); 2];
    assert_eq!(needed(&plan_on(enough, &base)), both);
    let mut staged = Engine::on_device(tales(), with_memory(enough), &base).unwrap();
    staged.logits(&[1, 2, 3], false, None).unwrap();
    let refused = Engine::on_device(tales(), with_memory(enough.map(|bytes| bytes - 1)), &base).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    let place = refused.to_string();
    assert!(["device 0 of 2", "device 1 of 2"].iter().any(|device| place.contains(device)), "{place}");

    // A cache of default size fits into the device that has the least left.
    let many = EngineOptions { context: None, slots: 300, ..base.clone() };
    let sizes = [1 << 32, both[1] * 2];
    let plan = plan_on(sizes, &many);
    let fit = needed(&plan).into_iter().zip(sizes).all(|(needed, size)| needed <= size);
    assert!(fit && plan.memory.kv > 0, "{:?} of {sizes:?}", needed(&plan));

    // A device with more memory has more layers.
    let layers = tales().config().layer_count;
    let begins = |bytes| plan_on(bytes, &base).options.stages[0];
    assert!(begins([1 << 40, 1 << 37]) > layers / 2 && begins([1 << 37, 1 << 40]) < layers.div_ceil(2));
    assert!(begins([1 << 40; 2]).abs_diff(layers / 2) <= 1);
}

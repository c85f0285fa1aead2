//! Models of which the CPU computes a part beside a device.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{
    bits, checked_in, generate, options, prompt, shares_and_forgets_prefixes, tales, tales_engine, together,
};
use akunu::schedule::Request;
use akunu::{
    Constraints, DeviceChoice, Engine, EngineOptions, Error, GenerateOptions, KvType, Model, Note, Overflow,
    ProfileOptions, ResponseFormat, Sampling,
};
use akunu_cpu::{CpuDevice, CpuOptions};
use akunu_device_testing::{FailingDevice, LateDevice};
use akunu_fleet::Hybrid;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{BufferId, BufferKind, Capabilities, Device, MemoryPlan, ModelPlan, OnHost, PassKind, Side};

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

/// With all passes of several rows on the device.
fn streaming(options: EngineOptions) -> EngineOptions {
    EngineOptions { stream_rows: Some(2), ..options }
}

/// An engine as [`tales_engine`] makes it, of which a second CPU computes so many layers, if any.
pub fn split_engine(layers_on_host: usize, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    if layers_on_host == 0 {
        return tales_engine(change);
    }
    split(layers_on_host, |mut options| {
        change(&mut options);
        options
    })
}

fn alone() -> Engine {
    Engine::new(tales(), &EngineOptions { context: Some(256), ..options(DeviceChoice::Cpu) }).unwrap()
}

fn tokens(n: usize, temperature: f32) -> GenerateOptions {
    let sampling = Sampling { seed: 7, temperature, ..Sampling::default() };
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, sampling, ..Default::default() }
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
            let mut streams =
                split(on_host, |options| streaming(EngineOptions { chunk: Some(7), ..options }));
            assert_eq!(streams.plan().options.stream_rows, Some(2));
            assert_eq!(generate(&mut streams, &prompt(1, 60), &wanted).1.ids, expected);
            assert_eq!(bits(&mut streams), bits(&mut one));
        }
    }
}

/// Each weight of the host is lent once, and the host keeps the embedding and what uses its cache.
#[test]
fn a_streamed_pass_multiplies_on_the_device() {
    let engine = split(2, streaming);
    let plan = engine.plan();
    let table = &plan.tables[PassKind::StreamedPrefill];
    let sides = table.commands.iter().zip(&table.labels);
    let on_host = sides.filter(|(command, _)| command.side == Side::Host).map(|(_, label)| label.as_str());
    let cached = |layer| [format!("layer.{layer}.rope_kv"), format!("layer.{layer}.attention")];
    let expected: Vec<String> = ["embed".into(), "rope_angles".into()]
        .into_iter()
        .chain([0, 1].into_iter().flat_map(cached))
        .collect();
    assert_eq!(on_host.collect::<Vec<&str>>(), expected);
    let mut lent: Vec<&str> = table.streams.loans.iter().map(|loan| name_of(plan, loan.weight)).collect();
    lent.sort_unstable();
    let weights = plan.buffers.iter().filter(|buffer| {
        matches!(buffer.kind, BufferKind::Weight { .. })
            && ["blk.0.", "blk.1."].iter().any(|layer| buffer.name.starts_with(layer))
    });
    let mut expected: Vec<&str> = weights.map(|buffer| buffer.name.as_str()).collect();
    expected.sort_unstable();
    assert_eq!(lent, expected);
    let slots = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Slot);
    assert_eq!(slots.map(|buffer| buffer.bytes).sum::<u64>(), plan.memory.slots);
    assert!(table.render(&plan.buffers).contains("streamed.ffn_down.weight<blk.1.ffn_down.weight"));
}

fn name_of(plan: &ModelPlan, id: BufferId) -> &str {
    &plan.buffers[id.index()].name
}

/// Slots for the host's weights take memory that is free, and leave no further layer to the host.
#[test]
fn slots_are_planned_where_there_is_memory_for_them() {
    let base = EngineOptions { context: Some(128), ..options(DeviceChoice::Cpu) };
    let stated = EngineOptions { gpu_layers: Some(2), stream_rows: Some(2), ..base.clone() };
    let device = FailingDevice::new(Box::new(ReferenceDevice::new())).with_memory(1 << 40);
    let streams = akunu::plan(&tales(), device.capabilities(), &stated).unwrap();
    let never = EngineOptions { stream_rows: Some(0), ..stated.clone() };
    let without = akunu::plan(&tales(), device.capabilities(), &never).unwrap();
    assert!(streams.memory.slots > 0 && without.memory.slots == 0);
    assert!(without.tables.get(PassKind::StreamedPrefill).is_none());
    let needed = streams.memory.peak() - streams.memory.workspace;
    for (free, has_slots) in [(needed, true), (needed - 1, false)] {
        let device = FailingDevice::new(Box::new(ReferenceDevice::new())).with_memory(free);
        let plan = akunu::plan(&tales(), device.capabilities(), &stated).unwrap();
        assert_eq!((plan.options.host, plan.memory.slots > 0), (streams.options.host, has_slots));
    }
    // Where no pass has enough rows for it, there are none, either.
    let short = EngineOptions { chunk: Some(7), stream_rows: Some(8), ..stated };
    assert_eq!(akunu::plan(&tales(), device.capabilities(), &short).unwrap().memory.slots, 0);
    // By itself only with memory of its own.
    assert_eq!(split(1, |options| options).plan().options.stream_rows, None);
}

#[test]
fn a_batch_gives_what_each_request_gives_alone() {
    let wanted = tokens(20, 0.8);
    let request = |kind| Request { prompt: prompt(kind, 30), options: wanted.clone(), ..Request::default() };
    let requests: Vec<Request> = (0..4).map(request).collect();
    for change in [|options| options, streaming] {
        let (found, _) = together(split(2, |options| change(options.batching(4))), &requests);
        for (kind, found) in found.into_iter().enumerate() {
            assert_eq!(found.unwrap(), generate(&mut alone(), &prompt(kind as u32, 30), &wanted).1.ids);
        }
    }
}

#[test]
fn sessions_share_prefixes_and_shift_on_both_sides() {
    for change in [|options| options, streaming] {
        let mut engine = split(1, |options| change(EngineOptions { slots: 2, ..options }));
        shares_and_forgets_prefixes(&mut engine);
    }

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
        for (experts, stream_rows) in [(1, None), (usize::MAX, None), (1, Some(2)), (usize::MAX, Some(9))] {
            let options = EngineOptions { cpu_experts: Some(experts), stream_rows, ..base.clone() };
            let mut engine = Engine::on_device(model.clone(), two_cpus(), &options).unwrap();
            let found = engine.logits(&ids, false, None).unwrap();
            let same = expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{name} with the experts of {experts} layers, streamed from {stream_rows:?}");
        }
    }
}

/// What loading a plan takes, and a part of what it allocates.
fn part_of(plan: &MemoryPlan, percent: u64) -> u64 {
    plan.loading + (plan.allocated() - plan.workspace) * percent / 100
}

/// Without a stated part, the smallest that fits is chosen, and said.
#[test]
fn models_that_do_not_fit_are_split() {
    let base = EngineOptions { context: Some(128), ..options(DeviceChoice::Cpu) };
    let large = FailingDevice::new(cpu()).with_memory(1 << 40);
    let whole = akunu::plan(&tales(), large.capabilities(), &base).unwrap().memory;
    let mut before = 0;
    for percent in [100, 99, 80, 70] {
        let device = FailingDevice::new(cpu()).with_memory(part_of(&whole, percent));
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

/// Each side fails in each of its passes; what comes then is as if nothing had been.
#[test]
fn what_follows_a_failure_of_a_side_is_right() {
    let ids = prompt(5, 40);
    let expected = generate(&mut alone(), &ids, &tokens(12, 0.8)).1.ids;
    for (failing_host, stream_rows) in [(false, None), (true, None), (false, Some(2)), (true, Some(2))] {
        let failing = FailingDevice::new(cpu());
        let switch = failing.failing();
        let sides: [Box<dyn Device>; 2] = [Box::new(failing), cpu()];
        let [one, other] = sides;
        let hybrid = if failing_host { Hybrid::new(other, one) } else { Hybrid::new(one, other) };
        let options = EngineOptions { chunk: Some(9), stream_rows, ..leaving(3) };
        let mut engine = Engine::on_device(tales(), Box::new(hybrid), &options).unwrap();
        let mut session = engine.session().unwrap();
        for after in [0, 1, 7] {
            let mut pieces = 0;
            switch.store(after == 0, Ordering::Relaxed);
            let failed = engine.generate(&mut session, &ids, &tokens(12, 0.8), &mut |_| {
                pieces += 1;
                switch.store(pieces == after, Ordering::Relaxed);
                ControlFlow::Continue(())
            });
            assert!(failed.unwrap_err().to_string().contains("it failed on purpose"));
            let mut found = Vec::new();
            let mut hear = |piece: akunu::Piece<'_>| {
                found.extend_from_slice(piece.ids);
                ControlFlow::Continue(())
            };
            engine.generate(&mut session, &ids, &tokens(12, 0.8), &mut hear).unwrap();
            assert_eq!(found, expected, "host: {failing_host}, after {after}");
            session.truncate(20);
        }
    }
}

/// The cache of the host's layers is limited by the host's memory, however much the device has.
#[test]
fn the_cache_of_both_sides_is_in_their_memory() {
    let slots = 20_000;
    let device = FailingDevice::new(Box::new(ReferenceDevice::new())).with_memory(1 << 50);
    let base = EngineOptions { kv: KvType::F32, ..options(DeviceChoice::Cpu) }.batching(slots);
    for on_host in [1, tales().config().layer_count] {
        let gpu_layers = Some(tales().config().layer_count - on_host);
        for context in [None, Some(64)] {
            let options = EngineOptions { gpu_layers, context, ..base.clone() };
            let plan = akunu::plan(&tales(), device.capabilities(), &options).unwrap();
            let of_host = |name: &str| plan.buffers.iter().find(|buffer| buffer.name == name).unwrap().bytes;
            let kv = of_host("kv.host_k") + of_host("kv.host_v");
            assert!(kv <= akunu::available_memory().unwrap(), "{kv} bytes of {on_host} layers");
        }
        // A stated size, of two blocks here, is that of both sides together.
        let two_blocks = 3 << 18;
        let stated =
            EngineOptions { gpu_layers, context: Some(64), kv_memory: Some(two_blocks), ..base.clone() };
        let plan = akunu::plan(&tales(), device.capabilities(), &stated).unwrap();
        let kv =
            plan.buffers.iter().filter(|buffer| buffer.name.starts_with("kv.") && buffer.name != "kv.blocks");
        assert_eq!(kv.map(|buffer| buffer.bytes).sum::<u64>(), two_blocks);
    }
}

/// What the CPU takes counts, and what a device has allocated for itself.
#[test]
fn a_stated_limit_is_that_of_both_sides() {
    let device = FailingDevice::new(Box::new(ReferenceDevice::new())).with_memory(1 << 50);
    let capabilities = Capabilities { workspace_bytes: 8 << 20, ..device.capabilities().clone() };
    let model = tales();
    let used = |memory: &MemoryPlan| {
        let weights = (memory.weights_in_place + memory.host_weights).max(model.read_bytes());
        memory.allocated() + memory.host_work + weights
    };
    for on_host in [0, 1, model.config().layer_count] {
        let options = EngineOptions { context: None, ..leaving(on_host) }.batching(2000);
        let whole = akunu::plan(&model, &capabilities, &options).unwrap();
        let kv = whole.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Kv);
        let spared = kv.map(|buffer| buffer.bytes).sum::<u64>() / 2;
        let limit = used(&whole.memory) - spared;
        let plan =
            akunu::plan(&model, &capabilities, &EngineOptions { memory: Some(limit), ..options }).unwrap();
        assert!(used(&plan.memory) <= limit, "{on_host} layers: {} of {limit}", used(&plan.memory));
        assert!(used(&plan.memory) + spared > limit, "{on_host} layers: {} of {limit}", used(&plan.memory));
    }
}

/// A server plans before it loads: the engine has what was planned.
#[test]
fn an_engine_has_the_plan_that_it_is_given() {
    let base = EngineOptions { context: Some(128), ..options(DeviceChoice::Cpu) };
    let large = FailingDevice::new(cpu()).with_memory(1 << 40);
    let whole = akunu::plan(&tales(), large.capabilities(), &base).unwrap().memory;
    let device = FailingDevice::new(cpu()).with_memory(part_of(&whole, 70));
    let plan = akunu::plan(&tales(), device.capabilities(), &base).unwrap();
    let chosen = plan.options.host;
    assert!(!chosen.is_nothing());
    let device = Box::new(device);
    let mut engine =
        Engine::by_plan(tales(), device, plan, &base, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(engine.plan().options.host, chosen);
    assert!(engine.notes().iter().any(|note| matches!(note, Note::Split { .. })));
    engine.logits(&[1, 2, 3], false, None).unwrap();
}

#[test]
fn what_cannot_be_split_is_refused_without_a_device() {
    let refused = |model: &Model, options: &EngineOptions| akunu::check_split(model, options).unwrap_err();
    let no_gpu = refused(&tales(), &leaving(1));
    assert!(matches!(no_gpu, Error::NoGpuBesideCpu), "{no_gpu}");
    akunu::check_split(&tales(), &leaving(0)).unwrap();
    let experts = EngineOptions { cpu_experts: Some(1), ..options(DeviceChoice::Reference) };
    let dense = refused(&tales(), &experts).to_string();
    assert!(dense.contains("no experts"), "{dense}");
    let whisper = Model::open(checked_in("whisper/whisper-80")).unwrap();
    let layers = EngineOptions { gpu_layers: Some(1), ..options(DeviceChoice::Reference) };
    let transcribes = refused(&whisper, &layers).to_string();
    assert!(transcribes.contains("transcribe"), "{transcribes}");
    let tiers = EngineOptions { kv_host: Some(1 << 30), ..layers.clone() };
    let whole_cache = refused(&tales(), &tiers);
    assert!(matches!(whole_cache, Error::LayersOnHost { .. }), "{whole_cache}");
    let bert = Model::open(checked_in("encoders/bert-mean")).unwrap();
    akunu::check_split(&bert, &layers).unwrap();
}

#[test]
fn a_profile_tells_the_sides_apart() {
    let mut engine = split(2, |options| options);
    let timings = engine.profile(ProfileOptions { passes: 1, ..ProfileOptions::default() }).unwrap();
    let of = |label: &str| timings.iter().filter(|timing| timing.label == label).count();
    assert_eq!([of("embed (CPU)"), of("layer.1.attention (CPU)"), of("layer.2.attention")], [1; 3]);
}

/// A device that samples, of which a CPU computes so many layers; or the host samples. And how many bytes it reads.
fn sampling(samples: bool, layers_on_host: usize, slots: usize) -> (Engine, Arc<AtomicUsize>) {
    let late = LateDevice::new(Box::new(ReferenceDevice::new()));
    let device = FailingDevice::new(Box::new(Hybrid::new(Box::new(late), cpu())));
    let device = if samples { device } else { device.without_sampling() };
    let downloaded = device.downloaded();
    let options = EngineOptions { slots, logit_rows: slots, ..leaving(layers_on_host) };
    (Engine::on_device(tales(), Box::new(device), &options).unwrap(), downloaded)
}

#[test]
fn the_device_samples_where_the_logits_are() {
    let constraints = Constraints::new(tales());
    let format = ResponseFormat::Regex("[a-z ]{12,}[.]".into());
    let constraint = constraints.get(&format, None, None).unwrap();
    let held = GenerateOptions { constraint: Some(constraint), max_tokens: Some(9), ..tokens(9, 0.8) };
    let row = tales().config().vocab_size * size_of::<f32>();
    for on_host in [1, tales().config().layer_count] {
        for (wanted, count) in [(tokens(12, 0.8), 12), (held.clone(), 9), (tokens(12, 0.0), 12)] {
            let [by_host, by_device] = [false, true].map(|samples| {
                let (mut engine, downloaded) = sampling(samples, on_host, 1);
                let before = downloaded.load(Ordering::Relaxed);
                let ids = generate(&mut engine, &prompt(1, 30), &wanted).1.ids;
                (ids, downloaded.load(Ordering::Relaxed) - before)
            });
            assert_eq!(by_host.0, by_device.0);
            assert_eq!(by_host.0.len(), count);
            assert!(by_device.1 < row, "{} bytes read", by_device.1);
        }
        let request = |kind| Request {
            prompt: prompt(kind, 20),
            options: if kind == 2 { held.clone() } else { tokens(9, 0.8) },
            ..Request::default()
        };
        let requests: Vec<Request> = (0..4).map(request).collect();
        let [by_host, by_device] =
            [false, true].map(|samples| together(sampling(samples, on_host, 4).0, &requests).0);
        assert_eq!(by_host, by_device);
        // An answer that has a format may end before.
        let whole = |(kind, found): (usize, &Result<Vec<u32>, _>)| {
            found.as_ref().is_ok_and(|ids| ids.len() == 9 || kind == 2 && ids.len() > 3)
        };
        assert!(by_device.iter().enumerate().all(whole), "{by_device:?}");
    }
}

#[test]
fn steps_are_single_on_two_sides() {
    let engine =
        split(1, |options| EngineOptions { chain: Some(8), chain_time: Duration::from_secs(1), ..options });
    assert_eq!(engine.plan().options.chain, 1);
}

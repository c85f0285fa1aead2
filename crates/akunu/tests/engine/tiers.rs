//! Blocks that leave the device for the host's memory and the disk, and come back; saved sessions.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use crate::common::{bits, checked_in, generate, tales, tales_engine};
use akunu::schedule::{Event, Handle, Request, Scheduler, SchedulerOptions, SlotAction, Stats};
use akunu::{
    DeviceChoice, Engine, EngineOptions, Error, GenerateOptions, KvDisk, KvFileProblem, KvType, Model,
    Overflow, Sampling, SavedSession,
};
use akunu_testing::{few_or_many, fewest_or};
use proptest::prelude::*;

fn block_bytes() -> u64 {
    tales_engine(|_| {}).plan().cache.block_bytes() as u64
}

/// Memory for so many blocks in the host's memory, and for two that pass.
fn host(blocks: u64) -> Option<u64> {
    Some((blocks + 2) * block_bytes())
}

fn disk(folder: &Path) -> Option<KvDisk> {
    Some(KvDisk { folder: folder.into(), bytes: 1 << 30 })
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

/// `n` ids that differ from those of other kinds.
fn ids(kind: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 10 + (kind * 97 + i * 7) % 1000).collect()
}

/// The ids of each request, and the statistics.
fn run(engine: Engine, requests: &[Request]) -> (Vec<Vec<u32>>, Stats, Engine) {
    let options = SchedulerOptions { queue: requests.len(), ..SchedulerOptions::default() };
    let (scheduler, handle) = Scheduler::new(engine, &options).unwrap();
    let found = Arc::new(Mutex::new(vec![vec![]; requests.len()]));
    for (number, request) in requests.iter().enumerate() {
        let found = found.clone();
        let listener = move |event: Event<'_>| {
            match event {
                Event::Piece { ids: more, .. } => found.lock().unwrap()[number].extend_from_slice(more),
                Event::Failed(error) => panic!("{number}: {error}"),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        handle.submit(request.clone(), Box::new(listener)).unwrap();
    }
    handle.close();
    let engine = scheduler.run();
    let ids = found.lock().unwrap().clone();
    (ids, Handle::stats(&handle), engine)
}

fn request(prompt: Vec<u32>, n: usize) -> Request {
    Request { prompt, options: tokens(n), ..Request::default() }
}

#[test]
fn prompts_that_left_the_device_come_back_from_memory_and_are_not_processed_again() {
    let kv_memory = Some(4 * block_bytes());
    let engine = tales_engine(|o| (o.kv_memory, o.kv_host) = (kv_memory, host(20)));
    // Each has three blocks, and the device has four.
    let texts: Vec<Request> = (0..5).map(|kind| request(ids(kind, 200), 10)).collect();
    let (first, stats, engine) = run(engine, &texts);
    assert_eq!((stats.prompt_tokens, stats.reused_tokens), (5 * 200, 0));
    let (second, stats, engine) = run(engine, &texts);
    assert_eq!((stats.prompt_tokens, stats.reused_tokens), (5 * 8, 5 * 192));
    assert_eq!(first, second);
    let alone: Vec<Vec<u32>> = texts
        .iter()
        .map(|text| generate(&mut tales_engine(|_| {}), &text.prompt, &text.options).1.ids)
        .collect();
    assert_eq!(first, alone);
    let tiers = engine.tier_stats();
    assert!(tiers.returned_tokens >= 4 * 192 && tiers.moved_tokens >= 4 * 192, "{tiers:?}");
}

#[test]
fn memory_is_that_of_the_plan_to_the_byte() {
    for (blocks, kv_disk) in [(3, None), (7, None)] {
        let kv_memory = Some(4 * block_bytes());
        let asked = host(blocks).map(|bytes| bytes + block_bytes() / 2);
        let engine = tales_engine(|o| (o.kv_memory, o.kv_host, o.kv_disk) = (kv_memory, asked, kv_disk));
        let planned = engine.plan().memory.host_cache;
        assert_eq!(planned, (blocks + 2) * block_bytes());
        assert_eq!(engine.device().allocated_bytes(), engine.plan().memory.allocated());
        assert_eq!(engine.tier_stats().host_bytes as u64, 2 * block_bytes(), "the rest when it is used");
        let texts: Vec<Request> = (0..8).map(|kind| request(ids(kind, 200), 5)).collect();
        let (_, _, engine) = run(engine, &texts);
        assert_eq!(engine.tier_stats().host_bytes as u64, planned);
    }
    let folder = tempfile::tempdir().unwrap();
    let engine = tales_engine(|o| o.kv_disk = disk(folder.path()));
    assert_eq!(engine.plan().memory.host_cache, 2 * block_bytes());
    assert_eq!(engine.tier_stats().host_bytes as u64, 2 * block_bytes());
}

#[test]
fn too_little_memory_of_the_host_is_refused() {
    let options = EngineOptions { kv_host: Some(3 * block_bytes() - 1), ..options() };
    let error = Engine::new(tales(), &options).unwrap_err().to_string();
    assert!(error.contains("must be at least three blocks"), "{error}");
    let options = EngineOptions { kv_host: Some(1 << 60), ..options };
    let error = Engine::new(tales(), &options).unwrap_err();
    assert!(matches!(error, Error::HostCacheTooLarge { .. }), "{error}");
}

fn options() -> EngineOptions {
    EngineOptions {
        context: Some(256),
        threads: Some(1),
        device: DeviceChoice::Cpu,
        ..EngineOptions::default()
    }
}

#[test]
fn models_with_blocks_for_windows_are_refused() {
    let model = Arc::new(Model::open(checked_in("models/gemma3-hd128-pattern")).unwrap());
    let slides =
        |o: &EngineOptions| akunu::plan(&model, &capabilities(), o).map(|plan| plan.cache.windows.is_some());
    let long = EngineOptions { context: Some(4096), chunk: Some(16), chain: Some(8), ..options() };
    assert!(slides(&long).unwrap());
    let error = slides(&EngineOptions { kv_host: Some(1 << 30), ..long }).unwrap_err();
    assert!(matches!(error, Error::WindowsStay { .. }), "{error}");
}

fn capabilities() -> akunu::Capabilities {
    tales_engine(|_| {}).device().capabilities().clone()
}

#[test]
fn a_later_process_finds_what_was_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<Request> = (0..3).map(|kind| request(ids(kind, 150), 10)).collect();
    let open = || tales_engine(|o| o.kv_disk = disk(folder.path()));
    let (first, stats, engine) = run(open(), &texts);
    assert_eq!(stats.reused_tokens, 0);
    drop(engine);
    // At the end of the scheduler, what the device has is written.
    let (second, stats, _) = run(open(), &texts);
    assert_eq!((stats.reused_tokens, second), (3 * 128, first.clone()));
    // Blocks of another type of cache have other names.
    let (_, stats, _) =
        run(tales_engine(|o| (o.kv, o.kv_disk) = (KvType::Q8_0, disk(folder.path()))), &texts);
    assert_eq!(stats.reused_tokens, 0);
    // And so have those of other owners of a cache.
    let salted: Vec<Request> = texts.iter().map(|text| Request { salt: 1, ..text.clone() }).collect();
    let (third, stats, _) = run(open(), &salted);
    assert_eq!((stats.reused_tokens, third), (0, first));
}

#[test]
fn a_session_without_a_scheduler_uses_the_tiers_too() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = ids(1, 200);
    let mut engine = tales_engine(|o| o.kv_disk = disk(folder.path()));
    let mut session = engine.session().unwrap();
    assert_eq!(engine.prefill(&mut session, &prompt).unwrap().reused, 0);
    let expected = bits(&mut engine);
    drop(session);
    engine.keep_on_disk().unwrap();
    let mut engine = tales_engine(|o| o.kv_disk = disk(folder.path()));
    let mut session = engine.session().unwrap();
    assert_eq!(engine.prefill(&mut session, &prompt).unwrap().reused, 192);
    assert_eq!(bits(&mut engine), expected);
    // It keeps what it has if that is more.
    assert_eq!(engine.prefill(&mut session, &prompt).unwrap().reused, 199);
    assert_eq!(bits(&mut engine), expected);
}

#[test]
fn shifted_keys_are_not_kept() {
    let mut engine = tales_engine(|o| (o.kv_host, o.slots) = (host(20), 2));
    let shifting = GenerateOptions { overflow: Overflow::Shift { keep: 10 }, ..tokens(300) };
    let mut session = engine.session().unwrap();
    engine.generate(&mut session, &ids(1, 200), &shifting, &mut |_| ControlFlow::Continue(())).unwrap();
    let text = session.tokens().to_vec();
    drop(session);
    // Another text takes the memory, and the shifted one is processed as it is.
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &ids(2, 256)).unwrap();
    drop(session);
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &text).unwrap();
    let found = bits(&mut engine);
    let mut other = tales_engine(|_| {});
    let mut session = other.session().unwrap();
    other.prefill(&mut session, &text).unwrap();
    assert_eq!(found, bits(&mut other));
}

#[test]
fn a_saved_session_goes_on_as_if_nothing_had_happened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for (kv, len) in [(KvType::F16, 100), (KvType::F32, 64), (KvType::Q8_0, 200), (KvType::F16, 1)] {
        let open = || tales_engine(|o| (o.kv, o.slots) = (kv, 2));
        let (mut first, prompt) = (open(), ids(3, len));
        let mut session = first.session().unwrap();
        first.prefill(&mut session, &prompt).unwrap();
        let saved = first.save_session(&session, &path).unwrap();
        assert_eq!((saved.tokens, saved.bytes), (len as usize, fs::metadata(&path).unwrap().len()));
        let mut second = open();
        let mut other = second.session().unwrap();
        second.prefill(&mut other, &ids(9, 30)).unwrap();
        assert_eq!(second.restore_session(&mut other, &path).unwrap(), saved);
        assert_eq!(other.tokens(), prompt);
        let more = [&prompt[..], &ids(4, 40)].concat();
        assert_eq!(second.prefill(&mut other, &more).unwrap().reused, prompt.len());
        first.prefill(&mut session, &more).unwrap();
        assert_eq!(bits(&mut first), bits(&mut second));
        // The same text leaves the same file, whatever else was in its blocks.
        let again = folder.path().join("again");
        other.truncate(len as usize);
        second.save_session(&other, &again).unwrap();
        assert!(fs::read(&path).unwrap() == fs::read(&again).unwrap());
    }
}

#[test]
fn a_session_is_not_restored_from_a_file_that_is_not_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let mut engine = tales_engine(|o| o.slots = 2);
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &ids(1, 70)).unwrap();
    engine.save_session(&session, &path).unwrap();
    let whole = fs::read(&path).unwrap();
    let mut other = engine.session().unwrap();
    let mut refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = engine.restore_session(&mut other, &path).unwrap_err();
        assert!(other.is_empty());
        match error {
            Error::KvFile { problem, .. } => problem,
            error => panic!("{error}"),
        }
    };
    // Each byte of the beginning, and some of the rest; with the fewest cases every third of these.
    let places = (0..400).chain((400..whole.len()).step_by(997)).chain(whole.len() - 40..whole.len());
    for at in places.step_by(fewest_or(3, 1, 1)) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        refused(&damaged);
    }
    for len in [0, 1, 83, 84, 400, whole.len() - 1] {
        refused(&whole[..len]);
    }
    assert!(matches!(
        refused(b"something else that is long enough to have a header, with all of its fields, in bytes"),
        KvFileProblem::Foreign
    ));
    fs::write(&path, &whole).unwrap();
    let mut q8 = tales_engine(|o| o.kv = KvType::Q8_0);
    let mut session = q8.session().unwrap();
    let error = q8.restore_session(&mut session, &path).unwrap_err();
    assert!(matches!(error, Error::KvFile { problem: KvFileProblem::OtherModel, .. }), "{error}");
    let mut short = tales_engine(|o| o.context = Some(64));
    let mut session = short.session().unwrap();
    let error = short.restore_session(&mut session, &path).unwrap_err();
    assert!(error.to_string().contains("70 tokens, and the context length is 64"), "{error}");
    let error = short.restore_session(&mut session, &folder.path().join("none")).unwrap_err();
    assert!(matches!(error, Error::KvFile { problem: KvFileProblem::Io(_), .. }), "{error}");
}

#[test]
fn rows_that_are_keys_and_values_at_once_are_moved_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let model = Arc::new(Model::open(checked_in("models/deepseek-v2-lite")).unwrap());
    let open = |kv_disk| Engine::new(model.clone(), &EngineOptions { kv_disk, ..options() }).unwrap();
    let (mut first, text) = (open(disk(folder.path())), (0..150).map(|i| i * 7 % 50).collect::<Vec<u32>>());
    let cache = &first.plan().cache;
    assert_eq!(cache.block_bytes() as u64 * u64::from(cache.count), first.plan().memory.kv);
    let mut session = first.session().unwrap();
    first.prefill(&mut session, &text[..70]).unwrap();
    first.save_session(&session, &path).unwrap();
    first.prefill(&mut session, &text).unwrap();
    let expected = bits(&mut first);
    drop(session);
    first.keep_on_disk().unwrap();

    let mut saved = open(None);
    let mut session = saved.session().unwrap();
    saved.restore_session(&mut session, &path).unwrap();
    assert_eq!(saved.prefill(&mut session, &text).unwrap().reused, 70);
    assert_eq!(bits(&mut saved), expected);
    let mut kept = open(disk(folder.path()));
    let mut session = kept.session().unwrap();
    assert_eq!(kept.prefill(&mut session, &text).unwrap().reused, 128);
    assert_eq!(bits(&mut kept), expected);
}

/// What a command for a slot did.
fn change(
    handle: &Handle,
    slot: usize,
    salt: u64,
    action: SlotAction,
) -> mpsc::Receiver<Result<SavedSession, Error>> {
    let (sender, receiver) = mpsc::channel();
    handle.change_slot(slot, salt, action, Box::new(move |done| sender.send(done).unwrap())).unwrap();
    receiver
}

#[test]
fn the_text_of_a_slot_is_saved_restored_and_erased() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let options = SchedulerOptions { keep_texts: true, ..SchedulerOptions::default() };
    let open = || Scheduler::new(tales_engine(|o| *o = o.clone().batching(2)), &options).unwrap();
    let answer = |scheduler: &mut Scheduler, handle: &Handle, prompt: &[u32]| {
        let (sender, receiver) = mpsc::channel();
        let listener = move |event: Event<'_>| {
            match event {
                Event::Piece { ids, .. } => sender.send(ids.to_vec()).unwrap(),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        let request = Request { salt: 3, ..request(prompt.to_vec(), 20) };
        handle.submit(request, Box::new(listener)).unwrap();
        scheduler.drain();
        receiver.iter().flatten().collect::<Vec<u32>>()
    };
    let (mut scheduler, handle) = open();
    let prompt = ids(1, 150);
    let first = answer(&mut scheduler, &handle, &prompt);
    // Slot 0 had the request, with salt 3.
    let others = [
        change(&handle, 0, 4, SlotAction::Save(path.clone())),
        change(&handle, 1, 3, SlotAction::Erase),
        change(&handle, 9, 3, SlotAction::Erase),
    ];
    let saved = change(&handle, 0, 3, SlotAction::Save(path.clone()));
    scheduler.drain();
    for other in others {
        assert!(matches!(other.recv().unwrap(), Err(Error::EmptySlot { .. })));
    }
    let saved = saved.recv().unwrap().unwrap();
    assert_eq!((saved.tokens, saved.bytes), (169, fs::metadata(&path).unwrap().len()));

    let (mut scheduler, handle) = open();
    let restored = change(&handle, 1, 3, SlotAction::Restore(path.clone()));
    let missing = change(&handle, 0, 3, SlotAction::Restore(folder.path().join("none")));
    scheduler.drain();
    assert_eq!(restored.recv().unwrap().unwrap(), saved);
    assert!(matches!(missing.recv().unwrap(), Err(Error::KvFile { .. })));
    let again = answer(&mut scheduler, &handle, &prompt);
    assert_eq!((again, handle.stats().reused_tokens), (first.clone(), 149));
    // An erased text is processed again.
    let erased = [0, 1].map(|slot| change(&handle, slot, 3, SlotAction::Erase));
    scheduler.drain();
    let erased: Vec<usize> = erased.iter().map(|done| done.recv().unwrap().unwrap().tokens).collect();
    assert_eq!(erased, [169, 169]);
    assert_eq!((answer(&mut scheduler, &handle, &prompt), handle.stats().reused_tokens), (first, 149));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: few_or_many(2, 10), failure_persistence: None, ..Default::default() })]

    /// Crowds of texts that share beginnings, with salts, in little memory, several times, with faults in between.
    #[test]
    fn each_gets_what_it_gets_alone_wherever_its_blocks_were(
        texts in prop::collection::vec((0..4u32, 1..200u32, 0..3u32, 1..30usize, 0..2u64, any::<bool>()), 1..10),
        slots in 1..4usize,
        spare in 0..3u64,
        in_memory in prop::option::of(1..6u64),
        on_disk in any::<bool>(),
        damage in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let open = || tales_engine(|o| {
            *o = EngineOptions {
                kv_memory: Some((4 + spare) * block_bytes()),
                kv_host: in_memory.and_then(host),
                kv_disk: on_disk.then(|| disk(folder.path())).flatten(),
                ..o.clone().batching(slots)
            };
        });
        let requests: Vec<Request> = texts.iter().map(|&(kind, shared, rest, n, salt, shifts)| {
            let prompt = [&ids(kind, shared)[..], &ids(100 + rest, rest * 9)].concat();
            let sampling = Sampling { seed: 7, temperature: 0.8, ..Sampling::default() };
            let overflow = if shifts { Overflow::Shift { keep: 5 } } else { Overflow::Stop };
            let n = if shifts { n + 100 } else { n };
            Request { prompt, options: GenerateOptions { sampling, overflow, ..tokens(n) }, salt, ..Request::default() }
        }).collect();
        let mut alone = tales_engine(|_| {});
        let expected: Vec<Vec<u32>> =
            requests.iter().map(|request| generate(&mut alone, &request.prompt, &request.options).1.ids).collect();
        let mut engine = open();
        for round in 0..3 {
            let (found, stats, ran) = run(engine, &requests);
            prop_assert_eq!(&found, &expected, "round {}", round);
            prop_assert_eq!(stats.kv_tokens, 0);
            prop_assert!(ran.tier_stats().host_bytes as u64 <= ran.plan().memory.host_cache);
            engine = ran;
            if let Some(damage) = damage.filter(|_| on_disk) {
                let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
                if let Some(path) = files.get(damage.index(files.len().max(1))) {
                    let mut bytes = fs::read(path).unwrap();
                    let at = damage.index(bytes.len());
                    bytes[at] ^= 1;
                    fs::write(path, &bytes).unwrap();
                }
            }
            if round == 1 {
                drop(engine);
                engine = open();
            }
        }
    }
}

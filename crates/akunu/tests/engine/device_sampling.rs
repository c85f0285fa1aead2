//! Sampling on a device gives the same tokens as on the host.
//!
//! `AKUNU_TEST_DEVICE` selects another device than the reference device. It needs no files, so that the program also runs
//! on a machine that has nothing else of the repository.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::common::{generate, options, tales, tales_engine};
use akunu::schedule::{Event, Request, Scheduler, SchedulerOptions};
use akunu::{
    Choice, Constraints, Device, DeviceChoice, Engine, EngineOptions, Error, Feed, FinishReason,
    GenerateOptions, Generated, Model, Overflow, ResponseFormat, Sampler, Sampling, Session, open_device,
};
use akunu_device_testing::{FailingDevice, LateDevice, sampled};
use akunu_fixtures::scripted;
use akunu_plan::sample::BIASES;
use akunu_testing::fewest_or;

fn tested_options() -> EngineOptions {
    let named = std::env::var("AKUNU_TEST_DEVICE");
    let device = named.map_or(DeviceChoice::Reference, |name| name.parse().unwrap());
    EngineOptions { context: Some(64), ..options(device) }
}

fn tested_device() -> Box<dyn Device> {
    let EngineOptions { device, threads, backends, .. } = tested_options();
    let device = open_device(device, threads, &backends).unwrap();
    assert!(device.capabilities().samples, "{} does not sample", device.capabilities().name);
    // What nothing waits for would be done at once by the reference, and is not by a card.
    Box::new(LateDevice::new(device))
}

/// The tested device, or the same without sampling.
fn engine(samples: bool, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let device: Box<dyn Device> = match samples {
        true => tested_device(),
        false => Box::new(FailingDevice::new(tested_device()).without_sampling()),
    };
    let mut options = tested_options();
    change(&mut options);
    Engine::on_device(tales(), device, &options).unwrap()
}

fn compare(check: impl Fn(&mut sampled::OnDevices<'_>)) {
    let mut device = tested_device();
    check(&mut |run| run(&mut *device));
}

/// Those of the emulator are tested in `akunu-emulated`; the reference device is what is compared with.
#[test]
fn the_kernels_sample_as_the_definition_says() {
    if tested_options().device == DeviceChoice::Reference {
        return;
    }
    compare(sampled::tokens_are_those_of_the_reference);
    compare(sampled::logits_that_are_no_numbers_and_nothing_to_pick_are_reported);
    compare(sampled::tokens_that_are_all_stairs_are_walked);
    compare(sampled::sums_of_top_p_are_exact);
    compare(sampled::many_rows_have_settings_of_their_own);
    compare(sampled::rows_without_a_token_do_not_touch_others);
}

fn prompt() -> Vec<u32> {
    tales().encode("Once upon a time there was a time").unwrap()
}

fn base() -> GenerateOptions {
    GenerateOptions { max_tokens: Some(20), ignore_eos: true, ..Default::default() }
}

/// The result on host and device, which must be equal.
fn both(wanted: &GenerateOptions) -> (String, Generated) {
    both_after(&prompt(), wanted)
}

fn both_after(prompt: &[u32], wanted: &GenerateOptions) -> (String, Generated) {
    let [host, device] = [false, true].map(|samples| {
        let mut engine = engine(samples, |_| {});
        generate(&mut engine, prompt, wanted)
    });
    assert_eq!(host.0, device.0, "{wanted:?}");
    assert_eq!((&host.1.ids, &host.1.finish), (&device.1.ids, &device.1.finish), "{wanted:?}");
    device
}

fn samplings() -> Vec<Sampling> {
    let warm = Sampling { temperature: 1.1, seed: 9, ..Default::default() };
    let limited = Sampling { top_k: 30, top_p: 0.9, min_p: 0.01, ..warm.clone() };
    let penalties = Sampling {
        repeat_penalty: 1.3,
        frequency_penalty: 0.2,
        presence_penalty: 0.1,
        repeat_last_n: 5,
        logit_bias: vec![(3, 2.0), (7, f32::NEG_INFINITY), (3, 0.5)],
        ..limited.clone()
    };
    vec![
        warm.clone(),
        Sampling { top_p: 0.6, seed: u64::MAX, ..warm.clone() },
        Sampling { top_k: 3, ..warm.clone() },
        Sampling { min_p: 0.2, ..warm.clone() },
        Sampling { repeat_last_n: 1000, ..penalties.clone() },
        // Greedy with penalties.
        Sampling { temperature: 0.0, ..penalties.clone() },
        // Exceeds the device's record.
        Sampling { repeat_last_n: 5000, ..penalties.clone() },
        penalties,
        limited.clone(),
        Sampling { top_n_sigma: 1.0, ..warm.clone() },
        Sampling { typical_p: 0.5, ..limited.clone() },
        Sampling { xtc_probability: 1.0, xtc_threshold: 0.05, ..warm.clone() },
        Sampling { xtc_probability: 0.5, xtc_threshold: 0.01, ..limited.clone() },
        Sampling { dynatemp_range: 1.0, dynatemp_exponent: 0.7, ..limited.clone() },
        // Its biases change with each token.
        Sampling { dry_multiplier: 3.0, dry_allowed_length: 1, ..Sampling::default() },
        Sampling { dry_multiplier: 3.0, dry_allowed_length: 1, dry_last_n: 9, ..limited.clone() },
        // Its limit changes with each token, by the host.
        Sampling { mirostat_tau: 1.0, mirostat_eta: 0.5, ..warm.clone() },
        Sampling { mirostat_tau: 4.0, dynatemp_range: 0.5, typical_p: 0.9, ..warm },
    ]
}

#[test]
fn a_seed_gives_the_same_text_on_host_and_device() {
    let texts: Vec<String> = samplings()
        .into_iter()
        .step_by(fewest_or(5, 3, 1))
        .map(|sampling| both(&GenerateOptions { sampling, ..base() }).0)
        .collect();
    let mut different = texts.clone();
    different.sort();
    different.dedup();
    assert!(different.len() > fewest_or(2, 3, 10), "{texts:?}");
}

#[test]
fn texts_end_at_the_same_token_on_host_and_device() {
    let sampling = samplings().remove(0);
    let (text, generated) = both(&GenerateOptions { sampling: sampling.clone(), ..base() });
    let id = generated.ids[9];
    let (_, stopped) = both(&GenerateOptions { sampling: sampling.clone(), stop_ids: vec![id], ..base() });
    assert_eq!(stopped.finish, FinishReason::StopId(id));
    let word = text.split_whitespace().nth(4).unwrap().to_string();
    let (cut, stopped) =
        both(&GenerateOptions { sampling: sampling.clone(), stop_strings: vec![word.clone()], ..base() });
    assert_eq!(stopped.finish, FinishReason::StopString(word.clone()));
    assert!(text.starts_with(&cut) && !cut.contains(&word));
    // Beyond the context, where positions in the cache differ from those of the draws.
    let shifting = GenerateOptions {
        sampling: samplings().remove(7),
        max_tokens: Some(90),
        overflow: Overflow::Shift { keep: 2 },
        ..base()
    };
    assert_eq!(both(&shifting).1.ids.len(), 90);
}

#[test]
fn a_chain_is_one_submission_and_the_session_continues() {
    let sampling = samplings().remove(8);
    let mut engine = engine(true, |_| {});
    let mut sampler = Sampler::new(&sampling, engine.vocab_size()).unwrap();
    let mut session = engine.session().unwrap();
    let mut history = prompt();
    engine.prefill(&mut session, &history[..history.len() - 1]).unwrap();
    for _ in 0..2 {
        let found = engine.chain(&mut session, &history, Some(&mut sampler), 8, &[], None).unwrap().to_vec();
        assert_eq!(found.len(), 8);
        history.extend(&found);
        assert_eq!(session.tokens(), &history[..history.len() - 1]);
    }
    // Single steps, sampled on the host.
    let (_, expected) = both(&GenerateOptions { sampling, max_tokens: Some(16), ..base() });
    assert_eq!(history[prompt().len()..], expected.ids);
    // Nothing is processed if cancelled before.
    let cancel = AtomicBool::new(true);
    let len = session.len();
    let found = engine.chain(&mut session, &history, Some(&mut sampler), 8, &[], Some(&cancel)).unwrap();
    assert!(found.is_empty() && session.len() == len);
    let none = engine.chain(&mut session, &[], Some(&mut sampler), 8, &[], None);
    assert!(matches!(none, Err(Error::EmptyPrompt)));
}

#[test]
fn cancelling_ends_a_sampled_text() {
    let cancel = Arc::new(AtomicBool::new(false));
    let wanted = GenerateOptions {
        sampling: samplings().remove(0),
        cancel: Some(cancel.clone()),
        max_tokens: None,
        ..base()
    };
    let mut engine = engine(true, |_| {});
    let mut session = engine.session().unwrap();
    let mut pieces = 0;
    let generated = engine
        .generate(&mut session, &prompt(), &wanted, &mut |_| {
            pieces += 1;
            cancel.fetch_or(pieces == 3, Ordering::Relaxed);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(generated.finish, FinishReason::Cancelled);
}

#[test]
fn a_batch_gets_the_same_tokens_as_each_sampler_alone() {
    let samplings = samplings();
    let mut found = vec![];
    let three = |o: &mut EngineOptions| (o.slots, o.logit_rows) = (3, 3);
    // By the host, by the device, and by the host on the threads of the CPU.
    let on_threads = tales_engine(|o| {
        three(o);
        (o.threads, o.context) = (Some(2), Some(64));
    });
    for mut engine in [engine(false, three), engine(true, three), on_threads] {
        let mut samplers: Vec<Sampler> =
            [1, 7, 5].map(|i: usize| Sampler::new(&samplings[i], engine.vocab_size()).unwrap()).into();
        let mut histories: Vec<Vec<u32>> = (1..=3).map(|n| prompt()[..n + 2].to_vec()).collect();
        let mut sessions: Vec<Session> = histories.iter().map(|_| engine.session().unwrap()).collect();
        for (session, history) in sessions.iter_mut().zip(&histories) {
            engine.prefill(session, &history[..history.len() - 1]).unwrap();
        }
        for _ in 0..6 {
            let mut feeds: Vec<Feed<'_>> = sessions
                .iter_mut()
                .zip(&histories)
                .map(|(session, history)| Feed { session, ids: &history[history.len() - 1..], logits: 1 })
                .collect();
            engine.pass(&mut feeds).unwrap();
            let choice = |(sampler, history)| Choice { sampler: Some(sampler), history };
            let told = histories.iter().map(Vec::as_slice);
            let mut choices: Vec<Choice<'_>> = samplers.iter_mut().zip(told).map(choice).collect();
            let next = engine.pick(&mut choices).unwrap().to_vec();
            let too_few = engine.pick(&mut choices[..2]);
            assert!(matches!(too_few, Err(Error::Setting { .. })));
            histories.iter_mut().zip(next).for_each(|(history, id)| history.push(id));
        }
        for (session, history) in sessions.iter().zip(&histories) {
            assert_eq!(session.tokens(), &history[..history.len() - 1]);
        }
        for (i, n) in [(1, 3), (7, 4), (5, 5)] {
            let wanted = GenerateOptions { sampling: samplings[i].clone(), max_tokens: Some(6), ..base() };
            sessions.clear();
            let alone = generate(&mut engine, &prompt()[..n], &wanted).1;
            assert_eq!(alone.ids, histories[n - 3][n..]);
        }
        found.push(histories);
    }
    assert_eq!(found[0], found[1]);
}

#[test]
fn excluding_every_token_is_an_error_on_devices_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    scripted::write(&path, None, &["a"]);
    let model = Arc::new(Model::open(&path).unwrap());
    let mut engine = Engine::on_device(model, tested_device(), &tested_options()).unwrap();
    let vocab = engine.vocab_size() as u32;
    assert!(vocab as usize <= BIASES);
    for spared in [None, Some(5)] {
        let all = (0..vocab).filter(|id| Some(*id) != spared).map(|id| (id, f32::NEG_INFINITY));
        let sampling = Sampling { temperature: 1.0, logit_bias: all.collect(), ..Default::default() };
        let mut sampler = Sampler::new(&sampling, vocab as usize).unwrap();
        let mut session = engine.session().unwrap();
        let found = engine.chain(&mut session, &[1], Some(&mut sampler), 4, &[], None);
        match spared {
            None => assert!(matches!(found, Err(Error::NothingToPick)), "{found:?}"),
            Some(id) => assert_eq!(found.unwrap(), [id; 4]),
        }
        assert_eq!(session.tokens(), if spared.is_some() { &[1, 5, 5, 5][..] } else { &[] });
    }
}

/// The ids of several requests at once.
fn together(engine: Engine, wanted: &[GenerateOptions]) -> Vec<Vec<u32>> {
    let (scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
    let ids = Arc::new(Mutex::new(vec![Vec::new(); wanted.len()]));
    for (number, options) in wanted.iter().enumerate() {
        let ids = ids.clone();
        let on_event = Box::new(move |event: Event<'_>| {
            match event {
                Event::Piece { ids: more, .. } => {
                    ids.lock().unwrap_or_else(PoisonError::into_inner)[number].extend_from_slice(more);
                }
                Event::Failed(error) => panic!("{error}"),
                Event::Started { .. } | Event::StepEnd | Event::Finished(_) => {}
            }
            ControlFlow::Continue(())
        });
        let request =
            Request { prompt: prompt()[..4].to_vec(), options: options.clone(), ..Request::default() };
        handle.submit(request, on_event).unwrap();
    }
    handle.close();
    scheduler.run();
    ids.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// More requests than any batch that used to be sampled on the device. One of them has settings that no device supports.
#[test]
fn the_host_reads_logits_only_of_rows_that_no_device_samples() {
    const TOKENS: usize = 3;
    let count = fewest_or(66, 100, 100);
    let samplings = samplings();
    let is_supported = |sampling: &&Sampling| sampling.mirostat_tau == 0.0 && sampling.repeat_last_n < 5000;
    let supported: Vec<&Sampling> = samplings.iter().filter(is_supported).collect();
    let unsupported = samplings.iter().find(|sampling| sampling.mirostat_tau > 0.0).unwrap();
    let options = |row: usize| {
        let sampling = if row == 40 { unsupported } else { supported[row % supported.len()] };
        let sampling = Sampling { seed: row as u64, ..sampling.clone() };
        GenerateOptions { sampling, max_tokens: Some(TOKENS), ..base() }
    };
    let wanted: Vec<GenerateOptions> = (0..count).map(options).collect();
    let found = [false, true].map(|samples| {
        let device = FailingDevice::new(tested_device());
        let device = if samples { device } else { device.without_sampling() };
        let downloaded = device.downloaded();
        let options = tested_options().batching(count);
        let context = Some(count.max(64));
        let engine =
            Engine::on_device(tales(), Box::new(device), &EngineOptions { context, ..options }).unwrap();
        let before = downloaded.load(Ordering::Relaxed);
        let ids = together(engine, &wanted);
        (ids, downloaded.load(Ordering::Relaxed) - before)
    });
    let [(by_host, all_logits), (by_device, few_logits)] = found;
    assert_eq!(by_host, by_device);
    let row = tales().config().vocab_size * size_of::<f32>();
    // The tokens of all rows, and the logits of one row for each of its tokens.
    assert_eq!(few_logits, count * TOKENS * size_of::<u32>() + TOKENS * row);
    assert!(all_logits >= count * TOKENS * row);
}

#[test]
fn the_device_samples_after_a_pass_of_a_single_row_too() {
    for sampling in [samplings().remove(0), samplings().remove(7)] {
        let device = FailingDevice::new(tested_device());
        let downloaded = device.downloaded();
        let mut engine = Engine::on_device(tales(), Box::new(device), &tested_options()).unwrap();
        let before = downloaded.load(Ordering::Relaxed);
        let wanted = GenerateOptions { sampling, max_tokens: Some(5), ..base() };
        let (_, generated) = generate(&mut engine, &prompt()[..1], &wanted);
        assert_eq!(generated.ids, both_after(&prompt()[..1], &wanted).1.ids);
        // The first token follows the prompt, of one row, and the others are found in chains.
        assert_eq!(downloaded.load(Ordering::Relaxed) - before, 5 * size_of::<u32>());
    }
}

#[test]
fn constrained_answers_are_the_same_on_host_and_device() {
    let constraints = Constraints::new(tales());
    let held = |text: &str| constraints.get(&ResponseFormat::Regex(text.into()), None, None).unwrap();
    // The last leaves fewer tokens than the limits of most settings.
    let held = [held("[a-z ]{12,}[.]"), held("(yes|no|perhaps), said the (fox|owl)[.]"), held("x{9}")];
    let options = |sampling: &Sampling, constraint| GenerateOptions {
        sampling: sampling.clone(),
        max_tokens: Some(7),
        constraint,
        ..Default::default()
    };
    let [greedy, warm, .., penalties, limited] = &[&[Sampling::default()][..], &samplings()].concat()[..]
    else {
        panic!("settings")
    };
    let wanted = [
        options(greedy, Some(held[0].clone())),
        options(penalties, None),
        options(warm, Some(held[1].clone())),
        options(limited, Some(held[2].clone())),
        options(penalties, Some(held[0].clone())),
    ];
    let alone: Vec<Vec<u32>> =
        wanted.iter().map(|options| both_after(&prompt()[..4], options).1.ids).collect();
    for samples in [false, true] {
        let engine = engine(samples, |options| (options.slots, options.logit_rows) = (4, 4));
        assert_eq!(together(engine, &wanted), alone, "the device samples: {samples}");
    }
}

#[test]
fn answers_in_a_grammar_end_alike_on_host_and_device() {
    let constraints = Constraints::new(tales());
    let held = |text: &str| constraints.get(&ResponseFormat::Regex(text.into()), None, None).unwrap();
    let prompt = &prompt()[..4];
    let patterns = [("(yes|no|perhaps), said the (fox|owl)[.]", 0), ("[a-z ]{20,24}[.]", 1)];
    for (pattern, sampling) in patterns.into_iter().take(fewest_or(1, 2, 2)) {
        let options = GenerateOptions {
            sampling: [Sampling::default(), samplings()[0].clone()][sampling].clone(),
            constraint: Some(held(pattern)),
            ..Default::default()
        };
        let (_, whole) = both_after(prompt, &options);
        assert_eq!(whole.finish, FinishReason::Complete);
        // The last token is also the last that is allowed, or the last for which there is room.
        let length = whole.ids.len();
        for most in [length, length - 1, 1, 0] {
            let (_, cut) = both_after(prompt, &GenerateOptions { max_tokens: Some(most), ..options.clone() });
            assert_eq!(cut.ids, whole.ids[..most]);
            let ends = if most == length { FinishReason::Complete } else { FinishReason::MaxTokens };
            assert_eq!(cut.finish, ends);
        }
        // The last token need not be processed.
        for (less, ends) in [(1, FinishReason::Complete), (2, FinishReason::ContextFull)] {
            let context = Some(prompt.len() + length - less);
            let [host, device] = [false, true].map(|samples| {
                let mut engine = engine(samples, |options| options.context = context);
                generate(
                    &mut engine,
                    prompt,
                    &GenerateOptions { overflow: Overflow::Stop, ..options.clone() },
                )
            });
            assert_eq!((host.0, host.1.ids, &host.1.finish), (device.0, device.1.ids, &device.1.finish));
            assert_eq!(host.1.finish, ends);
        }
    }
}

#[test]
fn a_session_goes_on_after_an_answer_in_a_grammar() {
    let constraints = Constraints::new(tales());
    let constraint = constraints.get(&ResponseFormat::Regex("the (fox|owl)[.]".into()), None, None).unwrap();
    let mut engine = engine(true, |_| {});
    let mut session = engine.session().unwrap();
    let held = GenerateOptions { constraint: Some(constraint), ..Default::default() };
    let answer = engine.generate(&mut session, &prompt(), &held, &mut |_| ControlFlow::Continue(())).unwrap();
    let text = [prompt(), answer.ids].concat();
    assert!(text.starts_with(session.tokens()) && session.len() >= text.len() - 1, "{}", session.len());
    let after = [&text[..], &[5]].concat();
    let again = engine.generate(&mut session, &after, &base(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(again.ids, both_after(&after, &base()).1.ids);
}

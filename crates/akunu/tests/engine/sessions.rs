//! The KV cache: prefixes, truncation, shifts, copies, chunks, chains.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::{DEVICES, checked_in, checked_in_models, exact, generate, options, tales, tales_engine};
use akunu::{
    Choice, DeviceChoice, Engine, EngineOptions, Error, Feed, GenerateOptions, KvType, Model, Overflow,
    Session,
};
use akunu_cpu::{CpuDevice, CpuOptions, Isa};
use akunu_testing::{fewest_or, some_of};

const PROMPT: &str = "Once upon a time there was a little fox who lived near the river.";

fn prompt() -> Vec<u32> {
    tales().encode(PROMPT).unwrap()
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

/// The logits after `ids` in a new session.
fn fresh(engine: &mut Engine, ids: &[u32]) -> Vec<u32> {
    let logits = engine.logits(ids, false, None).unwrap();
    bits(&logits)
}

#[test]
fn a_shared_prefix_is_reused_with_the_same_logits() {
    let mut engine = tales_engine(|o| o.slots = 2);
    let first = prompt();
    let mut second = first.clone();
    second.truncate(first.len() - 3);
    second.extend(&first[..5]);

    let mut session = engine.session().unwrap();
    engine.generate(&mut session, &first, &tokens(20), &mut |_| ControlFlow::Continue(())).unwrap();
    let generated =
        engine.generate(&mut session, &second, &tokens(20), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(generated.timings.reused_tokens, first.len() - 3);
    assert_eq!(generated.timings.prompt_tokens, second.len());
    assert_eq!(generated.ids, self::generate(&mut engine, &second, &tokens(20)).1.ids);

    // The whole prompt is cached; its last token is processed again for its logits.
    let again = engine.prefill(&mut session, &second).unwrap();
    assert_eq!((again.reused, again.fed), (second.len() - 1, 1));
    let reused = bits(engine.last_logits().unwrap());
    assert_eq!(reused, fresh(&mut engine, &second));
}

#[test]
fn a_session_holds_the_prompt_and_the_decoded_tokens() {
    let mut engine = tales_engine(|_| {});
    let prompt = prompt();
    let mut session = engine.session().unwrap();
    let generated =
        engine.generate(&mut session, &prompt, &tokens(9), &mut |_| ControlFlow::Continue(())).unwrap();
    let all = [prompt, generated.ids].concat();
    // The last token was sampled but not processed.
    assert_eq!(session.tokens(), &all[..all.len() - 1]);
}

#[test]
fn a_truncated_session_continues_like_a_shorter_one() {
    for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let mut engine = tales_engine(|o| (o.slots, o.kv) = (2, kv));
        let prompt = prompt();
        let mut session = engine.session().unwrap();
        engine.prefill(&mut session, &prompt).unwrap();
        session.truncate(6);
        assert_eq!(session.tokens(), &prompt[..6]);
        let other = [&prompt[..6], &prompt[9..]].concat();
        assert_eq!(engine.prefill(&mut session, &other).unwrap().reused, 6);
        let continued = bits(engine.last_logits().unwrap());
        assert_eq!(continued, fresh(&mut engine, &other), "{kv:?}");
    }
}

#[test]
fn a_copied_prefix_gives_the_same_logits() {
    for device in DEVICES {
        for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let options = EngineOptions { slots: 3, kv, context: Some(61), ..options(device) };
            let mut engine = Engine::new(tales(), &options).unwrap();
            let prompt = prompt();
            let (mut from, mut to) = (engine.session().unwrap(), engine.session().unwrap());
            engine.prefill(&mut from, &prompt).unwrap();
            engine.prefill(&mut to, &[5, 6, 7]).unwrap();
            engine.copy_prefix(&from, &mut to, 8).unwrap();
            assert_eq!(to.tokens(), &prompt[..8]);
            let other = [&prompt[..8], &[9, 8, 7]].concat();
            assert_eq!(engine.prefill(&mut to, &other).unwrap().reused, 8);
            let copied = bits(engine.last_logits().unwrap());
            assert_eq!(copied, fresh(&mut engine, &other), "{device} {kv:?}");
            // The original is unchanged.
            assert_eq!(from.tokens(), prompt);
            engine.prefill(&mut from, &prompt).unwrap();
            let original = bits(engine.last_logits().unwrap());
            assert_eq!(original, fresh(&mut engine, &prompt), "{device} {kv:?}");
            assert!(matches!(engine.copy_prefix(&from, &mut to, 99), Err(Error::OutsideSession { .. })));
        }
    }
}

/// The largest difference, relative to the largest logit.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(0f32, |m, l| m.max(l.abs()));
    a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// Models whose keys are multiplied by weights after they are rotated.
const NOT_SHIFTED: [&str; 1] = ["hunyuan-moe"];

#[test]
fn a_shift_rotates_the_keys_to_their_new_positions() {
    let mut models = vec![("tales".to_string(), tales())];
    // All kinds of rotation, scaling and windows.
    models.extend(
        checked_in_models().into_iter().map(|(name, path)| (name, Arc::new(Model::open(path).unwrap()))),
    );
    for (name, model) in some_of(models, 13) {
        // With one layer, a key depends on its token and position alone, so a shift must give the same keys as a prefill.
        let model = Arc::new(model.first_layers(1).unwrap());
        for device in DEVICES {
            let mut unrounded = Vec::new();
            for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
                let options = EngineOptions { slots: 2, kv, context: Some(61), ..exact(device) };
                let Ok(mut engine) = Engine::new(model.clone(), &options) else { continue };
                let ids: Vec<u32> = (0..40).map(|i| (i * 31 + 7) % engine.vocab_size() as u32).collect();
                let mut session = engine.session().unwrap();
                engine.prefill(&mut session, &ids).unwrap();
                if NOT_SHIFTED.contains(&name.as_str()) {
                    assert!(matches!(engine.shift(&mut session, 3, 12), Err(Error::CannotShift)), "{name}");
                    assert_eq!(session.tokens(), ids);
                    continue;
                }
                engine.shift(&mut session, 3, 12).unwrap();
                let rest = [&ids[..3], &ids[15..]].concat();
                assert_eq!(session.tokens(), rest);

                // A shifted key is rounded twice, so it may be off by a small multiple of what rounding once does.
                let (mut worst, mut rounding) = (0f32, 0f32);
                for (i, last) in (11..17).enumerate() {
                    let next = [&rest[..], &[last]].concat();
                    assert_eq!(engine.prefill(&mut session, &next).unwrap().fed, 1);
                    let shifted = engine.last_logits().unwrap().to_vec();
                    let anew = engine.logits(&next, false, None).unwrap();
                    let without_shift = engine.logits(&[&ids[..], &[last]].concat(), false, None).unwrap();
                    assert_ne!(bits(&without_shift), bits(&anew), "the test tells them apart");
                    if kv == KvType::F32 {
                        unrounded.push(anew.clone());
                    }
                    worst = worst.max(difference(&shifted, &anew));
                    rounding = rounding.max(difference(&anew, &unrounded[i]));
                }
                let tolerance = f32::max(1e-5, 3.0 * rounding);
                assert!(worst <= tolerance, "{name} on {device}, {kv:?}: {worst:e}, {tolerance:e} allowed");
            }
        }
    }
}

#[test]
fn a_model_that_cannot_shift_says_so_before_it_generates() {
    let model = Arc::new(Model::open(checked_in("models").join(NOT_SHIFTED[0])).unwrap());
    let mut engine = Engine::new(model, &options(DeviceChoice::Cpu)).unwrap();
    let shifting = GenerateOptions { overflow: Overflow::Shift { keep: 0 }, ..tokens(4) };
    let mut session = engine.session().unwrap();
    let result = engine.generate(&mut session, &[1, 5], &shifting, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(result, Err(Error::CannotShift)), "{result:?}");
}

#[test]
fn a_shift_outside_the_session_is_refused() {
    let mut engine = tales_engine(|_| {});
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &[1, 2, 3]).unwrap();
    for (keep, discard) in [(2, 2), (4, 0), (1, usize::MAX)] {
        assert!(matches!(engine.shift(&mut session, keep, discard), Err(Error::OutsideSession { .. })));
    }
    engine.shift(&mut session, 3, 0).unwrap();
    assert_eq!(session.tokens(), [1, 2, 3]);
}

#[test]
fn logits_do_not_depend_on_chunks_threads_or_instruction_sets() {
    let mut models = vec![("tales".to_string(), tales())];
    models.extend(
        checked_in_models().into_iter().map(|(name, path)| (name, Arc::new(Model::open(path).unwrap()))),
    );
    let best = *Isa::available().last().unwrap();
    let others = Isa::available().into_iter().filter(|isa| *isa != best);
    let of_best = (1..=3).step_by(fewest_or(2, 1, 1)).map(|threads| (best, threads));
    let combinations: Vec<(Isa, usize)> = others.map(|isa| (isa, 1)).chain(of_best).collect();
    for (name, model) in some_of(models, 13) {
        let vocab = model.config().vocab_size as u32;
        let ids: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % vocab).collect();
        let mut expected = None;
        for (i, &(isa, threads)) in combinations.iter().enumerate() {
            let options = EngineOptions {
                context: Some(128),
                chunk: Some(128),
                logit_rows: 128,
                ..options(DeviceChoice::Cpu)
            };
            let device = CpuDevice::new(CpuOptions {
                threads: Some(threads),
                isa: Some(isa),
                ..CpuOptions::default()
            })
            .unwrap();
            let mut engine = Engine::on_device(model.clone(), Box::new(device), &options).unwrap();
            // With the fewest cases two in one combination, then the other two.
            let step = fewest_or(2, 1, 1);
            for chunk in [1, 7, 64, 70].into_iter().skip(i % step).step_by(step) {
                let found = bits(&engine.logits(&ids, true, Some(chunk)).unwrap());
                let expected = expected.get_or_insert_with(|| found.clone());
                assert!(*expected == found, "{name}: {isa:?}, {threads} threads, chunks of {chunk}");
            }
            // Logits of the last row only: another shape of the output projection.
            let last = bits(&engine.logits(&ids, false, Some(13)).unwrap());
            assert!(
                expected.as_ref().unwrap().ends_with(&last),
                "{name}: {isa:?}, {threads} threads, last row"
            );
        }
    }
}

#[test]
fn chains_do_not_change_the_tokens() {
    let mut expected: Option<(Vec<u32>, String)> = None;
    for device in DEVICES {
        for chain in [1, 2, 3, 8, 64].into_iter().step_by(fewest_or(2, 1, 1)) {
            let options = EngineOptions { chain: Some(chain), context: Some(256), ..options(device) };
            let mut engine = Engine::new(tales(), &options).unwrap();
            let (text, generated) =
                generate(&mut engine, &prompt(), &tokens(if chain == 1 { 60 } else { 50 }));
            let expected = expected.get_or_insert((generated.ids.clone(), text.clone()));
            // Devices may differ in the last bits, but not in the tokens of a trained model. The same device must not differ.
            assert!(expected.0.starts_with(&generated.ids), "{device}, chains of {chain}");
            assert!(expected.1.starts_with(&text), "{device}, chains of {chain}");
        }
    }
}

#[test]
fn decode_stops_at_a_stop_id() {
    let mut engine = tales_engine(|o| o.slots = 2);
    let prompt = prompt();
    let all = generate(&mut engine, &prompt, &tokens(8)).1.ids;
    let mut session = engine.session().unwrap();
    engine.prefill(&mut session, &prompt).unwrap();
    let steps = all.len() - 1;
    let end = 1 + all[1..].iter().position(|id| *id == all[4]).unwrap();
    let found = engine.chain(&mut session, &all[..1], None, steps, &[all[4]], None).unwrap().to_vec();
    assert!(all[1..].starts_with(&found) && found.len() <= end, "{found:?} of {all:?}");
    if found.len() == end {
        assert_eq!(found.last(), Some(&all[4]));
    }
    assert_eq!(session.tokens(), [&prompt[..], &all[..found.len()]].concat());
}

#[test]
fn slots_are_limited_and_freed() {
    let mut engine = tales_engine(|o| o.slots = 2);
    let a = engine.session().unwrap();
    let b = engine.session().unwrap();
    assert_ne!(a.slot(), b.slot());
    assert!(matches!(engine.session(), Err(Error::NoFreeSlot { slots: 2 })));
    drop(a);
    engine.session().unwrap();

    let mut other = tales_engine(|_| {});
    let mut foreign = other.session().unwrap();
    assert!(matches!(engine.prefill(&mut foreign, &[1]), Err(Error::ForeignSession)));
}

#[test]
fn models_and_sessions_can_change_threads() {
    fn assert_send<T: Send>() {}
    fn assert_sync<T: Sync>() {}
    assert_send::<Session>();
    assert_send::<Model>();
    assert_sync::<Model>();
    assert_send::<Error>();
}

#[test]
fn slots_are_independent() {
    let mut engine = tales_engine(|o| o.slots = 3);
    let (one, two) = (prompt(), tales().encode("The dragon was sad because the rain").unwrap());
    let (mut a, mut b) = (engine.session().unwrap(), engine.session().unwrap());
    engine.prefill(&mut a, &one[..7]).unwrap();
    engine.prefill(&mut b, &two[..5]).unwrap();
    engine.prefill(&mut a, &one).unwrap();
    engine.prefill(&mut b, &two).unwrap();
    let together = bits(engine.last_logits().unwrap());
    assert_eq!(together, fresh(&mut engine, &two));
}

#[test]
fn batched_sequences_get_the_same_bits_as_alone() {
    let prompts: Vec<Vec<u32>> = (1..=3).map(|n| prompt()[..4 * n].to_vec()).collect();
    for device in DEVICES {
        let change = |o: &mut EngineOptions| (o.device, o.slots, o.logit_rows) = (device, 4, 3);
        let mut engine = tales_engine(change);
        let mut sessions: Vec<Session> = prompts.iter().map(|_| engine.session().unwrap()).collect();
        let mut tokens = vec![];
        for (session, prompt) in sessions.iter_mut().zip(&prompts) {
            engine.prefill(session, &prompt[..prompt.len() - 1]).unwrap();
            tokens.push(prompt[prompt.len() - 1]);
        }
        let mut found = vec![vec![]; prompts.len()];
        for _ in 0..6 {
            tokens = step(&mut engine, &mut sessions, &tokens).unwrap();
            found.iter_mut().zip(&tokens).for_each(|(found, &token)| found.push(token));
        }
        let last = bits(engine.last_logits().unwrap());
        for ((prompt, found), session) in prompts.iter().zip(&found).zip(&sessions) {
            let mut alone = engine.session().unwrap();
            engine.prefill(&mut alone, &prompt[..prompt.len() - 1]).unwrap();
            let end = &prompt[prompt.len() - 1..];
            let ids = engine.chain(&mut alone, end, None, 6, &[], None).unwrap().to_vec();
            assert_eq!(&ids, found, "{device}");
            assert_eq!(alone.tokens(), session.tokens());
            if prompt == &prompts[2] {
                assert_eq!(bits(engine.last_logits().unwrap()), last, "{device}");
            }
        }
    }
}

/// Processes a token of each session in one pass, and returns the most probable next tokens.
fn step(engine: &mut Engine, sessions: &mut [Session], tokens: &[u32]) -> Result<Vec<u32>, Error> {
    let feed = |(session, ids)| Feed { session, ids, logits: 1 };
    let mut feeds: Vec<Feed<'_>> = sessions.iter_mut().zip(tokens.chunks(1)).map(feed).collect();
    engine.pass(&mut feeds)?;
    let choice = |history| Choice { sampler: None, history };
    let mut choices: Vec<Choice<'_>> = tokens.chunks(1).map(choice).collect();
    Ok(engine.pick(&mut choices)?.to_vec())
}

#[test]
fn a_batch_beyond_the_engines_options_is_refused() {
    let mut engine = tales_engine(|o| (o.slots, o.logit_rows, o.context) = (3, 2, Some(8)));
    let mut sessions: Vec<Session> = (0..3).map(|_| engine.session().unwrap()).collect();
    assert!(matches!(step(&mut engine, &mut sessions, &[1, 2, 3]), Err(Error::Setting { .. })));
    assert!(matches!(step(&mut engine, &mut [], &[]), Err(Error::Setting { .. })));
    let outside = step(&mut engine, &mut sessions[..2], &[1, u32::MAX]);
    assert!(matches!(outside, Err(Error::TokenOutsideVocabulary { index: 1, .. })));
    engine.prefill(&mut sessions[1], &[1; 8]).unwrap();
    assert!(matches!(step(&mut engine, &mut sessions[..2], &[1, 2]), Err(Error::ContextFull { context: 8 })));
    // Nothing was processed.
    assert_eq!((sessions[0].len(), sessions[1].len()), (0, 8));
    assert_eq!(step(&mut engine, &mut sessions[..1], &[1]).unwrap().len(), 1);
    assert_eq!(sessions[0].tokens(), [1]);
}

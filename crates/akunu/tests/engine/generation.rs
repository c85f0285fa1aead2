//! Streaming of text, and finish reasons.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{generate, options, tales, tales_engine};
use akunu::{
    Choice, DeviceChoice, Engine, EngineOptions, Error, Feed, FinishReason, GenerateOptions, Generated,
    Overflow, Sampler, Sampling,
};

fn prompt() -> Vec<u32> {
    tales().encode("Once upon a time").unwrap()
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

#[test]
fn the_embedded_model_generates_a_story() {
    let mut engine = tales_engine(|_| {});
    let wanted = GenerateOptions { max_tokens: Some(250 - prompt().len()), ..Default::default() };
    let (text, generated) = generate(&mut engine, &prompt(), &wanted);
    println!("Once upon a time{text}\n{:?}", generated.finish);
    assert!(text.split_whitespace().count() > 20, "{text}");
    assert_eq!(text, tales().decode(&generated.ids).unwrap());
}

/// Generates tokens one by one, with a pass and a pick each.
fn by_pass_and_pick(engine: &mut Engine, sampling: Option<&Sampling>, count: usize) -> Vec<u32> {
    let mut sampler = sampling.map(|sampling| Sampler::new(sampling, engine.vocab_size()).unwrap());
    let mut session = engine.session().unwrap();
    let mut history = prompt();
    while history.len() < prompt().len() + count {
        let ids = &history[session.len()..];
        engine.pass(&mut [Feed { session: &mut session, ids, logits: 1 }]).unwrap();
        let choice = Choice { sampler: sampler.as_mut(), history: &history };
        let next = engine.pick(&mut [choice]).unwrap()[0];
        history.push(next);
    }
    history.split_off(prompt().len())
}

#[test]
fn generation_matches_single_passes_and_picks() {
    let mut engine = tales_engine(|_| {});
    let sampling =
        Sampling { temperature: 0.9, top_k: 40, repeat_penalty: 1.1, seed: 5, ..Default::default() };
    for sampling in [None, Some(&sampling)] {
        let options = GenerateOptions { sampling: sampling.cloned().unwrap_or_default(), ..tokens(30) };
        let generated = generate(&mut engine, &prompt(), &options).1;
        assert_eq!(generated.ids, by_pass_and_pick(&mut engine, sampling, 30));
    }
}

#[test]
fn a_panic_in_the_callback_reaches_the_caller_and_the_engine_survives() {
    let mut engine = tales_engine(|_| {});
    let mut session = engine.session().unwrap();
    let mut pieces = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        engine.generate(&mut session, &prompt(), &tokens(9), &mut |_| {
            pieces += 1;
            assert!(pieces < 3, "on purpose");
            ControlFlow::Continue(())
        })
    }));
    let message = panicked.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("on purpose"), "{message}");
    let mut again = Vec::new();
    let mut on_piece = |piece: akunu::Piece<'_>| {
        again.extend_from_slice(piece.ids);
        ControlFlow::Continue(())
    };
    engine.generate(&mut session, &prompt(), &tokens(9), &mut on_piece).unwrap();
    drop(session);
    assert_eq!(again, generate(&mut engine, &prompt(), &tokens(9)).1.ids);
}

#[test]
fn pieces_have_whole_characters_and_each_id_once() {
    let mut engine = tales_engine(|_| {});
    let mut session = engine.session().unwrap();
    let (mut text, mut ids) = (String::new(), Vec::new());
    let generated = engine
        .generate(&mut session, &prompt(), &tokens(40), &mut |piece| {
            text.push_str(piece.text);
            ids.extend_from_slice(piece.ids);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(ids, generated.ids);
    assert_eq!(ids.len(), 40);
    assert_eq!(text, tales().decode(&ids).unwrap());
    assert_eq!(generated.finish, FinishReason::MaxTokens);
    let timings = generated.timings;
    assert_eq!(
        (timings.prompt_tokens, timings.reused_tokens, timings.generated_tokens),
        (prompt().len(), 0, 40)
    );
    assert!(timings.ttft_s >= timings.prompt_s && timings.generate_s > 0.0, "{timings:?}");
}

#[test]
fn characters_that_span_tokens_are_not_split() {
    // The bytes of a character, forced one by one with biases.
    let model = tales();
    let mut engine = tales_engine(|_| {});
    let bytes = model.encode("é").unwrap();
    assert!(bytes.len() >= 2, "the vocabulary has grown a token for it: take a rarer character");
    let prompt = [model.encode("The end").unwrap(), bytes[..bytes.len() - 1].to_vec()].concat();
    let last = *bytes.last().unwrap();
    let bias = (0..engine.vocab_size() as u32).filter(|id| *id != last).map(|id| (id, f32::NEG_INFINITY));
    let sampling = Sampling { logit_bias: bias.collect(), ..Default::default() };
    let (text, generated) = generate(&mut engine, &prompt, &GenerateOptions { sampling, ..tokens(2) });
    assert_eq!(generated.ids, [last, last]);
    // The first completes the prompt's character, the second is invalid.
    assert_eq!(text, "é\u{fffd}");
}

#[test]
fn max_tokens_of_zero_generates_nothing() {
    let mut engine = tales_engine(|_| {});
    let (text, generated) = generate(&mut engine, &prompt(), &tokens(0));
    assert_eq!((text.as_str(), generated.ids.len()), ("", 0));
    assert_eq!(generated.finish, FinishReason::MaxTokens);
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let mut engine = tales_engine(|_| {});
    let (whole, _) = generate(&mut engine, &prompt(), &tokens(40));
    let starts: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
    for window in starts.windows(7).step_by(3) {
        let stop = &whole[window[0]..window[6]];
        let wanted = GenerateOptions { stop_strings: vec!["no such text".into(), stop.into()], ..tokens(40) };
        let mut session = engine.session().unwrap();
        let mut text = String::new();
        let generated = engine
            .generate(&mut session, &prompt(), &wanted, &mut |piece| {
                text.push_str(piece.text);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(text, whole[..whole.find(stop).unwrap()]);
        assert_eq!(generated.finish, FinishReason::StopString(stop.into()));
        // Tokens decoded beyond it are rolled back; the ids end with the token that completed it.
        let all = [prompt(), generated.ids.clone()].concat();
        assert!(all.starts_with(session.tokens()), "{stop:?}");
        let decoded = tales().decode(&generated.ids).unwrap();
        assert!(decoded.contains(stop));
        let without_last = tales().decode(&generated.ids[..generated.ids.len() - 1]).unwrap();
        assert!(!without_last.contains(stop));
    }
}

#[test]
fn text_held_back_for_a_stop_string_is_released_at_the_end() {
    let mut engine = tales_engine(|_| {});
    let (whole, _) = generate(&mut engine, &prompt(), &tokens(30));
    // The end of the text is a prefix of the stop string.
    let tail: String = whole.chars().skip(whole.chars().count() - 5).collect();
    let wanted = GenerateOptions { stop_strings: vec![format!("{tail}\u{1}")], ..tokens(30) };
    let (text, generated) = generate(&mut engine, &prompt(), &wanted);
    assert_eq!(text, whole);
    assert_eq!(generated.finish, FinishReason::MaxTokens);
}

#[test]
fn stop_ids_and_end_of_text_ids_are_not_part_of_the_text() {
    let mut engine = tales_engine(|_| {});
    let (_, generated) = generate(&mut engine, &prompt(), &tokens(30));
    let stop = generated.ids[20];
    let first = generated.ids.iter().position(|&id| id == stop).unwrap();
    let wanted = GenerateOptions { stop_ids: vec![stop], ..tokens(30) };
    let (text, stopped) = generate(&mut engine, &prompt(), &wanted);
    assert_eq!(stopped.finish, FinishReason::StopId(stop));
    assert_eq!(stopped.ids, generated.ids[..first]);
    assert_eq!(text, tales().decode(&stopped.ids).unwrap());

    // A bias forces an end-of-text token.
    let eos = *tales().eos_ids().first().expect("the embedded model ends its stories");
    let sampling = Sampling { logit_bias: vec![(eos, 1e4)], ..Default::default() };
    let wanted = GenerateOptions { sampling, max_tokens: Some(3), ..Default::default() };
    let (text, ended) = generate(&mut engine, &prompt(), &wanted);
    assert_eq!((ended.finish, ended.ids.len(), text.as_str()), (FinishReason::Eos(eos), 0, ""));
    let (_, ignored) = generate(&mut engine, &prompt(), &GenerateOptions { ignore_eos: true, ..wanted });
    assert_eq!((ignored.finish, ignored.ids), (FinishReason::MaxTokens, vec![eos; 3]));
}

#[test]
fn a_callback_that_returns_break_ends_the_text() {
    let mut engine = tales_engine(|_| {});
    let mut session = engine.session().unwrap();
    let mut pieces = 0;
    let generated = engine
        .generate(&mut session, &prompt(), &tokens(100), &mut |_| {
            pieces += 1;
            if pieces == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((generated.finish, pieces), (FinishReason::Callback, 3));
    assert_eq!(generated.ids.len(), 3);
}

#[test]
fn cancelling_ends_the_text_without_losing_any() {
    let mut engine = tales_engine(|_| {});
    let cancel = Arc::new(AtomicBool::new(false));
    let wanted = GenerateOptions { cancel: Some(cancel.clone()), ..tokens(200) };
    let mut session = engine.session().unwrap();
    let (mut text, mut pieces) = (String::new(), 0);
    let generated = engine
        .generate(&mut session, &prompt(), &wanted, &mut |piece| {
            text.push_str(piece.text);
            pieces += 1;
            cancel.store(pieces >= 4, Ordering::Relaxed);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(generated.finish, FinishReason::Cancelled);
    assert!((4..200).contains(&generated.ids.len()), "{}", generated.ids.len());
    assert_eq!(text, tales().decode(&generated.ids).unwrap());

    cancel.store(true, Ordering::Relaxed);
    drop(session);
    let (text, generated) = generate(&mut engine, &prompt(), &wanted);
    assert_eq!((text.as_str(), generated.finish), ("", FinishReason::Cancelled));
}

#[test]
fn cancelling_takes_effect_within_a_chain() {
    let mut engine = tales_engine(|_| {});
    let cancel = Arc::new(AtomicBool::new(false));
    let wanted = GenerateOptions { cancel: Some(cancel.clone()), ..tokens(200) };
    let mut session = engine.session().unwrap();
    let mut seen = 0;
    let generated = engine
        .generate(&mut session, &prompt(), &wanted, &mut |piece| {
            seen += piece.ids.len();
            cancel.store(true, Ordering::Relaxed);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(generated.finish, FinishReason::Cancelled);
    assert_eq!((generated.ids.len(), seen), (1, 1), "the first chain is one step");
}

fn small(context: usize) -> Engine {
    tales_engine(|o| o.context = Some(context))
}

#[test]
fn a_full_context_stops_the_text_with_a_reason() {
    let mut engine = small(32);
    let (_, generated) = generate(&mut engine, &prompt(), &tokens(100));
    assert_eq!(generated.finish, FinishReason::ContextFull);
    // The last token needs no position.
    assert_eq!(generated.ids.len(), 32 - prompt().len() + 1);
    let (_, unlimited) = generate(&mut small(256), &prompt(), &tokens(generated.ids.len()));
    assert_eq!(generated.ids, unlimited.ids);
}

#[test]
fn a_full_context_is_an_error_on_request() {
    let mut engine = small(32);
    let mut session = engine.session().unwrap();
    let wanted = GenerateOptions { overflow: Overflow::Error, ..tokens(100) };
    let mut ids = 0;
    let result = engine.generate(&mut session, &prompt(), &wanted, &mut |piece| {
        ids += piece.ids.len();
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(Error::ContextFull { context: 32 })), "{result:?}");
    // The decoded tokens are kept, and the session can be used.
    assert_eq!(ids, 32 - prompt().len() + 1);
    assert_eq!(session.len(), 32);
    engine.prefill(&mut session, &prompt()).unwrap();
}

#[test]
fn a_full_context_shifts_on_request() {
    let mut engine = small(32);
    let mut session = engine.session().unwrap();
    let wanted = GenerateOptions { overflow: Overflow::Shift { keep: 4 }, ..tokens(100) };
    let generated =
        engine.generate(&mut session, &prompt(), &wanted, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((generated.finish.clone(), generated.ids.len()), (FinishReason::MaxTokens, 100));
    let all = [prompt(), generated.ids].concat();
    assert_eq!(session.tokens()[..4], all[..4]);
    // The kept tokens are followed by the latest ones, except the last.
    let rest = &session.tokens()[4..];
    assert!(all[..all.len() - 1].ends_with(rest), "{rest:?} of {all:?}");
    assert!(session.len() <= 32);
    // Keeping the whole context leaves nothing to discard.
    let wanted = GenerateOptions { overflow: Overflow::Shift { keep: 32 }, ..tokens(100) };
    let refused = engine.generate(&mut session, &prompt(), &wanted, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::Setting { .. })), "{refused:?}");
}

fn sampled(options: &EngineOptions, sampling: Sampling) -> Generated {
    let mut engine = Engine::new(tales(), options).unwrap();
    generate(&mut engine, &prompt(), &GenerateOptions { sampling, ..tokens(40) }).1
}

#[test]
fn a_seed_gives_the_same_tokens_on_any_threads_chunks_and_chains() {
    let base = EngineOptions { context: Some(128), ..options(DeviceChoice::Cpu) };
    let sampling = |seed| Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed, ..Default::default() };
    let expected = sampled(&base, sampling(1)).ids;
    assert_ne!(expected, sampled(&base, sampling(2)).ids);
    for threads in 1..=3 {
        for (chunk, chain) in [(1, 1), (2, 7), (64, 64)] {
            let options = EngineOptions {
                threads: Some(threads),
                chunk: Some(chunk),
                chain: Some(chain),
                ..base.clone()
            };
            assert_eq!(sampled(&options, sampling(1)).ids, expected, "{threads} threads, chunks of {chunk}");
        }
    }
}

#[test]
fn a_vanishing_temperature_is_greedy() {
    let base = EngineOptions { context: Some(128), ..options(DeviceChoice::Cpu) };
    let greedy = sampled(&base, Sampling::default());
    for sampling in [
        Sampling { temperature: 1e-30, ..Default::default() },
        Sampling { temperature: 1.0, top_k: 1, ..Default::default() },
        Sampling { temperature: 1.0, top_p: 0.0, ..Default::default() },
        // Greedy on the host.
        Sampling { logit_bias: vec![(0, 0.0)], ..Default::default() },
    ] {
        assert_eq!(sampled(&base, sampling.clone()).ids, greedy.ids, "{sampling:?}");
    }
}

#[test]
fn a_repeat_penalty_prevents_repetition() {
    let base = EngineOptions { context: Some(128), ..options(DeviceChoice::Cpu) };
    let harsh = Sampling { repeat_penalty: 1e6, repeat_last_n: 100, ..Default::default() };
    let ids = sampled(&base, harsh).ids;
    let mut unique = [prompt(), ids.clone()].concat();
    unique.sort_unstable();
    unique.dedup();
    assert!(unique.len() >= ids.len(), "{ids:?}");
}

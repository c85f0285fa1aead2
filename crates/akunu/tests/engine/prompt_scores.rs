//! Log probabilities of prompts, beside other requests.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::common::{generate, tales, tales_engine};
use akunu::GenerateOptions;
use akunu::schedule::{Event, Finished, Handle, Request, Scheduler, SchedulerOptions};

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

fn prompt(text: &str) -> Vec<u32> {
    tales().encode(text).unwrap()
}

fn scheduler(slots: usize) -> (Scheduler, Handle) {
    Scheduler::new(tales_engine(|o| *o = o.clone().batching(slots)), &SchedulerOptions::default()).unwrap()
}

type Ended = Arc<Mutex<Option<(Vec<u32>, Finished)>>>;

fn submit(handle: &Handle, request: Request) -> Ended {
    let ended = Ended::default();
    let (to, mut all) = (ended.clone(), Vec::new());
    let on_event = Box::new(move |event: Event<'_>| {
        match event {
            Event::Piece { ids, .. } => all.extend_from_slice(ids),
            Event::Finished(finished) => *to.lock().unwrap() = Some((std::mem::take(&mut all), finished)),
            Event::Failed(error) => panic!("{error}"),
            Event::Started { .. } | Event::StepEnd => {}
        }
        ControlFlow::Continue(())
    });
    handle.submit(request, on_event).unwrap();
    ended
}

#[test]
fn they_are_those_of_the_engine_and_nothing_is_reused() {
    let long = prompt(&"Once upon a time there was a little fox who lived near the river. ".repeat(9));
    let (scheduler, handle) = scheduler(3);
    let request = |prompt: &[u32], n: usize, best: Option<usize>| Request {
        prompt: prompt.to_vec(),
        options: tokens(n),
        prompt_logprobs: best,
        ..Request::default()
    };
    let cases = [
        (&long[..], 4, None),
        (&long[..], 4, Some(2)),
        (&long[..], 0, Some(0)),
        (&long[..1], 3, Some(1)),
        (&long[..2], 0, Some(1)),
        (&long[..40], 5, Some(0)),
        (&long[..], 6, None),
    ];
    let ended = cases.map(|(prompt, n, best)| submit(&handle, request(prompt, n, best)));
    drop(handle);
    scheduler.run();
    let mut engine = tales_engine(|o| o.logit_rows = 64);
    for ((prompt, n, best), ended) in cases.iter().zip(ended) {
        let (ids, finished) = ended.lock().unwrap().take().unwrap();
        assert_eq!(ids, generate(&mut engine, prompt, &tokens(*n)).1.ids, "{} {n}", prompt.len());
        let found = &finished.prompt_logprobs;
        let Some(best) = best else {
            assert!(found.is_empty());
            continue;
        };
        assert_eq!(finished.timings.reused_tokens, 0);
        let expected = engine.log_likelihoods(prompt).unwrap();
        assert_eq!(found.len(), expected.len());
        for ((found, expected), id) in found.iter().zip(expected).zip(&prompt[1..]) {
            assert!((f64::from(found.logprob) - expected).abs() < 1e-5, "{found:?} {expected}");
            assert_eq!((found.id, found.top.len()), (*id, *best));
        }
    }
}

#[test]
fn a_scored_prompt_is_reused_by_others_after_it_has_ended() {
    let long = prompt(&"Once upon a time there was a little fox. ".repeat(9));
    let (mut scheduler, handle) = scheduler(2);
    let request = Request { prompt: long.clone(), options: tokens(1), ..Request::default() };
    let scored = submit(&handle, Request { prompt_logprobs: Some(0), ..request.clone() });
    scheduler.drain();
    let plain = submit(&handle, request);
    scheduler.drain();
    assert_eq!(scored.lock().unwrap().take().unwrap().1.prompt_logprobs.len(), long.len() - 1);
    let reused = plain.lock().unwrap().take().unwrap().1.timings.reused_tokens;
    assert!(reused + 32 > long.len(), "{reused} of {}", long.len());
}

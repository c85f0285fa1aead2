//! The blocks of slots after each step.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use super::slots::Slot;
use super::{Event, Handle, Request, Scheduler, SchedulerOptions};
use crate::{
    Constraints, DeviceChoice, Engine, EngineOptions, FinishReason, GenerateOptions, Model, Overflow,
    ResponseFormat,
};

type Note = Box<dyn Fn(&Event<'_>) + Send>;

/// The embedded model, with a context of four blocks of 64.
fn scheduler(slots: usize) -> (Scheduler, Handle) {
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        threads: Some(1),
        context: Some(256),
        ..EngineOptions::default().batching(slots)
    };
    let engine = Engine::new(Arc::new(Model::embedded().unwrap()), &options).unwrap();
    Scheduler::new(engine, &SchedulerOptions::default()).unwrap()
}

/// A step, after which each block has the users that it counts, and what precedes one in use is in use.
fn step(scheduler: &mut Scheduler) {
    scheduler.worker.take_arrived((&mut scheduler.arrived, &mut scheduler.commands));
    scheduler.step();
    let slots = &scheduler.batch.slots;
    slots[0].session.pool.lock().blocks.check(slots.iter().flat_map(|slot| slot.session.list.ids()));
}

fn ids(kind: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 10 + (kind * 97 + i * 7) % 1000).collect()
}

fn options(tokens: usize, overflow: Overflow) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(tokens), ignore_eos: true, overflow, ..GenerateOptions::default() }
}

/// The tokens of a chain come before the end of their step, and nothing is between the last token and the last event.
#[test]
fn steps_end_after_their_pieces() {
    let (mut scheduler, handle) = scheduler(1);
    let seen = Arc::new(Mutex::new(String::new()));
    let note = seen.clone();
    let on_event = Box::new(move |event: Event<'_>| {
        note.lock().unwrap().push(match event {
            Event::Started { .. } => 's',
            Event::Piece { .. } => 'p',
            Event::StepEnd => '.',
            Event::Finished(_) => 'f',
            Event::Failed(_) => 'e',
        });
        ControlFlow::Continue(())
    });
    let options = options(12, Overflow::Stop);
    handle.submit(Request { prompt: ids(1, 5), options, ..Request::default() }, on_event).unwrap();
    step(&mut scheduler);
    // The device's chains double, up to the time limit, which a slow machine reaches earlier.
    while !scheduler.is_idle() {
        let before = seen.lock().unwrap().len();
        step(&mut scheduler);
        let seen = seen.lock().unwrap();
        let of_step = &seen[before..];
        assert!(of_step.ends_with(['.', 'f']), "{seen}");
        assert!(of_step[..of_step.len() - 1].bytes().all(|event| event == b'p'), "{seen}");
    }
    let seen = seen.lock().unwrap();
    assert!(seen.starts_with("sp.") && seen.ends_with("pf"), "{seen}");
}

/// The mask of the token after the last position is not known when its pass ends, and is known before the next step.
#[test]
fn an_answer_that_waits_for_a_mask_ends_where_the_context_does() {
    let (mut scheduler, handle) = scheduler(1);
    let constraints = Constraints::new(scheduler.engine.model().clone());
    let constraint = constraints.get(&ResponseFormat::Regex("[a-z ]{400}".into()), None, None).unwrap();
    let options = GenerateOptions { constraint: Some(constraint), ..GenerateOptions::default() };
    let ended = Arc::new(Mutex::new(None));
    let note = ended.clone();
    let on_event = Box::new(move |event: Event<'_>| {
        match event {
            Event::Finished(finished) => *note.lock().unwrap() = Some(Ok(finished.finish)),
            Event::Failed(error) => *note.lock().unwrap() = Some(Err(error.to_string())),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    handle.submit(Request { prompt: ids(1, 250), options, ..Request::default() }, on_event).unwrap();
    while scheduler.batch.slots[0].session.len() < 255 {
        step(&mut scheduler);
    }
    let Scheduler { batch, engine, .. } = &mut scheduler;
    let Slot { session, active: Some(active), .. } = &mut batch.slots[0] else { panic!("it has ended") };
    assert!(active.generation.decode(engine, session).unwrap());
    active.wait_for_mask(engine, 0).unwrap();
    assert_eq!(session.len(), 256);
    while ended.lock().unwrap().is_none() {
        step(&mut scheduler);
    }
    assert_eq!(ended.lock().unwrap().take(), Some(Ok(FinishReason::ContextFull)));
}

/// An answer that waits for masks gets no tokens, and keeps others from its slot.
#[test]
fn owners_pay_for_the_steps_that_their_answers_wait_for_masks() {
    let (mut scheduler, handle) = scheduler(1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let submit = |owner: u64, tokens: usize| {
        let order = order.clone();
        let on_event = Box::new(move |event: Event<'_>| {
            if matches!(event, Event::Finished(_)) {
                order.lock().unwrap().push(owner);
            }
            ControlFlow::Continue(())
        });
        let options = options(tokens, Overflow::Stop);
        handle
            .submit(Request { prompt: ids(1, 10), options, owner, ..Request::default() }, on_event)
            .unwrap();
    };
    submit(1, 100);
    (0..3).for_each(|_| submit(2, 40));
    while order.lock().unwrap().is_empty() {
        step(&mut scheduler);
    }
    // The second owner has got less until its first answer waits.
    submit(1, 40);
    while scheduler.batch.slots[0].active.is_none() {
        step(&mut scheduler);
    }
    let waits = |scheduler: &mut Scheduler, is: bool| {
        scheduler.batch.slots[0].active.as_mut().unwrap().is_waiting = is;
    };
    waits(&mut scheduler, true);
    (0..200).for_each(|_| scheduler.charge());
    waits(&mut scheduler, false);
    while order.lock().unwrap().len() < 5 {
        step(&mut scheduler);
    }
    assert_eq!(*order.lock().unwrap(), [1, 2, 1, 2, 2]);
}

/// A block is computed twice, since the first request that has it may be shifted. Meanwhile it becomes known, when the
/// first request ends, a third request shares what the second has computed.
#[test]
fn blocks_that_were_known_later_than_computed_are_shared_with_those_that_precede_them() {
    let (mut scheduler, handle) = scheduler(3);
    let common = ids(1, 64);
    let shared = [&common[..], &ids(2, 64)].concat();
    let prompts = [
        [&common[..], &ids(3, 10)].concat(),
        [&shared[..], &ids(4, 20)].concat(),
        [&shared[..], &ids(5, 20)].concat(),
    ];
    let (shift, stop) = (Overflow::Shift { keep: 4 }, Overflow::Stop);
    let reused = Arc::new(Mutex::new([None; 3]));
    let [first, second, third] = prompts.clone();
    let note = |number: usize| {
        let reused = reused.clone();
        move |event: &Event<'_>| {
            if let Event::Finished(finished) = event {
                reused.lock().unwrap()[number] = Some(finished.timings.reused_tokens);
            }
        }
    };
    let (notes, others, mut pieces) = ([note(0), note(1), note(2)], handle.clone(), 0);
    let [of_first, of_second, of_third] = notes;
    let mut later = Some((of_second, of_third));
    let listener = move |event: Event<'_>| {
        of_first(&event);
        pieces += usize::from(matches!(event, Event::Piece { .. }));
        if pieces == 2
            && let Some((of_second, of_third)) = later.take()
        {
            // The second ends first, and its tokens are shared by then. The third may be shifted, so that no one finds its own.
            let requests: [(_, _, Note); 2] = [
                (second.clone(), options(4, stop), Box::new(of_second)),
                (third.clone(), options(200, shift), Box::new(of_third)),
            ];
            for (prompt, options, note) in requests {
                let on_event = move |event: Event<'_>| {
                    note(&event);
                    ControlFlow::Continue(())
                };
                let request = Request { prompt, options, ..Request::default() };
                others.submit(request, Box::new(on_event)).unwrap();
            }
        }
        if pieces == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let request = Request { prompt: first, options: options(250, shift), ..Request::default() };
    handle.submit(request, Box::new(listener)).unwrap();
    while !reused.lock().unwrap().iter().all(Option::is_some) {
        step(&mut scheduler);
    }
    // The second found nothing, as the first may be shifted; the third found what the second had computed.
    assert_eq!(*reused.lock().unwrap(), [Some(0), Some(0), Some(128)]);
}

/// Requests of some beginnings come and go; each gets its blocks, and all are there again.
#[test]
fn no_step_of_a_crowd_loses_a_block() {
    let (mut scheduler, handle) = scheduler(4);
    let ended = Arc::new(Mutex::new(0));
    let mut number = 0u32;
    for step_number in 0..400 {
        if step_number % 5 == 0 && number < 60 {
            let start = ids(number % 3, 30 + 45 * (number % 4));
            let prompt = [&start[..], &ids(4 + number % 5, 1 + number % 37)].concat();
            let overflow = if number % 7 == 3 { Overflow::Shift { keep: 8 } } else { Overflow::Stop };
            let tokens = if number % 7 == 3 { 250 } else { 1 + number as usize % 40 };
            let ended = ended.clone();
            let mut pieces = 0;
            let last = 3 + number % 90;
            let on_event = move |event: Event<'_>| {
                pieces += u32::from(matches!(event, Event::Piece { .. }));
                if matches!(event, Event::Finished(_)) {
                    *ended.lock().unwrap() += 1;
                }
                if pieces == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let request = Request { prompt, options: options(tokens, overflow), ..Request::default() };
            handle.submit(request, Box::new(on_event)).unwrap();
            number += 1;
        }
        step(&mut scheduler);
    }
    while !scheduler.is_idle() {
        step(&mut scheduler);
    }
    assert_eq!(*ended.lock().unwrap(), 60);
    let stats = handle.stats();
    assert!(stats.prefix_hits > 20 && stats.kv_tokens == 0, "{stats:?}");
}

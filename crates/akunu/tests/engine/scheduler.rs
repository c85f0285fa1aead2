//! Guarantees of the scheduler: order, limits, endings, prefixes, log probabilities.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::common::{generate, options, tales, tales_engine};
use akunu::schedule::{
    Event, Finished, Handle, OnEvent, Refused, Request, Scheduler, SchedulerOptions, TokenLogprob,
};
use akunu::{DeviceChoice, Engine, EngineOptions, FinishReason, GenerateOptions, Overflow, Sampling};
use akunu_device_testing::FailingDevice;
use akunu_plan::reference::ReferenceDevice;

/// All events, in order.
#[derive(Clone, Debug)]
enum Note {
    Started,
    Ids(Vec<u32>),
    Logprobs(Vec<TokenLogprob>),
    Finished(Finished),
    Failed(String),
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(usize, Note)>>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Note)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A listener that logs the events of request `number`, and passes them to `then`.
    fn listener(
        &self,
        number: usize,
        mut then: impl FnMut(&Note) -> ControlFlow<()> + Send + 'static,
    ) -> OnEvent {
        let log = self.clone();
        Box::new(move |event| {
            let note = match event {
                Event::Started { .. } => Note::Started,
                Event::StepEnd => return ControlFlow::Continue(()),
                Event::Piece { ids, logprobs, .. } => {
                    if !logprobs.is_empty() {
                        assert!(logprobs.iter().map(|l| l.id).eq(ids.iter().copied()));
                        log.lock().push((number, Note::Logprobs(logprobs.to_vec())));
                    }
                    Note::Ids(ids.to_vec())
                }
                Event::Finished(finished) => Note::Finished(finished),
                Event::Failed(error) => Note::Failed(error.to_string()),
            };
            log.lock().push((number, note.clone()));
            then(&note)
        })
    }

    fn plain(&self, number: usize) -> OnEvent {
        self.listener(number, |_| ControlFlow::Continue(()))
    }

    fn notes(&self, number: usize) -> Vec<Note> {
        self.lock().iter().filter(|(n, _)| *n == number).map(|(_, note)| note.clone()).collect()
    }

    fn ids(&self, number: usize) -> Vec<u32> {
        let ids = |note| if let Note::Ids(ids) = note { ids } else { vec![] };
        self.notes(number).into_iter().flat_map(ids).collect()
    }

    fn finished(&self, number: usize) -> Finished {
        match self.notes(number).pop() {
            Some(Note::Finished(finished)) => finished,
            other => panic!("{number} ended with {other:?}"),
        }
    }

    fn failed(&self, number: usize) -> String {
        match self.notes(number).pop() {
            Some(Note::Failed(text)) => text,
            other => panic!("{number} ended with {other:?}"),
        }
    }

    fn order_of_starts(&self) -> Vec<usize> {
        self.lock().iter().filter(|(_, note)| matches!(note, Note::Started)).map(|(n, _)| *n).collect()
    }
}

fn prompt() -> Vec<u32> {
    tales().encode("Once upon a time there was a little fox who lived near the river.").unwrap()
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() }
}

fn request(n: usize) -> Request {
    Request { prompt: prompt(), options: tokens(n), ..Request::default() }
}

fn scheduler(slots: usize, options: &SchedulerOptions) -> (Scheduler, Handle) {
    Scheduler::new(tales_engine(|o| *o = o.clone().batching(slots)), options).unwrap()
}

/// The ids generated for a prompt alone.
fn alone(prompt: &[u32], n: usize) -> Vec<u32> {
    generate(&mut tales_engine(|_| {}), prompt, &tokens(n)).1.ids
}

/// True once, at a piece, counted from 1; 0: at the start.
fn at_piece(wanted: usize) -> impl FnMut(&Note) -> bool {
    let mut seen = 0;
    move |note| {
        seen += usize::from(matches!(note, Note::Ids(_)));
        seen == wanted && matches!(note, Note::Started | Note::Ids(_))
    }
}

#[test]
fn lower_priorities_come_first_then_owners_alternate() {
    let (scheduler, handle) = scheduler(1, &SchedulerOptions::default());
    let log = Log::default();
    for (number, (priority, owner)) in
        [(0, 1), (0, 1), (0, 1), (0, 2), (-3, 1), (0, 3), (0, 2)].into_iter().enumerate()
    {
        handle.submit(Request { priority, owner, ..request(2) }, log.plain(number)).unwrap();
    }
    drop(handle);
    scheduler.run();
    assert_eq!(log.order_of_starts(), [4, 0, 3, 5, 1, 6, 2]);
    assert!((0..7).all(|number| log.ids(number) == alone(&prompt(), 2)));
}

#[test]
fn owners_take_turns_by_tokens_and_not_by_requests() {
    let (scheduler, handle) = scheduler(1, &SchedulerOptions::default());
    let log = Log::default();
    // The first owner's requests have long answers: 24 tokens count at once, and 32 more while they are generated.
    for (number, (owner, tokens)) in
        [(1, 40), (1, 40), (2, 2), (2, 2), (2, 2), (2, 2)].into_iter().enumerate()
    {
        let request = Request { prompt: prompt()[..8].to_vec(), owner, ..request(tokens) };
        handle.submit(request, log.plain(number)).unwrap();
    }
    drop(handle);
    scheduler.run();
    assert_eq!(log.order_of_starts(), [0, 2, 3, 4, 1, 5]);
}

#[test]
fn requests_that_would_wait_too_long_are_refused_while_all_slots_are_taken() {
    let deadline = Duration::from_nanos(1);
    let options = SchedulerOptions { deadline: Some(deadline), ..Default::default() };
    let (mut scheduler, handle) = scheduler(1, &options);
    let log = Log::default();
    // How long requests take is not known yet.
    for number in 0..2 {
        handle.submit(request(3), log.plain(number)).unwrap();
    }
    scheduler.drain();
    let submitted = Arc::new(Mutex::new(None));
    let (seen, again, of_log, mut at) = (submitted.clone(), handle.clone(), log.clone(), at_piece(2));
    let listener = log.listener(2, move |note| {
        if at(note) {
            *seen.lock().unwrap() = Some(again.submit(request(1), of_log.plain(3)));
        }
        ControlFlow::Continue(())
    });
    // The slot is free, and taken at its second piece.
    handle.submit(request(4), listener).unwrap();
    scheduler.drain();
    let submitted = submitted.lock().unwrap().take();
    match submitted {
        Some(Err(Refused::TooLate { expected, deadline: limit })) => {
            assert!(expected > limit && limit == deadline);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((log.ids(2).len(), log.notes(3).len()), (4, 0));
    handle.submit(request(1), log.plain(4)).unwrap();
    scheduler.drain();
    assert_eq!(log.ids(4), alone(&prompt(), 1));
}

#[test]
fn a_drained_scheduler_accepts_requests_and_keeps_prefixes() {
    let (mut scheduler, handle) = scheduler(2, &SchedulerOptions::default());
    let log = Log::default();
    scheduler.drain();
    for number in 0..6 {
        handle.submit(request(4), log.plain(number)).unwrap();
        if number % 3 == 2 {
            scheduler.drain();
            assert!((0..=number).all(|number| log.ids(number) == alone(&prompt(), 4)));
        }
    }
    assert_eq!(log.finished(5).timings.reused_tokens, prompt().len() - 1);
    drop(handle);
    scheduler.run();
}

#[test]
fn requests_wait_until_the_queue_is_full() {
    let (scheduler, handle) = scheduler(2, &SchedulerOptions { queue: 3, ..Default::default() });
    let log = Log::default();
    for number in 0..5 {
        handle.submit(request(3), log.plain(number)).unwrap();
    }
    let refused = handle.submit(request(3), log.plain(5));
    assert_eq!(refused, Err(Refused::QueueFull { waiting: 5 }));
    assert_eq!(handle.stats().waiting, 5);
    handle.close();
    assert_eq!(handle.submit(request(3), log.plain(5)), Err(Refused::Closed));
    let mut engine = scheduler.run();
    assert_eq!(log.order_of_starts(), [0, 1, 2, 3, 4]);
    assert!((0..5).all(|number| log.ids(number) == alone(&prompt(), 3)));
    assert!(log.notes(5).is_empty());
    let stats = handle.stats();
    assert_eq!((stats.waiting, stats.started, stats.finished, stats.failed), (0, 5, 5, 0));
    // The slots are free again.
    let sessions = [engine.session().unwrap(), engine.session().unwrap()];
    assert!(engine.session().is_err());
    drop(sessions);
}

#[test]
fn requests_are_submitted_together_or_not_at_all() {
    let (scheduler, handle) = scheduler(1, &SchedulerOptions { queue: 3, ..Default::default() });
    let log = Log::default();
    let several = |numbers: std::ops::Range<usize>| {
        handle.submit_all(numbers.map(|number| (request(3), log.plain(number))).collect())
    };
    assert_eq!(several(0..2), Ok(()));
    assert_eq!(several(2..5), Err(Refused::QueueFull { waiting: 2 }));
    assert_eq!(several(2..7), Err(Refused::TooMany { requests: 5, limit: 4 }));
    assert_eq!(handle.stats().waiting, 2);
    assert_eq!(several(5..7), Ok(()));
    handle.close();
    assert_eq!(several(7..8), Err(Refused::Closed));
    scheduler.run();
    assert_eq!(log.order_of_starts(), [0, 1, 5, 6]);
    assert!([2, 3, 4, 7].iter().all(|number| log.notes(*number).is_empty()));
    assert!([0, 1, 5, 6].iter().all(|number| log.ids(*number) == alone(&prompt(), 3)));
}

/// An owner that had got much is served although new owners never stop to come.
#[test]
fn an_old_owner_is_served_beside_a_stream_of_new_ones() {
    let (scheduler, handle) = scheduler(1, &SchedulerOptions::default());
    let log = Log::default();
    let submit = |owner: u64, number: usize, tokens: usize, then: Option<(Handle, Log, usize)>| {
        submit_chain(&handle, &log, (owner, number, tokens), then);
    };
    // While it gets 100 tokens, another owner waits.
    submit(1, 0, 100, None);
    submit(2, 1, 2, None);
    submit(1, 2, 2, None);
    // Each of these is followed by a new owner's when it ends.
    submit(3, 3, 2, Some((handle.clone(), log.clone(), 4)));
    submit(4, 50, 2, Some((handle.clone(), log.clone(), 51)));
    drop(handle);
    scheduler.run();
    let order = log.order_of_starts();
    let old = order.iter().position(|number| *number == 2).unwrap();
    assert!((3..25).contains(&old) && order.len() > 60, "{old} of {order:?}");
}

/// Submits a request of an owner, which submits one of another owner when it ends, up to 40 of them.
fn submit_chain(
    handle: &Handle,
    log: &Log,
    (owner, number, tokens): (u64, usize, usize),
    mut then: Option<(Handle, Log, usize)>,
) {
    let listener = log.listener(number, move |note| {
        if matches!(note, Note::Finished(_))
            && let Some((handle, log, next)) = then.take()
        {
            let more = (next % 47 < 40).then(|| (handle.clone(), log.clone(), next + 1));
            submit_chain(&handle, &log, (1000 + next as u64, next, 2), more);
        }
        ControlFlow::Continue(())
    });
    let request = Request { prompt: prompt()[..8].to_vec(), owner, ..request(tokens) };
    handle.submit(request, listener).unwrap();
}

#[test]
fn an_engine_with_too_few_rows_of_logits_is_refused() {
    let refused = Scheduler::new(tales_engine(|o| o.slots = 2), &SchedulerOptions::default());
    assert!(matches!(refused, Err(akunu::Error::Setting { name: "the number of logit rows", .. })));
}

/// The ids of a request for 40 tokens, and the number of submissions.
fn decoded_in_chains_of(chain_time: Duration) -> (Vec<u32>, u64) {
    let engine = tales_engine(|o| *o = EngineOptions { chain: Some(64), chain_time, ..o.clone() });
    let (mut scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
    let log = Log::default();
    handle.submit(request(40), log.plain(0)).unwrap();
    scheduler.drain();
    (log.ids(0), handle.stats().steps)
}

#[test]
fn a_chain_is_limited_by_chain_time() {
    let (ids, steps) = decoded_in_chains_of(Duration::ZERO);
    assert_eq!((ids.len(), steps), (40, 40));
    // The pass of the prompt gives the first token; chains of 1, 2, 4, 8, 16 and 8 steps give the others.
    assert_eq!(decoded_in_chains_of(Duration::MAX), (ids, 7));
}

#[test]
fn invalid_requests_fail_at_once() {
    let (scheduler, handle) = scheduler(1, &SchedulerOptions::default());
    let log = Log::default();
    handle.submit(request(20), log.plain(0)).unwrap();
    let long = Request { prompt: vec![5; 257], ..request(1) };
    let nonsense = Request {
        options: GenerateOptions {
            sampling: Sampling { top_p: 2.0, ..Default::default() },
            ..Default::default()
        },
        ..request(1)
    };
    let outside = Request { prompt: vec![u32::MAX], ..request(1) };
    for (number, request) in
        [long, nonsense, outside, Request { prompt: vec![], ..request(1) }].into_iter().enumerate()
    {
        handle.submit(request, log.plain(number + 1)).unwrap();
    }
    drop(handle);
    scheduler.run();
    assert!(log.failed(1).contains("the prompt has 257 tokens, and the context length is 256"));
    assert!(log.failed(2).contains("top-p is 2"));
    assert!(log.failed(3).contains("outside the vocabulary"));
    assert!(log.failed(4).contains("the prompt is empty"));
    // They fail without waiting for the slot.
    let first_five: Vec<usize> = log.lock()[..4].iter().map(|(number, _)| *number).collect();
    assert_eq!(first_five, [1, 2, 3, 4]);
    assert_eq!(log.ids(0).len(), 20);
}

#[test]
fn a_panic_ends_only_its_own_request() {
    for piece in [0, 1, 4] {
        let (scheduler, handle) = scheduler(3, &SchedulerOptions::default());
        let log = Log::default();
        for number in 0..5 {
            let mut at = at_piece(piece);
            let listener = log.listener(number, move |note| {
                assert!(number != 1 || !at(note), "on purpose");
                ControlFlow::Continue(())
            });
            handle.submit(request(8), listener).unwrap();
        }
        drop(handle);
        scheduler.run();
        assert_eq!(log.failed(1), "the handler of this request panicked: on purpose");
        assert!([0, 2, 3, 4].iter().all(|number| log.ids(*number) == alone(&prompt(), 8)));
    }
}

#[test]
fn a_panic_in_the_last_event_is_ignored() {
    let (scheduler, handle) = scheduler(1, &SchedulerOptions::default());
    let log = Log::default();
    let listener = log.listener(0, |note| {
        assert!(!matches!(note, Note::Finished(_)), "on purpose");
        ControlFlow::Continue(())
    });
    handle.submit(request(3), listener).unwrap();
    handle.submit(request(3), log.plain(1)).unwrap();
    drop(handle);
    scheduler.run();
    assert_eq!(log.ids(1), alone(&prompt(), 3));
}

#[test]
fn a_cancelled_request_gets_only_its_last_event() {
    let (scheduler, handle) = scheduler(2, &SchedulerOptions::default());
    let log = Log::default();
    let cancel = Arc::new(AtomicBool::new(false));
    let cancelled = |cancel: &Arc<AtomicBool>| Request {
        options: GenerateOptions { cancel: Some(cancel.clone()), ..tokens(100) },
        ..request(0)
    };
    // At its fifth piece, the first cancels itself and the third, which is waiting.
    let (mut at, flag) = (at_piece(5), cancel.clone());
    let listener = log.listener(0, move |note| {
        flag.fetch_or(at(note), Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    handle.submit(cancelled(&cancel), listener).unwrap();
    handle.submit(request(30), log.plain(1)).unwrap();
    handle.submit(cancelled(&cancel), log.plain(2)).unwrap();
    drop(handle);
    scheduler.run();
    assert_eq!(log.finished(0).finish, FinishReason::Cancelled);
    assert_eq!(log.ids(0), alone(&prompt(), 5), "within a step");
    assert_eq!(log.ids(1), alone(&prompt(), 30));
    assert!(matches!(&log.notes(2)[..], [Note::Finished(f)] if f.finish == FinishReason::Cancelled));
}

#[test]
fn a_listener_that_returns_break_gets_the_last_event() {
    let (scheduler, handle) = scheduler(2, &SchedulerOptions::default());
    let log = Log::default();
    let at_once = log.listener(0, |_| ControlFlow::Break(()));
    handle.submit(request(9), at_once).unwrap();
    let mut third = at_piece(3);
    let at_the_third = log.listener(1, move |note| match third(note) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    handle.submit(request(9), at_the_third).unwrap();
    drop(handle);
    scheduler.run();
    assert_eq!((log.finished(0).finish, log.ids(0).len()), (FinishReason::Callback, 0));
    assert_eq!((log.finished(1).finish, log.ids(1).len()), (FinishReason::Callback, 3));
}

#[test]
fn stopping_cancels_all_requests_and_refuses_new_ones() {
    let (scheduler, handle) = scheduler(2, &SchedulerOptions::default());
    let log = Log::default();
    let (stopper, mut at) = (handle.clone(), at_piece(4));
    let listener = log.listener(0, move |note| {
        if at(note) {
            stopper.stop();
        }
        ControlFlow::Continue(())
    });
    handle.submit(request(100), listener).unwrap();
    for number in 1..4 {
        handle.submit(request(100), log.plain(number)).unwrap();
    }
    // Although a handle is left.
    scheduler.run();
    for number in 0..4 {
        assert_eq!(log.finished(number).finish, FinishReason::Cancelled);
        assert!(log.ids(number).len() <= 5, "{number}: {}", log.ids(number).len());
    }
    assert_eq!(handle.submit(request(1), log.plain(9)), Err(Refused::Closed));
    assert_eq!(handle.stats().finished, 4);
}

#[test]
fn a_scheduler_that_was_dropped_refuses_requests() {
    let (scheduler, handle) = scheduler(1, &SchedulerOptions::default());
    drop(scheduler);
    assert_eq!(handle.submit(request(1), Log::default().plain(0)), Err(Refused::Closed));
}

#[test]
fn requests_wake_an_idle_scheduler() {
    let (scheduler, handle) = scheduler(2, &SchedulerOptions::default());
    let log = Log::default();
    let (sender, ended) = std::sync::mpsc::channel();
    let visitor = std::thread::spawn({
        let log = log.clone();
        move || {
            for number in 0..4 {
                let sender = sender.clone();
                let listener = log.listener(number, move |note| {
                    if matches!(note, Note::Finished(_)) {
                        sender.send(()).unwrap();
                    }
                    ControlFlow::Continue(())
                });
                handle.submit(request(4), listener).unwrap();
                ended.recv().unwrap();
            }
            handle.stats()
        }
    });
    scheduler.run();
    let stats = visitor.join().unwrap();
    assert!((0..4).all(|number| log.ids(number) == alone(&prompt(), 4)));
    assert!(stats.steps < 40, "{stats:?}: no step without work");
}

/// Runs requests one by one, and returns the number of reused tokens of each.
fn reused(slots: usize, prompts: &[Vec<u32>]) -> (Vec<usize>, akunu::schedule::Stats) {
    let (scheduler, handle) = scheduler(slots, &SchedulerOptions::default());
    let log = Log::default();
    let rest: Vec<_> = prompts.iter().cloned().enumerate().rev().collect();
    submit_next(handle.clone(), log.clone(), rest);
    scheduler.run();
    for (number, prompt) in prompts.iter().enumerate() {
        assert_eq!(log.ids(number), alone(prompt, 3), "{number}");
    }
    let reused = (0..prompts.len()).map(|number| log.finished(number).timings.reused_tokens).collect();
    (reused, handle.stats())
}

fn submit_next(handle: Handle, log: Log, mut rest: Vec<(usize, Vec<u32>)>) {
    let Some((number, prompt)) = rest.pop() else { return handle.close() };
    let mut next = Some((handle.clone(), log.clone(), rest));
    let listener = log.listener(number, move |note| {
        if matches!(note, Note::Finished(_)) {
            let (handle, log, rest) = next.take().unwrap();
            submit_next(handle, log, rest);
        }
        ControlFlow::Continue(())
    });
    handle.submit(Request { prompt, options: tokens(3), ..Request::default() }, listener).unwrap();
}

/// `n` ids that differ from those of other kinds.
fn ids(kind: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 10 + kind * 100 + i % 90).collect()
}

#[test]
fn prompts_reuse_prefixes_of_requests_that_have_ended() {
    let system = ids(0, 40);
    let [a, b, c] = [1, 2, 3].map(|kind| [&system[..], &ids(kind, 60)].concat());
    let longer = [&a[..], &ids(4, 30)].concat();
    // b copies the system's 40 tokens from a's first block, so a is still there.
    let (found, stats) = reused(2, &[a.clone(), b.clone(), longer.clone(), a.clone(), b.clone()]);
    assert_eq!(found, [0, 40, 100, 99, 99]);
    assert_eq!((stats.prefix_hits, stats.reused_tokens), (4, 338));
    assert_eq!(stats.prompt_tokens, 100 + 60 + 30 + 1 + 1);
    assert_eq!((stats.kv_tokens, stats.kv_capacity), (0, 512));
    assert!(stats.kv_kept > 200);
    // There is memory for all three, although there are two slots.
    let (found, _) = reused(2, &[a.clone(), b.clone(), c, b, a]);
    assert_eq!(found, [0, 40, 40, 99, 99]);
}

#[test]
fn prefixes_are_shared_with_requests_that_run() {
    let (scheduler, handle) = scheduler(2, &SchedulerOptions::default());
    let log = Log::default();
    let first = ids(1, 90);
    let second = [&first[..84], &ids(2, 20)].concat();
    let (other, inner, prompt) = (handle.clone(), log.clone(), second.clone());
    let mut at = at_piece(2);
    let listener = log.listener(0, move |note| {
        if at(note) {
            let request = Request { prompt: prompt.clone(), ..request(6) };
            other.submit(request, inner.plain(1)).unwrap();
            other.close();
        }
        ControlFlow::Continue(())
    });
    handle.submit(Request { prompt: first.clone(), ..request(30) }, listener).unwrap();
    scheduler.run();
    // A block of 64, and a copy of 20 positions of the next one.
    assert_eq!(log.finished(1).timings.reused_tokens, 84);
    assert_eq!((log.ids(0), log.ids(1)), (alone(&first, 30), alone(&second, 6)));
}

#[test]
fn a_common_prompt_is_processed_once() {
    // In one or in several passes.
    for chunk in [5, 64] {
        let engine = tales_engine(|o| {
            o.chunk = Some(chunk);
            *o = o.clone().batching(4);
        });
        let (scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
        let log = Log::default();
        let prompt = ids(3, 40);
        for number in 0..4 {
            handle.submit(Request { prompt: prompt.clone(), ..request(5) }, log.plain(number)).unwrap();
        }
        drop(handle);
        scheduler.run();
        let reused = [0, 1, 2, 3].map(|number| log.finished(number).timings.reused_tokens);
        assert_eq!(reused, [0, 39, 39, 39]);
    }
}

#[test]
fn requests_wait_only_for_prefixes_in_progress() {
    let engine = tales_engine(|o| {
        o.chunk = Some(10);
        *o = o.clone().batching(3);
    });
    let (scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
    let log = Log::default();
    // The last shares a prefix with the second, which is processed late.
    let prompts = [ids(1, 200), ids(2, 180), ids(2, 20)];
    for (number, prompt) in prompts.iter().enumerate() {
        handle.submit(Request { prompt: prompt.clone(), ..request(3) }, log.plain(number)).unwrap();
    }
    drop(handle);
    scheduler.run();
    assert!((0..3).all(|number| log.ids(number) == alone(&prompts[number], 3)));
    let first = |number| log.lock().iter().position(|(n, note)| *n == number && matches!(note, Note::Ids(_)));
    assert!(first(2) < first(0) && first(0) < first(1), "{:?}", [first(0), first(1), first(2)]);
    // Then the second reuses the prefix of the last.
    let reused = [0, 1, 2].map(|number| log.finished(number).timings.reused_tokens);
    assert_eq!(reused, [0, 20, 0]);
}

#[test]
fn shifted_tokens_are_not_shared() {
    let engine = || tales_engine(|o| (o.slots, o.logit_rows, o.context) = (2, 2, Some(32)));
    let options = GenerateOptions { overflow: Overflow::Shift { keep: 4 }, ..tokens(60) };
    let mut alone = engine();
    let mut session = alone.session().unwrap();
    let shifted =
        alone.generate(&mut session, &prompt(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(shifted.dropped > 0);
    // The slot's keys and values now differ from those of a prefill.
    let prompts = [prompt(), session.tokens().to_vec()];
    drop(session);
    let expected = generate(&mut alone, &prompts[1], &tokens(1)).1.ids;

    let (scheduler, handle) = Scheduler::new(engine(), &SchedulerOptions::default()).unwrap();
    let log = Log::default();
    let (other, inner, next) = (handle.clone(), log.clone(), prompts[1].clone());
    let listener = log.listener(0, move |note| {
        if matches!(note, Note::Finished(_)) {
            let request = Request { prompt: next.clone(), ..request(1) };
            other.submit(request, inner.plain(1)).unwrap();
            other.close();
        }
        ControlFlow::Continue(())
    });
    handle.submit(Request { options, ..request(0) }, listener).unwrap();
    scheduler.run();
    assert_eq!((log.ids(0), log.ids(1)), (shifted.ids, expected));
    assert_eq!(log.finished(1).timings.reused_tokens, 4);
}

#[test]
fn many_threads_submit_and_each_gets_its_own_text() {
    let prompts: Vec<Vec<u32>> = (0..6).map(|kind| ids(kind, 10 + 3 * kind)).collect();
    let expected: Vec<Vec<u32>> = prompts.iter().map(|prompt| alone(prompt, 8)).collect();
    let (scheduler, handle) = scheduler(4, &SchedulerOptions::default());
    let log = Log::default();
    let visitors: Vec<_> = (0..8)
        .map(|thread| {
            let (handle, log, prompts) = (handle.clone(), log.clone(), prompts.clone());
            std::thread::spawn(move || {
                for (kind, prompt) in prompts.into_iter().enumerate() {
                    let request = Request { prompt, owner: thread, ..request(8) };
                    handle.submit(request, log.plain(10 * thread as usize + kind)).unwrap();
                }
            })
        })
        .collect();
    drop(handle);
    scheduler.run();
    visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
    for thread in 0..8 {
        for (kind, expected) in expected.iter().enumerate() {
            assert_eq!(&log.ids(10 * thread + kind), expected, "{thread}, {kind}");
        }
    }
}

#[test]
fn streams_continue_during_a_long_prefill() {
    // A pass has 10 rows, one of them the stream's.
    let engine = tales_engine(|o| {
        o.chunk = Some(10);
        *o = o.clone().batching(3);
    });
    let (scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
    let log = Log::default();
    let (other, inner, mut at) = (handle.clone(), log.clone(), at_piece(3));
    let listener = log.listener(0, move |note| {
        if at(note) {
            let long = Request { prompt: ids(5, 160), ..request(4) };
            other.submit(long, inner.plain(1)).unwrap();
            let short = Request { prompt: ids(6, 6), ..request(4) };
            other.submit(short, inner.plain(2)).unwrap();
            other.close();
        }
        ControlFlow::Continue(())
    });
    handle.submit(request(100), listener).unwrap();
    scheduler.run();
    let position = |number, wanted: fn(&Note) -> bool| {
        log.lock().iter().position(|(n, note)| *n == number && wanted(note)).unwrap()
    };
    let began = position(1, |note| matches!(note, Note::Started));
    let first = position(1, |note| matches!(note, Note::Ids(_)));
    let between = log.lock()[began..first].iter().filter(|(n, _)| *n == 0).count();
    assert!(between >= 160 / 9, "{between} tokens of the first while the second was read");
    // Short prompts do not wait for long ones.
    assert!(position(2, |note| matches!(note, Note::Finished(_))) < first);
    assert_eq!(log.ids(0), alone(&prompt(), 100));
    assert_eq!(log.ids(1), alone(&ids(5, 160), 4));
    assert!(handle.stats().longest_stall > Duration::ZERO);
}

#[test]
fn log_probabilities_match_the_raw_logits() {
    let (scheduler, handle) = scheduler(3, &SchedulerOptions::default());
    let log = Log::default();
    let sampled = Sampling { temperature: 0.8, seed: 5, logit_bias: vec![(40, 3.0)], ..Default::default() };
    let options = |sampling: &Sampling| GenerateOptions { sampling: sampling.clone(), ..tokens(12) };
    let samplings = [Sampling::default(), sampled, Sampling::default()];
    for (number, sampling) in samplings.iter().enumerate() {
        let logged = GenerateOptions { logprobs: (number < 2).then_some(4), ..options(sampling) };
        handle.submit(Request { options: logged, ..request(0) }, log.plain(number)).unwrap();
    }
    drop(handle);
    scheduler.run();
    let mut engine = tales_engine(|o| o.logit_rows = 64);
    for (number, sampling) in samplings.iter().enumerate() {
        assert_eq!(log.ids(number), generate(&mut engine, &prompt(), &options(sampling)).1.ids);
        let logprobs: Vec<TokenLogprob> = log
            .notes(number)
            .into_iter()
            .flat_map(|note| if let Note::Logprobs(logprobs) = note { logprobs } else { vec![] })
            .collect();
        if number == 2 {
            assert!(logprobs.is_empty());
            continue;
        }
        // The same, of a single generation.
        let logged = GenerateOptions { logprobs: Some(4), ..options(sampling) };
        let mut single = Vec::new();
        let mut session = engine.session().unwrap();
        let on_piece = &mut |piece: akunu::Piece<'_>| {
            assert!(piece.logprobs.iter().map(|l| l.id).eq(piece.ids.iter().copied()));
            single.extend_from_slice(piece.logprobs);
            ControlFlow::Continue(())
        };
        let generated = engine.generate(&mut session, &prompt(), &logged, on_piece).unwrap();
        drop(session);
        assert_eq!((generated.ids, &single), (log.ids(number), &logprobs));
        let all = [prompt(), log.ids(number)].concat();
        let scores = engine.log_likelihoods(&all).unwrap();
        let scores = &scores[prompt().len() - 1..];
        assert_eq!(logprobs.len(), scores.len());
        for (found, score) in logprobs.iter().zip(scores) {
            assert!((f64::from(found.logprob) - score).abs() < 1e-5, "{found:?}, {score}");
            assert_eq!(found.top.len(), 4);
            assert!(found.top.is_sorted_by(|a, b| a.1 >= b.1));
            let own = found.top.iter().find(|top| top.0 == found.id);
            assert!(own.is_none_or(|own| own.1 == found.logprob));
            if number == 0 {
                assert_eq!(found.top[0].0, found.id, "greedy");
            }
        }
    }
}

#[test]
fn device_sampling_is_the_same_in_a_batch() {
    let engine = || {
        let options = EngineOptions { context: Some(48), ..options(DeviceChoice::Reference) };
        Engine::on_device(tales(), Box::new(ReferenceDevice::new()), &options.batching(3)).unwrap()
    };
    assert!(engine().device().capabilities().samples);
    let (scheduler, handle) = Scheduler::new(engine(), &SchedulerOptions::default()).unwrap();
    let log = Log::default();
    let warm = Sampling { temperature: 1.0, top_k: 30, seed: 3, ..Default::default() };
    let samplings = [warm.clone(), Sampling::default(), Sampling { seed: 8, repeat_penalty: 1.2, ..warm }];
    let wanted =
        |number: usize| GenerateOptions { sampling: samplings[number].clone(), ..tokens(5 + 3 * number) };
    for number in 0..3 {
        let request = Request { prompt: prompt()[number..].to_vec(), options: wanted(number), ..request(0) };
        handle.submit(request, log.plain(number)).unwrap();
    }
    drop(handle);
    scheduler.run();
    for number in 0..3 {
        let alone = generate(&mut engine(), &prompt()[number..], &wanted(number)).1;
        assert_eq!(log.ids(number), alone.ids);
    }
}

#[test]
fn a_failed_pass_fails_only_its_requests() {
    let device = FailingDevice::new(Box::new(ReferenceDevice::new()));
    let failing = device.failing();
    let options = EngineOptions { context: Some(48), ..options(DeviceChoice::Reference) };
    let engine = Engine::on_device(tales(), Box::new(device), &options.batching(2)).unwrap();
    let (scheduler, handle) = Scheduler::new(engine, &SchedulerOptions::default()).unwrap();
    let log = Log::default();
    let mut at = at_piece(2);
    let listener = log.listener(0, move |note| {
        if at(note) {
            failing.store(true, Ordering::Relaxed);
        }
        ControlFlow::Continue(())
    });
    let next = ids(2, 20);
    handle.submit(request(9), listener).unwrap();
    handle.submit(request(4), log.plain(1)).unwrap();
    for number in 2..4 {
        handle.submit(Request { prompt: next.clone(), ..request(4) }, log.plain(number)).unwrap();
    }
    drop(handle);
    scheduler.run();
    assert_eq!(log.failed(0), "reference: it failed on purpose");
    assert_eq!(log.failed(1), log.failed(0));
    let reused = [2, 3].map(|number| log.finished(number).timings.reused_tokens);
    // A whole block.
    assert_eq!(reused, [0, 16]);
    assert!([2, 3].iter().all(|number| log.ids(*number) == alone(&next, 4)));
}

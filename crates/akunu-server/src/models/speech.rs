//! The thread of a model that transcribes. Windows of all requests are decoded together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use akunu::audio::Audio;
use akunu::schedule::Refused;
use akunu::{Event, Job, TranscribeOptions, Transcriber};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::texts::WaitingGuard;
use crate::app::Caller;
use crate::refusal::Refusal;

/// What the thread tells of a request.
#[derive(Debug)]
pub(crate) enum SpeechEvent {
    /// The options are valid.
    Accepted,
    Found(Event),
    Finished,
}

pub(crate) type SpeechResult = Result<SpeechEvent, Refusal>;

/// The queue of a transcriber's thread, which ends when the queue is dropped.
#[derive(Debug)]
pub struct SpeechQueue {
    requests: Sender<SpeechRequest>,
    counts: Arc<SpeechCounts>,
    /// Maximum number of requests.
    capacity: usize,
    beams: usize,
}

/// Counters of a transcriber since it was loaded.
#[derive(Debug, Default)]
pub struct SpeechCounts {
    waiting: Arc<AtomicUsize>,
    milliseconds: AtomicU64,
    steps: AtomicU64,
    turns: AtomicU64,
}

impl SpeechCounts {
    /// Requests that are waiting or being processed.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Audio that was transcribed.
    pub fn seconds(&self) -> f64 {
        self.milliseconds.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// Times that windows were decoded together.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The sum of the requests in each step.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

/// A file to transcribe.
#[derive(Debug)]
pub(crate) struct SpeechRequest {
    pub(crate) audio: Audio,
    pub(crate) options: TranscribeOptions,
    pub(crate) caller: Caller,
    pub(crate) cancel: Arc<AtomicBool>,
    events: UnboundedSender<SpeechResult>,
    waiting: WaitingGuard,
}

impl SpeechQueue {
    /// The queue and its worker, for a transcriber of this many windows and beams.
    pub(super) fn new(
        transcriber: Transcriber,
        (windows, beams): (usize, usize),
        capacity: usize,
    ) -> (SpeechQueue, SpeechWorker) {
        let (sender, receiver) = channel();
        let counts = Arc::<SpeechCounts>::default();
        let queue = SpeechQueue { requests: sender, counts: counts.clone(), capacity, beams };
        (
            queue,
            SpeechWorker { transcriber, windows, requests: receiver, running: Vec::new(), counts, step: 0 },
        )
    }

    /// Queues a file. Dropping the receiver cancels the request.
    pub(crate) fn submit(
        &self,
        audio: Audio,
        options: TranscribeOptions,
        caller: Caller,
        cancel: Arc<AtomicBool>,
    ) -> Result<UnboundedReceiver<SpeechResult>, Refused> {
        let waiting = self.counts.waiting();
        if waiting >= self.capacity {
            return Err(Refused::QueueFull { waiting });
        }
        let (events, receiver) = unbounded_channel();
        let waiting = WaitingGuard::new(&self.counts.waiting);
        let request = SpeechRequest { audio, options, caller, cancel, events, waiting };
        self.requests.send(request).map_err(|_| Refused::Closed)?;
        Ok(receiver)
    }

    pub fn counts(&self) -> &SpeechCounts {
        &self.counts
    }

    /// The most texts of a window that are followed.
    pub fn beams(&self) -> usize {
        self.beams
    }
}

/// The transcriber and its requests, on the transcriber's thread.
#[derive(Debug)]
pub(super) struct SpeechWorker {
    transcriber: Transcriber,
    windows: usize,
    requests: Receiver<SpeechRequest>,
    running: Vec<Running>,
    counts: Arc<SpeechCounts>,
    /// The number of the last step.
    step: u64,
}

#[derive(Debug)]
struct Running {
    job: Job,
    caller: Caller,
    /// The last step that the job took part in.
    last_step: u64,
    turn: Turn,
    /// Seconds that are transcribed.
    seconds: f64,
    is_over: bool,
    events: UnboundedSender<SpeechResult>,
    /// Dropped before the last event is sent: the client may send its next request then.
    waiting: Option<WaitingGuard>,
}

impl SpeechWorker {
    /// Processes requests until the queue is dropped.
    pub(super) fn run(mut self) {
        loop {
            if self.running.is_empty() {
                let Ok(request) = self.requests.recv() else { return };
                self.accept(request);
            }
            while let Ok(request) = self.requests.try_recv() {
                self.accept(request);
            }
            self.running.retain(|running| !running.events.is_closed());
            if !self.running.is_empty() {
                self.take_step();
            }
        }
    }

    fn accept(&mut self, request: SpeechRequest) {
        let SpeechRequest { audio, options, caller, cancel, events, waiting } = request;
        let job = self.transcriber.job(audio, &options).map_err(Refusal::from);
        let accepted = job.map(|job| {
            let job = job.cancelled_by(cancel);
            let events = events.clone();
            // It comes after those that are waiting.
            let last_step = self.step;
            self.running.push(Running {
                job,
                caller,
                last_step,
                turn: Turn::default(),
                seconds: 0.0,
                is_over: false,
                events,
                waiting: Some(waiting),
            });
            SpeechEvent::Accepted
        });
        let _ = events.send(accepted);
    }

    /// Transcribes a window of each of the next requests.
    fn take_step(&mut self) {
        self.step += 1;
        self.running.sort_by_key(|running| running.last_step);
        let turns = turns(self.running.iter().map(|running| (running.caller, running.last_step)));
        for (running, turn) in self.running.iter_mut().zip(turns) {
            running.turn = turn;
        }
        self.running.sort_by_key(|running| running.turn);
        let count = self.running.len().min(self.windows);
        let next = &mut self.running[..count];
        self.counts.steps.fetch_add(1, Ordering::Relaxed);
        self.counts.turns.fetch_add(count as u64, Ordering::Relaxed);
        let mut jobs: Vec<&mut Job> = next.iter_mut().map(|running| &mut running.job).collect();
        let stepped = self.transcriber.step(&mut jobs).map_err(Refusal::from);
        for running in next {
            running.last_step = self.step;
            running.tell(&stepped, &self.counts);
        }
        self.running.retain(|running| !running.is_over);
    }
}

impl Running {
    /// Sends what a step has found.
    fn tell(&mut self, stepped: &Result<(), Refusal>, counts: &SpeechCounts) {
        let found = match stepped.clone().and_then(|()| Ok(self.job.events()?)) {
            Ok(found) => found,
            Err(refusal) => {
                self.is_over = true;
                self.waiting = None;
                let _ = self.events.send(Err(refusal));
                return;
            }
        };
        for event in found {
            if let Event::Progress { seconds } = &event {
                let more = (seconds - self.seconds).max(0.0);
                self.seconds += more;
                counts.milliseconds.fetch_add((more * 1000.0).round() as u64, Ordering::Relaxed);
            }
            let _ = self.events.send(Ok(SpeechEvent::Found(event)));
        }
        self.is_over = self.job.is_over();
        if self.is_over {
            self.waiting = None;
            let _ = self.events.send(Ok(SpeechEvent::Finished));
        }
    }
}

/// When a request is next: after lower priority values; after requests of its owner that have waited for longer; and
/// after owners that have waited for longer.
type Turn = (i32, usize, u64);

/// The turns of requests of callers, of which each took part in a last step, the first in the earliest.
fn turns(requests: impl Iterator<Item = (Caller, u64)> + Clone) -> Vec<Turn> {
    // Requests of the owner so far, and the last step of any of them.
    let mut owners: HashMap<u64, (usize, u64)> = HashMap::new();
    for (caller, last_step) in requests.clone() {
        owners.entry(caller.owner).or_default().1 = last_step;
    }
    let turn = |(caller, _): (Caller, u64)| {
        let (before, last) = owners.entry(caller.owner).or_default();
        *before += 1;
        (caller.priority.unwrap_or(0), *before, *last)
    };
    requests.map(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owners of the next steps of one window.
    fn steps(owners: &[(u64, i32)], count: u64) -> Vec<u64> {
        let caller = |(owner, priority): &(u64, i32)| Caller { owner: *owner, priority: Some(*priority) };
        let mut requests: Vec<(Caller, u64)> = owners.iter().map(|owner| (caller(owner), 0)).collect();
        let mut next = |step| {
            requests.sort_by_key(|(_, last_step)| *last_step);
            let turns = turns(requests.iter().copied());
            let (_, request) = turns.iter().zip(&mut requests).min_by_key(|(turn, _)| **turn).unwrap();
            request.1 = step;
            request.0.owner
        };
        (1..=count).map(&mut next).collect()
    }

    #[test]
    fn owners_take_turns_however_many_requests_they_have() {
        assert_eq!(steps(&[(1, 0), (1, 0), (1, 0), (2, 0)], 6), [1, 2, 1, 2, 1, 2]);
        assert_eq!(steps(&[(1, 0), (2, 0), (3, 0)], 6), [1, 2, 3, 1, 2, 3]);
        assert_eq!(steps(&[(1, 0), (2, -1)], 3), [2, 2, 2]);
    }
}

//! The connection of a leader and a worker for requests and replies, each side of which says every few seconds that it is
//! there.

use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::frame::{FRAME_BYTES, Frame, FrameError, Paced};
use super::message::{ALIVE, Reply};
use super::{HostsError, Timing};

type OnLost = dyn FnOnce(&str) + Send;

#[derive(Default)]
struct State {
    /// Why there is no more connection.
    reason: Option<String>,
    on_lost: Option<Box<OnLost>>,
}

/// What the threads of a link share with those who watch it.
pub(crate) struct Watch {
    /// Begins each reason: which process this is about.
    peer: String,
    stream: TcpStream,
    patience: Duration,
    writing: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a side receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Any number of them may wait.
    Requests,
    Replies,
}

/// To one request, which is to load. The leader asks again only when it has them.
const MOST_REPLIES: usize = 2;
/// Of a text that the other side has sent.
const SAID_CHARS: usize = 2000;

/// What the other side has said, as a part of a message: one line, and not without end.
pub(crate) fn said(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(shown).take(SAID_CHARS).collect()
}

/// Keeps a frame until somebody takes it; returns whether it did.
type Keep = dyn Fn(Frame) -> bool + Send;

/// One end of a connection.
pub(crate) struct Link {
    watch: Arc<Watch>,
    received: Receiver<Frame>,
    threads: Vec<JoinHandle<()>>,
}

/// A worker that has joined, as the leader has it, or the leader, as a worker has it.
#[derive(Debug)]
pub struct Session {
    /// The rank of the worker.
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) link: Link,
    /// For the numbers that ranks exchange.
    pub(crate) data: TcpStream,
    pub(crate) timing: Timing,
    /// What the leader gives to all workers.
    pub(crate) token: Vec<u8>,
}

impl Session {
    /// What the leader has given to all workers.
    pub fn token(&self) -> &[u8] {
        &self.token
    }
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no more connection.
    pub(crate) fn reason(&self) -> Option<String> {
        self.state().reason.clone()
    }

    /// The same, if it is found out within some time.
    pub(crate) fn reason_within(&self, time: Duration) -> Option<String> {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, time, |state| state.reason.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.reason.clone()
    }

    /// Calls `call` with the reason once the connection is lost, or now if it is.
    pub(crate) fn on_lost(&self, call: Box<OnLost>) {
        let mut state = self.state();
        match state.reason.clone() {
            None => state.on_lost = Some(call),
            Some(reason) => {
                drop(state);
                call(&reason);
            }
        }
    }

    /// Nobody has to know any more when the connection is lost.
    pub(crate) fn forget(&self) {
        self.state().on_lost = None;
    }

    /// Ends the connection. The first reason stays.
    pub(crate) fn lose(&self, why: &str) {
        let mut state = self.state();
        if state.reason.is_some() {
            return;
        }
        let reason = format!("{}: {why}", self.peer);
        state.reason = Some(reason.clone());
        let call = state.on_lost.take();
        drop(state);
        self.changed.notify_all();
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(call) = call {
            call(&reason);
        }
    }

    pub(crate) fn send(&self, frame: &Frame) -> Result<(), HostsError> {
        let sent = {
            let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            frame.write(&mut Paced::new(&self.stream, self.patience))
        };
        if let Err(error) = sent {
            // The other side may have said why before it closed the connection.
            if self.reason_within(SAYING).is_none() {
                self.lose(&error.to_string());
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), HostsError> {
        self.reason().map_or(Ok(()), |reason| Err(HostsError::Lost(reason)))
    }
}

/// How long the reason for a closed connection may be on its way.
pub(crate) const SAYING: Duration = Duration::from_millis(500);

impl Link {
    /// `peer` begins each reason for a lost connection.
    pub(crate) fn start(
        stream: TcpStream,
        peer: String,
        receives: Received,
        timing: Timing,
    ) -> Result<Link, FrameError> {
        stream.set_read_timeout(Some(timing.patience))?;
        stream.set_write_timeout(Some(timing.patience))?;
        let reading = stream.try_clone()?;
        let (patience, writing, state) = (timing.patience, Mutex::default(), Mutex::default());
        let watch = Arc::new(Watch { peer, stream, patience, writing, state, changed: Condvar::new() });
        let (keep, received): (Box<Keep>, _) = match receives {
            Received::Requests => {
                let (to, received) = channel();
                (Box::new(move |frame| to.send(frame).is_ok()), received)
            }
            Received::Replies => {
                let (to, received) = sync_channel(MOST_REPLIES);
                (Box::new(move |frame| to.try_send(frame).is_ok()), received)
            }
        };
        let reader = Arc::clone(&watch);
        let beating = Arc::clone(&watch);
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(format!("akunu-{name}")).spawn(work)
        };
        let threads = vec![
            start("receive", Box::new(move || receive(&reader, &reading, &*keep)))?,
            start("beat", Box::new(move || beat(&beating, timing.beat)))?,
        ];
        Ok(Link { watch, received, threads })
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(crate) fn send(&self, frame: &Frame) -> Result<(), HostsError> {
        self.watch.send(frame)
    }

    /// The next frame, however long the other side takes for it, as long as it says that it is there.
    pub(crate) fn receive(&self) -> Result<Frame, HostsError> {
        self.received.recv().map_err(|_| HostsError::Lost(self.watch.reason().unwrap_or_default()))
    }
}

fn receive(watch: &Watch, stream: &TcpStream, keep: &Keep) {
    loop {
        let mut message = Paced::new(stream, watch.patience);
        match Frame::read(&mut message, FRAME_BYTES) {
            Ok(frame) if frame.kind == ALIVE => {}
            Ok(frame) => {
                if let Ok(Reply::Failed(reason)) = Reply::read(&frame) {
                    return watch.lose(&said(reason));
                }
                if !keep(frame) {
                    return watch.lose("it sends answers to what was not asked");
                }
            }
            Err(FrameError::Late) if message.has_begun() => {
                return watch.lose("a message from it took too long to arrive");
            }
            Err(FrameError::Late) => {
                return watch.lose(&format!("nothing was heard from it for {:?}", watch.patience));
            }
            Err(error) => return watch.lose(&error.to_string()),
        }
    }
}

fn beat(watch: &Watch, every: Duration) {
    while watch.reason_within(every).is_none() {
        // An error ends the loop.
        let _ = watch.send(&Frame { kind: ALIVE, body: Vec::new() });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.watch.forget();
        self.watch.lose("it is no longer needed");
        for thread in self.threads.drain(..) {
            // Neither thread panics, and the closed connection ends both.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("peer", &self.watch.peer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Request;
    use super::super::testing::{USUAL, joined, patient};
    use super::*;

    #[test]
    fn a_silent_rank_is_lost_and_one_that_is_busy_is_not() {
        let short = patient(Duration::from_millis(400));
        let (leader, workers) = joined(2, short, short);
        assert_eq!(leader[0].link.watch().reason_within(Duration::from_secs(1)), None);
        drop((leader, workers));
        // It has nothing to say in time.
        let silent = Timing { beat: USUAL, ..short };
        let (leader, workers) = joined(2, short, silent);
        let reason = leader[0].link.watch().reason_within(USUAL).unwrap();
        assert_eq!(reason, "rank 1 of 2 failed: nothing was heard from it for 400ms");
        assert!(matches!(leader[0].link.receive(), Err(HostsError::Lost(lost)) if lost == reason));
        let heard = workers[0].link.watch().reason_within(USUAL).unwrap();
        assert!(heard.starts_with("the leader has gone: "), "{heard}");
    }

    /// Each byte comes before the patience for silence is over.
    #[test]
    fn a_rank_whose_message_comes_slowly_is_lost() {
        let timing = patient(Duration::from_millis(300));
        let (leader, workers) = joined(2, timing, timing);
        let mut stream = &workers[0].link.watch().stream;
        // No message of the worker comes between the bytes of this one.
        let _writing = workers[0].link.watch().writing.lock().unwrap();
        // The first four are the length of the message: 16 MiB.
        for byte in [0, 0, 0, 1].into_iter().chain([9; 200]) {
            // The leader may have closed the connection.
            let _ = std::io::Write::write_all(&mut stream, &[byte]);
            if let Some(reason) = leader[0].link.watch().reason_within(Duration::from_millis(50)) {
                assert_eq!(reason, "rank 1 of 2 failed: a message from it took too long to arrive");
                return;
            }
        }
        panic!("nothing has ended the message");
    }

    #[test]
    fn a_worker_that_sends_what_was_not_asked_for_is_lost() {
        let (leader, workers) = joined(2, patient(USUAL), patient(USUAL));
        for _ in 0..MOST_REPLIES {
            workers[0].link.send(&Reply::Done.frame()).unwrap();
        }
        let watch = leader[0].link.watch();
        assert_eq!(watch.reason_within(Duration::from_millis(100)), None);
        // The leader may have closed the connection when this returns.
        let _ = workers[0].link.send(&Reply::Done.frame());
        let reason = watch.reason_within(USUAL).unwrap();
        assert_eq!(reason, "rank 1 of 2 failed: it sends answers to what was not asked");
    }

    #[test]
    fn a_leader_may_ask_for_more_than_a_worker_has_done() {
        let (leader, workers) = joined(2, patient(USUAL), patient(USUAL));
        for _ in 0..100 {
            leader[0].link.send(&Request::Wait.frame()).unwrap();
        }
        assert!((0..100).all(|_| workers[0].link.receive().is_ok()));
    }

    #[test]
    fn a_long_reason_is_cut() {
        let (leader, workers) = joined(2, patient(USUAL), patient(USUAL));
        workers[0].fail(&"x".repeat(1 << 20));
        let reason = leader[0].link.watch().reason_within(USUAL).unwrap();
        assert!(reason.ends_with('x') && reason.len() < 2 * SAID_CHARS, "{}", reason.len());
    }

    #[test]
    fn who_asks_later_is_told_too() {
        let (leader, workers) = joined(2, patient(USUAL), patient(USUAL));
        assert_eq!(workers[0].token(), b"for all");
        drop(workers);
        let watch = leader[0].link.watch();
        assert!(watch.reason_within(USUAL).is_some());
        let told = Arc::new(Mutex::new(String::new()));
        let place = Arc::clone(&told);
        watch.on_lost(Box::new(move |reason| *place.lock().unwrap() = reason.to_string()));
        assert_eq!(*told.lock().unwrap(), "rank 1 of 2 failed: the connection was closed");
    }
}

//! The channel of outputs from the engine's thread to the task of their request.
//!
//! Waking a task takes longer than adding an output, and a task that is awake at once sleeps again before the next output
//! comes. So all outputs of a step are one message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::vec;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::job::OutputResult;

/// A channel in which at most `limit` outputs wait.
pub(crate) fn channel(limit: usize) -> (OutputSender, OutputReceiver) {
    let (sender, receiver) = unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let taken = Vec::new().into_iter();
    (OutputSender { sender, waiting: waiting.clone(), limit }, OutputReceiver { receiver, waiting, taken })
}

#[derive(Clone, Debug)]
pub(crate) struct OutputSender {
    sender: UnboundedSender<Vec<OutputResult>>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
}

impl OutputSender {
    /// Sends outputs. False: more would wait than the limit, or nobody receives them.
    pub(crate) fn send(&self, outputs: Vec<OutputResult>) -> bool {
        let count = outputs.len();
        let waited = self.waiting.fetch_add(count, Ordering::Relaxed);
        waited + count <= self.limit && self.sender.send(outputs).is_ok()
    }
}

#[derive(Debug)]
pub(crate) struct OutputReceiver {
    receiver: UnboundedReceiver<Vec<OutputResult>>,
    waiting: Arc<AtomicUsize>,
    /// What is left of the last message.
    taken: vec::IntoIter<OutputResult>,
}

impl OutputReceiver {
    pub(crate) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<OutputResult>> {
        loop {
            if let Some(output) = self.taken.next() {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return Poll::Ready(Some(output));
            }
            match ready!(self.receiver.poll_recv(context)) {
                Some(outputs) => self.taken = outputs.into_iter(),
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::job::{AnswerPiece, Output, OutputEvent};

    fn outputs(count: usize) -> Vec<OutputResult> {
        let output = |choice| Ok(Output { choice, event: OutputEvent::Piece(AnswerPiece::default()) });
        (0..count).map(output).collect()
    }

    #[test]
    fn outputs_come_one_by_one_and_are_limited_together() {
        let (sender, mut receiver) = channel(5);
        let mut received = || match receiver.poll_recv(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output.map(|output| output.unwrap().choice),
            Poll::Pending => Some(usize::MAX),
        };
        assert!(sender.send(outputs(3)) && sender.send(outputs(2)));
        assert_eq!([received(), received()], [Some(0), Some(1)]);
        assert!(sender.send(outputs(2)));
        assert!(!sender.send(outputs(1)));
        drop(sender);
        let rest: Vec<usize> = std::iter::from_fn(received).collect();
        assert_eq!(rest, [2, 0, 1, 0, 1]);
    }

    #[test]
    fn nothing_is_sent_to_nobody() {
        let (sender, receiver) = channel(5);
        drop(receiver);
        assert!(!sender.send(outputs(1)));
    }
}

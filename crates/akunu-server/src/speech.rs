//! Transcription jobs, independent of the protocol.

use std::pin::Pin;
use std::task::{Context, Poll};

use akunu::audio::Audio;
use akunu::schedule::Refused;
use akunu::{Error, Event, TranscribeOptions};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::app::{App, Caller};
use crate::blocking::{CancelOnDrop, blocking};
use crate::form::FormFile;
use crate::models::{Kind, Lease, SpeechEvent, SpeechResult};
use crate::refusal::{Reason, Refusal};
use crate::start::queue_full;
use crate::stream::Outputs;

/// Memory of a file that is being transcribed besides its bytes: its decoder, and frames of two windows.
const WORKING_BYTES: usize = 8 << 20;

/// A request to transcribe a file.
#[derive(Clone, Debug)]
pub(crate) struct SpeechJob {
    /// A model's name or alias; `None`: the server's first model.
    pub(crate) model: Option<String>,
    pub(crate) file: FormFile,
    /// The number of texts that are followed is that of the model.
    pub(crate) options: TranscribeOptions,
}

impl App {
    /// Starts to transcribe. The options are valid if there is no error.
    pub(crate) async fn transcribe(&self, job: SpeechJob, caller: Caller) -> Result<Transcribing, Refusal> {
        let deadline = self.limits().request.map(|limit| Instant::now() + limit);
        job.file.charge().take(WORKING_BYTES)?;
        // The second attempt is for a model whose transcriber had failed.
        for _ in 0..2 {
            let lease = self.models().get(job.model.as_deref()).await?;
            lease.check_kind(Kind::Transcribes)?;
            let file = job.file.clone();
            let audio = blocking(move || Audio::from_bytes(file)).await?.map_err(Error::from)?;
            let cancel = CancelOnDrop::default();
            let submitted = match lease.speech() {
                Some(queue) => {
                    let beams = queue.beams();
                    let options = TranscribeOptions { beams, best_of: beams, ..job.options.clone() };
                    queue.submit(audio, options, caller, cancel.flag())
                }
                None => Err(Refused::Closed),
            };
            let events = match submitted {
                Ok(events) => events,
                Err(Refused::Closed) => {
                    self.models().forget(&lease);
                    continue;
                }
                Err(refused) => return Err(queue_full(&refused)),
            };
            let deadline = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
            let mut transcribing = Transcribing { events, cancel, _lease: lease, deadline, is_over: false };
            return match std::future::poll_fn(|context| transcribing.poll_event(context)).await {
                Err(refusal) => Err(refusal),
                Ok(_) => Ok(transcribing),
            };
        }
        Err(Refusal::internal("the engine failed right after it was started"))
    }
}

/// A running transcription.
#[derive(Debug)]
pub(crate) struct Transcribing {
    events: UnboundedReceiver<SpeechResult>,
    cancel: CancelOnDrop,
    /// Keeps the model loaded.
    _lease: Lease,
    /// When the request times out.
    deadline: Option<Pin<Box<Sleep>>>,
    is_over: bool,
}

impl Transcribing {
    /// What is found next; `None` at the end, and after an error.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, Refusal>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<SpeechResult> {
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready()) {
            self.cancel.cancel();
            let message = "the answer exceeded the server's time limit; send shorter audio";
            return Poll::Ready(Err(Refusal::new(Reason::Overdue, message).code("timeout")));
        }
        self.events.poll_recv(context).map(|sent| {
            sent.unwrap_or_else(|| {
                Err(Refusal::internal("the engine failed; it is restarted by the next request"))
            })
        })
    }
}

impl Outputs for Transcribing {
    type Output = Event;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event, Refusal>>> {
        while !self.is_over {
            match self.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(SpeechEvent::Accepted)) => {}
                Poll::Ready(Ok(SpeechEvent::Found(event))) => return Poll::Ready(Some(Ok(event))),
                Poll::Ready(Ok(SpeechEvent::Finished)) => self.is_over = true,
                Poll::Ready(Err(refusal)) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(refusal)));
                }
            }
        }
        Poll::Ready(None)
    }
}

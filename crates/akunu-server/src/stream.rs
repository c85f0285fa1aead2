//! Streams a running job as the body of a response.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::job::{Output, Running};
use crate::record;
use crate::refusal::Refusal;

/// The outputs of a running job. Dropping it cancels the job.
pub trait Outputs: Send + Unpin + 'static {
    type Output;

    /// The next output; `None` after the last one, and after an error.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Self::Output, Refusal>>>;
}

impl Outputs for Running {
    type Output = Output;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, Refusal>>> {
        Running::poll_next(self, context)
    }
}

/// Writes the outputs of a job in a protocol's format.
pub trait Writer<O = Output>: Send + Unpin + 'static {
    /// Such as `text/event-stream` or `application/x-ndjson`.
    const CONTENT_TYPE: &'static str;

    /// Sent when there has been nothing to write for some time, such as while a long prompt is processed; clients ignore it.
    const PING: Option<&'static str>;

    /// Called before the first output.
    fn begin(&mut self, _to: &mut String) {}

    fn output(&mut self, output: O, to: &mut String);

    /// Called after the last output, unless the job failed.
    fn end(&mut self, to: &mut String);

    /// Called if the job failed, after which nothing is written.
    fn failed(&mut self, refusal: &Refusal, to: &mut String);
}

/// A comment among server-sent events.
pub const PING_COMMENT: &str = ": ping\n\n";

/// Writes a server-sent event.
pub fn event(data: &serde_json::Value, to: &mut String) {
    to.push_str("data: ");
    to.push_str(&data.to_string());
    to.push_str("\n\n");
}

/// Writes a server-sent event with a name.
pub fn named_event(name: &str, data: &serde_json::Value, to: &mut String) {
    to.push_str(&format!("event: {name}\n"));
    event(data, to);
}

/// After this long without a frame, a ping is sent. Proxies and clients give up after 30 seconds at the earliest, as a rule.
const QUIET: Duration = Duration::from_secs(10);

/// Responds with a stream. When the client disconnects, the body is dropped, which cancels the job.
pub fn respond<R: Outputs, W: Writer<R::Output>>(running: R, writer: W) -> Response {
    let streamed =
        Streamed { running, writer, state: State::Begin, quiet: QUIET, written: Instant::now(), timer: None };
    let mut response = Response::new(Body::new(streamed));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(W::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Disables buffering in proxies such as nginx.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Bytes after which a frame ends.
const LONG_FRAME: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begin,
    Open,
    Done,
}

#[derive(Debug)]
struct Streamed<R, W> {
    running: R,
    writer: W,
    state: State,
    /// The time without a frame after which a ping is sent.
    quiet: Duration,
    /// When the last frame was written.
    written: Instant,
    /// Fires no later than the next ping is due.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<R: Outputs, W: Writer<R::Output>> Streamed<R, W> {
    /// Writes the outputs that are available into one frame, which ends when it is long, so that other tasks have their turn.
    fn fill(&mut self, context: &mut Context<'_>, text: &mut String) {
        if self.state == State::Begin {
            self.writer.begin(text);
            self.state = State::Open;
        }
        while self.state == State::Open && text.len() < LONG_FRAME {
            match self.running.poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(output))) => self.writer.output(output, text),
                Poll::Ready(Some(Err(refusal))) => {
                    record::note(|record| record.refused(&refusal));
                    self.writer.failed(&refusal, text);
                    self.state = State::Done;
                }
                Poll::Ready(None) => {
                    self.writer.end(text);
                    self.state = State::Done;
                }
            }
        }
    }

    /// Writes a ping if it is due; else the task is woken when it may be.
    fn ping(&mut self, context: &mut Context<'_>, text: &mut String) {
        let Some(ping) = W::PING else { return };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(self.written + self.quiet)));
        while timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if self.written + self.quiet <= now {
                text.push_str(ping);
                self.written = now;
            }
            timer.as_mut().reset(self.written + self.quiet);
        }
    }
}

impl<R: Outputs, W: Writer<R::Output>> http_body::Body for Streamed<R, W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut text = String::new();
        self.fill(context, &mut text);
        if !text.is_empty() {
            self.written = Instant::now();
        } else if self.state == State::Open {
            self.ping(context, &mut text);
        }
        match (text.is_empty(), self.state) {
            (false, _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(text))))),
            (true, State::Done) => Poll::Ready(None),
            (true, _) => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Waker;

    use http_body::Body as _;

    use super::*;

    /// Outputs that are there at once.
    struct Ready(usize);

    impl Outputs for Ready {
        type Output = ();

        fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<(), Refusal>>> {
            self.0 = self.0.saturating_sub(1);
            Poll::Ready((self.0 > 0).then_some(Ok(())))
        }
    }

    struct Kilobytes;

    impl Writer<()> for Kilobytes {
        const CONTENT_TYPE: &'static str = "text/plain";
        const PING: Option<&'static str> = Some("-");

        fn output(&mut self, (): (), to: &mut String) {
            to.push_str(&"a".repeat(1000));
        }

        fn end(&mut self, to: &mut String) {
            to.push('.');
        }

        fn failed(&mut self, _: &Refusal, _: &mut String) {}
    }

    #[test]
    fn many_outputs_are_several_frames() {
        let mut body = pin!(respond(Ready(501), Kilobytes).into_body());
        let mut frames = Vec::new();
        while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()))
        {
            frames.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!(frames.iter().sum::<usize>(), 500_001);
        assert!(frames.iter().all(|bytes| *bytes < LONG_FRAME + 1000), "{frames:?}");
    }

    /// One output, and its end after some time.
    struct Slow(bool, Pin<Box<Sleep>>);

    impl Outputs for Slow {
        type Output = ();

        fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(), Refusal>>> {
            if std::mem::take(&mut self.0) {
                return Poll::Ready(Some(Ok(())));
            }
            self.1.as_mut().poll(context).map(|()| None)
        }
    }

    #[test]
    fn pings_are_sent_while_there_is_nothing_to_write() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let frames = runtime.block_on(async {
            let slow = Slow(true, Box::pin(sleep_until(Instant::now() + Duration::from_millis(450))));
            let (quiet, written) = (Duration::from_millis(100), Instant::now());
            let mut body = pin!(Streamed {
                running: slow,
                writer: Kilobytes,
                state: State::Begin,
                quiet,
                written,
                timer: None
            });
            let mut frames = Vec::new();
            while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                frames.push(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap());
            }
            frames
        });
        let [first, pings @ .., last] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((first.len(), last.as_str()), (1000, "."));
        // Fewer where the machine is slow.
        assert!((1..=4).contains(&pings.len()) && pings.iter().all(|ping| ping == "-"), "{pings:?}");
    }
}

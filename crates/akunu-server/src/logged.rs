//! The layers that write the request log.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};

use crate::app::App;
use crate::record::{self, Record};
use crate::request_log::RequestLog;

/// Paths that are asked for all the time. Without `--verbose`, only their errors are logged.
const CHECKS: [&str; 3] = ["/health", "/ready", "/metrics"];

/// Writes the line of a request when it is dropped.
#[derive(Debug)]
struct Line {
    record: Arc<Record>,
    log: RequestLog,
    is_check: bool,
    status: Option<u16>,
    is_complete: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        let is_fine = self.is_complete && self.status.is_some_and(|status| status < 400);
        if !(self.is_check && is_fine) {
            self.log.write(self.record.fields(self.status, self.is_complete));
        }
    }
}

/// Logs a request when its response has been sent, or cannot be.
pub(crate) async fn log(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(log) = app.log().cloned() else { return next.run(request).await };
    let record = Arc::new(Record::new(&request));
    request.extensions_mut().insert(record.clone());
    let is_check = CHECKS.contains(&request.uri().path()) && !log.is_verbose();
    let has_no_body = request.method() == Method::HEAD;
    // If the client hangs up, this future is dropped, and so is the line.
    let mut line = Line { record, log, is_check, status: None, is_complete: false };
    let response = next.run(request).await;
    line.status = Some(response.status().as_u16());
    line.is_complete = has_no_body || response.body().is_end_stream();
    response.map(|body| match line.is_complete {
        true => body,
        false => Body::new(Logged { body, line: Some(line) }),
    })
}

/// Makes the record of a request known to what it calls.
pub(crate) async fn scope(request: Request, next: Next) -> Response {
    match request.extensions().get::<Arc<Record>>().cloned() {
        Some(record) => record::scope(record, next.run(request)).await,
        None => next.run(request).await,
    }
}

/// The body of a response whose line is written at its end.
#[derive(Debug)]
struct Logged {
    body: Body,
    line: Option<Line>,
}

impl http_body::Body for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(record) = self.line.as_ref().map(|line| line.record.clone()) else {
            return Poll::Ready(None);
        };
        let polled = record::sync_scope(record, || Pin::new(&mut self.body).poll_frame(context));
        let is_complete = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            _ => false,
        };
        if is_complete && let Some(mut line) = self.line.take() {
            line.is_complete = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.line.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! A server without a socket: other programs call its handlers in their own process.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use http_body::Body as _;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::app::App;
use crate::error::ServeError;
use crate::server::{Options, runtimes};

/// Models with the handlers of a server. Dropping it ends all requests.
#[derive(Debug)]
pub struct Local {
    app: App,
    router: Router,
    /// Requests end with their runtimes.
    runtime: OwnRuntime,
    _long_requests: OwnRuntime,
}

/// A runtime that does not wait for blocking work when it is dropped: that would be an error within another runtime.
#[derive(Debug)]
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        Some(self.0.as_ref()?.spawn(work).abort_handle())
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalEvent {
    Status(u16),
    Bytes(Vec<u8>),
    End,
}

/// An answer while it is written. Dropping it ends the request, as when a client hangs up.
#[derive(Debug)]
pub struct LocalAnswer {
    events: Receiver<LocalEvent>,
    task: Option<AbortHandle>,
}

impl LocalAnswer {
    /// The next part, or `None` if there is none within this time. After the end there is only the end.
    pub fn next(&self, time: Duration) -> Option<LocalEvent> {
        match self.events.recv_timeout(time) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(LocalEvent::End),
        }
    }
}

impl Drop for LocalAnswer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Called after each part, on a thread that others wait for.
pub type Notify = Box<dyn Fn() + Send>;

impl Local {
    /// Loads all models. Of the options, those of connections have no effect.
    pub fn start(options: Options) -> Result<Local, ServeError> {
        let (runtime, long_requests) = runtimes()?;
        let app = App::new(options, None, true, long_requests.handle().clone());
        let router = app.router();
        let loaded = runtime.block_on(app.models().preload());
        let (runtime, long_requests) = (OwnRuntime(Some(runtime)), OwnRuntime(Some(long_requests)));
        let local = Local { app, router, runtime, _long_requests: long_requests };
        loaded.map_err(|refusal| ServeError::Model(refusal.message))?;
        Ok(local)
    }

    /// The models and what they do.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Begins a request with a body, or without one (GET).
    pub fn request(
        &self,
        path: &str,
        kind: &str,
        body: Option<Vec<u8>>,
        notify: Option<Notify>,
    ) -> LocalAnswer {
        let (sender, events) = channel();
        let method = if body.is_some() { "POST" } else { "GET" };
        let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        let request = request.header(CONTENT_TYPE, kind).body(Body::from(body.unwrap_or_default()));
        let router = self.router.clone();
        let answer = async move {
            let send = move |event| send(&sender, event, notify.as_ref());
            let Ok(request) = request else {
                // The caller's path is none.
                send(LocalEvent::Status(400));
                return send(LocalEvent::End);
            };
            let Ok(response) = TowerToHyperService::new(router).call(request).await;
            send(LocalEvent::Status(response.status().as_u16()));
            let mut body = pin!(response.into_body());
            while let Some(Ok(frame)) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                if let Ok(bytes) = frame.into_data() {
                    send(LocalEvent::Bytes(bytes.to_vec()));
                }
            }
            send(LocalEvent::End);
        };
        let task = self.runtime.spawn(answer);
        LocalAnswer { events, task }
    }
}

fn send(to: &Sender<LocalEvent>, event: LocalEvent, notify: Option<&Notify>) {
    // Nobody may be waiting any more.
    let _ = to.send(event);
    if let Some(notify) = notify {
        notify();
    }
}

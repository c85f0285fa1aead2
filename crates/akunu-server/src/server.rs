//! The listener, connections, and shutdown.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::app::{App, Caller, Preload};
use crate::connections::{Connections, OnSpare, SpareConnections};
use crate::error::ServeError;
use crate::guard::Cors;
use crate::keys::Keys;
use crate::kv_events::{KvEvents, KvEventsOptions};
use crate::limits::Limits;
use crate::mcp::McpServers;
use crate::models::ModelsOptions;
use crate::ollama::kept;
use crate::openai::responses::folder::ResponseFolder;
use crate::record::Peer;
use crate::request_log::RequestLog;
use crate::tls::{self, TlsFiles};
use crate::write_timeout::WriteTimeout;

#[derive(Clone, Debug)]
pub struct Options {
    /// The address to bind.
    pub host: String,
    /// 0: any free port.
    pub port: u16,
    pub models: ModelsOptions,
    pub limits: Limits,
    pub keys: Keys,
    pub cors: Cors,
    /// Host names of the server, besides those of the loopback interface.
    pub allowed_hosts: Vec<String>,
    /// Cached prompts are reused by requests with other API keys, which can tell so.
    pub share_cache: bool,
    /// In Anthropic's protocol, a header for billing at the start of a system prompt is removed, and a date
    /// is moved to its end, so that the cache is reused.
    pub stable_prompts: bool,
    /// A folder in which clients may save the texts of slots.
    pub slots: Option<PathBuf>,
    /// A folder in which stored responses are kept for the next start.
    pub response_folder: Option<PathBuf>,
    /// All models are loaded at the start, and `/ready` says when. Without it, the first request for a model loads it.
    pub preload: bool,
    /// Publishes what is in the caches of models. `None`: nothing is published.
    pub kv_events: Option<KvEventsOptions>,
    /// Clients may have models downloaded, with these settings of the hub.
    pub pull: Option<akunu_hub::Settings>,
    /// Clients may delete downloaded models, which are where these settings of the hub say.
    pub delete: Option<akunu_hub::Settings>,
    /// Servers whose tools the chat page may call.
    pub mcp: Option<McpServers>,
    /// `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// `None`: requests are not logged.
    pub log: Option<RequestLog>,
    /// How long running requests may take to finish at shutdown.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: "127.0.0.1".into(),
            port: 8080,
            models: ModelsOptions::default(),
            limits: Limits::default(),
            keys: Keys::default(),
            cors: Cors::Off,
            allowed_hosts: Vec::new(),
            share_cache: false,
            stable_prompts: true,
            slots: None,
            response_folder: None,
            preload: false,
            kv_events: None,
            pull: None,
            delete: None,
            mcp: None,
            tls: None,
            log: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// A server that runs on threads of its own. Dropping it aborts all requests.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    app: App,
    stop: watch::Sender<bool>,
    serving: Option<JoinHandle<()>>,
    runtime: Runtime,
    /// For requests with long bodies.
    long_requests: Runtime,
}

/// Threads for network I/O.
const THREADS: usize = 2;

/// Threads for requests with long bodies, and for their blocking work. Each has memory that it keeps for its next request.
const LONG_THREADS: usize = 1;
const LONG_BLOCKING_THREADS: usize = 2;

/// Threads for blocking work, such as tokenization and large request bodies.
const BLOCKING_THREADS: usize = 8;

/// How long threads may take to end after [`Options::drain`]: first those of blocking work, then the engines'.
const LAST_WAIT: Duration = Duration::from_millis(300);

/// Timeout for the head of a request on a connection beyond the limits.
const SPARE_READ: Duration = Duration::from_secs(5);

/// The threads for requests, and those for requests with long bodies.
pub(crate) fn runtimes() -> Result<(Runtime, Runtime), ServeError> {
    let runtime = |threads: usize, blocking: usize, on_start: fn()| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads).max_blocking_threads(blocking).on_thread_start(on_start);
        builder.thread_name("akunu-server").enable_all().build().map_err(ServeError::Threads)
    };
    let long_requests = runtime(LONG_THREADS, LONG_BLOCKING_THREADS, akunu_pool::give_way)?;
    Ok((runtime(THREADS, BLOCKING_THREADS, || ())?, long_requests))
}

impl Server {
    /// Binds the address and starts serving.
    pub fn start(mut options: Options) -> Result<Server, ServeError> {
        let (runtime, long_requests) = runtimes()?;
        let address = format!("{}:{}", options.host, options.port);
        let failed = |error| ServeError::Listen { address: address.clone(), error };
        let binding = TcpListener::bind((options.host.as_str(), options.port));
        let listener = runtime.block_on(binding).map_err(&failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        if let Some(events) = &options.kv_events {
            let events = KvEvents::listen(runtime.handle(), events, &bound.to_string())?;
            options.models.kv_events = Some(events);
        }
        if options.mcp.is_some() && options.keys.is_empty() && !bound.ip().is_loopback() {
            return Err(ServeError::OpenTools);
        }
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let drain = options.drain;
        let folder = |path: &PathBuf| {
            let failed = |error| ServeError::File { path: path.display().to_string(), error };
            ResponseFolder::open(path).map(Arc::new).map_err(failed)
        };
        let response_folder = options.response_folder.as_ref().map(folder).transpose()?;
        let app =
            App::new(options, response_folder, bound.ip().is_loopback(), long_requests.handle().clone());
        if let Some(folder) = app.response_folder() {
            let failed = |error| ServeError::File { path: folder.path().display().to_string(), error };
            kept::load(&app, folder.path()).map_err(failed)?;
        }
        if *app.preload().borrow() == Preload::Loading {
            runtime.spawn(preload(app.clone()));
        }
        let (stop, stopped) = watch::channel(false);
        let serving = serve(listener, tls, app.clone(), stopped, drain);
        let serving = Some(runtime.spawn(serving));
        Ok(Server { address: bound, app, stop, serving, runtime, long_requests })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts down: refuses new requests, and waits up to [`Options::drain`] for running ones.
    pub fn stop(mut self) {
        self.app.drain();
        let _ = self.stop.send(true);
        if let Some(serving) = self.serving.take() {
            let _ = self.runtime.block_on(serving);
        }
        // A pass of an engine and work on a blocking thread cannot be interrupted. They end on their own, or with the process.
        self.long_requests.shutdown_timeout(LAST_WAIT);
        self.runtime.shutdown_timeout(LAST_WAIT);
        let (sender, ended) = std::sync::mpsc::channel::<()>();
        let app = self.app;
        if let Some(servers) = app.mcp() {
            servers.end();
        }
        let log = app.log().cloned();
        let engines = std::thread::Builder::new().name("akunu-shutdown".into());
        let waiting = engines.spawn(move || {
            drop(app);
            drop(sender);
        });
        if waiting.is_ok() {
            let _ = ended.recv_timeout(LAST_WAIT);
        }
        if let Some(log) = log {
            log.flush(LAST_WAIT);
        }
    }

    /// From now on, Ctrl-C and, on Unix, SIGTERM do not end the process: [`Server::wait_for`] returns.
    pub fn signals(&self) -> Result<Signals, ServeError> {
        let _inside = self.runtime.enter();
        Signals::new().map_err(ServeError::Signals)
    }

    /// Waits for a signal. An error if a model that is to be loaded at the start cannot be.
    pub fn wait_for(&self, mut signals: Signals) -> Result<(), ServeError> {
        let mut preload = self.app.preload().subscribe();
        let failed = preload.wait_for(|state| matches!(state, Preload::Failed(_)));
        match self.runtime.block_on(either(signals.next(), failed)) {
            Either::First(signal) => signal.map_err(ServeError::Signals),
            Either::Second(state) => match state.as_deref() {
                Ok(Preload::Failed(message)) => Err(ServeError::Preload(message.clone())),
                _ => Ok(()),
            },
        }
    }
}

/// Signals that end a server.
#[cfg(unix)]
#[derive(Debug)]
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> std::io::Result<()> {
        either(self.interrupt.recv(), self.terminate.recv()).await;
        Ok(())
    }
}

/// Signals that end a server.
#[cfg(not(unix))]
#[derive(Debug)]
pub struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) -> std::io::Result<()> {
        tokio::signal::ctrl_c().await
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    app: App,
    mut stopped: watch::Receiver<bool>,
    drain: Duration,
) {
    let unloader = tokio::spawn(unload_idle(app.clone()));
    let router = app.router();
    let mut connections = JoinSet::new();
    let (open, mut spare) = (Connections::default(), SpareConnections::default());
    loop {
        while connections.try_join_next().is_some() {}
        let Some(accepted) = either(listener.accept(), stopped.changed()).await.first() else { break };
        match accepted {
            Ok((stream, peer)) => {
                // Tokens are small and must be sent without delay.
                let _ = stream.set_nodelay(true);
                let stream = WriteTimeout::new(stream, app.limits().write);
                let caller = Caller::of_address(peer.ip());
                let mut router = router.clone().layer(Extension(caller)).layer(Extension(Peer(peer.ip())));
                let (tls, mut limits, stopped) = (tls.clone(), app.limits().clone(), stopped.clone());
                let seat = open.seat(caller.owner, &limits);
                let is_spare = seat.is_none();
                if is_spare {
                    router = router.layer(Extension(OnSpare));
                    limits.read = limits.read.min(SPARE_READ);
                }
                let connection = connections.spawn(async move {
                    let _seat = seat;
                    match tls {
                        None => connection(stream, router, limits, stopped).await,
                        Some(tls) => {
                            // Connections whose handshake fails or times out are closed.
                            if let Ok(Ok(stream)) = timeout(limits.read, tls.accept(stream)).await {
                                connection(stream, router, limits, stopped).await;
                            }
                        }
                    }
                });
                if is_spare {
                    spare.add(connection);
                }
            }
            // Most likely out of file descriptors; wait until some are closed.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
    drop(listener);
    let all_done = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(drain, all_done).await;
    connections.shutdown().await;
    unloader.abort();
}

async fn preload(app: App) {
    let state = match app.models().preload().await {
        Ok(()) => Preload::Done,
        Err(refusal) => Preload::Failed(refusal.message),
    };
    app.preload().send_replace(state);
}

async fn unload_idle(app: App) {
    if !app.models().has_timeouts() {
        return;
    }
    let mut ticks = interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        app.models().unload_idle().await;
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin,
    router: Router,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.read)
            .max_buf_size(limits.head)
            .serve_connection(TokioIo::new(stream), service)
    );
    // Errors are ignored: the connection is closed, so the client cannot be informed.
    if either(&mut serving, stopped.wait_for(|stopped| *stopped)).await.first().is_none() {
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
}

/// The result of the future that completed first.
#[derive(Debug)]
enum Either<A, B> {
    First(A),
    Second(B),
}

impl<A, B> Either<A, B> {
    fn first(self) -> Option<A> {
        match self {
            Either::First(a) => Some(a),
            Either::Second(_) => None,
        }
    }
}

async fn either<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| match a.as_mut().poll(context) {
        Poll::Ready(a) => Poll::Ready(Either::First(a)),
        Poll::Pending => b.as_mut().poll(context).map(Either::Second),
    })
    .await
}

//! The state that all handlers share, and the middleware.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde_json::Value as Json;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::blocking::Attached;
use crate::body::may_be_long;
use crate::connections::client_of;
use crate::guard::{self, Cors};
use crate::guesses::Guesses;
use crate::keys::Keys;
use crate::limits::{Limits, Rate};
use crate::logged;
use crate::mcp::McpServers;
use crate::memory::{Charge, RequestMemory};
use crate::metrics::Metrics;
use crate::models::{Models, variants};
use crate::openai::responses::folder::ResponseFolder;
use crate::openai::responses::store::ResponseStore;
use crate::origin::Hosts;
use crate::protocol;
use crate::record::Record;
use crate::refusal::{Reason, Refusal};
use crate::request_log::RequestLog;
use crate::server::Options;

/// Downloads of models that run at once.
const PULLS: usize = 2;

/// Maximum bytes of an error's message, and of the name of its field.
const MAX_MESSAGE: usize = 4096;

/// The models that are to be loaded at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Preload {
    Loading,
    /// Or there are none.
    Done,
    Failed(String),
}

/// Clones share the same state.
#[derive(Clone, Debug)]
pub struct App(Arc<Shared>);

#[derive(Debug)]
pub struct Shared {
    models: Models,
    limits: Limits,
    rate: Option<Rate>,
    guesses: Guesses,
    memory: Arc<RequestMemory>,
    keys: Keys,
    cors: Cors,
    hosts: Hosts,
    share_cache: bool,
    stable_prompts: bool,
    slots: Option<PathBuf>,
    log: Option<RequestLog>,
    pull: Option<akunu_hub::Settings>,
    mcp: Option<McpServers>,
    delete: Option<akunu_hub::Settings>,
    /// Downloads that may run at once.
    pulls: Arc<Semaphore>,
    responses: ResponseStore,
    response_folder: Option<Arc<ResponseFolder>>,
    /// Also held by the engines' threads. A separate `Arc`, because those must not keep `Shared` alive.
    metrics: Arc<Metrics>,
    preload: watch::Sender<Preload>,
    /// Shutting down: running requests may finish, and new ones are refused.
    draining: AtomicBool,
    /// The threads for requests with long bodies.
    long_requests: Handle,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Shared {
    pub fn models(&self) -> &Models {
        &self.models
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn memory(&self) -> &Arc<RequestMemory> {
        &self.memory
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(crate) fn rate(&self) -> Option<&Rate> {
        self.rate.as_ref()
    }

    pub(crate) fn guesses(&self) -> &Guesses {
        &self.guesses
    }

    /// Whether lines that change between turns are removed from the start of Anthropic's system prompts.
    pub(crate) fn stable_prompts(&self) -> bool {
        self.stable_prompts
    }

    /// The folder for saved texts of slots.
    pub(crate) fn slots(&self) -> Option<&Path> {
        self.slots.as_deref()
    }

    pub(crate) fn log(&self) -> Option<&RequestLog> {
        self.log.as_ref()
    }

    pub(crate) fn pull(&self) -> Option<&akunu_hub::Settings> {
        self.pull.as_ref()
    }

    pub(crate) fn pulls(&self) -> &Arc<Semaphore> {
        &self.pulls
    }

    pub(crate) fn mcp(&self) -> Option<&McpServers> {
        self.mcp.as_ref()
    }

    /// The settings of the hub, if clients may delete what is in its cache.
    pub(crate) fn delete(&self) -> Option<&akunu_hub::Settings> {
        self.delete.as_ref()
    }

    pub(crate) fn response_folder(&self) -> Option<&Arc<ResponseFolder>> {
        self.response_folder.as_ref()
    }

    pub(crate) fn responses(&self) -> &ResponseStore {
        &self.responses
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn cors(&self) -> &Cors {
        &self.cors
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The salt of a caller's cached prefixes. Callers with different keys must not learn of each other's prompts.
    pub(crate) fn salt(&self, caller: Caller, salt: Option<&str>) -> u64 {
        match (self.cache_owner(caller), salt) {
            (None, None) => 0,
            both => hash(&both),
        }
    }

    /// The digest of the key whose cached prompts a caller shares; `None`: those of all.
    pub(crate) fn cache_owner(&self, caller: Caller) -> Option<[u8; 32]> {
        if self.share_cache { None } else { self.keys.digest(caller) }
    }

    /// Whether the models that are to be loaded at the start are.
    pub(crate) fn preload(&self) -> &watch::Sender<Preload> {
        &self.preload
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }
}

/// The client of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Slots are shared fairly between owners, however many requests each has.
    pub owner: u64,
    /// The priority of its API key: lower values are scheduled first. `None`: the server has no keys.
    pub priority: Option<i32>,
}

impl Caller {
    pub(crate) fn of_address(address: IpAddr) -> Caller {
        Caller { owner: client_of(address), priority: None }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl FromRequestParts<App> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Caller, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// The parameter of a route's path, decoded.
pub(crate) struct PathParameter(pub String);

impl FromRequestParts<App> for PathParameter {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<PathParameter, Refusal> {
        let found = axum::extract::Path::from_request_parts(parts, app).await;
        let axum::extract::Path(text) =
            found.map_err(|_| Refusal::invalid("the path has an escape (%) that is not UTF-8"))?;
        Ok(PathParameter(text))
    }
}

impl App {
    /// `is_loopback`: the server listens on the loopback interface only.
    pub(crate) fn new(
        options: Options,
        response_folder: Option<Arc<ResponseFolder>>,
        is_loopback: bool,
        long_requests: Handle,
    ) -> App {
        let Options {
            models,
            limits,
            keys,
            cors,
            allowed_hosts,
            share_cache,
            stable_prompts,
            slots,
            log,
            pull,
            preload,
            mcp,
            delete,
            ..
        } = options;
        App(Arc::new(Shared {
            models: Models::new(models),
            rate: limits.rate.map(Rate::new),
            guesses: Guesses::new(limits.wrong_keys),
            memory: Arc::new(RequestMemory::new(limits.memory)),
            responses: ResponseStore::new(limits.responses, limits.response_bytes),
            response_folder,
            limits,
            keys,
            cors,
            hosts: Hosts { allowed: allowed_hosts, is_loopback },
            share_cache,
            stable_prompts,
            slots,
            log,
            pull,
            mcp,
            delete,
            pulls: Arc::new(Semaphore::new(PULLS)),
            metrics: Arc::default(),
            preload: watch::Sender::new(if preload { Preload::Loading } else { Preload::Done }),
            draining: AtomicBool::new(false),
            long_requests,
        }))
    }

    pub(crate) fn router(&self) -> Router {
        // The last layer is the outermost.
        protocol::router()
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            .layer(from_fn_with_state(self.clone(), variants::of_caller))
            .layer(from_fn(guard_panics))
            .layer(from_fn(logged::scope))
            .layer(from_fn_with_state(self.clone(), set_apart))
            .layer(from_fn_with_state(self.clone(), charge))
            .layer(from_fn_with_state(self.clone(), guard::admit))
            .layer(from_fn_with_state(self.clone(), write_refusals))
            .layer(from_fn_with_state(self.clone(), guard::apply_cors))
            .layer(from_fn_with_state(self.clone(), count))
            .layer(from_fn_with_state(self.clone(), logged::log))
            .with_state(self.clone())
    }
}

async fn unknown(method: Method, uri: Uri) -> Refusal {
    Refusal::new(Reason::NotFound, format!("unknown URL: {method} {}", uri.path())).code("unknown_url")
}

async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    let message = format!("method {method} is not allowed for {}", uri.path());
    Refusal::new(Reason::Method, message).code("method_not_supported")
}

async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    // Unknown paths are counted together, so that clients cannot create any number of counters.
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_string());
    let response = next.run(request).await;
    app.metrics().answered(route.as_deref().unwrap_or("other"), response.status().as_u16());
    response
}

/// Handles requests with long bodies on threads of their own: reading, copying and freeing a body of many values takes
/// seconds, in which the threads for network I/O could not serve anybody else.
async fn set_apart(State(app): State<App>, request: Request, next: Next) -> Response {
    if !may_be_long(&request) {
        return next.run(request).await;
    }
    let handled = Attached::new(app.long_requests.spawn(next.run(request))).finished().await;
    handled.unwrap_or_else(|refusal| refusal.into_response())
}

/// Counts the memory of a request until its handler returns.
async fn charge(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let charge = Charge::new(app.memory());
    request.extensions_mut().insert(charge.clone());
    let response = next.run(request).await;
    drop(charge);
    response
}

/// Writes refusals in the error format of the path's protocol. Paths of models are kept out of the messages.
async fn write_refusals(State(app): State<App>, uri: Uri, request: Request, next: Next) -> Response {
    let record = request.extensions().get::<Arc<Record>>().cloned();
    let mut response = next.run(request).await;
    let Some(mut refusal) = response.extensions_mut().remove::<Refusal>() else { return response };
    if let Some(record) = record {
        record.refused(&refusal);
    }
    // Both may quote a field of the request.
    for text in [Some(&mut refusal.message), refusal.param.as_mut()].into_iter().flatten() {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    }
    if refusal.may_name_files {
        refusal.message = app.models().without_paths(refusal.message);
    }
    let body = protocol::write_error(&uri, &refusal);
    *response.body_mut() = body.to_string().into();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = refusal.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Turns a panic in a handler into an error of its request.
async fn guard_panics(request: Request, next: Next) -> Response {
    let mut running = Box::pin(next.run(request));
    std::future::poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            Poll::Ready(Refusal::internal("internal error: a bug in Akunu").into_response())
        })
    })
    .await
}

/// A JSON object as a response.
pub fn json(body: &Json) -> Response {
    json_text(body.to_string())
}

/// The text of a JSON object as a response.
pub fn json_text(body: String) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    #[test]
    fn a_panic_in_a_handler_is_that_requests_error() {
        async fn broken() -> Response {
            panic!("a secret")
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let app = App::new(Options::default(), None, true, runtime.handle().clone());
        let router: Router = Router::new()
            .route("/v1/broken", get(broken))
            .layer(from_fn(guard_panics))
            .layer(from_fn_with_state(app, write_refusals));
        let service = TowerToHyperService::new(router);
        let request = Request::builder().uri("/v1/broken").body(Body::empty()).unwrap();
        let response = runtime.block_on(service.call(request)).unwrap();
        assert_eq!(response.status(), 500);
        let body = runtime.block_on(axum::body::to_bytes(response.into_body(), 1000)).unwrap();
        let body: Json = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["type"], "server_error");
        assert!(!body.to_string().contains("a secret"));
    }
}

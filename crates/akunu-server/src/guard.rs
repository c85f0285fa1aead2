//! Middleware before the handlers: API keys, rate limits, and CORS.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HeaderValue, ORIGIN, VARY,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::{App, Caller};
use crate::connections::OnSpare;
use crate::origin;
use crate::record::Record;
use crate::refusal::{Reason, Refusal};

/// Paths whose GET needs no API key: health checks, and the chat page, which asks the user for a key.
const PUBLIC: [&str; 3] = ["/", "/health", "/ready"];

/// Paths that are served on connections beyond the limits.
const ALWAYS: [&str; 2] = ["/health", "/ready"];

pub(crate) async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match admitted(&app, &mut request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn admitted(app: &App, request: &mut Request) -> Result<(), Refusal> {
    let is_work = request.method() == Method::POST;
    let is_any = |paths: &[&str]| paths.contains(&request.uri().path()) && !is_work;
    if request.extensions().get::<OnSpare>().is_some() && !is_any(&ALWAYS) {
        return Err(Refusal::new(Reason::Unavailable, "the server or your address has too many connections")
            .code("too_many_connections")
            .retry_after(1));
    }
    origin::check(request, app.hosts(), app.cors())?;
    if !app.keys().is_empty() && !is_any(&PUBLIC) {
        let client = request.extensions().get().map_or(0, |client: &Caller| client.owner);
        let caller = app.keys().find(request.headers());
        let key = caller.map(|caller| caller.owner);
        app.guesses().check(client, key, Instant::now()).map_err(too_many_guesses)?;
        let missing = || {
            Refusal::new(Reason::Unauthorized, "an API key is required: Authorization: Bearer KEY")
                .code("invalid_api_key")
        };
        let caller = caller.ok_or_else(missing)?;
        if let Some(record) = request.extensions().get::<Arc<Record>>() {
            record.key(app.keys().name(caller));
        }
        request.extensions_mut().insert(caller);
    }
    if app.is_draining() && is_work {
        return Err(Refusal::new(Reason::Unavailable, "the server is shutting down").retry_after(5));
    }
    let caller: Option<&Caller> = request.extensions().get();
    if let (Some(rate), Some(caller)) = (app.rate().filter(|_| is_work), caller) {
        rate.take(caller.owner, Instant::now()).map_err(|seconds| {
            Refusal::new(Reason::TooMany, format!("too many requests per minute; try again in {seconds} s"))
                .code("rate_limit_exceeded")
                .retry_after(seconds)
        })?;
    }
    Ok(())
}

fn too_many_guesses(seconds: u64) -> Refusal {
    let message = format!("too many requests without a valid API key; try again in {seconds} s");
    Refusal::new(Reason::TooMany, message).code("rate_limit_exceeded").retry_after(seconds)
}

/// Origins whose pages may read responses. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    #[default]
    Off,
    Any,
    Origins(Vec<String>),
}

impl Cors {
    /// The value of `Access-Control-Allow-Origin`; `None`: not allowed.
    pub(crate) fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        match self {
            Cors::Off => None,
            Cors::Any => Some(HeaderValue::from_static("*")),
            Cors::Origins(allowed) => {
                let is_allowed = allowed.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes());
                is_allowed.then(|| origin.clone())
            }
        }
    }
}

/// Answers CORS preflight requests, and adds CORS headers to responses.
pub(crate) async fn apply_cors(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(origin) = app.cors().allowed_origin(request.headers()) else { return next.run(request).await };
    let is_preflight = request.method() == Method::OPTIONS;
    let mut response = match is_preflight {
        true => StatusCode::NO_CONTENT.into_response(),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(VARY, HeaderValue::from_static("origin"));
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
        // The wildcard does not include `authorization`.
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, *"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    }
    response
}

//! The layers that a request goes through before a handler sees it: who asks, how often, and from which page.

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
use crate::refusal::{Reason, Refusal};

/// Paths that anybody may look at: they tell nothing. Whoever watches over a server has no key, and the page asks for one.
/// What is posted to them is work, and wants a key.
const OPEN: [&str; 3] = ["/", "/health", "/ready"];

pub(crate) async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match admitted(&app, &mut request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn admitted(app: &App, request: &mut Request) -> Result<(), Refusal> {
    // Whoever watches over the server is still told how it is.
    let begins_work = request.method() == Method::POST;
    let is_open = OPEN.contains(&request.uri().path()) && !begins_work;
    if !app.keys().is_empty() && !is_open {
        let caller = app.keys().find(request.headers()).ok_or_else(|| {
            Refusal::new(Reason::Unauthorized, "this server wants an API key: Authorization: Bearer KEY")
                .code("invalid_api_key")
        })?;
        request.extensions_mut().insert(caller);
    }
    if app.is_draining() && begins_work {
        return Err(Refusal::new(Reason::Unavailable, "the server is shutting down").retry_after(5));
    }
    let caller: Option<&Caller> = request.extensions().get();
    if let (Some(rate), Some(caller)) = (app.rate().filter(|_| begins_work), caller) {
        rate.take(caller.owner, Instant::now()).map_err(|seconds| {
            Refusal::new(Reason::TooMany, format!("too many requests a minute; try again in {seconds} s"))
                .code("rate_limit_exceeded")
                .retry_after(seconds)
        })?;
    }
    Ok(())
}

/// Pages of other origins that may read answers. None, unless somebody says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    #[default]
    Off,
    Any,
    Origins(Vec<String>),
}

impl Cors {
    /// What to answer a page from this origin with.
    fn allows(&self, headers: &HeaderMap) -> Option<HeaderValue> {
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

/// Browsers ask before they send, and what they may show afterwards.
pub(crate) async fn share(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(origin) = app.cors().allows(request.headers()) else { return next.run(request).await };
    let asks_before = request.method() == Method::OPTIONS;
    let mut response = match asks_before {
        true => StatusCode::NO_CONTENT.into_response(),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(VARY, HeaderValue::from_static("origin"));
    if asks_before {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
        // The star does not stand for this one.
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, *"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    }
    response
}

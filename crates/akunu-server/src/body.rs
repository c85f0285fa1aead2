//! A request's body as JSON.

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_body::Body as _;
use serde_json::Value as Json;
use tokio::time::{Duration, Instant, timeout_at};

use crate::app::App;
use crate::limits::Limits;
use crate::memory::{Charge, json_bytes};
use crate::models::blocking;
use crate::protocol;
use crate::refusal::{Reason, Refusal};

/// Bodies of at least this many bytes are parsed on a blocking thread.
const LONG: usize = 64 << 10;

/// Whether a request's body is long, or may be, because its length is not stated.
pub(crate) fn may_be_long(request: &Request) -> bool {
    request.body().size_hint().upper().is_none_or(|bytes| bytes >= LONG as u64)
}

#[derive(Clone, Debug)]
pub struct JsonBody(pub Json);

impl FromRequest<App> for JsonBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<JsonBody, Refusal> {
        if protocol::needs_json_type(request.uri()) && !is_json(request.headers()) {
            let message = "the request's body must be JSON: send the header Content-Type: application/json";
            return Err(Refusal::new(Reason::MediaType, message).code("unsupported_media_type"));
        }
        let charge = request.extensions().get().cloned().unwrap_or_else(|| Charge::new(app.memory()));
        let bytes = read(request.into_body(), app.limits(), &charge).await?;
        let is_long = bytes.len() >= LONG;
        let parse = move || {
            charge.take(json_bytes(&bytes))?;
            let invalid = |error| Refusal::invalid(format!("the request's body is not JSON: {error}"));
            serde_json::from_slice(&bytes).map(JsonBody).map_err(invalid)
        };
        if is_long { blocking(parse).await? } else { parse() }
    }
}

/// `application/json`, or a format that is written in JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Reads a body. If it is too large, up to four times the limit is read and discarded: most clients read the response only
/// after they have sent the whole request.
async fn read(mut body: Body, limits: &Limits, charge: &Charge) -> Result<Vec<u8>, Refusal> {
    let start = Instant::now();
    let too_large = || {
        let message = format!("the request's body exceeds the limit of {} bytes", limits.body);
        Refusal::new(Reason::TooLarge, message).code("body_too_large")
    };
    let (mut bytes, mut len) = (Vec::new(), 0);
    loop {
        let earned =
            Duration::from_secs(len as u64) / u32::try_from(limits.body_rate.max(1)).unwrap_or(u32::MAX);
        let deadline = start + limits.read + earned;
        let frame = timeout_at(deadline, poll_fn(|context| Pin::new(&mut body).poll_frame(context)));
        let frame = match frame.await {
            Ok(None) if len > limits.body => return Err(too_large()),
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                return Err(Refusal::invalid(format!("the request's body cannot be read: {error}")));
            }
            Err(_) => return Err(Refusal::new(Reason::TooSlow, "the request's body did not arrive in time")),
        };
        let Ok(data) = frame.into_data() else { continue };
        len += data.len();
        if len <= limits.body {
            charge.take(data.len())?;
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
            if len > limits.body.saturating_mul(4) {
                return Err(too_large());
            }
        }
    }
}

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
use crate::blocking::blocking;
use crate::limits::Limits;
use crate::memory::{Charge, arguments_bytes, json_bytes};
use crate::protocol;
use crate::refusal::{Reason, Refusal};

/// Bodies of at least this many bytes are parsed on a blocking thread.
pub(crate) const LONG: usize = 64 << 10;

/// Whether a request's body is long, or may be, because its length is not stated.
pub(crate) fn may_be_long(request: &Request) -> bool {
    request.body().size_hint().upper().is_none_or(|bytes| bytes >= LONG as u64)
}

pub(crate) fn is_long(body: &[u8]) -> bool {
    body.len() >= LONG
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
        let limits = app.limits();
        let bytes = read(request.into_body(), limits.body, limits, &charge).await?;
        let is_long = is_long(&bytes);
        let parse = move || {
            charge.take(json_bytes(&bytes))?;
            let body = serde_json::from_slice(&bytes).map_err(|error| invalid(&error))?;
            charge.take(arguments_bytes(&body))?;
            Ok(JsonBody(body))
        };
        if is_long { blocking(parse).await? } else { parse() }
    }
}

fn invalid(error: &serde_json::Error) -> Refusal {
    match error.to_string() {
        // The parser has no other sign of it.
        text if text.starts_with("recursion limit exceeded") => {
            let message =
                "the request's body has lists and objects nested more than 127 deep, which is the limit";
            Refusal::invalid(message).code("invalid_value")
        }
        text => Refusal::invalid(format!("the request's body is not JSON: {text}")),
    }
}

/// `application/json`, or a format that is written in JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Reads a body of at most `limit` bytes. If it is too large, up to four times the limit is read and discarded: most clients
/// read the response only after they have sent the whole request.
pub(crate) async fn read(
    mut body: Body,
    limit: usize,
    limits: &Limits,
    charge: &Charge,
) -> Result<Vec<u8>, Refusal> {
    let start = Instant::now();
    let too_large = || {
        let message = format!("the request's body exceeds the limit of {} bytes", limit);
        Refusal::new(Reason::TooLarge, message).code("body_too_large")
    };
    let stated = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    let most = stated.map_or(limit, |bytes| bytes.min(limit));
    let (mut bytes, mut len) = (Vec::new(), 0);
    loop {
        let earned =
            Duration::from_secs(len as u64) / u32::try_from(limits.body_rate.max(1)).unwrap_or(u32::MAX);
        let deadline = start + limits.read + earned;
        let frame = timeout_at(deadline, poll_fn(|context| Pin::new(&mut body).poll_frame(context)));
        let frame = match frame.await {
            Ok(None) if len > limit => return Err(too_large()),
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                return Err(Refusal::invalid(format!("the request's body cannot be read: {error}")));
            }
            Err(_) => return Err(Refusal::new(Reason::TooSlow, "the request's body did not arrive in time")),
        };
        let Ok(data) = frame.into_data() else { continue };
        len += data.len();
        if len <= limit {
            reserve(&mut bytes, data.len(), most, charge)?;
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
            if len > limit.saturating_mul(4) {
                return Err(too_large());
            }
        }
    }
}

/// Makes space for `more` bytes, and charges what is allocated, which is twice as much as before but at most `most`.
fn reserve(bytes: &mut Vec<u8>, more: usize, most: usize, charge: &Charge) -> Result<(), Refusal> {
    let (old, needed) = (bytes.capacity(), bytes.len() + more);
    if needed > old {
        let capacity = old.saturating_mul(2).min(most).max(needed);
        charge.take(capacity - old)?;
        bytes.reserve_exact(capacity - bytes.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use http_body::{Frame, SizeHint};

    use super::*;
    use crate::memory::RequestMemory;

    /// A body that arrives in pieces of 100 bytes.
    struct Pieces {
        left: usize,
        is_length_stated: bool,
    }

    impl http_body::Body for Pieces {
        type Data = axum::body::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
            let len = self.left.min(100);
            self.left -= len;
            Poll::Ready((len > 0).then(|| Ok(Frame::data(vec![b' '; len].into()))))
        }

        fn size_hint(&self) -> SizeHint {
            if self.is_length_stated { SizeHint::with_exact(self.left as u64) } else { SizeHint::default() }
        }
    }

    #[test]
    fn a_body_is_charged_by_what_is_allocated_for_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for (is_length_stated, len) in [(true, 6_500), (false, 6_500), (true, 100), (false, 40)] {
            let memory = Arc::new(RequestMemory::new(1 << 20));
            let charge = Charge::new(&memory);
            let body = Body::new(Pieces { left: len, is_length_stated });
            let limits = Limits::default();
            let bytes = runtime.block_on(read(body, limits.body, &limits, &charge)).unwrap();
            assert_eq!((bytes.len(), memory.used()), (len, bytes.capacity()));
            assert!(memory.used() <= if is_length_stated { len } else { 2 * len });
        }
    }
}

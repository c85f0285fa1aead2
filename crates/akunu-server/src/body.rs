//! A request's body as JSON.

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use http_body::Body as _;
use serde_json::Value as Json;
use tokio::time::timeout;

use crate::app::App;
use crate::limits::Limits;
use crate::models::blocking;
use crate::refusal::{Reason, Refusal};

/// Bodies of at least this many bytes are parsed on a blocking thread.
const LONG: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct JsonBody(pub Json);

impl FromRequest<App> for JsonBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<JsonBody, Refusal> {
        let bytes = read(request.into_body(), app.limits()).await?;
        let is_long = bytes.len() >= LONG;
        let parse = move || serde_json::from_slice(&bytes).map(JsonBody);
        let parsed = if is_long { blocking(parse).await? } else { parse() };
        parsed.map_err(|error| Refusal::invalid(format!("the request's body is not JSON: {error}")))
    }
}

/// Reads a body. If it is too large, up to four times the limit is read and discarded: most clients read the response only
/// after they have sent the whole request.
async fn read(mut body: Body, limits: &Limits) -> Result<Vec<u8>, Refusal> {
    let too_large = || {
        let message = format!("the request's body exceeds the limit of {} bytes", limits.body);
        Refusal::new(Reason::TooLarge, message).code("body_too_large")
    };
    let (mut bytes, mut len) = (Vec::new(), 0);
    loop {
        let frame = timeout(limits.read, poll_fn(|context| Pin::new(&mut body).poll_frame(context)));
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
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
            if len > limits.body.saturating_mul(4) {
                return Err(too_large());
            }
        }
    }
}

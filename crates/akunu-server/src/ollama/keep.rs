//! `keep_alive`: how long a model stays loaded after a request.

use serde_json::Value as Json;

use crate::app::App;
use crate::fields::Fields;
use crate::models::KeepAlive;
use crate::refusal::{Reason, Refusal};

pub(super) fn read(fields: &Fields<'_>) -> Result<Option<KeepAlive>, Refusal> {
    const NAME: &str = "keep_alive";
    let Some(value) = fields.get(NAME) else { return Ok(None) };
    let read = match value {
        Json::String(text) => KeepAlive::parse(text),
        Json::Number(number) => number.as_f64().and_then(KeepAlive::seconds),
        _ => None,
    };
    let expected = "a number of seconds, or a duration such as \"5m\"; 0 unloads the model, and -1 keeps it";
    read.map(Some).ok_or_else(|| fields.refuse(NAME, expected))
}

/// Unloads a model, if clients may.
pub(super) async fn unload(app: &App, name: &str) -> Result<(), Refusal> {
    app.models().spec(Some(name)).await?;
    if !app.models().may_keep_alive() {
        let message = "this server keeps its models loaded: to let clients unload them, start it with --idle-unload or \
                       --models";
        return Err(Refusal::new(Reason::Forbidden, message).param("keep_alive"));
    }
    app.models().unload(name).await
}

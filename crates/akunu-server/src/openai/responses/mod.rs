//! `/v1/responses`.

mod answer;
pub(crate) mod folder;
mod items;
mod request;
pub(crate) mod store;
mod tools;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde_json::{Value as Json, json};

use crate::app::{App, Caller, PathParameter, json, json_text};
use crate::blocking::blocking;
use crate::body::{JsonBody, LONG};
use crate::field_table;
use crate::fields::Fields;
use crate::job::{Job, Prompt, Running};
use crate::memory::{Charge, arguments_bytes, json_bytes};
use crate::refusal::{Reason, Refusal};
use crate::stream::{self, Writer};
use answer::{Answer, Keep};
use request::Request;
use store::StoredResponse;

pub(super) fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/v1/responses", post(create)),
        ("/v1/responses/input_tokens", post(input_tokens)),
        ("/v1/responses/compact", post(compact)),
        ("/v1/responses/{id}", get(retrieve).delete(delete)),
        ("/v1/responses/{id}/cancel", post(cancel)),
        ("/v1/responses/{id}/input_items", get(input_items)),
    ]
}

async fn create(
    State(app): State<App>,
    caller: Caller,
    Extension(charge): Extension<Charge>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let mut warnings = field_table::RESPONSES.check(&fields)?;
    let mut request = Request::read(&fields)?;
    if request.ignores_a_tool {
        warnings.ignores("web_search in tools");
    }
    let owner = app.keys().digest(caller);
    let turns = set_prompt(&app, caller, &mut request, charge).await?;
    let Request { job, mut response, input, is_streamed, is_stored, may_truncate, .. } = request;
    let text = response.to_string();
    // Held as long as the answer is written, which may be after this handler has returned.
    let held = Charge::new(app.memory());
    held.take(json_bytes(text.as_bytes()).saturating_mul(2))?;
    let keep = match is_stored {
        true => Some(keep(&app, owner, turns, input, text.len(), &held)?),
        false => None,
    };
    let has_logprobs = job.logprobs.is_some();
    let mut running =
        start(&app, job, caller, may_truncate).await.map_err(|refusal| refusal.too_long_in("input"))?;
    let warnings = warnings.of(&running);
    let model = running.model();
    if response["model"].is_null() {
        response["model"] = model.name().into();
    }
    let tokenizer = if has_logprobs { Some(model.model().tokenizer()?.clone()) } else { None };
    let mut answer = Answer::new(response, tokenizer, keep, is_streamed, held);
    if is_streamed {
        return Ok(warnings.on(stream::respond(running, answer)));
    }
    while let Some(output) = running.next().await {
        answer.output(output?, &mut String::new());
    }
    Ok(warnings.on(json(&answer.into_response())))
}

/// OpenAI's servers return the conversation in an item that only they can read.
async fn compact() -> Refusal {
    let message = "'/v1/responses/compact' is not supported: send fewer items, a summary of your own, or \
                   'truncation': \"auto\"";
    Refusal::invalid(message).code("unsupported_path")
}

/// The number of tokens of a request's prompt, without an answer.
async fn input_tokens(
    State(app): State<App>,
    caller: Caller,
    Extension(charge): Extension<Charge>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::RESPONSES.check(&fields)?;
    let mut request = Request::read(&fields)?;
    set_prompt(&app, caller, &mut request, charge).await?;
    let rendered = app.render(request.job, caller).await?;
    let count: usize = rendered.iter().map(|rendered| rendered.ids.len()).sum();
    Ok(warnings.on(json(&json!({ "object": "response.input_tokens", "input_tokens": count }))))
}

/// Sets a request's prompt: the turns before it, which the server stores, and its own. Returns the former.
async fn set_prompt(
    app: &App,
    caller: Caller,
    request: &mut Request<'_>,
    charge: Charge,
) -> Result<Vec<Arc<str>>, Refusal> {
    let turns = match request.previous {
        None => Vec::new(),
        Some(id) => {
            let stored = find(app, caller, id).await?.ok_or_else(|| {
                let message = format!("the previous response \"{id}\" is not stored");
                Refusal::invalid(message).param("previous_response_id").code("previous_response_not_found")
            })?;
            stored.turns
        }
    };
    request.set_prompt(items(turns.clone(), charge).await?)?;
    Ok(turns)
}

/// What is stored with a response, which has `response_bytes` before its answer. `held` is charged for it.
fn keep(
    app: &App,
    owner: store::Owner,
    turns: Vec<Arc<str>>,
    input: Vec<Json>,
    response_bytes: usize,
    held: &Charge,
) -> Result<Keep, Refusal> {
    let own = Json::from(input.as_slice()).to_string();
    let earlier = turns.iter().map(|turn| turn.len()).sum::<usize>();
    // The input is stored by itself, and as a part of the conversation.
    let bytes = 2 * own.len() + earlier + response_bytes;
    let most = app.responses().of_one();
    if bytes > most {
        let message = format!(
            "the conversation has {bytes} bytes, and {most} can be stored; send 'store': false and the whole \
             conversation"
        );
        return Err(Refusal::new(Reason::TooLarge, message).param("store").code("conversation_too_large"));
    }
    held.take(json_bytes(own.as_bytes()).saturating_add(earlier))?;
    Ok(Keep { app: app.clone(), owner, turns, input })
}

/// The items of stored lists. Long ones are parsed on a blocking thread.
async fn items(lists: Vec<Arc<str>>, charge: Charge) -> Result<Vec<Json>, Refusal> {
    let is_long = lists.iter().map(|list| list.len()).sum::<usize>() >= LONG;
    let parse = move || {
        let mut all = Vec::new();
        for list in &lists {
            charge.take(json_bytes(list.as_bytes()))?;
            let items: Vec<Json> = serde_json::from_str(list)
                .map_err(|error| Refusal::internal(format!("a stored response is damaged: {error}")))?;
            charge.take(items.iter().map(arguments_bytes).sum())?;
            all.extend(items);
        }
        Ok(all)
    };
    if is_long { blocking(parse).await? } else { parse() }
}

/// Starts a job. If its conversation does not fit and `may_truncate`, its first turns are left out: 1, 2, 4, … more with
/// each attempt, so that a long conversation is not rendered many times.
async fn start(app: &App, mut job: Job, caller: Caller, may_truncate: bool) -> Result<Running, Refusal> {
    if !may_truncate {
        return app.start(job, caller).await;
    }
    let mut turns = 1;
    loop {
        match app.start(job.clone(), caller).await {
            Err(refusal) if refusal.code == Some("context_length_exceeded") => {
                if !leave_out(&mut job, turns) {
                    return Err(refusal);
                }
                turns *= 2;
            }
            started => return started,
        }
    }
}

/// Removes the first `turns` turns, but not the last one. A turn begins with a message of the user. Says
/// whether any was removed.
fn leave_out(job: &mut Job, turns: usize) -> bool {
    let Some(Prompt::Chat(conversation)) = job.prompts.first_mut() else { return false };
    let messages = &mut conversation.messages;
    let first = messages.iter().take_while(|message| message["role"] == "system").count();
    let begins = (first + 1..messages.len()).filter(|&at| messages[at]["role"] == "user");
    match begins.take(turns).last() {
        Some(end) => {
            messages.drain(first..end);
            true
        }
        None => false,
    }
}

async fn stored(app: &App, caller: Caller, id: &str) -> Result<StoredResponse, Refusal> {
    find(app, caller, id).await?.ok_or_else(|| unknown(id))
}

/// The caller's response with this id, in memory or in the folder.
async fn find(app: &App, caller: Caller, id: &str) -> Result<Option<StoredResponse>, Refusal> {
    let owner = app.keys().digest(caller);
    if let Some(stored) = app.responses().get(id, owner) {
        return Ok(Some(stored));
    }
    let Some(folder) = app.response_folder().cloned() else { return Ok(None) };
    let (app, id) = (app.clone(), id.to_string());
    let read = move || {
        let Some(bytes) = folder.size(&id) else { return Ok(None) };
        let charge = Charge::new(app.memory());
        // The file, its values, and their copy.
        charge.take(usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(3))?;
        let found = folder.get(&id, owner);
        if let Some(stored) = &found {
            app.responses().put(&id, owner, stored.clone());
        }
        Ok(found)
    };
    blocking(read).await?
}

fn unknown(id: &str) -> Refusal {
    Refusal::new(Reason::NotFound, format!("there is no response \"{id}\""))
        .param("id")
        .code("response_not_found")
}

async fn retrieve(
    State(app): State<App>,
    caller: Caller,
    PathParameter(id): PathParameter,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    for (name, value) in pairs(query.as_deref()) {
        if name == "stream" && value != "false" {
            let message = "'stream' is not supported: a stored response is returned whole";
            return Err(Refusal::invalid(message).param("stream").code("unsupported_parameter"));
        }
    }
    Ok(json_text(stored(&app, caller, &id).await?.response.to_string()))
}

async fn delete(
    State(app): State<App>,
    caller: Caller,
    PathParameter(id): PathParameter,
) -> Result<Response, Refusal> {
    let owner = app.keys().digest(caller);
    let mut was_there = app.responses().delete(&id, owner);
    if let Some(folder) = app.response_folder().cloned() {
        let id = id.clone();
        was_there |= blocking(move || folder.delete(&id, owner)).await?;
    }
    match was_there {
        true => Ok(json(&json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(unknown(&id)),
    }
}

async fn cancel(
    State(app): State<App>,
    caller: Caller,
    PathParameter(id): PathParameter,
) -> Result<Response, Refusal> {
    stored(&app, caller, &id).await?;
    let message =
        "only responses in the background can be cancelled; close the connection to cancel a running one";
    Err(Refusal::invalid(message).code("not_cancellable"))
}

async fn input_items(
    State(app): State<App>,
    caller: Caller,
    Extension(charge): Extension<Charge>,
    PathParameter(id): PathParameter,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let refuse = |name: &str, expected: &str| {
        Refusal::invalid(format!("'{name}' must be {expected}")).param(name).code("invalid_value")
    };
    let (mut limit, mut is_ascending, mut after) = (20, false, None);
    for (name, value) in pairs(query.as_deref()) {
        match (name, value) {
            ("limit", _) => {
                let given = value.parse::<usize>().ok().filter(|limit| (1..=100).contains(limit));
                limit = given.ok_or_else(|| refuse("limit", "an integer from 1 to 100"))?;
            }
            ("order", "asc" | "desc") => is_ascending = value == "asc",
            ("order", _) => return Err(refuse("order", "\"asc\" or \"desc\"")),
            ("after", _) => after = Some(value).filter(|after| !after.is_empty()),
            // Items have all that there is. OpenAI's clients write it as a list.
            ("include" | "include[]" | "include%5B%5D", _) => {}
            (name, _) => return Err(refuse(name, "\"limit\", \"order\" or \"after\"")),
        }
    }
    let input = stored(&app, caller, &id).await?.input;
    let mut items = items(vec![input], charge).await?;
    if !is_ascending {
        items.reverse();
    }
    if let Some(after) = after {
        let place = items.iter().position(|item| item["id"] == after);
        items.drain(..=place.ok_or_else(|| refuse("after", "the id of an item"))?);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Json>| item.map(|item| item["id"].clone()).unwrap_or_default();
    let (first, last) = (id(items.first()), id(items.last()));
    Ok(json(&json!({
        "object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more,
    })))
}

/// Names and values of a query. Of those that are read, only the name of a list has characters that are escaped.
fn pairs(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='))
}

//! `/infill`: the text between two others, in the form of llama.cpp's server.

use akunu::FinishReason;
use akunu_tokenizer::InfillFile;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::options::{self, StreamOptions};
use super::{Usage, error};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::job::{Finished, Job, Output, OutputEvent, Prompt};
use crate::refusal::Refusal;
use crate::stream::{self, Writer};

pub(super) async fn infill(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::INFILL.check(&fields)?;
    let streaming = StreamOptions::read(&fields)?;
    let job = read(&fields)?;
    let mut running = app.start(job, caller).await.map_err(|refusal| {
        let refusal = refusal.too_long_in("input_prefix");
        if refusal.param.as_deref() == Some("suffix") { refusal.param("input_suffix") } else { refusal }
    })?;
    let model = fields.text("model")?.unwrap_or(running.model().name()).to_string();
    let mut middle = Middle { model, content: String::new(), usage: Usage::default() };
    if streaming.stream {
        return Ok(warnings.on(stream::respond(running, middle)));
    }
    let mut last = Json::Null;
    while let Some(output) = running.next().await {
        match output?.event {
            OutputEvent::Piece(piece) => middle.content.push_str(&piece.answer),
            OutputEvent::Finished(finished) => last = middle.last(&finished),
        }
    }
    Ok(warnings.on(json(&last)))
}

fn read(fields: &Fields<'_>) -> Result<Job, Refusal> {
    let text = |name: &str| fields.text(name).map(Option::unwrap_or_default);
    let missing = |name: &str| {
        Refusal::invalid(format!("'{name}' is missing: give a string"))
            .param(name)
            .code("missing_required_parameter")
    };
    let before = fields.text("input_prefix")?.ok_or_else(|| missing("input_prefix"))?;
    let after = fields.text("input_suffix")?.ok_or_else(|| missing("input_suffix"))?;
    // What a user is writing.
    let before = format!("{before}{}", text("prompt")?);
    let prompt = Prompt::Infill { files: files(fields)?, before, after: after.to_string() };
    let mut job = options::job(fields, vec![prompt])?;
    job.max_tokens = match fields.whole("n_predict")? {
        None | Some(-1) => None,
        Some(count) => {
            let count = usize::try_from(count).ok();
            Some(count.ok_or_else(|| fields.refuse("n_predict", "an integer of at least 0, or -1"))?)
        }
    };
    Ok(job)
}

fn files(fields: &Fields<'_>) -> Result<Vec<InfillFile>, Refusal> {
    let refuse =
        || fields.refuse("input_extra", "a list of objects with 'filename' and 'text', which are strings");
    let one = |given: &Json| {
        let name = match &given["filename"] {
            Json::Null => "tmp",
            name => name.as_str()?,
        };
        Some(InfillFile { name: name.into(), text: given["text"].as_str()?.into() })
    };
    let list = fields.list("input_extra")?.unwrap_or_default();
    list.iter().map(|given| one(given).ok_or_else(refuse)).collect()
}

/// What has been generated.
#[derive(Debug)]
struct Middle {
    model: String,
    /// Empty in a stream.
    content: String,
    usage: Usage,
}

impl Middle {
    fn last(&mut self, finished: &Finished) -> Json {
        self.usage.add(true, finished);
        let (kind, word) = match &finished.finish {
            FinishReason::MaxTokens | FinishReason::ContextFull => ("limit", ""),
            FinishReason::StopString(text) => ("word", text.as_str()),
            FinishReason::Eos(_) | FinishReason::StopId(_) | FinishReason::Complete => ("eos", ""),
            FinishReason::Cancelled | FinishReason::Callback => ("none", ""),
        };
        json!({
            "index": 0,
            "content": self.content,
            "stop": true,
            "model": self.model,
            "tokens_predicted": self.usage.completion,
            "tokens_evaluated": self.usage.prompt,
            "tokens_cached": self.usage.cached,
            "truncated": false,
            "stop_type": kind,
            "stopping_word": word,
            "timings": self.usage.timings(),
        })
    }
}

impl Writer for Middle {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    const PING: Option<&'static str> = Some(stream::PING_COMMENT);

    fn output(&mut self, Output { event, .. }: Output, to: &mut String) {
        let data = match event {
            OutputEvent::Piece(piece) => json!({ "index": 0, "content": piece.answer, "stop": false }),
            OutputEvent::Finished(finished) => self.last(&finished),
        };
        stream::event(&data, to);
    }

    fn end(&mut self, _to: &mut String) {}

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        stream::event(&error(refusal), to);
    }
}

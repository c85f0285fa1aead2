//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

use std::str::FromStr;

use akunu::{Event, SpeechTask, Timestamps, TranscribeOptions, Transcript, TranscriptFormat};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::app::{App, Caller};
use crate::field_table::{self, WARNINGS};
use crate::form::Form;
use crate::refusal::Refusal;
use crate::speech::SpeechJob;
use crate::stream::{self, Writer};

pub(super) async fn transcriptions(
    State(app): State<App>,
    caller: Caller,
    form: Form,
) -> Result<Response, Refusal> {
    answer(app, caller, form, SpeechTask::Transcribe).await
}

pub(super) async fn translations(
    State(app): State<App>,
    caller: Caller,
    form: Form,
) -> Result<Response, Refusal> {
    answer(app, caller, form, SpeechTask::Translate).await
}

async fn answer(app: App, caller: Caller, form: Form, task: SpeechTask) -> Result<Response, Refusal> {
    field_table::AUDIO.check_form(&form)?;
    let names = TranscriptFormat::ALL.map(TranscriptFormat::name).join(", ");
    let format = form.read("response_format", format_args!("one of {names}"), |name| {
        TranscriptFormat::from_str(name).ok()
    })?;
    let format = format.unwrap_or(TranscriptFormat::Json);
    let streams = form.flag("stream")?.unwrap_or(false);
    if streams && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
        let message = "'stream' needs the 'response_format' json or text";
        return Err(Refusal::invalid(message).param("stream").code("invalid_value"));
    }
    let job = SpeechJob {
        model: form.text("model")?.map(str::to_string),
        file: form.file("file")?,
        options: options(&form, task, format)?,
    };
    // What remains of the form is the job's.
    drop(form);
    let mut transcribing = app.transcribe(job, caller).await?;
    if streams {
        return Ok(stream::respond(transcribing, Events::default()));
    }
    let (mut transcript, mut warnings) = (Transcript::default(), Vec::new());
    while let Some(event) = transcribing.next().await {
        let event = event?;
        warnings.extend(warning(&event));
        transcript.add(event);
    }
    let mut response = format.whole(&transcript, task).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    if let Ok(warnings) = HeaderValue::from_str(&warnings.join("; "))
        && !warnings.is_empty()
    {
        response.headers_mut().insert(WARNINGS, warnings);
    }
    Ok(response)
}

/// What the client should know of, in ASCII.
fn warning(event: &Event) -> Option<String> {
    match event {
        Event::Repetition { seconds } => {
            Some(format!("the text of the window at {seconds:.0} s repeats itself, and was cut"))
        }
        Event::Damage(damage) => {
            let ended = damage.ended.as_ref().map(|_| ", and the file ends early").unwrap_or_default();
            Some(format!("{} packets of the audio could not be decoded{ended}", damage.packets))
        }
        _ => None,
    }
}

fn options(form: &Form, task: SpeechTask, format: TranscriptFormat) -> Result<TranscribeOptions, Refusal> {
    let temperature = form.number("temperature", 0.0..=1.0)?.unwrap_or(0.0);
    let chunks = form.read("chunking_strategy", "auto", |name| (name == "auto").then_some(()))?;
    Ok(TranscribeOptions {
        language: form.text("language")?.map(str::to_string),
        task,
        timestamps: timestamps(form, format)?,
        prompt: form.text("prompt")?.map(str::to_string),
        parallel: chunks.is_some(),
        temperatures: match temperature {
            0.0 => TranscribeOptions::TEMPERATURES.to_vec(),
            temperature => vec![temperature],
        },
        ..TranscribeOptions::default()
    })
}

/// Times of segments cost nothing, and are found always.
fn timestamps(form: &Form, format: TranscriptFormat) -> Result<Timestamps, Refusal> {
    const NAME: &str = "timestamp_granularities";
    let refuse = |message| Err(Refusal::invalid(message).param(NAME).code("invalid_value"));
    let asked = form.texts(NAME)?;
    if asked.iter().any(|name| !matches!(*name, "segment" | "word")) {
        return refuse("'timestamp_granularities' must be segment, word, or both");
    }
    if !asked.is_empty() && format != TranscriptFormat::VerboseJson {
        return refuse("'timestamp_granularities' needs the 'response_format' verbose_json");
    }
    Ok(if asked.contains(&"word") { Timestamps::Word } else { Timestamps::Segment })
}

/// Writes the events of a streamed transcript.
#[derive(Debug, Default)]
struct Events {
    transcript: Transcript,
    warnings: Vec<String>,
}

impl Writer<Event> for Events {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    const PING: Option<&'static str> = Some(stream::PING_COMMENT);

    fn output(&mut self, event: Event, to: &mut String) {
        self.warnings.extend(warning(&event));
        let before = self.transcript.text.len();
        self.transcript.add(event);
        let delta = &self.transcript.text[before..];
        if !delta.is_empty() {
            stream::event(&json!({ "type": "transcript.text.delta", "delta": delta }), to);
        }
    }

    fn end(&mut self, to: &mut String) {
        let mut done = json!({ "type": "transcript.text.done", "text": self.transcript.text });
        if !self.warnings.is_empty() {
            done["warnings"] = json!(self.warnings);
        }
        stream::event(&done, to);
    }

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        stream::event(&super::error(refusal), to);
    }
}

//! Reads a request to `/v1/responses`.

use serde_json::{Map, Value as Json, json};

use super::super::options::{self, VERBOSITIES, metadata};
use super::items;
use super::tools::{Mode, choice, is_ignored, offered, tools};
use crate::fields::Fields;
use crate::job::{Conversation, Job, Prompt};
use crate::openai::{self, hex_id, now};
use crate::reasoning::{OPENAI, set_effort};
use crate::refusal::Refusal;
use crate::response_format::{self, RequestedFormat, require_call};
use crate::texts::missing;

/// What may be in `include`.
const LOGPROBS: &str = "message.output_text.logprobs";
const ENCRYPTED: &str = "reasoning.encrypted_content";

#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) job: Job,
    /// The response before its answer.
    pub(super) response: Json,
    /// The items of this turn.
    pub(super) input: Vec<Json>,
    pub(super) previous: Option<&'a str>,
    pub(super) is_streamed: bool,
    pub(super) is_stored: bool,
    /// A tool was given that is ignored.
    pub(super) ignores_a_tool: bool,
    /// Early turns may be left out if the conversation does not fit.
    pub(super) may_truncate: bool,
    instructions: Option<&'a str>,
    conversation: Conversation,
}

impl<'a> Request<'a> {
    pub(super) fn read(fields: &Fields<'a>) -> Result<Request<'a>, Refusal> {
        let is_streamed = fields.flag("stream")?.unwrap_or(false);
        check_stream_options(fields, is_streamed)?;
        let input = items::input(fields)?;
        let is_stored = fields.flag("store")?.unwrap_or(true);
        let may_truncate = match fields.text("truncation")? {
            None | Some("disabled") => false,
            Some("auto") => true,
            Some(_) => return Err(fields.refuse("truncation", "\"auto\" or \"disabled\"")),
        };
        let (tools, choice) = (tools(fields)?, choice(fields)?);
        let ignores_a_tool = tools.iter().any(is_ignored);
        let mut conversation = Conversation { tools: offered(&tools, &choice)?, ..Conversation::default() };
        reasoning(fields, &mut conversation.variables)?;
        let variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
        conversation.variables.extend(variables);
        let mut job = options::job(fields, Vec::new())?;
        let named = choice.only.iter().flatten().next().filter(|_| choice.mode == Mode::Named);
        if matches!(choice.mode, Mode::Required | Mode::Named) {
            require_call(&mut conversation, named.copied(), "tool_choice")?;
        }
        job.format = format(fields, job.format)?;
        job.max_tokens = fields.count("max_output_tokens", 1..=usize::MAX)?;
        let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        job.one_call = !is_parallel;
        job.logprobs = logprobs(fields)?;
        let (instructions, previous) = (fields.text("instructions")?, fields.text("previous_response_id")?);
        let given = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let within = |object: &str, name: &str| given(object).get(name).cloned().unwrap_or_default();
        let text = match within("text", "format") {
            Json::Null => json!({ "type": "text" }),
            format => format,
        };
        // Reasoning is not summarised.
        let summary = Some(within("reasoning", "summary")).filter(|summary| summary == "auto");
        let response = json!({
            "id": format!("resp_{}", hex_id()), "object": "response", "created_at": now(),
            "status": "in_progress", "background": false, "completed_at": null, "error": null,
            "incomplete_details": null, "instructions": instructions, "max_output_tokens": job.max_tokens,
            "max_tool_calls": fields.count("max_tool_calls", 1..=usize::MAX)?, "model": given("model"), "output": [],
            "parallel_tool_calls": is_parallel, "previous_response_id": previous,
            "reasoning": { "effort": within("reasoning", "effort"), "summary": summary },
            "store": is_stored, "temperature": given("temperature"), "text": { "format": text },
            "tool_choice": choice.as_given(fields), "tools": tools, "top_logprobs": job.logprobs.unwrap_or(0),
            "top_p": given("top_p"), "truncation": if may_truncate { "auto" } else { "disabled" },
            "metadata": metadata(fields)?,
        });
        Ok(Request {
            job,
            ignores_a_tool,
            response,
            input,
            previous,
            is_streamed,
            is_stored,
            may_truncate,
            instructions,
            conversation,
        })
    }

    /// Sets the job's prompt: the items of earlier turns, and those of this one.
    pub(super) fn set_prompt(&mut self, mut earlier: Vec<Json>) -> Result<(), Refusal> {
        earlier.extend(self.input.iter().cloned());
        let messages = items::messages(self.instructions, &earlier)?;
        self.conversation.messages = openai::conversation(&messages)?.messages;
        self.job.prompts = vec![Prompt::Chat(std::mem::take(&mut self.conversation))];
        Ok(())
    }
}

fn check_stream_options(fields: &Fields<'_>, is_streamed: bool) -> Result<(), Refusal> {
    let Some(options) = fields.object("stream_options")? else { return Ok(()) };
    if !is_streamed {
        return Err(Refusal::invalid("'stream_options' requires 'stream': true")
            .param("stream_options")
            .code("invalid_value"));
    }
    let options = Fields::within(options, "stream_options.");
    options.flag("include_usage")?;
    options.flag("include_obfuscation")?;
    Ok(())
}

/// The format of an answer without calls: `text.format`.
fn format(fields: &Fields<'_>, other: Option<RequestedFormat>) -> Result<Option<RequestedFormat>, Refusal> {
    let text = fields.object("text")?.map(|text| Fields::within(text, "text."));
    text.map(|text| text.one_of("verbosity", VERBOSITIES)).transpose()?;
    let of_text = text.map(|text| text.object("format")).transpose()?.flatten();
    let of_text = of_text.map(|format| Fields::within(format, "text.format."));
    if let Some(format) = &of_text
        && format.text("type")? == Some("json_schema")
        && format.text("name")?.is_none()
    {
        return Err(missing("text.format.name", "name the schema"));
    }
    let mut all = Vec::from_iter(response_format::format(of_text.as_ref(), None, "text.format")?);
    all.extend(other);
    response_format::only(all)
}

fn reasoning(fields: &Fields<'_>, variables: &mut Map<String, Json>) -> Result<(), Refusal> {
    let Some(reasoning) = fields.object("reasoning")? else { return Ok(()) };
    let reasoning = Fields::within(reasoning, "reasoning.");
    set_effort(&reasoning, "effort", OPENAI, variables)?;
    for name in ["summary", "generate_summary"] {
        reasoning.one_of(name, &["auto", "concise", "detailed"])?;
    }
    Ok(())
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, Refusal> {
    let mut is_included = false;
    for name in fields.list("include")?.unwrap_or_default() {
        match name.as_str() {
            Some(LOGPROBS) => is_included = true,
            // Reasoning is returned as text, with which an item can be sent back.
            Some(ENCRYPTED) => {}
            Some(name) => {
                let message =
                    format!("'include' has \"{name}\"; supported are \"{LOGPROBS}\" and \"{ENCRYPTED}\"");
                return Err(Refusal::invalid(message).param("include").code("unsupported_parameter"));
            }
            None => return Err(fields.refuse("include", "a list of strings")),
        }
    }
    let top = fields.count("top_logprobs", 0..=20)?;
    if top.is_some_and(|top| top > 0) && !is_included {
        let message = format!("'top_logprobs' requires \"{LOGPROBS}\" in 'include'");
        return Err(Refusal::invalid(message).param("top_logprobs").code("invalid_value"));
    }
    Ok(is_included.then(|| top.unwrap_or(0)))
}

//! Chat templates: render a conversation to the text format that a model was trained on, and to tokens.
//!
//! ```text
//! messages ─ChatTemplate::render─▶ Rendered { text, untrusted byte ranges } ─encode─▶ ids
//! ```
//!
//! A template is a Jinja2 program that comes with the model and is not trusted. It is rendered as in transformers, with
//! resource limits ([`ChatError::Limit`]). Templates of Ollama's models, in the language of Go, are written as such ones.

mod encode;
mod go;
mod source;

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use serde_json::{Map, Value as Json, json};

use self::go::GoTemplate;
use crate::{EncodeOptions, Tokenizer, TokenizerError};
use akunu_jinja::{JinjaError, LocalTime, Output, Template, Variable};
pub use source::ChatTemplates;

/// Maximum size of a template in bytes.
pub const MAX_TEMPLATE: usize = 1 << 20;

/// The reason why a conversation could not be rendered or tokenized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    #[error(
        "chat template missing: the model does not say how a conversation is written for it; \
         give one with --chat-template FILE, or use a model that was trained to chat"
    )]
    Missing,
    #[error("the model has no chat template \"{name}\"; it has {known}")]
    UnknownName { name: String, known: String },
    #[error("the chat template, line {line}: {message}")]
    Syntax { line: usize, message: String },
    #[error("the chat template failed in line {line}: {message}")]
    Runtime { line: usize, message: String },
    /// Without a line, because the template was translated.
    #[error("the chat template failed: {message}")]
    Failed { message: String },
    /// The template rejects the conversation by `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    Raised { message: String },
    #[error("the chat template {what}, so it was stopped")]
    Limit { what: &'static str },
    #[error("the chat template has {len} bytes, but at most {max} are allowed")]
    TooLong { len: usize, max: usize },
    #[error("cannot read {path}: {message}")]
    File { path: String, message: String },
    /// Of a file given by the user.
    #[error("{path}: {error}")]
    In { path: String, error: Box<ChatError> },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl From<JinjaError> for ChatError {
    fn from(error: JinjaError) -> ChatError {
        match error {
            JinjaError::Syntax { line, message } => ChatError::Syntax { line, message },
            JinjaError::Runtime { line, message } => ChatError::Runtime { line, message },
            JinjaError::Raised(message) => ChatError::Raised { message },
            JinjaError::Limit(what) => ChatError::Limit { what },
        }
    }
}

/// A template with its special tokens.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    program: Program,
    bos: Option<String>,
    eos: Option<String>,
    /// The time for `strftime_now` in seconds since 1970; `None`: the system clock.
    now: Option<i64>,
    /// Whether the template expects the arguments of tool calls as JSON text; found out when first needed.
    text_arguments: OnceLock<bool>,
    /// Whether the template writes tools; found out when first needed.
    tools: OnceLock<bool>,
    /// The model's other template, for conversations with tools.
    for_tools: Option<Arc<ChatTemplate>>,
}

#[derive(Debug)]
enum Program {
    Jinja(Template),
    Go(GoTemplate),
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// Sorted byte ranges of the text that come from messages, tools and other variables. Special tokens in them are
    /// not recognised by [`Rendered::encode`].
    pub untrusted: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// `bos` and `eos` are the values of the variables `bos_token` and `eos_token`.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<ChatTemplate, ChatError> {
        let (bos, eos) = (bos.map(Into::into), eos.map(Into::into));
        ChatTemplate::of(source, bos, eos, |source| Ok(Program::Jinja(Template::new(source)?)))
    }

    /// A template of a Modelfile: one of Ollama's, in the language of Go, or one in Jinja's, which has statements.
    pub fn of_modelfile(source: &str, tokenizer: &dyn Tokenizer) -> Result<ChatTemplate, ChatError> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(str::to_string);
        let bos = text(tokenizer.bos());
        let jinja = || ChatTemplate::new(source, bos.as_deref(), text(tokenizer.eos()).as_deref());
        let go = || ChatTemplate::of_go(source, tokenizer, bos.clone());
        match source.contains("{%") {
            true => jinja().or_else(|error| go().ok().filter(ChatTemplate::reads_values).ok_or(error)),
            false => go().or_else(|error| jinja().ok().filter(ChatTemplate::reads_values).ok_or(error)),
        }
    }

    /// Whether it writes a conversation, and is not a text that the language does not know as anything else.
    fn reads_values(&self) -> bool {
        match &self.program {
            Program::Jinja(template) => template.mentions("messages"),
            Program::Go(template) => template.has_fields(),
        }
    }

    fn of_go(
        source: &str,
        tokenizer: &dyn Tokenizer,
        bos: Option<String>,
    ) -> Result<ChatTemplate, ChatError> {
        // Such a template does not begin with the token that the model's texts begin with.
        let empty = tokenizer.encode("", EncodeOptions { add_special: true, parse_special: false })?;
        let bos = bos.filter(|_| empty.first().is_some_and(|first| Some(*first) == tokenizer.bos()));
        ChatTemplate::of(source, bos, None, |source| Ok(Program::Go(GoTemplate::new(source)?)))
    }

    fn of(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
        program: impl FnOnce(&str) -> Result<Program, ChatError>,
    ) -> Result<ChatTemplate, ChatError> {
        if source.len() > MAX_TEMPLATE {
            return Err(ChatError::TooLong { len: source.len(), max: MAX_TEMPLATE });
        }
        Ok(ChatTemplate {
            source: source.to_string(),
            program: program(source)?,
            bos,
            eos,
            now: None,
            text_arguments: OnceLock::new(),
            tools: OnceLock::new(),
            for_tools: None,
        })
    }

    /// Sets the model's other template, for conversations with tools.
    #[must_use]
    pub fn with_one_for_tools(mut self, other: Option<ChatTemplate>) -> ChatTemplate {
        self.for_tools = other.map(Arc::new);
        self
    }

    /// The model's other template, for conversations with tools.
    pub fn one_for_tools(&self) -> Option<&Arc<ChatTemplate>> {
        self.for_tools.as_ref()
    }

    /// Uses a fixed time, in seconds since 1970-01-01 local time, instead of the system clock in UTC.
    #[must_use]
    pub fn at(mut self, seconds: i64) -> ChatTemplate {
        self.now = Some(seconds);
        self
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template refers to a variable of this name, such as `tools` or `enable_thinking`.
    pub fn mentions(&self, name: &str) -> bool {
        match &self.program {
            Program::Jinja(template) => template.mentions(name),
            Program::Go(template) => template.mentions(name),
        }
    }

    /// Messages and tools are those of the OpenAI API, with the arguments of tool calls as objects; a template that expects
    /// JSON text gets that. `extra` are additional variables, such as `enable_thinking`; they take precedence over the
    /// standard ones.
    pub fn render(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
    ) -> Result<Rendered, ChatError> {
        self.render_until(messages, tools, add_generation_prompt, extra, ChatTemplate::deadline())
    }

    /// The time at which a rendering that begins now ends at the latest.
    pub fn deadline() -> Instant {
        Template::deadline()
    }

    /// As [`ChatTemplate::render`], for several renderings that share a deadline.
    pub fn render_until(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
        deadline: Instant,
    ) -> Result<Rendered, ChatError> {
        let mut messages: Vec<Json> = messages.iter().map(with_reasoning).collect();
        let has_calls = messages.iter().any(|message| message["tool_calls"].is_array());
        if has_calls && self.wants_text_arguments(deadline)? {
            messages.iter_mut().try_for_each(write_arguments)?;
        }
        self.render_as_is(messages, tools, add_generation_prompt, extra, deadline)
    }

    /// Whether tools are in the text of a conversation. A template that refuses the question is taken to write them.
    pub fn writes_tools(&self) -> bool {
        *self.tools.get_or_init(|| {
            const NAME: &str = "akunu_tool";
            let parameters =
                json!({ "type": "object", "properties": { "a": { "type": "string", "description": "b" } } });
            let function = json!({ "name": NAME, "description": "c", "parameters": parameters });
            let tools = [json!({ "type": "function", "function": function })];
            let user = json!({ "role": "user", "content": "d" });
            let deadline = ChatTemplate::deadline();
            let rendered = self.render_as_is(vec![user], Some(&tools), true, &Map::new(), deadline);
            rendered.map_or(true, |rendered| rendered.text.contains(NAME))
        })
    }

    /// Whether a tool call with an object for arguments fails or is printed as Python prints a dictionary, and one with JSON
    /// text is printed as it is. An error is that a limit was reached: then it stays unknown.
    fn wants_text_arguments(&self, deadline: Instant) -> Result<bool, ChatError> {
        if let Some(&is_known) = self.text_arguments.get() {
            return Ok(is_known);
        }
        let renders = |arguments: Json, printed: &str| {
            let function = json!({ "name": "f", "arguments": arguments });
            let call = json!({ "id": "akunu0000", "type": "function", "function": function });
            let user = json!({ "role": "user", "content": "a" });
            let assistant = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
            let result = json!({ "role": "tool", "tool_call_id": "akunu0000", "name": "f", "content": "b" });
            let messages = vec![user, assistant, result];
            match self.render_as_is(messages, None, false, &Map::new(), deadline) {
                Err(limit @ ChatError::Limit { .. }) => Err(limit),
                rendered => Ok(rendered.is_ok_and(|rendered| rendered.text.contains(printed))),
            }
        };
        let as_object = |printed| renders(json!({ "akunu_key": "b" }), printed);
        let object_works = as_object("akunu_key")? && !as_object("{'akunu_key'")?;
        let wants = !object_works && renders("{\"akunu_key\": \"b\"}".into(), "{\"akunu_key\": \"b\"}")?;
        Ok(*self.text_arguments.get_or_init(|| wants))
    }

    fn render_as_is(
        &self,
        messages: Vec<Json>,
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
        deadline: Instant,
    ) -> Result<Rendered, ChatError> {
        let tools = tools.map_or(Json::Null, |tools| Json::Array(tools.to_vec()));
        let now = LocalTime::from_seconds(self.seconds());
        let template = match &self.program {
            Program::Jinja(template) => template,
            Program::Go(template) => {
                let begin = self.bos.as_deref().unwrap_or_default();
                let Output { text, untrusted } =
                    template.render(begin, &messages, &tools, extra, (now, deadline))?;
                return Ok(Rendered { text, untrusted });
            }
        };
        let messages = Json::Array(messages);
        let prompt = Json::Bool(add_generation_prompt);
        let special = |token: &Option<String>| token.clone().map(Json::String);
        let (bos, eos) = (special(&self.bos), special(&self.eos));
        let mut variables = vec![
            Variable { name: "messages", value: &messages, untrusted: true },
            Variable { name: "tools", value: &tools, untrusted: true },
            Variable { name: "documents", value: &Json::Null, untrusted: true },
            Variable { name: "add_generation_prompt", value: &prompt, untrusted: false },
        ];
        for (name, token) in [("bos_token", &bos), ("eos_token", &eos)] {
            variables.extend(token.iter().map(|value| Variable { name, value, untrusted: false }));
        }
        variables.extend(extra.iter().map(|(name, value)| Variable { name, value, untrusted: true }));
        let Output { text, untrusted } = template.render_until(&variables, now, deadline)?;
        Ok(Rendered { text, untrusted })
    }

    fn seconds(&self) -> i64 {
        let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.now.unwrap_or_else(|| clock().map_or(0, |since| since.as_secs() as i64))
    }
}

/// Replaces the arguments of tool calls by their JSON text, which templates would write with `tojson`.
fn write_arguments(message: &mut Json) -> Result<(), ChatError> {
    let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
    for call in calls.into_iter().flatten() {
        let arguments = call.pointer_mut("/function/arguments");
        if let Some(arguments) = arguments.filter(|arguments| arguments.is_object()) {
            let variable = Variable { name: "arguments", value: arguments, untrusted: true };
            let template = Template::new("{{ arguments | tojson }}")?;
            *arguments = template.render(&[variable], LocalTime::from_seconds(0))?.text.into();
        }
    }
    Ok(())
}

/// Reasoning is provided under all its names, because templates use different ones, as in transformers.
fn with_reasoning(message: &Json) -> Json {
    let given = |name: &&str| message.get(name).is_some_and(|value| !value.is_null());
    let found = ["reasoning_content", "thinking", "reasoning"].into_iter().find(given);
    let mut message = message.clone();
    if let (Some(name), Json::Object(fields)) = (found, &mut message) {
        let reasoning = fields[name].clone();
        fields.insert("reasoning_content".into(), reasoning.clone());
        fields.entry("thinking").or_insert(reasoning);
    }
    message
}

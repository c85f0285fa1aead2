//! Chat templates: render a conversation to the text format that a model was trained on, and to tokens.
//!
//! ```text
//! messages ─ChatTemplate::render─▶ Rendered { text, untrusted byte ranges } ─encode─▶ ids
//! ```
//!
//! A template is a Jinja2 program that comes with the model and is not trusted. It is rendered as in transformers, with
//! resource limits ([`ChatError::Limit`]).

mod encode;
mod source;

use std::ops::Range;
use std::time::SystemTime;

use serde_json::{Map, Value as Json};

use crate::TokenizerError;
use akunu_jinja::{JinjaError, LocalTime, Template, Variable};
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
    /// The template rejects the conversation by `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    Raised { message: String },
    #[error("the chat template {what}, so it was stopped")]
    Limit { what: &'static str },
    #[error("the chat template has {len} bytes, but at most {max} are allowed")]
    TooLong { len: usize, max: usize },
    #[error("cannot read {path}: {message}")]
    File { path: String, message: String },
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
    template: Template,
    bos: Option<String>,
    eos: Option<String>,
    /// The time for `strftime_now` in seconds since 1970; `None`: the system clock.
    now: Option<i64>,
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
        if source.len() > MAX_TEMPLATE {
            return Err(ChatError::TooLong { len: source.len(), max: MAX_TEMPLATE });
        }
        let template = Template::new(source)?;
        let source = source.to_string();
        Ok(ChatTemplate { source, template, bos: bos.map(Into::into), eos: eos.map(Into::into), now: None })
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
        self.template.mentions(name)
    }

    /// Messages and tools are those of the OpenAI API, except that most templates expect the arguments of tool calls as
    /// objects. `extra` are additional variables, such as `enable_thinking`; they take precedence over the standard
    /// ones.
    pub fn render(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        extra: &Map<String, Json>,
    ) -> Result<Rendered, ChatError> {
        let messages = Json::Array(messages.iter().map(with_reasoning).collect());
        let tools = tools.map_or(Json::Null, |tools| Json::Array(tools.to_vec()));
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
        let output = self.template.render(&variables, LocalTime::from_seconds(self.seconds()))?;
        Ok(Rendered { text: output.text, untrusted: output.untrusted })
    }

    fn seconds(&self) -> i64 {
        let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.now.unwrap_or_else(|| clock().map_or(0, |since| since.as_secs() as i64))
    }
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

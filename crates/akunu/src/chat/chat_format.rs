//! The chat format of a model: its template, and the tags of its answers.

use std::borrow::Cow;
use std::sync::Arc;

use akunu_grammar::Reasoning;
use akunu_tokenizer::chat::{ChatTemplate, Rendered};
use akunu_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Map, Value as Json, json};

use super::conversation::message;
use super::families::{GENERIC, writes_tools};
use super::{CallMarks, CallReader, Splitter, Tags, adapted, generic_tools, settings};
use crate::constraint::Preamble;
use crate::{Error, GenerateOptions, Model};

/// A chat template, and the properties derived from it. It has no conversation, so it can be shared.
#[derive(Debug)]
pub struct ChatFormat {
    template: Arc<ChatTemplate>,
    /// That of conversations with tools, if the model has another template for them.
    with_tools: Option<Box<ChatFormat>>,
    tokenizer: Arc<dyn Tokenizer>,
    tags: &'static Tags,
    /// Control tokens that occur in reasoning tags.
    visible: Vec<u32>,
    /// The model's format of tool calls, if known, and its control tokens.
    marks: Option<&'static CallMarks>,
    marking: Vec<u32>,
    /// Tokens that end an answer with calls.
    call_ends: Vec<u32>,
    /// Tokens that end a turn in the template.
    turn_ends: Vec<u32>,
}

impl ChatFormat {
    pub fn new(model: &Model, template: ChatTemplate) -> Result<ChatFormat, Error> {
        ChatFormat::of(model, Arc::new(template))
    }

    fn of(model: &Model, template: Arc<ChatTemplate>) -> Result<ChatFormat, Error> {
        let with_tools = CallMarks::one_for_tools(&template).cloned();
        let with_tools = with_tools.map(|other| ChatFormat::of(model, other)).transpose()?.map(Box::new);
        let tokenizer = model.tokenizer()?.clone();
        let tags = Tags::of_template(template.source());
        let marks = CallMarks::of_tools(&template);
        let controls = |is_wanted: &dyn Fn(&str) -> bool| -> Vec<u32> {
            let is_one =
                |id: &u32| tokenizer.is_control(*id) && tokenizer.token_text(*id).is_some_and(is_wanted);
            (0..tokenizer.vocab_size() as u32).filter(is_one).collect()
        };
        let visible = controls(&|text| tags.contain(text));
        let marking = controls(&|text| marks.is_some_and(|marks| marks.contain(text)));
        let in_range = |id: &u32| (*id as usize) < model.config().vocab_size;
        let call_ends = controls(&|text| !text.is_empty() && marks.is_some_and(|marks| marks.ending == text));
        let call_ends = call_ends.into_iter().filter(in_range).collect();
        let turn_ends = Vec::new();
        let mut chat_format = ChatFormat {
            template,
            with_tools,
            tokenizer,
            tags,
            visible,
            marks,
            marking,
            call_ends,
            turn_ends,
        };
        chat_format.turn_ends = chat_format.find_turn_end().into_iter().filter(in_range).collect();
        Ok(chat_format)
    }

    /// The control token that the template writes after an answer, if any, and if it is not part of a tag.
    fn find_turn_end(&self) -> Option<u32> {
        const ANSWER: &str = "akunu-answers";
        let messages = [message("user", "a"), message("assistant", ANSWER), message("user", "b")];
        // Some templates refuse this conversation.
        let text = self.template.render(&messages, None, false, &Map::new()).ok()?.text;
        let (_, rest) = text.split_once(ANSWER)?;
        let options = EncodeOptions { add_special: false, parse_special: true };
        let first = *self.tokenizer.encode(rest.trim_start(), options).ok()?.first()?;
        (self.tokenizer.is_control(first) && !self.visible.contains(&first)).then_some(first)
    }

    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// The format of conversations with these tools, if it is not this one.
    pub(super) fn other(&self, tools: Option<&[Json]>) -> Option<&ChatFormat> {
        tools.filter(|tools| !tools.is_empty()).and(self.with_tools.as_deref())
    }

    /// The format of conversations with these tools.
    pub fn used(&self, tools: Option<&[Json]>) -> &ChatFormat {
        self.other(tools).unwrap_or(self)
    }

    /// Whether the format of the model's tool calls is known. Otherwise tools and calls are text.
    fn knows_calls(&self) -> bool {
        self.marks.is_some()
    }

    /// Whether the template writes tools. Otherwise they are described in the system's message.
    pub fn writes_tools(&self) -> bool {
        let format = self.with_tools.as_deref().unwrap_or(self);
        format.knows_calls() && writes_tools(&format.template)
    }

    pub fn tokenizer(&self) -> &Arc<dyn Tokenizer> {
        &self.tokenizer
    }

    /// Renders a conversation with the prompt for an answer.
    pub fn prompt(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        variables: &Map<String, Json>,
    ) -> Result<Rendered, Error> {
        self.written(messages, tools, true, variables)
    }

    /// Renders a conversation without the prompt for an answer.
    pub fn transcript(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        variables: &Map<String, Json>,
    ) -> Result<Rendered, Error> {
        self.written(messages, tools, false, variables)
    }

    fn written(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_prompt: bool,
        variables: &Map<String, Json>,
    ) -> Result<Rendered, Error> {
        let used = self.used(tools);
        written(&used.template, used.knows_calls(), messages, tools, add_prompt, variables)
    }

    /// Adds the tokens that end an answer, and those that must be visible for parsing.
    pub(super) fn extend(&self, has_tools: bool, options: &mut GenerateOptions) {
        if !(has_tools && self.marks().form.ends_text) {
            options.stop_ids.extend(&self.turn_ends);
        }
        options.visible_ids.extend(&self.visible);
    }

    /// A reader for calls of these tools; makes their marks visible, and adds the tokens that end them.
    pub(super) fn call_reader(&self, tools: Vec<Json>, options: &mut GenerateOptions) -> CallReader {
        options.visible_ids.extend(&self.marking);
        options.stop_ids.extend(&self.call_ends);
        CallReader::new(self.marks(), tools)
    }

    /// The model's format of tool calls, or the generic one.
    pub(super) fn marks(&self) -> &'static CallMarks {
        self.marks.unwrap_or(&GENERIC)
    }

    /// The reasoning that may precede an answer, if the template supports reasoning, and the control tokens of its tags
    /// and, if there are tools, of calls.
    pub(super) fn preamble(&self, prompt: &str, has_tools: bool) -> Option<Preamble> {
        let is_open = self.tags.opened_by(prompt);
        let knows = is_open || self.template.source().contains(self.tags.close);
        let Tags { open, close, silent, anywhere, around: _ } = *self.tags;
        let reasoning = knows.then(|| Reasoning {
            open: open.into(),
            close: close.into(),
            silent: silent.iter().map(|header| header.to_string()).collect(),
            anywhere,
            is_open,
        });
        let mut marks = if knows { self.visible.clone() } else { Vec::new() };
        if has_tools {
            marks.extend(&self.marking);
        }
        (knows || !marks.is_empty()).then_some(Preamble { reasoning, marks })
    }

    /// A splitter for the answer to a prompt.
    pub(super) fn splitter(&self, prompt: &str) -> Splitter {
        Splitter::new(self.tags, self.tags.opened_by(prompt))
    }
}

/// Renders a conversation, with the prompt for an answer if `add_prompt` is set. Developer messages become system messages for
/// templates without that role, which are most. Where the template's format of calls is unknown, tools and calls are text.
pub fn render(
    template: &ChatTemplate,
    messages: &[Json],
    tools: Option<&[Json]>,
    add_prompt: bool,
    variables: &Map<String, Json>,
) -> Result<Rendered, Error> {
    let has_tools = tools.is_some_and(|tools| !tools.is_empty());
    let other = CallMarks::one_for_tools(template).filter(|_| has_tools);
    let template = other.map_or(template, |other| &**other);
    let knows_calls = CallMarks::of_tools(template).is_some();
    written(template, knows_calls, messages, tools, add_prompt, variables)
}

fn written(
    template: &ChatTemplate,
    knows_calls: bool,
    messages: &[Json],
    tools: Option<&[Json]>,
    add_prompt: bool,
    variables: &Map<String, Json>,
) -> Result<Rendered, Error> {
    let is_developer = |message: &Json| message["role"] == "developer";
    let mut messages = Cow::Borrowed(messages);
    if !template.source().contains("developer") && messages.iter().any(is_developer) {
        for message in messages.to_mut().iter_mut().filter(|message| is_developer(message)) {
            message["role"] = "system".into();
        }
    }
    let with_reasoning = settings::with_reasoning(template, variables);
    let variables = with_reasoning.as_ref().unwrap_or(variables);
    let with_functions = adapted::with_functions(template, tools, variables);
    let variables = with_functions.as_ref().unwrap_or(variables);
    // For all forms of the conversation together.
    let deadline = ChatTemplate::deadline();
    let render =
        |messages: &[Json], tools| template.render_until(messages, tools, add_prompt, variables, deadline);
    let described = tools.filter(|tools| knows_calls && !tools.is_empty() && !writes_tools(template));
    if let Some(described) = described {
        let marks = CallMarks::of_tools(template).unwrap_or(&GENERIC);
        messages = generic_tools::with_tools(messages.into_owned(), described, marks).into();
    }
    let tools = if described.is_some() { None } else { tools };
    if knows_calls {
        let has_calls = |message: &Json| message["tool_calls"].is_array();
        if messages.iter().any(has_calls) {
            let of_template = adapted::written(|messages| render(messages, tools).ok());
            if let Some(other) = of_template.form(&messages, CallMarks::of_template(template.source())) {
                messages = other.into();
            }
        }
        if let Some(tools) =
            tools.filter(|tools| !tools.is_empty() && adapted::reads_tools_of_system(template))
        {
            messages = adapted::with_tools_of_system(&messages, tools).into();
        }
        let error = match render(&messages, tools) {
            Ok(rendered) => return Ok(rendered),
            Err(error) => error,
        };
        // Some templates need fields that may be left out, or ids of a certain length, or refuse several calls in a turn.
        let completed = tools.map(complete);
        let tools = completed.as_deref();
        let short = adapted::with_short_ids(&messages);
        let single = adapted::with_single_calls(short.as_deref().unwrap_or(&messages));
        let given = tools.map(|_| &*messages);
        let mut others = [given, short.as_deref(), single.as_deref()].into_iter().flatten();
        return Ok(others.find_map(|messages| render(messages, tools).ok()).ok_or(error)?);
    }
    if let Some(written) = generic_tools::without_calls(&messages) {
        messages = written.into();
    }
    // Some templates need a list of tools.
    let render = |messages: &[Json]| {
        render(messages, None).or_else(|error| render(messages, Some(&[])).map_err(|_| error))
    };
    let Some(tools) = tools.filter(|tools| !tools.is_empty()) else { return Ok(render(&messages)?) };
    let messages = generic_tools::with_tools(messages.into_owned(), tools, &GENERIC);
    match render(&messages) {
        Ok(rendered) if rendered.text.contains(&generic_tools::description(tools, &GENERIC)) => Ok(rendered),
        // The template refuses the system's message, or leaves it out.
        _ => Ok(render(&generic_tools::without_system(messages))?),
    }
}

/// The tools with a description and parameters.
fn complete(tools: &[Json]) -> Vec<Json> {
    let mut tools = tools.to_vec();
    for function in tools.iter_mut().filter_map(|tool| tool["function"].as_object_mut()) {
        function.entry("description").or_insert_with(|| "".into());
        let none = || json!({ "type": "object", "properties": {} });
        function.entry("parameters").or_insert_with(none);
        if let Some(parameters) = function.get_mut("parameters").and_then(Json::as_object_mut) {
            parameters.entry("properties").or_insert_with(|| json!({}));
        }
    }
    tools
}

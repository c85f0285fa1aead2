//! `akunu chat`: a conversation.

mod complete;
mod files;
mod input;
mod lines;
mod markdown;
mod screen;
mod settings;
mod slash_commands;
mod stats;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use akunu::chat::{Chat, ChatTemplate, ChatTemplates};
use akunu::{Engine, FinishReason, GenerateOptions, Model};
use clap::Args;
use serde_json::{Map, Value as Json};

use super::run::{SamplingArgs, Stats};
use crate::args::{self, GeneratingArgs, ModelArg};
use crate::environment;
use crate::failure::Failure;
use crate::format::FormatArgs;
use crate::hub;
use crate::interrupt;
use crate::output::{self, Output};
use crate::terminal;
use input::{Input, Turn};
use screen::{Look, Screen};
use settings::Settings;
use slash_commands::{HELP, SlashCommand};
use stats::ChatReport;
use tools::Tools;

const EXAMPLES: &str = "\
Examples:
  akunu chat model.gguf
  akunu chat model.gguf --system \"Answer in one sentence.\" --temp 0
  akunu chat model.gguf -p \"Why is the sky blue?\"       one answer
  akunu chat hf:OWNER/NAME --set enable_thinking=false
  akunu chat model.gguf --mcp servers.json              asks before each call
  printf 'Hello\\nAnd again?\\n' | akunu chat model.gguf  one turn per line";

const TYPING: &str = "\
A message may have several lines between \"\"\" and \"\"\", or with \\ at the end of each line except the last; one that \
begins with / is written with two. Further lines of a message are marked with \"...\"; Ctrl-C or Ctrl-D drops it. \
Pasted lines are one message. Ctrl-C ends an answer; the partial answer is kept in the conversation. What is typed \
during an answer is shown when it is complete.

/set changes the sampling settings (with the names and values of the options), max-tokens, and how answers are shown: \
reasoning, markdown and wrap are on or off. /model loads another model, named as on the command line, and continues \
the conversation; settings that were given stay, the others are the new model's suggestions. If it cannot be loaded, \
the conversation continues with the model before.

The input history is stored in $XDG_STATE_HOME/akunu/chat-history (~/.local/state).";

/// Holds a conversation
///
/// Each line is a message that the model answers; its chat template defines how messages are written in the prompt.
/// Only new tokens are processed, the rest is in the KV cache.
///
/// On a terminal, words are wrapped at its width, also after it was resized, reasoning is dimmed, and Markdown (bold,
/// italic, headings, lists, code) is shown as styles instead of marks. With NO_COLOR or TERM=dumb, the marks stay; with
/// --plain, lines are not wrapped either. Control characters in answers are escaped. In a pipe, answers are exact.
///
/// If stdin is not a terminal, each line of it is a turn. If a turn fails, the error is written to stderr, the
/// conversation continues, and the final exit code is 1.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{HELP}\n\n{TYPING}"))]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Answer this message and exit
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// System message before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Continue a saved conversation
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// Maximum tokens per answer [default: until it ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = args::count, allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// End an answer before this text; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = args::stop)]
    stop: Vec<String>,
    /// When the context is full, drop the oldest messages, with a note
    #[arg(long)]
    context_shift: bool,
    /// Chat template instead of the model's: a .jinja file, or JSON with `chat_template`
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Which of the model's chat templates to use, if it has several
    #[arg(long, value_name = "NAME")]
    template_name: Option<String>,
    /// Sets a variable of the chat template, to a JSON value or else a string; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    set: Vec<(String, Json)>,
    /// Offers the model the tools of the MCP servers in this file ({"mcpServers": ...})
    #[arg(long, value_name = "FILE")]
    mcp: Option<PathBuf>,
    /// Runs calls of tools without asking; without it, none are run if input is not a terminal
    #[arg(long, requires = "mcp")]
    mcp_allow: bool,
    /// Does not show reasoning
    #[arg(long)]
    hide_reasoning: bool,
    /// Shows answers as the model writes them, without word wrap and Markdown
    #[arg(long)]
    plain: bool,
    /// Format of statistics on stderr after each answer [default: none]
    #[arg(long, value_enum)]
    stats: Option<Stats>,
    /// Does not read or write the input history
    #[arg(long)]
    no_history: bool,
    /// No notes on stderr, except calls of tools
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: GeneratingArgs,
}

fn variable(text: &str) -> Result<(String, Json), String> {
    let (name, value) = text.split_once('=').ok_or("it must have the form NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Json::String(value.to_string()));
    Ok((name.trim().to_string(), value))
}

pub fn run(args: ChatArgs, out: &mut Output) -> Result<(), Failure> {
    if args.prompt.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(akunu::Error::EmptyPrompt.into());
    }
    args.sampling.check()?;
    let source = Source {
        model: args.model.path().map(Path::to_path_buf),
        template: args.chat_template,
        template_name: args.template_name,
    };
    let format = args.format.read()?;
    let may_be_text = |path: &Path| !path.exists() && !hub::is_reference(path);
    let is_text = args.prompt.is_none() && args.model.path().is_some_and(may_be_text);
    let opened = Opened::new(source, args.engine.engine.device.no_mmap).map_err(|failure| match is_text {
        true => failure.hint("a message is given with -p TEXT"),
        false => failure,
    })?;
    let messages = args.load.as_deref().map(files::load).transpose()?.unwrap_or_default();
    // An answer in a format is data, not Markdown.
    let mut look = Look::new(!args.hide_reasoning, args.plain || args.format.is_given());
    look.without_calls = args.mcp.is_some();
    let settings = Settings { sampling: args.sampling, max_tokens: args.max_tokens, look };
    let options = GenerateOptions {
        stop_strings: args.stop,
        sampling: settings.sampling.sampling(&opened.model),
        ..GenerateOptions::default()
    };
    options.sampling.check(opened.model.config().vocab_size)?;
    let tools = args.mcp.as_deref().map(|config| Tools::start(config, args.mcp_allow, args.quiet));
    let tools = tools.transpose()?.unwrap_or_default();
    let mut loaded = Loaded::new(opened, &args.engine, args.quiet)?;
    let chat = &mut loaded.chat;
    chat.set_messages(messages);
    if args.system.is_some() {
        chat.set_system(args.system.as_deref());
    }
    chat.variables = args.set.into_iter().collect::<Map<_, _>>();
    chat.forget_oldest = args.context_shift;
    chat.answer.format = format;
    chat.answer.tools = tools.offers();
    let mut input = Input::open(args.prompt, !args.no_history)?;
    let is_terminal = input.is_terminal();
    // While the program waits for a line, Ctrl-C must not end the process, so keep a handler installed.
    let _listening = is_terminal.then(interrupt::listen);
    let _terminal = is_terminal.then(terminal::Guard::new);
    if is_terminal {
        terminal::quiet();
    }
    if is_terminal && !args.quiet {
        output::note(&format!("{}: /help lists commands, Ctrl-D ends", loaded.engine.model().name()));
    }
    let conversation = Conversation {
        engine_args: args.engine,
        options,
        settings,
        stats: args.stats.unwrap_or(Stats::None),
        quiet: args.quiet,
        last: None,
        tools,
        out,
        interactive: is_terminal,
    };
    conversation.run(loaded, &mut input)
}

/// Where a model and its template come from.
#[derive(Clone, Debug)]
struct Source {
    /// `None`: the embedded model.
    model: Option<PathBuf>,
    template: Option<PathBuf>,
    template_name: Option<String>,
}

impl Source {
    /// A model by its name in the conversation, with its own template.
    fn named(name: &str) -> Source {
        let path = environment::at_home(name);
        Source { model: (!super::is_embedded(&path)).then_some(path), template: None, template_name: None }
    }

    fn template(&self, model: &Model, path: Option<&Path>) -> Result<ChatTemplate, Failure> {
        let templates = match &self.template {
            Some(file) => ChatTemplates::from_file(file),
            None => ChatTemplates::find(model.metadata(), path),
        };
        let tokenizer = model.tokenizer()?;
        Ok(templates.and_then(|found| found.template(self.template_name.as_deref(), &**tokenizer))?)
    }
}

/// A model that can be conversed with, before it takes memory.
struct Opened {
    source: Source,
    model: Arc<Model>,
    template: ChatTemplate,
}

impl Opened {
    fn new(source: Source, no_mmap: bool) -> Result<Opened, Failure> {
        let path = source.model.as_deref().map(hub::resolve).transpose()?;
        let model = super::open_generating(path.as_deref(), no_mmap)?;
        let template = source.template(&model, path.as_deref())?;
        Ok(Opened { model, template, source })
    }
}

/// A model on its device, and the conversation in its cache.
struct Loaded {
    source: Source,
    engine: Engine,
    chat: Chat,
}

impl Loaded {
    fn new(opened: Opened, args: &GeneratingArgs, quiet: bool) -> Result<Loaded, Failure> {
        let mut engine = super::engine(&opened.model, &args.options(), quiet)?;
        let chat = Chat::new(&mut engine, opened.template)?;
        Ok(Loaded { source: opened.source, engine, chat })
    }

    /// Ends the conversation's session, and keeps its cache on disk if there is a folder for that.
    fn keep_on_disk(self) -> Result<(), Failure> {
        let Loaded { mut engine, chat, .. } = self;
        drop(chat);
        Ok(engine.keep_on_disk()?)
    }
}

/// Answers with calls of tools, one after the other, to one message.
const MAX_ROUNDS: usize = 32;

/// What the model answers.
enum Step<'a> {
    Message(&'a str),
    /// Of the calls of its last answer.
    Results(Vec<Json>),
    /// The last message once more.
    Again,
}

/// A running conversation, apart from its model.
struct Conversation<'a> {
    engine_args: GeneratingArgs,
    options: GenerateOptions,
    settings: Settings,
    stats: Stats,
    quiet: bool,
    last: Option<ChatReport>,
    tools: Tools,
    out: &'a mut Output,
    /// The input is a terminal, so errors do not change the exit code.
    interactive: bool,
}

impl Conversation<'_> {
    fn run(mut self, mut loaded: Loaded, input: &mut Input) -> Result<(), Failure> {
        let mut failed = false;
        loop {
            let done = match input.next()? {
                Turn::End => break,
                Turn::SlashCommand(SlashCommand::Exit) => break,
                Turn::SlashCommand(SlashCommand::Model(name)) => {
                    let (now, done) = self.switch(loaded, &name)?;
                    loaded = now;
                    done
                }
                Turn::SlashCommand(command) => self.execute(&mut loaded, &command, input),
                Turn::Message(text) => self.answer(&mut loaded, Some(&text), input),
                Turn::Invalid(failure) => Err(failure),
            };
            match done.map_err(Failure::not_usage) {
                Err(failure @ (Failure::Failed(_) | Failure::NoVocabulary { .. })) => {
                    failure.without_vocabulary(None).report();
                    failed = true;
                }
                Err(failure) => return Err(failure),
                Ok(()) => {}
            }
        }
        loaded.keep_on_disk()?;
        match failed && !self.interactive {
            true => Err(Failure::Reported),
            false => Ok(()),
        }
    }

    /// Continues the conversation with another model. If that fails, it continues with the one before; an error of the
    /// outer result means that this failed too.
    fn switch(&mut self, before: Loaded, name: &str) -> Result<(Loaded, Result<(), Failure>), Failure> {
        let no_mmap = self.engine_args.engine.device.no_mmap;
        let opened = Opened::new(Source::named(name), no_mmap).and_then(|opened| {
            // The settings' suggestions are another model's now.
            let sampling = self.settings.sampling.sampling(&opened.model);
            sampling.check(opened.model.config().vocab_size)?;
            Ok((opened, sampling))
        });
        let (opened, sampling) = match opened {
            Ok(opened) => opened,
            Err(Failure::Interrupted) if self.interactive => {
                interrupt::reset();
                return Ok((before, Ok(())));
            }
            Err(failure) => return Ok((before, Err(failure))),
        };
        let Loaded { source, engine, chat } = before;
        let (mut messages, variables, answer) =
            (chat.messages().to_vec(), chat.variables.clone(), chat.answer.clone());
        let forget_oldest = chat.forget_oldest;
        // Both at once might not fit.
        drop((engine, chat));
        let mut done = Ok(());
        let mut loaded = match Loaded::new(opened, &self.engine_args, self.quiet) {
            Ok(loaded) => {
                self.options.sampling = sampling;
                self.last = None;
                loaded
            }
            Err(failure) => {
                done = Err(failure.hint("the conversation continues with the model before"));
                Loaded::new(Opened::new(source, no_mmap)?, &self.engine_args, true)?
            }
        };
        let count = count(&messages);
        let is_empty = messages.is_empty();
        loaded.chat.set_messages(std::mem::take(&mut messages));
        (loaded.chat.variables, loaded.chat.answer, loaded.chat.forget_oldest) =
            (variables, answer, forget_oldest);
        if done.is_ok() {
            let name = loaded.engine.model().name();
            self.note(&match is_empty {
                true => format!("the model is {name} now"),
                false => format!("the model is {name} now; it goes on with {count}, /clear begins anew"),
            });
        }
        Ok((loaded, done))
    }

    /// Answers a message, or the last one again, and runs the tools that are called. If a call cannot be run, the
    /// conversation is as it was before.
    fn answer(&mut self, loaded: &mut Loaded, text: Option<&str>, input: &mut Input) -> Result<(), Failure> {
        let before = loaded.chat.messages().to_vec();
        let mut step = text.map_or(Step::Again, Step::Message);
        for _ in 0..MAX_ROUNDS {
            let finish = match self.step(loaded, step) {
                Ok(finish) => finish,
                Err(failure) => {
                    loaded.chat.set_messages(before);
                    return Err(failure);
                }
            };
            let calls = loaded.chat.messages().last().and_then(|last| last["tool_calls"].as_array().cloned());
            let Some(calls) = calls.filter(|calls| !calls.is_empty() && loaded.chat.answer.tools.is_some())
            else {
                return Ok(());
            };
            if finish == FinishReason::Cancelled {
                loaded.chat.set_messages(before);
                self.note("note: the call is not run: the message was removed");
                return Ok(());
            }
            let listening = interrupt::listen();
            let results = self.tools.run(&calls, input, &listening.flag());
            drop(listening);
            step = match results {
                Ok(results) => Step::Results(results),
                Err(failure) => {
                    loaded.chat.set_messages(before);
                    if matches!(failure, Failure::Interrupted) && self.interactive {
                        interrupt::reset();
                        self.note("note: interrupted: the message was removed");
                        return Ok(());
                    }
                    return Err(failure);
                }
            };
        }
        loaded.chat.set_messages(before);
        Err(Failure::new(format!("the model called tools {MAX_ROUNDS} times without an answer"))
            .hint("the message was removed"))
    }

    /// One answer of the model.
    fn step(&mut self, loaded: &mut Loaded, step: Step<'_>) -> Result<FinishReason, Failure> {
        let mut options = self.options.clone();
        options.max_tokens = self.settings.max_tokens;
        let listening = interrupt::listen();
        let cancel = listening.flag();
        cancel.store(false, Ordering::SeqCst);
        options.cancel = Some(cancel.clone());
        let mut screen = Screen::new(self.out, self.settings.look);
        let mut on_event = |event: akunu::chat::Event<'_>| screen.event(event);
        let turn = match step {
            Step::Message(text) => loaded.chat.ask(&mut loaded.engine, text, &options, &mut on_event),
            Step::Results(results) => loaded.chat.push(&mut loaded.engine, results, &options, &mut on_event),
            Step::Again => {
                // With the same seed the answer would be the same.
                self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
                options.sampling.seed = self.options.sampling.seed;
                loaded.chat.regenerate(&mut loaded.engine, &options, &mut on_event)
            }
        };
        drop(listening);
        cancel.store(false, Ordering::SeqCst);
        // Most errors occur before any output; otherwise the partial line must be ended.
        if turn.is_ok() || screen.has_printed() {
            screen.end()?;
        }
        let turn = turn.map_err(full)?;
        let report =
            ChatReport::new(&loaded.engine, &turn, options.sampling.seed, options.sampling.temperature);
        report.print(self.stats);
        self.last = Some(report);
        if turn.finish == FinishReason::Cancelled && !self.interactive {
            return Err(Failure::Interrupted);
        }
        if !self.quiet {
            print_notes(&turn, loaded.engine.context());
        }
        Ok(turn.finish)
    }

    fn execute(
        &mut self,
        loaded: &mut Loaded,
        command: &SlashCommand,
        input: &mut Input,
    ) -> Result<(), Failure> {
        let chat = &mut loaded.chat;
        match command {
            SlashCommand::Exit | SlashCommand::Model(_) => {}
            SlashCommand::Help => output::note(HELP),
            SlashCommand::Clear => {
                chat.reset();
                self.note("the conversation was cleared");
            }
            SlashCommand::ShowSystem => match chat.system() {
                Some(text) => output::note(text),
                None => output::note("there is no system message"),
            },
            SlashCommand::System(text) => chat.set_system(text.as_deref()),
            SlashCommand::ShowSettings(name) => {
                output::note(&self.settings.shown(name.as_deref(), &self.options.sampling)?);
            }
            SlashCommand::Set(name, value) => {
                let model = loaded.engine.model();
                self.settings.set(name, value, model)?;
                self.options.sampling = self.settings.sampling.sampling(model);
                self.note(&self.settings.shown(Some(name), &self.options.sampling)?);
            }
            SlashCommand::ShowModel => self.show_model(loaded),
            SlashCommand::Save(path) => {
                files::save(path, chat.messages())?;
                chat.keep(&mut loaded.engine)?;
                self.note(&format!("{} saved to {}", count(chat.messages()), path.display()));
            }
            SlashCommand::Load(path) => {
                let messages = files::load(path)?;
                self.note(&format!("{} loaded", count(&messages)));
                if messages.last().is_some_and(|last| last["role"] == "user") {
                    self.note("the last message has no answer yet: use /regen");
                }
                chat.set_messages(messages);
            }
            SlashCommand::Stats => match &self.last {
                Some(report) => report.print_text(),
                None => output::note("there is no answer yet"),
            },
            SlashCommand::History => history(chat, self.settings.look),
            SlashCommand::Regenerate => self.answer(loaded, None, input)?,
        }
        Ok(())
    }

    fn show_model(&self, loaded: &Loaded) {
        let place = loaded
            .source
            .model
            .as_ref()
            .map_or_else(|| akunu_server::EMBEDDED.to_string(), |path| path.display().to_string());
        output::note(&format!(
            "{} ({place}) on {}, with a context of {} tokens",
            loaded.engine.model().name(),
            loaded.engine.device().capabilities().name,
            loaded.engine.context()
        ));
        output::note("/model NAME continues the conversation with another one");
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            output::note(text);
        }
    }
}

/// Notes about an answer that did not end normally.
fn print_notes(turn: &akunu::chat::Turn, context: usize) {
    if turn.forgotten > 0 {
        output::note(&format!(
            "note: the context is full: the {} oldest messages were dropped",
            turn.forgotten
        ));
    }
    match turn.finish {
        FinishReason::ContextFull => output::note(&format!(
            "note: the answer ends here: all {} tokens of the context are used. /clear starts a new conversation, \
             -c sets a larger context, --context-shift drops the oldest messages",
            context
        )),
        FinishReason::Cancelled if !turn.kept => {
            output::note("note: interrupted before the answer began: the message was removed");
        }
        FinishReason::Cancelled => {
            output::note("note: interrupted: the partial answer is kept, /regen answers again");
        }
        FinishReason::MaxTokens => output::note("note: the answer was truncated at -n tokens"),
        _ => {}
    }
}

fn history(chat: &Chat, look: Look) {
    for message in chat.messages() {
        let content = &message["content"];
        let text = content.as_str().map_or_else(|| content.to_string(), String::from);
        look.note(message["role"].as_str().unwrap_or_default(), &text);
    }
}

fn count(messages: &[Json]) -> String {
    if messages.len() == 1 { "1 message".to_string() } else { format!("{} messages", messages.len()) }
}

/// Advice for a conversation that does not fit into the context.
fn full(error: akunu::Error) -> Failure {
    match error {
        akunu::Error::PromptTooLong { prompt, context } => Failure::new(format!(
            "the conversation has {prompt} tokens, but the context only {context}; the message was not sent"
        ))
        .hint(format!(
            "/clear starts a new conversation, -c {} sets a larger context, --context-shift drops the oldest messages",
            2 * prompt
        )),
        other => other.into(),
    }
}

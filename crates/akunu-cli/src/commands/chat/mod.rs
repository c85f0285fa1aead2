//! `akunu chat`: a conversation.

mod files;
mod input;
mod screen;
mod slash_commands;
mod stats;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use akunu::chat::{Chat, ChatError, ChatTemplate, ChatTemplates};
use akunu::{Engine, FinishReason, GenerateOptions, Model};
use clap::Args;
use serde_json::{Map, Value as Json};

use super::run::{SamplingArgs, Stats};
use crate::args::{self, GeneratingArgs, ModelArg};
use crate::failure::Failure;
use crate::format::FormatArgs;
use crate::hub;
use crate::interrupt;
use crate::output::{self, Output};
use input::{Input, Turn};
use screen::{Screen, Style};
use slash_commands::{HELP, SlashCommand};
use stats::ChatReport;

const EXAMPLES: &str = "\
Examples:
  akunu chat model.gguf
  akunu chat model.gguf --system \"Answer in one sentence.\" --temp 0
  akunu chat model.gguf -p \"Why is the sky blue?\"                        one answer, and the end
  akunu chat hf:OWNER/NAME --set enable_thinking=false
  printf 'Hello\\nAnd again?\\n' | akunu chat model.gguf --stats json      one turn per line";

const TYPING: &str = "\
A message may have several lines between \"\"\" and \"\"\", or with \\ at the end of each line except the last; one that
begins with / is written with two. Ctrl-C ends an answer; the partial answer is kept in the conversation.
The input history is stored in $XDG_STATE_HOME/akunu/chat-history (~/.local/state).";

/// Holds a conversation
///
/// Each line is a message that the model answers; its chat template defines how messages are written in the prompt.
/// Only new tokens are processed, the rest is in the KV cache. Reasoning is dimmed on a terminal.
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
    #[arg(long, value_name = "TEXT")]
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
    /// Does not show reasoning
    #[arg(long)]
    hide_reasoning: bool,
    /// Format of statistics on stderr after each answer [default: none]
    #[arg(long, value_enum)]
    stats: Option<Stats>,
    /// Does not read or write the input history
    #[arg(long)]
    no_history: bool,
    /// No notes on stderr
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
    let path = args.model.path().map(hub::resolve).transpose()?;
    let model = super::open_generating(path.as_deref(), args.engine.engine.device.no_mmap)?;
    let template = template(&args, &model, path.as_deref())?;
    let mut messages = args.load.as_deref().map(files::load).transpose()?.unwrap_or_default();
    let sampling = args.sampling.sampling(&model);
    sampling.check(model.config().vocab_size)?;
    let mut engine = super::engine(&model, &args.engine.options(), args.quiet)?;
    let mut chat = Chat::new(&mut engine, template)?;
    chat.set_messages(std::mem::take(&mut messages));
    if args.system.is_some() {
        chat.set_system(args.system.as_deref());
    }
    chat.variables = args.set.into_iter().collect::<Map<_, _>>();
    chat.forget_oldest = args.context_shift;
    chat.answer.format = args.format.read()?;
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        stop_strings: args.stop,
        sampling,
        ..GenerateOptions::default()
    };
    let mut input = Input::open(args.prompt, !args.no_history)?;
    if input.is_terminal() && !args.quiet {
        output::note(&format!("{}: /help lists commands, Ctrl-D ends", model.name()));
    }
    // While the program waits for a line, Ctrl-C must not end the process, so keep a handler installed.
    let _listening = input.is_terminal().then(interrupt::listen);
    let stats = args.stats.unwrap_or(Stats::None);
    let style = Style::new(args.hide_reasoning);
    let mut conversation = Conversation {
        engine,
        chat,
        options,
        style,
        stats,
        quiet: args.quiet,
        last: None,
        out,
        interactive: input.is_terminal(),
    };
    conversation.run(&mut input)
}

fn template(args: &ChatArgs, model: &Model, path: Option<&Path>) -> Result<ChatTemplate, Failure> {
    let templates = match &args.chat_template {
        Some(file) => ChatTemplates::from_file(file).and_then(|found| match found.is_empty() {
            true => Err(ChatError::File {
                path: file.display().to_string(),
                message: "it has no field \"chat_template\"".into(),
            }),
            false => Ok(found),
        }),
        None => ChatTemplates::find(model.metadata(), path),
    };
    let tokenizer = model.tokenizer()?;
    Ok(templates.and_then(|found| found.template(args.template_name.as_deref(), &**tokenizer))?)
}

/// A running conversation.
struct Conversation<'a> {
    engine: Engine,
    chat: Chat,
    options: GenerateOptions,
    style: Style,
    stats: Stats,
    quiet: bool,
    last: Option<ChatReport>,
    out: &'a mut Output,
    /// The input is a terminal, so errors do not change the exit code.
    interactive: bool,
}

impl Conversation<'_> {
    fn run(&mut self, input: &mut Input) -> Result<(), Failure> {
        let mut failed = None;
        loop {
            let done = match input.next()? {
                Turn::End => break,
                Turn::SlashCommand(SlashCommand::Exit) => break,
                Turn::SlashCommand(command) => self.execute(&command),
                Turn::Message(text) => self.answer(Some(&text)),
                Turn::Invalid(failure) => Err(failure),
            };
            match done {
                Err(failure @ Failure::Failed(_)) => {
                    failure.report();
                    failed = Some(failure);
                }
                Err(failure) => return Err(failure),
                Ok(()) => {}
            }
        }
        match failed {
            Some(_) if !self.interactive => Err(Failure::Reported),
            _ => Ok(()),
        }
    }

    /// Answers a message, or the last one again.
    fn answer(&mut self, text: Option<&str>) -> Result<(), Failure> {
        let mut options = self.options.clone();
        let listening = interrupt::listen();
        let cancel = listening.flag();
        cancel.store(false, Ordering::SeqCst);
        options.cancel = Some(cancel.clone());
        let mut screen = Screen::new(self.out, self.style);
        let mut on_event = |event: akunu::chat::Event<'_>| screen.event(event);
        let turn = match text {
            Some(text) => self.chat.ask(&mut self.engine, text, &options, &mut on_event),
            None => {
                // With the same seed the answer would be the same.
                self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
                options.sampling.seed = self.options.sampling.seed;
                self.chat.regenerate(&mut self.engine, &options, &mut on_event)
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
            ChatReport::new(&self.engine, &turn, options.sampling.seed, options.sampling.temperature);
        report.print(self.stats);
        self.last = Some(report);
        if turn.finish == FinishReason::Cancelled && !self.interactive {
            return Err(Failure::Interrupted);
        }
        if !self.quiet {
            self.print_notes(&turn);
        }
        Ok(())
    }

    /// Notes about an answer that did not end normally.
    fn print_notes(&self, turn: &akunu::chat::Turn) {
        if turn.forgotten > 0 {
            output::note(&format!(
                "note: the context is full: the {} oldest messages were dropped",
                turn.forgotten
            ));
        }
        match turn.finish {
            FinishReason::ContextFull => output::note(&format!(
                "note: the answer ends here: all {} tokens of the context are used. /reset starts a new conversation, \
                 -c sets a larger context, --context-shift drops the oldest messages",
                self.engine.context()
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

    fn execute(&mut self, command: &SlashCommand) -> Result<(), Failure> {
        match command {
            SlashCommand::Exit => {}
            SlashCommand::Help => output::note(HELP),
            SlashCommand::Reset => {
                self.chat.reset();
                self.note("the conversation was reset");
            }
            SlashCommand::ShowSystem => match self.chat.system() {
                Some(text) => output::note(text),
                None => output::note("there is no system message"),
            },
            SlashCommand::System(text) => self.chat.set_system(text.as_deref()),
            SlashCommand::Save(path) => {
                files::save(path, self.chat.messages())?;
                self.note(&format!("{} saved to {}", count(self.chat.messages()), path.display()));
            }
            SlashCommand::Load(path) => {
                let messages = files::load(path)?;
                self.note(&format!("{} loaded", count(&messages)));
                if messages.last().is_some_and(|last| last["role"] == "user") {
                    self.note("the last message has no answer yet: use /regen");
                }
                self.chat.set_messages(messages);
            }
            SlashCommand::Stats => match &self.last {
                Some(report) => report.print_text(),
                None => output::note("there is no answer yet"),
            },
            SlashCommand::History => self.history(),
            SlashCommand::Regenerate => self.answer(None)?,
        }
        Ok(())
    }

    fn history(&self) {
        for message in self.chat.messages() {
            let role = message["role"].as_str().unwrap_or_default();
            match message["content"].as_str() {
                Some(text) => output::note(&format!("{role}: {text}")),
                None => output::note(&format!("{role}: {}", message["content"])),
            }
        }
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            output::note(text);
        }
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
            "/reset starts a new conversation, -c {} sets a larger context, --context-shift drops the oldest messages",
            2 * prompt
        )),
        other => other.into(),
    }
}

//! Sources of messages: a terminal with line editing, completion and history, or lines from a pipe.

use std::cell::Cell;
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, CompletionType, Config, Context, Editor, Helper};

use super::complete::complete;
use super::slash_commands::SlashCommand;
use crate::failure::Failure;
use crate::{output, terminal};

#[derive(Debug)]
pub enum Turn {
    Message(String),
    SlashCommand(SlashCommand),
    /// An unknown command.
    Invalid(Failure),
    End,
}

#[derive(Debug)]
pub struct Input(Source);

#[derive(Debug)]
enum Source {
    Terminal(Box<Editor<Line, FileHistory>>, Option<PathBuf>),
    Pipe,
    /// A single message.
    Given(Option<String>),
}

const PROMPT: &str = "> ";
/// Before further lines of a message.
const CONTINUED: &str = "... ";
const FENCE: &str = "\"\"\"";

/// Maximum number of history entries.
const HISTORY: usize = 1000;

impl Input {
    /// `given`: use only this message.
    pub fn open(given: Option<String>, keep_history: bool) -> Result<Input, Failure> {
        if given.is_some() || !std::io::stdin().is_terminal() {
            return Ok(Input(given.map_or(Source::Pipe, |text| Source::Given(Some(text)))));
        }
        // If only stdout is redirected, the line editor uses the terminal, so that input is not echoed to stdout.
        let behavior = if std::io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let failure = |error: ReadlineError| Failure::new(format!("cannot read the terminal: {error}"));
        let config = Config::builder().behavior(behavior).completion_type(CompletionType::List);
        let config = config.max_history_size(HISTORY).map_err(failure)?;
        let mut editor = Editor::with_config(config.build()).map_err(failure)?;
        editor.set_helper(Some(Line::default()));
        let history = keep_history.then(history_file).flatten();
        if let Some(path) = &history {
            // The file does not exist the first time.
            let _ = editor.load_history(path);
        }
        Ok(Input(Source::Terminal(Box::new(editor), history)))
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self.0, Source::Terminal(..))
    }

    /// A line that answers a question; `None` if there is no terminal on which it can be asked. Ctrl-C and Ctrl-D are an
    /// interruption.
    pub fn ask(&mut self, question: &str) -> Result<Option<String>, Failure> {
        let Source::Terminal(editor, _) = &mut self.0 else { return Ok(None) };
        terminal::for_lines();
        let line = editor.readline(question);
        terminal::quiet();
        match line {
            Ok(line) => Ok(Some(line)),
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => Err(Failure::Interrupted),
            Err(error) => Err(Failure::new(format!("cannot read the terminal: {error}"))),
        }
    }

    pub fn next(&mut self) -> Result<Turn, Failure> {
        loop {
            let text = match &mut self.0 {
                Source::Terminal(editor, history) => from_terminal(editor, history)?,
                Source::Pipe => from_pipe()?,
                Source::Given(text) => return Ok(text.take().map_or(Turn::End, Turn::Message)),
            };
            let Some(text) = text else { return Ok(Turn::End) };
            let text = unfolded(&text);
            if text.trim().is_empty() {
                continue;
            }
            return Ok(match text.strip_prefix('/') {
                None => Turn::Message(text),
                Some(message) if message.starts_with('/') => Turn::Message(message.to_string()),
                Some(_) => {
                    SlashCommand::parse(text.trim_end()).map_or_else(Turn::Invalid, Turn::SlashCommand)
                }
            });
        }
    }
}

/// A complete input; `None` at the end.
fn from_terminal(
    editor: &mut Editor<Line, FileHistory>,
    history: &mut Option<PathBuf>,
) -> Result<Option<String>, Failure> {
    let mut warned = false;
    let mut begun: Option<String> = None;
    loop {
        terminal::for_lines();
        let line = editor.readline(if begun.is_some() { CONTINUED } else { PROMPT });
        terminal::quiet();
        match line {
            Ok(line) => {
                let text = match begun.take() {
                    Some(text) => text + "\n" + &line,
                    None => line,
                };
                if is_open(&text) {
                    begun = Some(text);
                    continue;
                }
                if !text.trim().is_empty() && editor.add_history_entry(text.as_str()).unwrap_or(false) {
                    keep(editor, history);
                }
                return Ok(Some(text));
            }
            Err(ReadlineError::Eof | ReadlineError::Interrupted) if begun.is_some() => {
                begun = None;
                warned = false;
                output::note("the message was dropped");
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Interrupted) => {
                let was_empty = editor.helper().is_none_or(|line| line.is_empty.get());
                if was_empty && warned {
                    return Err(Failure::Interrupted);
                }
                warned = was_empty;
                if was_empty {
                    output::note("press Ctrl-C again, Ctrl-D or /exit to end");
                }
            }
            Err(error) => return Err(Failure::new(format!("cannot read the terminal: {error}"))),
        }
    }
}

/// Appends the last entry to the history file, which other processes may write too.
fn keep(editor: &mut Editor<Line, FileHistory>, history: &mut Option<PathBuf>) {
    let Some(path) = history else { return };
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let kept = folder.map_err(ReadlineError::from).and_then(|()| editor.append_history(path));
    if let Err(error) = kept {
        output::note(&format!("note: the history cannot be saved: {}: {error}", path.display()));
        *history = None;
    }
}

/// Reads lines until a message is complete; `None` at the end.
fn from_pipe() -> Result<Option<String>, Failure> {
    let mut stdin = std::io::stdin().lock();
    let mut bytes = Vec::new();
    loop {
        let read = stdin.read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| Failure::new(format!("cannot read stdin: {error}")))?;
        let is_last = read == 0;
        if is_last && bytes.is_empty() {
            return Ok(None);
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| Failure::new("stdin is not UTF-8 text"))?;
        let line = text.strip_suffix('\n').unwrap_or(text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if is_last || !is_open(line) {
            return Ok(Some(line.to_string()));
        }
    }
}

/// Whether a message continues on the next line: it ends with a backslash, or begins with """ that is not closed.
fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(block) => !block.trim_end().ends_with(FENCE),
        None => text.ends_with('\\'),
    }
}

/// The message without backslashes and fences.
fn unfolded(text: &str) -> String {
    match text.trim_start().strip_prefix(FENCE) {
        Some(block) => {
            let block = block.trim_end();
            let block = block.strip_suffix(FENCE).unwrap_or(block).replace("\r\n", "\n");
            block.strip_prefix('\n').unwrap_or(&block).trim_end_matches('\n').to_string()
        }
        None => {
            let text = text.replace("\\\r\n", "\n").replace("\\\n", "\n");
            text.strip_suffix('\\').map(str::to_string).unwrap_or(text)
        }
    }
}

/// The path of the history file.
fn history_file() -> Option<PathBuf> {
    Some(crate::environment::state_folder()?.join("akunu").join("chat-history"))
}

/// State of the line editor's callbacks.
#[derive(Debug, Default)]
struct Line {
    /// Whether the line was empty when it last changed, since Ctrl-C does not tell.
    is_empty: Cell<bool>,
}

impl Helper for Line {}
impl Highlighter for Line {}

impl Hinter for Line {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Validator for Line {}

impl Completer for Line {
    type Candidate = String;

    fn complete(&self, line: &str, end: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(complete(&line[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_and_a_fence_keep_lines_together() {
        for (text, open, message) in [
            ("one", false, "one"),
            ("one\\", true, "one"),
            ("one\\\ntwo", false, "one\ntwo"),
            ("\"\"\"", true, ""),
            ("\"\"\"a\n\nb", true, "a\n\nb"),
            ("\"\"\"\na\n b\n\"\"\"", false, "a\n b"),
            ("\"\"\"a\"\"\" ", false, "a"),
            ("say \"\"\"", false, "say \"\"\""),
            ("C:\\\r\nD", false, "C:\nD"),
        ] {
            assert_eq!(is_open(text), open, "{text}");
            assert_eq!(unfolded(text), message, "{text}");
        }
    }
}

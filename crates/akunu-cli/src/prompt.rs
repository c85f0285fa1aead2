//! Sources of prompts: an argument, a file, stdin or a list of ids; and the distinction between prompt and model
//! arguments.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;

use akunu::Model;
use akunu_hub::Known;
use clap::Args;

use crate::failure::Failure;
use crate::hub;
use crate::ids::{self, Ids};
use crate::output;

/// No context is as long; devices have no end.
const MAX_TEXT: u64 = 1 << 30;

#[derive(Debug, Args)]
pub struct PromptArgs {
    /// The model [default: the embedded model]
    #[arg(value_name = "MODEL")]
    first: Option<OsString>,
    /// The text to continue; if it is the only argument, the embedded model is used
    #[arg(value_name = "PROMPT")]
    second: Option<OsString>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL", conflicts_with = "second")]
    model: Option<PathBuf>,
    /// The prompt, even if it could be a file name or an option
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", group = "source", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the prompt (- is stdin); a newline at its end is dropped
    #[arg(short, long, group = "source")]
    file: Option<PathBuf>,
    /// The prompt as token ids: 1,2,3
    #[arg(long, value_name = "IDS", group = "source", value_parser = ids::parse)]
    prompt_ids: Option<Ids>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl PromptArgs {
    /// The model, if one is given, and the prompt.
    pub fn resolve(self) -> Result<(Option<PathBuf>, Prompt), Failure> {
        let reads_stdin = self.file.as_deref() == Some(Path::new("-"));
        let (model, prompt) = self.resolve_with(piped_prompt)?;
        match prompt {
            (Prompt::Text(text), Source::Given) if !reads_stdin => {
                Ok((model, Prompt::Text(after_piped(text)?)))
            }
            (prompt, _) => Ok((model, prompt)),
        }
    }

    fn resolve_with(
        self,
        piped: fn() -> Result<Option<String>, Failure>,
    ) -> Result<(Option<PathBuf>, (Prompt, Source)), Failure> {
        let is_option = self.model.is_some();
        let explicit = match (self.prompt, self.file, self.prompt_ids) {
            (Some(text), _, _) => Some(Prompt::Text(text)),
            (_, Some(file), _) => Some(Prompt::Text(without_last_newline(read_text(&file)?))),
            (_, _, Some(Ids(ids))) => Some(Prompt::Ids(ids)),
            (None, None, None) => None,
        };
        // With -m, the first argument is the prompt.
        let (first, second) = match self.model {
            Some(model) => (Some(model.into_os_string()), self.first),
            None => (self.first, self.second),
        };
        let mut source = Source::Given;
        let (model, prompt) = match (explicit, first, second) {
            (Some(_), _, Some(second)) => {
                let extra = second.display();
                return Err(Failure::usage(format!("two prompts were given: \"{extra}\" is the second")));
            }
            (Some(prompt), model, None) => (model.map(PathBuf::from), prompt),
            (None, Some(model), Some(text)) => (Some(model.into()), Prompt::Text(utf8(text)?)),
            (None, Some(only), None) if is_option || is_model(Path::new(&only)) => {
                let model = PathBuf::from(only);
                let text = piped()?.ok_or_else(|| without_prompt(&model, is_option))?;
                source = Source::Piped;
                (Some(model), Prompt::Text(text))
            }
            (None, Some(only), None) => (None, Prompt::Text(alone(only)?)),
            (None, None, _) => {
                let text = piped()?.ok_or_else(|| {
                    Failure::usage("no prompt was given")
                        .hint("akunu run \"Once upon a time\", or -f FILE, or pipe it in")
                        .hint("akunu chat is for conversations")
                })?;
                source = Source::Piped;
                (None, Prompt::Text(text))
            }
        };
        match prompt {
            Prompt::Text(text) if text.is_empty() => Err(akunu::Error::EmptyPrompt.into()),
            Prompt::Ids(ids) if ids.is_empty() => Err(akunu::Error::EmptyPrompt.into()),
            prompt => Ok((model, (prompt, source))),
        }
    }
}

/// Where a prompt is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Given,
    Piped,
}

/// The prompt behind the text of a pipe or a file on stdin, as in other programs: `akunu run "Summary:" < text.txt`.
/// Whatever else stdin is (a terminal, a device, a socket that a parent left open) may never end, and is not read.
fn after_piped(prompt: String) -> Result<String, Failure> {
    let piped = match is_pipe_or_file() {
        true => {
            let _waiting = Waiting::for_stdin();
            piped_prompt()?
        }
        false => None,
    };
    Ok(match piped {
        Some(text) => format!("{text}\n{prompt}"),
        None => prompt,
    })
}

/// Says after a while that stdin is waited for: whoever started the program may have left a pipe open.
struct Waiting {
    _ends: Sender<()>,
}

impl Waiting {
    const PATIENCE: Duration = Duration::from_secs(2);

    fn for_stdin() -> Waiting {
        let (ends, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(Waiting::PATIENCE) == Err(RecvTimeoutError::Timeout) {
                output::note(
                    "note: waiting for the end of the text on stdin; with < /dev/null nothing is read",
                );
            }
        });
        Waiting { _ends: ends }
    }
}

#[cfg(unix)]
fn is_pipe_or_file() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;

    let file = std::io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let kind = file.and_then(|file| file.metadata()).map(|about| about.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_file())
}

#[cfg(not(unix))]
fn is_pipe_or_file() -> bool {
    !std::io::stdin().is_terminal()
}

impl Prompt {
    pub fn ids(&self, model: &Model) -> Result<Vec<u32>, Failure> {
        match self {
            Prompt::Text(text) => Ok(model.encode(text)?),
            Prompt::Ids(ids) => Ok(ids.clone()),
        }
    }
}

/// Whether an argument names a model that exists, or one on the hub.
fn is_model(path: &Path) -> bool {
    path.exists() || hub::is_reference(path)
}

fn without_prompt(model: &Path, is_option: bool) -> Failure {
    let shown = model.display();
    let mut hint = format!("akunu run {shown} \"Once upon a time\"");
    if !is_option {
        hint += &format!(", or use -p if {shown} is the prompt");
    }
    Failure::usage(format!("{shown} is used as the model, but a prompt is missing"))
        .hint(hint)
        .hint(format!("akunu chat {shown} holds a conversation"))
}

/// A single argument that is no model is the prompt.
fn alone(only: OsString) -> Result<String, Failure> {
    let path = Path::new(&only);
    if looks_like_a_model(path) {
        return Err(
            Failure::new(format!("there is no file {}", path.display())).hint("use -p if it is the prompt")
        );
    }
    if let Some(name) = only.to_str().filter(|text| text.contains('/') && !text.contains(char::is_whitespace))
    {
        let failure = Failure::new(format!("there is no file {name}"));
        let failure = match hub::looks_like_a_name(name) {
            true => failure.hint(format!("a model on the Hugging Face hub is named hf:{name}")),
            false => failure,
        };
        return Err(failure.hint("use -p if it is the prompt"));
    }
    // Neither a word with a colon nor the name of a family of models is likely to be a prompt.
    let name = only.to_str().filter(|text| text.contains(':') || Known::is_family(text));
    let name = name.and_then(hub::near_names);
    if let Some(names) = name {
        return Err(Failure::new(format!("there is no model named {}", path.display()))
            .hint(names)
            .hint("use -p if it is the prompt"));
    }
    utf8(only)
}

pub fn looks_like_a_model(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gguf" || ending == "safetensors")
}

pub fn utf8(text: OsString) -> Result<String, Failure> {
    text.into_string().map_err(|_| Failure::usage("the text is not UTF-8"))
}

fn without_last_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// A whole file, or stdin for `-`, as UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "stdin".to_string() } else { path.display().to_string() };
    let read = if is_stdin { read_stdin() } else { akunu_file::read(path, MAX_TEXT) };
    let bytes = read.map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => {
            let most = akunu::human(MAX_TEXT);
            Failure::new(format!("{name} is too large for a text: at most {most} are read"))
        }
        _ => Failure::new(format!("cannot read {name}: {error}")),
    })?;
    if bytes.starts_with(b"GGUF") {
        return Err(Failure::new(format!("{name} is a GGUF file, not a text")).hint("give a text file too"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("{name} is not UTF-8 text (the first bad byte is at {at})"))
            .hint("convert it first, for example with iconv -f LATIN1 -t UTF-8")
    })
}

fn read_stdin() -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_TEXT { Err(ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// A prompt on stdin, unless it is a terminal or empty.
fn piped_prompt() -> Result<Option<String>, Failure> {
    Ok(piped_stdin()?.map(without_last_newline).filter(|text| !text.is_empty()))
}

/// The contents of stdin, unless it is a terminal.
pub fn piped_stdin() -> Result<Option<String>, Failure> {
    if std::io::stdin().is_terminal() { Ok(None) } else { read_text(Path::new("-")).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(first: Option<&str>, second: Option<&str>, prompt: Option<&str>) -> PromptArgs {
        PromptArgs {
            first: first.map(Into::into),
            second: second.map(Into::into),
            model: None,
            prompt: prompt.map(Into::into),
            file: None,
            prompt_ids: None,
        }
    }

    fn nothing() -> Result<Option<String>, Failure> {
        Ok(None)
    }

    fn text(text: &str) -> (Prompt, Source) {
        (Prompt::Text(text.into()), Source::Given)
    }

    fn from_pipe(text: &str) -> (Prompt, Source) {
        (Prompt::Text(text.into()), Source::Piped)
    }

    #[test]
    fn one_argument_is_the_prompt_and_two_are_model_and_prompt() {
        let one = args(Some("Once upon a time"), None, None).resolve_with(nothing);
        assert_eq!(one.unwrap(), (None, text("Once upon a time")));
        let two = args(Some("m.gguf"), Some("Once"), None).resolve_with(nothing);
        assert_eq!(two.unwrap(), (Some("m.gguf".into()), text("Once")));
    }

    #[test]
    fn with_a_prompt_by_option_one_argument_is_the_model() {
        let found = args(Some("m.gguf"), None, Some("Once")).resolve_with(nothing);
        assert_eq!(found.unwrap(), (Some("m.gguf".into()), text("Once")));
        assert_eq!(args(None, None, Some("-5")).resolve_with(nothing).unwrap(), (None, text("-5")));
    }

    #[test]
    fn an_existing_file_alone_is_a_model_without_a_prompt() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = args(file.path().to_str(), None, None).resolve_with(nothing);
        assert!(
            matches!(found, Err(Failure::Usage(message)) if message.error.contains("a prompt is missing"))
        );
    }

    #[test]
    fn a_pipe_is_the_prompt_if_there_is_no_other() {
        let piped = || Ok(Some("Once".to_string()));
        assert_eq!(args(None, None, None).resolve_with(piped).unwrap(), (None, from_pipe("Once")));
        assert_eq!(args(Some("A fox"), None, None).resolve_with(piped).unwrap(), (None, text("A fox")));
        let file = tempfile::NamedTempFile::new().unwrap();
        let model = Some(file.path().to_path_buf());
        assert_eq!(
            args(file.path().to_str(), None, None).resolve_with(piped).unwrap(),
            (model.clone(), from_pipe("Once"))
        );
        let option = PromptArgs { model: Some("m.gguf".into()), ..args(None, None, None) };
        assert_eq!(option.resolve_with(piped).unwrap(), (Some("m.gguf".into()), from_pipe("Once")));
    }

    #[test]
    fn with_the_model_as_an_option_the_argument_is_the_prompt() {
        let found = PromptArgs { model: Some("m.gguf".into()), ..args(Some("Once"), None, None) };
        assert_eq!(found.resolve_with(nothing).unwrap(), (Some("m.gguf".into()), text("Once")));
        let missing = PromptArgs { model: Some("m.gguf".into()), ..args(None, None, None) };
        assert!(matches!(missing.resolve_with(nothing), Err(Failure::Usage(_))));
    }

    #[test]
    fn a_missing_model_file_is_not_a_prompt() {
        let found = args(Some("no/such/model.gguf"), None, None).resolve_with(nothing);
        assert!(matches!(found, Err(Failure::Failed(message)) if message.error.contains("no file")));
    }

    #[test]
    fn empty_and_double_prompts_are_refused() {
        assert!(args(Some(""), None, None).resolve_with(nothing).is_err());
        assert!(args(Some("m.gguf"), Some("a"), Some("b")).resolve_with(nothing).is_err());
        assert!(args(None, None, None).resolve_with(nothing).is_err());
    }

    #[test]
    fn one_newline_at_the_end_is_dropped() {
        assert_eq!(without_last_newline("a\r\n".into()), "a");
        assert_eq!(without_last_newline("a\n\n".into()), "a\n");
    }
}

//! Errors of commands: an `error:` line, `hint:` lines and an exit code.

use std::path::Path;
use std::process::ExitCode;

use akunu::chat::ChatError;
use akunu::devices::ceilings::CeilingsError;
use akunu_format::FormatError;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::{environment, hub, other_names, output};

#[derive(Debug)]
pub enum Failure {
    /// Exit code 1.
    Failed(Message),
    /// The command line is invalid. Exit code 2, as for errors reported by clap.
    Usage(Message),
    /// The model has no usable vocabulary. The hint depends on the command ([`Failure::without_vocabulary`]). Exit code
    /// 1.
    NoVocabulary { reason: String },
    /// Everything was reported already. Exit code 1.
    Reported,
    /// The reader of stdout has closed the pipe. Exit code 0, without a message.
    ClosedPipe,
    /// Ctrl-C. Exit code 130, as in shells.
    Interrupted,
}

#[derive(Debug)]
pub struct Message {
    pub error: String,
    pub hints: Vec<String>,
}

impl Failure {
    pub fn new(error: impl Into<String>) -> Failure {
        Failure::Failed(Message { error: error.into(), hints: Vec::new() })
    }

    pub fn usage(error: impl Into<String>) -> Failure {
        Failure::Usage(Message { error: error.into(), hints: Vec::new() })
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        if let Failure::Failed(message) | Failure::Usage(message) = &mut self {
            message.hints.push(hint.into());
        }
        self
    }

    /// Converts a missing vocabulary to an error with advice.
    pub fn without_vocabulary(self, advice: Option<&str>) -> Failure {
        let Failure::NoVocabulary { reason } = self else { return self };
        let failure = Failure::new(format!("this model can be used with token ids only: {reason}"));
        match advice {
            Some(advice) => failure.hint(advice),
            None => failure,
        }
    }

    pub fn io(action: &str, path: &Path, error: &std::io::Error) -> Failure {
        Failure::new(format!("cannot {action} {}: {error}", path.display()))
    }

    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Failed(_) | Failure::NoVocabulary { .. } | Failure::Reported => ExitCode::from(1),
            Failure::Usage(_) => ExitCode::from(2),
            Failure::ClosedPipe => ExitCode::SUCCESS,
            Failure::Interrupted => ExitCode::from(130),
        }
    }

    /// The same with exit code 1, where a wrong value was not given on the command line.
    pub fn not_usage(self) -> Failure {
        match self {
            Failure::Usage(message) => Failure::Failed(message),
            other => other,
        }
    }

    pub fn report(&self) {
        if let Failure::Failed(message) | Failure::Usage(message) = self {
            output::labelled("error", output::RED, &message.error);
            for hint in &message.hints {
                output::labelled("hint", output::GREEN, hint);
            }
        }
    }
}

impl From<clap::Error> for Failure {
    /// Takes the text apart: the error, tips and possible values. What it says about usage is left out.
    fn from(error: clap::Error) -> Failure {
        if error.kind() == ErrorKind::InvalidSubcommand {
            return unknown_command(&error);
        }
        let string = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => text.as_str(),
            _ => "",
        };
        let option = string(ContextKind::InvalidArg);
        let variable = environment::source_of(option);
        let option = other_names::misread(std::env::args_os().skip(1)).unwrap_or(option);
        let text = error.render().to_string();
        let text = ["invalid float literal", "cannot parse float from empty string"]
            .iter()
            .fold(text, |text, problem| text.replace(problem, "it must be a number"));
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let mut message =
            Message { error: first.strip_prefix("error: ").unwrap_or(first).to_string(), hints: Vec::new() };
        for line in lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more")) {
            let said = line.trim();
            let values = said.strip_prefix('[').and_then(|said| said.strip_suffix(']'));
            match (said.strip_prefix("tip: "), values) {
                (Some(tip), _) => message.hints.push(tip.to_string()),
                (None, Some(values)) => message.hints.push(values.to_string()),
                (None, None) if said.is_empty() => {}
                (None, None) => message.error += &format!("\n{line}"),
            }
        }
        if let Some(hint) = other_names::option(option) {
            message.error = format!("unexpected argument '{option}' found");
            message.hints = vec![hint.to_string()];
        }
        message.hints.extend(variable.map(|name| format!("the value is that of the variable {name}")));
        Failure::Usage(message)
    }
}

fn unknown_command(error: &clap::Error) -> Failure {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return Failure::usage("there is no such command");
    };
    let similar: &[String] = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(name)) => std::slice::from_ref(name),
        Some(ContextValue::Strings(names)) => names,
        _ => &[],
    };
    // Commands for scripts are not suggested.
    let similar = similar.iter().rfind(|name| !name.starts_with("__"));
    let similar = similar.map(|name| format!("a similar command is '{name}'"));
    let failure = Failure::usage(format!("there is no command '{name}'"));
    match other_names::command(name).map(String::from).or(similar) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

impl From<akunu::Error> for Failure {
    fn from(error: akunu::Error) -> Failure {
        use akunu::Error;
        match error {
            Error::Format(error) => error.into(),
            Error::EmptyPrompt => Failure::new("the prompt is empty")
                .hint("give at least one word or token id, as in akunu run \"Once upon a time\""),
            Error::PromptTooLong { prompt, context } => {
                Failure::new(format!("the prompt has {prompt} tokens, but the context only {context}"))
                    .hint(format!("shorten the prompt, or set a larger context: -c {}", prompt + 1))
            }
            Error::TokenOutsideVocabulary { id, index, vocab, place } => Failure::new(format!(
                "token id {id} (number {} of the {place}) is outside the vocabulary of {vocab} ids",
                index + 1
            ))
            .hint(format!("valid ids are 0 to {}", vocab.saturating_sub(1))),
            Error::Chat(error) => error.into(),
            Error::NoTokenizer { reason } => Failure::NoVocabulary { reason },
            // The text of this error contains another semicolon before its advice.
            Error::NotGenerative => {
                Failure::new("this is an embedding model or reranker, which does not generate text")
                    .hint("use akunu embed or akunu rerank, or /v1/embeddings or /v1/rerank")
            }
            Error::ContextFull { context } => Failure::new(format!(
                "all {context} tokens of the context are used"
            ))
            .hint(
                "set a larger context (-c), or drop the oldest tokens during generation (--context-shift=0)",
            ),
            // The texts of other errors contain the advice.
            other => from_text(&other.to_string()),
        }
    }
}

impl From<akunu_hub::Error> for Failure {
    fn from(error: akunu_hub::Error) -> Failure {
        use akunu_hub::Error;
        match (&error, from_text(&error.to_string())) {
            (Error::Interrupted, _) => Failure::Interrupted,
            (Error::Name { .. } | Error::Setting { .. }, Failure::Failed(message)) => Failure::Usage(message),
            (_, failure) => failure,
        }
    }
}

impl From<akunu_server::ServeError> for Failure {
    fn from(error: akunu_server::ServeError) -> Failure {
        from_text(&error.to_string())
    }
}

impl From<CeilingsError> for Failure {
    fn from(error: CeilingsError) -> Failure {
        from_text(&error.to_string())
    }
}

impl From<ChatError> for Failure {
    fn from(error: ChatError) -> Failure {
        match &error {
            // Contains text of the template, which may have semicolons.
            ChatError::Raised { .. } | ChatError::Runtime { .. } => Failure::new(error.to_string()),
            _ => from_text(&error.to_string()),
        }
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Failure {
        let path = match &error {
            FormatError::InFile { path, .. } => Some(path.display().to_string()),
            _ => None,
        };
        match error.kind() {
            FormatError::NotAModel { found, advice } => {
                let place = path.map(|path| format!("{path}: ")).unwrap_or_default();
                Failure::new(format!("{place}this is {found}, not a model that can be run"))
                    .hint(as_hint(advice))
            }
            FormatError::Io { error: io, .. } if io.kind() == std::io::ErrorKind::NotFound => {
                let place = path.unwrap_or_else(|| "the model".to_string());
                let failure = Failure::new(format!("there is no file {place}"));
                if let Some(names) = hub::near_names(&place) {
                    return failure.hint(names);
                }
                match hub::looks_like_a_name(&place) {
                    true => failure.hint(format!("a model on the Hugging Face hub is named hf:{place}")),
                    false => failure.hint(
                        "a MODEL is a GGUF file, a SafeTensors file, a folder with config.json, or a name \
                         (akunu models --known)",
                    ),
                }
            }
            _ => from_text(&error.to_string()),
        }
    }
}

/// A sentence of advice in the form of other hints: with a small first letter, unless it is a name, and without a full
/// stop.
fn as_hint(advice: &str) -> String {
    let text = advice.strip_suffix('.').unwrap_or(advice);
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            format!("{}{second}{}", first.to_lowercase(), letters.as_str())
        }
        _ => text.to_string(),
    }
}

/// Splits advice after a semicolon at the end of the message's first line into a hint.
fn from_text(text: &str) -> Failure {
    let (first, rest) = match text.split_once('\n') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    };
    let (error, hint) = match first.rsplit_once("; ") {
        Some((error, hint)) => (error, Some(hint)),
        None => (first, None),
    };
    let error = match rest {
        Some(rest) => format!("{error}\n{rest}"),
        None => error.to_string(),
    };
    match hint {
        Some(hint) => Failure::new(error).hint(hint),
        None => Failure::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_of_advice_become_hints_like_others() {
        assert_eq!(as_hint("Give its folder, or a file."), "give its folder, or a file");
        assert_eq!(as_hint("A Hugging Face folder."), "a Hugging Face folder");
        assert_eq!(as_hint("GGUF files are read."), "GGUF files are read");
    }

    #[test]
    fn advice_becomes_a_hint_and_a_listing_stays_with_the_error() {
        let Failure::Failed(message) = from_text("it needs 3 GiB; try -c 10\n  weights 3 GiB") else {
            panic!("a failure");
        };
        assert_eq!(message.error, "it needs 3 GiB\n  weights 3 GiB");
        assert_eq!(message.hints, ["try -c 10"]);
    }
}

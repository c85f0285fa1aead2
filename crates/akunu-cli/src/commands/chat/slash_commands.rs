//! Slash commands: lines that begin with `/`.

use std::path::PathBuf;

use crate::environment;
use crate::failure::Failure;

#[derive(Debug, PartialEq, Eq)]
pub enum SlashCommand {
    Help,
    Exit,
    Clear,
    /// Shows the system message.
    ShowSystem,
    /// Sets the system message; `None` removes it.
    System(Option<String>),
    /// Shows all settings, or one.
    ShowSettings(Option<String>),
    /// Name and value of a setting.
    Set(String, String),
    /// Shows the model.
    ShowModel,
    Model(String),
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    Regenerate,
    /// Shows the conversation.
    History,
}

pub const HELP: &str = "\
In the conversation:
  /set [NAME [VALUE]]  shows or changes settings: /set temp 0.5 (or default)
  /model [NAME]        shows the model, or continues with another one
  /system [TEXT]       shows or sets the system message; /system - removes it
  /clear               drops all messages except the system message
  /regen               answers the last message again
  /history             shows the conversation
  /save FILE           writes the conversation as JSON
  /load FILE           continues a saved conversation
  /stats               shows statistics of the last answer and the context
  /help                shows this help
  /exit                ends the program, as does Ctrl-D
Tab completes commands, settings, models and names of files.";

pub const NAMES: [&str; 11] = [
    "/set", "/model", "/system", "/clear", "/regen", "/history", "/save", "/load", "/stats", "/help", "/exit",
];

impl SlashCommand {
    pub fn parse(line: &str) -> Result<SlashCommand, Failure> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let file = || match rest {
            "" => Err(Failure::new(format!("{name} needs a file name")).hint(format!("{name} talk.json"))),
            path => Ok(environment::at_home(path)),
        };
        let command = match name {
            "/system" => {
                return Ok(match rest {
                    "" => SlashCommand::ShowSystem,
                    "-" => SlashCommand::System(None),
                    text => SlashCommand::System(Some(text.to_string())),
                });
            }
            "/set" => {
                return Ok(match rest.split_once([' ', '\t', '=']) {
                    None => SlashCommand::ShowSettings((!rest.is_empty()).then(|| rest.to_string())),
                    Some((name, value)) => SlashCommand::Set(name.to_string(), value.trim().to_string()),
                });
            }
            "/model" => {
                return Ok(match rest {
                    "" => SlashCommand::ShowModel,
                    model => SlashCommand::Model(model.to_string()),
                });
            }
            "/save" => return file().map(SlashCommand::Save),
            "/load" => return file().map(SlashCommand::Load),
            "/help" | "/?" => SlashCommand::Help,
            "/exit" | "/quit" | "/bye" => SlashCommand::Exit,
            "/clear" | "/reset" | "/new" => SlashCommand::Clear,
            "/stats" => SlashCommand::Stats,
            "/regen" => SlashCommand::Regenerate,
            "/history" => SlashCommand::History,
            _ => {
                return Err(Failure::new(format!("unknown command {name}"))
                    .hint(format!("commands are {}", NAMES.join(", ")))
                    .hint("write // at the beginning of a message that starts with /"));
            }
        };
        match rest {
            "" => Ok(command),
            _ => Err(Failure::new(format!("{name} takes no argument"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_commands_are_parsed_with_arguments() {
        let parse = |line| SlashCommand::parse(line).ok();
        let set = |name: &str, value: &str| Some(SlashCommand::Set(name.into(), value.into()));
        assert_eq!(parse("/system  Be brief. "), Some(SlashCommand::System(Some("Be brief.".into()))));
        assert_eq!(parse("/system two\nlines"), Some(SlashCommand::System(Some("two\nlines".into()))));
        assert_eq!(parse("/system"), Some(SlashCommand::ShowSystem));
        assert_eq!(parse("/system -"), Some(SlashCommand::System(None)));
        assert_eq!(parse("/save a b.json"), Some(SlashCommand::Save("a b.json".into())));
        assert_eq!(parse("/quit"), Some(SlashCommand::Exit));
        assert_eq!(parse("/reset"), Some(SlashCommand::Clear));
        assert_eq!(parse("/set"), Some(SlashCommand::ShowSettings(None)));
        assert_eq!(parse("/set temp"), Some(SlashCommand::ShowSettings(Some("temp".into()))));
        assert_eq!(
            (parse("/set temp  0.5"), parse("/set temp=0.5")),
            (set("temp", "0.5"), set("temp", "0.5"))
        );
        assert_eq!(parse("/set logit-bias 5=-inf"), set("logit-bias", "5=-inf"));
        assert_eq!(parse("/model"), Some(SlashCommand::ShowModel));
        assert_eq!(parse("/model a b.gguf"), Some(SlashCommand::Model("a b.gguf".into())));
        for wrong in ["/save", "/clear now", "/sing", "/"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn all_listed_commands_exist_and_are_in_the_help() {
        for name in NAMES {
            let line = if matches!(name, "/save" | "/load") { format!("{name} x") } else { name.to_string() };
            assert!(SlashCommand::parse(&line).is_ok(), "{name}");
            assert!(HELP.contains(&format!("  {name} ")), "{name}");
        }
    }
}

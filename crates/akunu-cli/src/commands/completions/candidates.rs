//! The words that may stand at a place of a command line, found in clap's definitions.

use clap::builder::StyledStr;
use clap::{Arg, Command, ValueHint};

#[derive(Debug, Default, PartialEq)]
pub struct Candidates {
    /// Whether the word may be the name of a file. Shells list these themselves.
    pub files: bool,
    /// Words that begin with what is typed, and their descriptions.
    pub words: Vec<(String, String)>,
}

/// The candidates for the word `current` after `words`. The definitions have to be built.
pub fn of(cli: &Command, words: &[String], current: &str, models: impl Fn() -> Vec<String>) -> Candidates {
    let Some(place) = Place::after(cli, words) else { return Candidates::default() };
    let mut found = Candidates::default();
    match (place.option, current.split_once('=')) {
        (Some(option), _) => found.add_values(place.command, option, "", &models),
        (None, Some((name, _))) if !place.only_arguments && name.starts_with("--") => {
            if let Some(option) = long(place.command, &name[2..]).filter(|option| takes_value(option)) {
                found.add_values(place.command, option, &format!("{name}="), &models);
            }
        }
        (None, _) if !place.only_arguments && current.starts_with('-') => found.add_options(place.command),
        (None, _) => {
            if place.arguments == 0 {
                found.add_commands(place.command);
            }
            if let Some(argument) = place.argument() {
                found.add_values(place.command, argument, "", &models);
            }
        }
    }
    found.words.retain(|(word, _)| word.starts_with(current));
    found
}

/// A place in a command line.
struct Place<'a> {
    command: &'a Command,
    /// The option whose value stands here.
    option: Option<&'a Arg>,
    /// How many positional arguments stand before it.
    arguments: usize,
    /// Whether `--` stands before it.
    only_arguments: bool,
}

impl<'a> Place<'a> {
    /// The place after these words; `None` if they contain an unknown command.
    fn after(cli: &'a Command, words: &[String]) -> Option<Place<'a>> {
        let mut place = Place { command: cli, option: None, arguments: 0, only_arguments: false };
        for word in words {
            if place.option.take().is_some() {
                continue;
            }
            match word.strip_prefix('-').filter(|rest| !place.only_arguments && !rest.is_empty()) {
                Some("-") => place.only_arguments = true,
                Some(rest) => place.option = awaiting(place.command, rest),
                None if place.command.has_subcommands() => {
                    place.command = place.command.find_subcommand(word)?;
                }
                None => place.arguments += 1,
            }
        }
        Some(place)
    }

    /// The positional argument that stands here. The last one may have several values.
    fn argument(&self) -> Option<&'a Arg> {
        let positionals: Vec<&Arg> = self.command.get_positionals().collect();
        let last = positionals.len().checked_sub(1)?;
        let argument = positionals[self.arguments.min(last)];
        let values = argument.get_num_args().map_or(1, |range| range.max_values());
        (self.arguments < last.saturating_add(values)).then_some(argument)
    }
}

/// The option whose value is the next word, after a word of options without its first hyphen: `-file`, `qn`.
fn awaiting<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    if let Some(name) = word.strip_prefix('-') {
        return long(command, name).filter(|option| takes_value(option));
    }
    let mut rest = word.chars();
    while let Some(letter) = rest.next() {
        let option = command.get_arguments().find(|option| option.get_short() == Some(letter))?;
        if takes_value(option) {
            return rest.as_str().is_empty().then_some(option);
        }
    }
    None
}

fn long<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| {
        option.get_long() == Some(name) || option.get_all_aliases().is_some_and(|all| all.contains(&name))
    })
}

fn takes_value(option: &Arg) -> bool {
    option.get_action().takes_values()
}

/// Whether an argument can only be a model of the hub.
fn is_hub_name(command: &Command, argument: &Arg) -> bool {
    argument.is_positional() && matches!(command.get_name(), "pull" | "rm")
}

impl Candidates {
    fn add(&mut self, word: String, about: Option<&StyledStr>) {
        let about = about.map(ToString::to_string).unwrap_or_default();
        self.words.push((word, about.lines().next().unwrap_or_default().to_string()));
    }

    fn add_commands(&mut self, command: &Command) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            for name in std::iter::once(sub.get_name()).chain(sub.get_visible_aliases()) {
                self.add(name.to_string(), sub.get_about());
            }
        }
    }

    fn add_options(&mut self, command: &Command) {
        for option in
            command.get_arguments().filter(|option| !option.is_positional() && !option.is_hide_set())
        {
            let short = option.get_short().map(|letter| format!("-{letter}"));
            let long = option.get_long().map(|name| format!("--{name}"));
            for word in long.into_iter().chain(short) {
                self.add(word, option.get_help());
            }
        }
    }

    fn add_values(
        &mut self,
        command: &Command,
        argument: &Arg,
        prefix: &str,
        models: &impl Fn() -> Vec<String>,
    ) {
        for value in argument.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
            self.add(format!("{prefix}{}", value.get_name()), value.get_help());
        }
        let is_model =
            argument.get_value_names().is_some_and(|names| names.iter().any(|name| name == "MODEL"));
        if is_model || is_hub_name(command, argument) {
            for model in models() {
                self.add(format!("{prefix}{model}"), None);
            }
        }
        // What is a PathBuf has the hint AnyPath.
        self.files |=
            is_model || matches!(argument.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn found(line: &str) -> Candidates {
        let mut cli = Cli::command();
        cli.build();
        let mut words: Vec<String> = line.split(' ').map(String::from).collect();
        let current = words.pop().unwrap_or_default();
        of(&cli, &words, &current, || vec!["hf:o/one".into(), "hf:o/two".into()])
    }

    fn words(line: &str) -> Vec<String> {
        found(line).words.into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn commands_with_their_aliases_and_no_hidden_ones() {
        assert_eq!(words("per"), ["perplexity"]);
        assert_eq!(words("l"), ["logits", "list", "ls"]);
        assert_eq!(words("help per"), ["perplexity"]);
        assert_eq!(words("--offline per"), ["perplexity"]);
        assert_eq!(words("_"), [""; 0]);
        assert!(words("").contains(&"run".to_string()));
        assert_eq!(found("sing "), Candidates::default());
    }

    #[test]
    fn options_of_the_command_before_them() {
        assert_eq!(words("run --kv"), ["--kv-type", "--kv-host", "--kv-disk", "--kv-disk-size"]);
        assert_eq!(words("list --f"), ["--files"]);
        assert_eq!(words("run --off"), ["--offline"]);
        assert!(words("run -").contains(&"-m".to_string()));
        assert_eq!(words("run -- --kv"), [""; 0]);
    }

    #[test]
    fn values_of_options_in_both_forms() {
        assert_eq!(words("run --kv-type q"), ["q8_0"]);
        assert_eq!(words("run --kv-type=f"), ["--kv-type=f32", "--kv-type=f16"]);
        assert_eq!(words("run --kv-type=q8_0 --device c"), ["cpu", "cuda"]);
        assert_eq!(words("run -qm hf:o/t"), ["hf:o/two"]);
        assert!(!found("run -qm").files, "the word is not finished");
        assert_eq!(words("completions z"), ["zsh"]);
    }

    #[test]
    fn models_are_cached_ones_and_files() {
        let both = found("run hf");
        assert!(both.files && both.words.len() == 2, "{both:?}");
        for line in ["run --model hf", "run -m hf", "serve a hf", "embed hf"] {
            assert_eq!(found(line), both, "{line}");
        }
        let removed = found("rm hf:o/o");
        assert!(!removed.files && removed.words == [("hf:o/one".to_string(), String::new())], "{removed:?}");
        // A prompt, and the value of an option without choices.
        for line in ["run model.gguf ", "run --seed "] {
            assert_eq!(found(line), Candidates::default(), "{line}");
        }
    }

    #[test]
    fn files_of_options_and_arguments() {
        for line in ["run --file ", "run --file=", "perplexity ", "perplexity a ", "quantize "] {
            assert!(found(line).files, "{line}");
        }
        for line in ["", "run --threads ", "doctor "] {
            assert!(!found(line).files, "{line}");
        }
    }

    #[test]
    fn descriptions_are_one_line() {
        let all = ["", "run -", "synth "].map(found);
        assert!(all.iter().flat_map(|found| &found.words).all(|(_, about)| !about.contains('\n')));
        assert_eq!(found("per").words[0].1, "Measures how well a model predicts a text");
    }
}

//! A manual page for each command, generated from clap's definitions.

use std::fmt::Write;
use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;
use crate::failure::Failure;

pub fn run(folder: &Path) -> Result<(), Failure> {
    let mut cli = Cli::command();
    cli.build();
    let commands =
        cli.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
    let mut pages = std::iter::once(&cli).chain(commands).map(|command| (page_name(command), page(command)));
    let write = |(name, page): (String, String)| std::fs::write(folder.join(format!("{name}.1")), page);
    std::fs::create_dir_all(folder)
        .and_then(|()| pages.try_for_each(write))
        .map_err(|error| Failure::new(format!("cannot write to {}: {error}", folder.display())))
}

/// `akunu-run`, by which `man akunu run` finds it.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_string()
}

fn page(command: &Command) -> String {
    const VERSION: &str = concat!("akunu ", env!("CARGO_PKG_VERSION"));
    let name = page_name(command);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = Page(format!(".TH {} 1 \"\" \"{VERSION}\" \"Akunu\"\n", name.to_uppercase()));
    page.section("NAME");
    page.line(&format!("{name} - {about}"));
    page.section("SYNOPSIS");
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<&str> = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect();
    page.lines(&usage.join("\n"));
    page.section("DESCRIPTION");
    page.paragraphs(command.get_long_about().or(command.get_about()), "PP");
    page.arguments("ARGUMENTS", command.get_positionals());
    for heading in headings(command) {
        let options = command.get_opts().chain(flags(command));
        let title = heading.map_or("OPTIONS".to_string(), |name| format!("{} OPTIONS", name.to_uppercase()));
        page.arguments(&title, options.filter(|option| option.get_help_heading() == heading));
    }
    if command.has_subcommands() {
        page.section("COMMANDS");
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let aliases: Vec<&str> = sub.get_visible_aliases().collect();
            let names = [&[sub.get_name()], aliases.as_slice()].concat().join(", ");
            page.entry(&format!("\\fB{}\\fR", escaped(&names)));
            page.paragraphs(sub.get_about(), "IP");
        }
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        page.section("NOTES");
        page.lines(&after.to_string());
    }
    if name != "akunu" {
        page.section("SEE ALSO");
        page.0.push_str(".BR akunu (1)\n");
    }
    page.0
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|option| !option.is_positional() && !option.get_action().takes_values())
}

/// The headings of a command's options, in their order.
fn headings(command: &Command) -> Vec<Option<&str>> {
    let mut headings = vec![None];
    for option in command.get_opts().chain(flags(command)) {
        if !headings.contains(&option.get_help_heading()) {
            headings.push(option.get_help_heading());
        }
    }
    headings
}

/// What fits beside the margin of a page in a terminal of 80 columns.
const COLUMNS: usize = 72;

/// A page in the macros of man(7).
struct Page(String);

impl Page {
    fn section(&mut self, title: &str) {
        let _ = writeln!(self.0, ".SH \"{title}\"");
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.0, "{}", escaped(text));
    }

    /// The head of an entry whose text follows.
    fn entry(&mut self, head: &str) {
        let _ = writeln!(self.0, ".TP\n{head}");
    }

    /// Lines that stay as they are; what is too long for one is a paragraph of prose.
    fn lines(&mut self, text: &str) {
        self.0.push_str(".nf\n");
        for line in text.trim_end().lines() {
            let is_prose = line.len() > COLUMNS && !line.starts_with(' ');
            if is_prose {
                self.0.push_str(".fi\n");
            }
            self.line(line);
            if is_prose {
                self.0.push_str(".nf\n");
            }
        }
        self.0.push_str(".fi\n");
    }

    /// Text that is filled. The macro separates paragraphs: of a section, or of an entry.
    fn paragraphs(&mut self, text: Option<&StyledStr>, separator: &str) {
        let text = text.map(ToString::to_string).unwrap_or_default();
        let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty());
        for (index, paragraph) in paragraphs.enumerate() {
            if index > 0 {
                let _ = writeln!(self.0, ".{separator}");
            }
            paragraph.lines().for_each(|line| self.line(line));
        }
    }

    fn arguments<'a>(&mut self, title: &str, arguments: impl Iterator<Item = &'a Arg>) {
        let mut arguments = arguments.filter(|argument| !argument.is_hide_set()).peekable();
        if arguments.peek().is_none() {
            return;
        }
        self.section(title);
        for argument in arguments {
            self.entry(&head(argument));
            self.paragraphs(argument.get_long_help().or(argument.get_help()), "IP");
            for facts in facts(argument) {
                let _ = writeln!(self.0, ".br\n{}", escaped(&facts));
            }
        }
    }
}

/// `-t, --threads <THREADS>`, with what is typed as it is in bold.
fn head(argument: &Arg) -> String {
    let shown = argument.to_string();
    let (name, value) = match shown.split_once(' ') {
        _ if argument.is_positional() => ("", shown.as_str()),
        Some((name, value)) => (name, value),
        None => (shown.as_str(), ""),
    };
    let short = argument.get_short().map(|letter| format!("-{letter}")).filter(|short| short != name);
    let names: Vec<String> = short.iter().map(String::as_str).chain([name]).map(escaped).collect();
    let head = format!("\\fB{}\\fR {}", names.join("\\fR, \\fB"), escaped(value));
    head.replace("\\fB\\fR ", "").trim_end().to_string()
}

fn facts(argument: &Arg) -> Vec<String> {
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let values = argument.get_possible_values();
    let values: Vec<&str> = values.iter().filter(|v| !v.is_hide_set()).map(|v| v.get_name()).collect();
    let takes = argument.get_action().takes_values();
    let mut facts = Vec::new();
    if takes && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        facts.push(format!("[default: {}]", defaults.join(", ")));
    }
    if takes && !values.is_empty() && !argument.is_hide_possible_values_set() {
        facts.push(format!("[possible values: {}]", values.join(", ")));
    }
    facts
}

/// Text without what roff would interpret.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // A full stop or an apostrophe begins a macro at the start of a line.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_roff_would_interpret_is_escaped() {
        assert_eq!(escaped(".TH C:\\new --all"), "\\&.TH C:\\enew \\-\\-all");
        assert_eq!(escaped("'tis a.b"), "\\&'tis a.b");
    }

    #[test]
    fn options_show_their_names_values_and_facts() {
        let mut cli = Cli::command();
        cli.build();
        let run = page(cli.find_subcommand("run").unwrap());
        assert!(run.starts_with(".TH AKUNU-RUN 1 "), "{run}");
        for part in [
            ".SH \"NAME\"\nakunu\\-run \\- ",
            ".TP\n\\fB\\-t\\fR, \\fB\\-\\-threads\\fR <THREADS>\nCPU threads",
            "[possible values: f32, f16, q8_0]",
            ".SH \"ENGINE OPTIONS\"\n",
            ".TP\n[MODEL]\n",
        ] {
            assert!(run.contains(part), "{part:?} in {run}");
        }
        let all = page(&cli);
        assert!(all.contains(".TP\n\\fBmodels, list, ls\\fR\n"));
        assert!(all.contains(".nf\n.fi\nMODEL is a GGUF file"), "prose is filled: {all}");
    }
}

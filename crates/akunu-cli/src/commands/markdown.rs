//! The reference of all commands as Markdown, generated from clap's definitions.

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::Output;

/// Width of the help texts in the reference, independent of the terminal.
const WIDTH: usize = 100;

pub fn run(out: &mut Output) -> Result<(), Failure> {
    let mut cli = Cli::command().term_width(WIDTH);
    cli.build();
    out.text("# The command line\n\n<!-- Made by `akunu __markdown`: do not edit. -->\n\n")?;
    section(&mut cli, out)?;
    let names: Vec<String> = cli
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
        .map(|c| c.get_name().to_string())
        .collect();
    for name in names {
        if let Some(command) = cli.find_subcommand_mut(&name) {
            out.text(&format!("\n## akunu {name}\n\n"))?;
            section(command, out)?;
        }
    }
    Ok(())
}

fn section(command: &mut Command, out: &mut Output) -> Result<(), Failure> {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    out.text(&format!("```text\n{}\n```\n", lines.join("\n").trim_end()))
}

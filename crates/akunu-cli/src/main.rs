//! The akunu command line: text to stdout, everything else to stderr.

mod args;
mod bars;
mod commands;
mod environment;
mod failure;
mod format;
mod grid;
mod hub;
mod ids;
mod interrupt;
mod mcp;
mod other_names;
mod out_file;
mod output;
mod progress;
mod prompt;
mod samplers;
mod sources;
mod tensor_file;
mod terminal;
mod texts;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ColorChoice, FromArgMatches};

use failure::Failure;

fn main() -> ExitCode {
    let colours = if environment::allows_colours() { ColorChoice::Auto } else { ColorChoice::Never };
    let matches = args::command().color(colours).try_get_matches();
    let done = match matches.and_then(|matches| args::Cli::from_arg_matches(&matches)) {
        Ok(cli) => {
            hub::set_offline(cli.offline);
            commands::run(cli.command)
        }
        Err(error)
            if is_help(error.kind()) && other_names::misread(std::env::args_os().skip(1)).is_none() =>
        {
            // A closed pipe is not an error.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = match failure {
                usage @ Failure::Usage(_) => usage.hint(format!("see {} --help", command_line())),
                other => other,
            };
            failure.report();
            failure.exit_code()
        }
    }
}

fn is_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(kind, DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// The program and the command that was given, if there is one of that name.
fn command_line() -> String {
    let program = args::command();
    let command = std::env::args_os().skip(1).find_map(|word| program.find_subcommand(word));
    command.map_or_else(|| "akunu".to_string(), |command| format!("akunu {}", command.get_name()))
}

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
mod out_file;
mod output;
mod progress;
mod prompt;
mod sources;
mod tensor_file;
mod texts;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let text = error.to_string();
            match output::printable_lines(&text) == text {
                // Also prints help and version. A closed pipe is not an error.
                true => drop(error.print()),
                // An argument, such as the name of a file, has control characters.
                false => output::note(text.trim_end()),
            }
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    hub::set_offline(cli.offline);
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            failure.exit_code()
        }
    }
}

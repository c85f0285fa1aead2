use std::process::ExitCode;

use clap::Parser;

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    match akunu_dynamo::worker::run(akunu_dynamo::worker::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

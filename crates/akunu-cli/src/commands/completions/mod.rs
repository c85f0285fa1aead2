//! `akunu completions`: completion scripts of shells, which ask the hidden `akunu __complete` for candidates.
//!
//! Candidates come from clap's definitions when they are asked for, so a script never falls behind the program.

mod candidates;

use akunu_hub::KNOWN;
use clap::{Args, CommandFactory, ValueEnum};

use crate::args::Cli;
use crate::failure::Failure;
use crate::hub;
use crate::output::{Output, printable};

const INSTALL: &str = "\
Where shells look for the script:
  bash        akunu completions bash > ~/.local/share/bash-completion/completions/akunu
  zsh         akunu completions zsh > DIR/_akunu, with a DIR of $fpath
  fish        akunu completions fish > ~/.config/fish/completions/akunu.fish
  PowerShell  akunu completions powershell >> $PROFILE

bash needs the package bash-completion for that; without it: source <(akunu completions bash)";

/// Prints a script that lets a shell complete commands, options, files and cached models
#[derive(Debug, Args)]
#[command(after_help = INSTALL)]
pub struct CompletionsArgs {
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

pub fn run(args: &CompletionsArgs, out: &mut Output) -> Result<(), Failure> {
    out.text(match args.shell {
        Shell::Bash => include_str!("akunu.bash"),
        Shell::Zsh => include_str!("akunu.zsh"),
        Shell::Fish => include_str!("akunu.fish"),
        Shell::Powershell => include_str!("akunu.ps1"),
    })
}

#[derive(Debug, Args)]
pub struct CompleteArgs {
    /// The word to complete
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    current: String,
    /// The words before it, without the program's name
    #[arg(last = true)]
    words: Vec<String>,
}

/// Prints `files` or `-`, whether the word may be a file, and then a line for each candidate: the whole word, a tab, a
/// description.
pub fn complete(args: &CompleteArgs, out: &mut Output) -> Result<(), Failure> {
    let mut cli = Cli::command();
    cli.build();
    let models = || models(&args.current);
    let found = candidates::of(&cli, &args.words, &args.current, models);
    out.text(if found.files { "files\n" } else { "-\n" })?;
    for (word, about) in found.words {
        out.text(&format!("{}\t{}\n", printable(&word), printable(&about)))?;
    }
    Ok(())
}

/// Cached models and, once a part is typed, short names: all of them would hide the files beside them.
fn models(typed: &str) -> Vec<String> {
    let known = KNOWN.iter().filter(|_| !typed.is_empty()).map(|known| known.name.to_string());
    hub::cached_names().into_iter().chain(known).collect()
}

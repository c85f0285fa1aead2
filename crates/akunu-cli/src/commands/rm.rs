//! `akunu rm`: removes a model from the cache.

use std::io::{BufRead, IsTerminal};

use akunu_hub::{Cache, Known};
use clap::Args;

use crate::failure::Failure;
use crate::hub;
use crate::output::{self, Output};

/// Removes a model from the Hugging Face cache
///
/// Files that other revisions need are kept. Other tools that share the cache download the model again when they need
/// it.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// A short name, hf:OWNER/NAME, or hf:OWNER/NAME@REVISION for one revision
    #[arg(value_name = "NAME")]
    name: String,
    /// Does not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub fn run(args: &RmArgs, out: &mut Output) -> Result<(), Failure> {
    let reference = hub::reference(&args.name)?;
    // That of a short name is not what the user wrote.
    let written = reference.selector.as_ref().filter(|_| Known::find(&args.name).is_none());
    if let Some(selector) = written {
        return Err(Failure::usage(format!(
            "{selector} cannot be removed alone: only whole revisions can be removed"
        ))
        .hint(format!("akunu rm hf:{}", reference.repo)));
    }
    let cache = Cache::new(hub::settings()?.cache);
    let revision = reference.revision.as_deref();
    let found = cache.find(&reference.repo, revision)?;
    if !args.yes && !confirmed(&args.name, found.revisions.len())? {
        output::note("nothing was removed");
        return Ok(());
    }
    let removed = cache.remove(&reference.repo, revision)?;
    out.line(&format!("removed {}: {}", args.name, akunu::human(removed.bytes)))
}

fn confirmed(name: &str, revisions: usize) -> Result<bool, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage("stdin is not a terminal, so the removal cannot be confirmed")
            .hint("use --yes to remove without confirmation"));
    }
    let what = match revisions {
        0 => "an incomplete download".to_string(),
        1 => "1 revision".to_string(),
        _ => format!("{revisions} revisions"),
    };
    output::note(&format!("remove {name} ({what})? y or n"));
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    read.map_err(|error| Failure::new(format!("cannot read stdin: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

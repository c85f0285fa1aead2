//! `akunu models`: lists cached models.

use akunu_hub::{Cache, CachedRepo, KNOWN};
use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::grid::Grid;
use crate::hub;
use crate::output::{self, Output};

/// Displayed length of a commit id.
const SHORT: usize = 8;

/// Lists the models in the Hugging Face cache, or those with short names
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Lists their files too
    #[arg(long)]
    files: bool,
    /// Lists the short names of well-known models, which stand wherever a MODEL is named
    #[arg(long, conflicts_with = "files")]
    known: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
}

pub fn run(args: &ModelsArgs, out: &mut Output) -> Result<(), Failure> {
    let cache = Cache::new(hub::settings()?.cache);
    let repos = cache.list()?;
    if args.known {
        return known(&repos, args.json, out);
    }
    if args.json {
        let models: Vec<serde_json::Value> = repos.iter().map(as_json).collect();
        return out.json(&json!({ "cache": cache.root(), "models": models }));
    }
    if repos.is_empty() {
        output::note(&format!("the cache {} contains no models", cache.root().display()));
        return Ok(());
    }
    let mut grid = Grid::new().text("model").word("revision").word("commit").number("size");
    for repo in &repos {
        for revision in &repo.revisions {
            let name = format!("hf:{}", repo.repo);
            let short = revision.commit.chars().take(SHORT).collect();
            grid.row([name, revision.refs.join(", "), short, akunu::human(revision.bytes())]);
            for file in revision.files.iter().filter(|_| args.files) {
                grid.row([
                    format!("  {}", file.path),
                    String::new(),
                    String::new(),
                    akunu::human(file.bytes),
                ]);
            }
        }
        if repo.incomplete > 0 {
            let name = format!("hf:{}", repo.repo);
            grid.row([name, "incomplete".into(), String::new(), akunu::human(repo.incomplete)]);
        }
    }
    out.listing(&grid.render(output::width()))?;
    let total = repos.iter().map(|repo| repo.bytes).sum();
    out.line(&format!("\n{} in {}", akunu::human(total), cache.root().display()))
}

/// The table of short names.
fn known(repos: &[CachedRepo], as_json: bool, out: &mut Output) -> Result<(), Failure> {
    let is_cached =
        |name: &str| repos.iter().any(|repo| !repo.revisions.is_empty() && repo.repo.to_string() == name);
    if as_json {
        let rows = KNOWN.iter().map(|known| {
            json!({
                "name": known.name,
                "model": known.reference(),
                "purpose": known.purpose,
                "cached": is_cached(known.repo()),
            })
        });
        return out.json(&json!({ "known": rows.collect::<Vec<_>>() }));
    }
    let mut grid = Grid::new().word("name").word("model").spare("for").spare("");
    for known in KNOWN {
        let cached = if is_cached(known.repo()) { "cached" } else { "" };
        grid.row([known.name.into(), known.reference(), known.purpose.into(), cached.into()]);
    }
    out.listing(&grid.render(output::width()))
}

fn as_json(repo: &CachedRepo) -> serde_json::Value {
    let revisions = repo.revisions.iter().map(|revision| {
        let files = revision.files.iter().map(|file| json!({ "path": file.path, "bytes": file.bytes }));
        json!({
            "commit": revision.commit,
            "refs": revision.refs,
            "bytes": revision.bytes(),
            "files": files.collect::<Vec<_>>(),
        })
    });
    json!({
        "name": format!("hf:{}", repo.repo),
        "bytes": repo.bytes,
        "incomplete_bytes": repo.incomplete,
        "revisions": revisions.collect::<Vec<_>>(),
    })
}

//! `akunu pull`: downloads a model from the hub into the cache.

use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::hub;
use crate::output::{self, Output};

const EXAMPLES: &str = "\
Examples:
  akunu pull qwen3:0.6b                    a short name (akunu models --known)
  akunu pull hf:OWNER/NAME                 GGUF in Q4_K_M, or SafeTensors
  akunu pull hf:OWNER/NAME:Q8_0            a quantisation
  akunu pull hf:OWNER/NAME@v1:file.gguf    a file of a branch, a tag or a commit

Environment: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, as for other tools of the hub.";

/// Downloads a model from the Hugging Face hub
///
/// Prints its path. Cached files are not downloaded again, and interrupted downloads are resumed. Every command with a
/// MODEL argument accepts these names too and downloads missing files.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct PullArgs {
    /// A short name, or hf:OWNER/NAME, optionally followed by @REVISION, :QUANT or :FILE
    #[arg(value_name = "NAME")]
    name: String,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    /// No notes on stderr
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: &PullArgs, out: &mut Output) -> Result<(), Failure> {
    let reference = hub::reference(&args.name)?;
    let pulled = hub::pull(&reference)?;
    if args.json {
        return out.json(&json!({
            "path": pulled.path,
            "commit": pulled.commit,
            "files": pulled.files,
            "bytes": pulled.bytes,
            "downloaded": pulled.downloaded,
        }));
    }
    if !args.quiet {
        let (files, size) = (pulled.files.len(), akunu::human(pulled.bytes));
        let files = if files == 1 { "1 file".to_string() } else { format!("{files} files") };
        let how = if pulled.downloaded == 0 { "already cached" } else { "downloaded and verified" };
        output::note(&format!("{files}, {size}, {how}"));
    }
    out.line(&pulled.path.display().to_string())
}

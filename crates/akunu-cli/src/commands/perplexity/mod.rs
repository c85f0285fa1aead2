//! `akunu perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::args::{self, DeviceArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::prompt;

/// Logit rows per pass.
const LOGIT_ROWS: usize = 64;

/// Measures how well a model predicts a text
///
/// The text is processed in windows of -c tokens that advance by --stride; each token is scored once, in the first
/// window that contains it. A smaller stride gives tokens more context and takes longer.
#[derive(Debug, Args)]
#[command(override_usage = "akunu perplexity [OPTIONS] [MODEL] FILE")]
pub struct PerplexityArgs {
    /// UTF-8 text file (- is stdin); optionally preceded by the model [default: the embedded model]
    #[arg(value_name = "FILE", num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Window length in tokens
    #[arg(short, long, default_value = "512", value_parser = args::count, allow_negative_numbers = true)]
    context: usize,
    /// Distance between windows in tokens [default: the window length]
    #[arg(long, value_parser = args::count, allow_negative_numbers = true)]
    stride: Option<usize>,
    /// Storage type of the KV cache
    #[arg(long, default_value = "f16", value_parser = args::kv_type(), help_heading = "Engine")]
    kv_type: akunu::KvType,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Serialize)]
struct PerplexityReport {
    perplexity: f64,
    mean_nll: f64,
    tokens: usize,
    window: usize,
    stride: usize,
}

pub fn run(args: &PerplexityArgs, out: &mut Output) -> Result<(), Failure> {
    let (path, file) = match (&args.paths[..], args.model.as_deref()) {
        ([model, file], None) => (Some(model.as_path()), file),
        ([file], model) => (model, file),
        (_, Some(_)) => return Err(Failure::usage("two text files were given")),
        _ => return Err(Failure::usage("no text file was given")),
    };
    let window = args.context;
    let stride = args.stride.unwrap_or(window);
    if stride > window {
        return Err(Failure::usage(format!(
            "a stride of {stride} would skip tokens between windows of {window}"
        ))
        .hint("use a stride of at most the window length (-c)"));
    }
    let text = prompt::read_text(file)?;
    let model = super::open_generating(path, args.device.no_mmap)?;
    let ids = model.encode(&text)?;
    if ids.len() < 2 {
        return Err(Failure::new(format!(
            "{} has {} tokens, but at least 2 are needed",
            file.display(),
            ids.len()
        )));
    }
    // A short text is a single window.
    let window = window.min(ids.len());
    let stride = stride.min(window);
    let options = akunu::EngineOptions {
        device: args.device.device,
        threads: args.device.threads,
        backends: crate::environment::backends(),
        context: Some(window),
        kv: args.kv_type,
        logit_rows: LOGIT_ROWS.min(window),
        ..Default::default()
    };
    let mut engine = super::engine(&model, &options, false)?;
    let mut progress = Progress::new("scoring", ids.len() as u64);
    let found = engine.perplexity(&ids, window, stride, &mut |done, _| progress.set(done as u64))?;
    drop(progress);
    if args.json {
        let (perplexity, mean_nll, tokens) = (found.perplexity(), found.mean_nll, found.tokens);
        return out.json(&PerplexityReport { perplexity, mean_nll, tokens, window, stride });
    }
    out.line(&format!(
        "perplexity {:.4} over {} tokens (mean −ln p {:.5}; windows of {window}, stride {stride})",
        found.perplexity(),
        found.tokens,
        found.mean_nll
    ))
}

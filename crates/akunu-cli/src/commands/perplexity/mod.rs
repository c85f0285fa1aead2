//! `akunu perplexity`: how well a model predicts a text, and how far its predictions are from those of another model.

mod base;
mod divergence;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use akunu::{Engine, Perplexity, ScoredToken, Windows};
use clap::Args;
use serde::Serialize;

use self::base::{Base, BaseError};
use self::divergence::Samples;
use crate::args::{self, DeviceArgs};
use crate::failure::Failure;
use crate::grid::facts;
use crate::out_file::OutFile;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::prompt;

/// Logit rows per pass.
const LOGIT_ROWS: usize = 64;

/// Measures how well a model predicts a text
///
/// The text is processed in windows of -c tokens that advance by --stride; each token is scored once, in the first
/// window that contains it. A smaller stride gives tokens more context and takes longer.
///
/// To see what quantisation changes, --save-logits writes the predictions of the original model, and --kl compares
/// another model with them: Kullback–Leibler divergence, how often the most likely token is the same, and how the
/// probability of the text's tokens changes (Δp). Numbers after ± are standard errors.
#[derive(Debug, Args)]
#[command(override_usage = "akunu perplexity [OPTIONS] [MODEL] FILE")]
pub struct PerplexityArgs {
    /// UTF-8 text file (- is stdin); optionally preceded by the model [default: the embedded model]
    #[arg(value_name = "FILE", num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Window length in tokens [default: 512, or that of the base]
    #[arg(short, long, value_parser = args::count, allow_negative_numbers = true)]
    context: Option<usize>,
    /// Distance between windows in tokens [default: the window length, or that of the base]
    #[arg(long, value_parser = args::count, allow_negative_numbers = true)]
    stride: Option<usize>,
    /// Writes the probabilities of all tokens at each position, for --kl: 2 bytes for each id of the vocabulary
    #[arg(long, value_name = "BASE", conflicts_with = "kl")]
    save_logits: Option<PathBuf>,
    /// Compares with the predictions in a file of --save-logits, made from the same text
    #[arg(long, value_name = "BASE")]
    kl: Option<PathBuf>,
    /// Storage type of the KV cache
    #[arg(long, default_value = "f16", value_parser = args::kv_type(), help_heading = "Engine")]
    kv_type: akunu::KvType,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    split: args::SplitArgs,
}

const WINDOW: usize = 512;

/// The output of `perplexity --json`; with --kl, that of [`divergence::DivergenceReport`] is added.
#[derive(Debug, Serialize)]
struct PerplexityReport {
    perplexity: f64,
    mean_nll: f64,
    tokens: usize,
    window: usize,
    stride: usize,
}

/// The output of `perplexity --kl --json`.
#[derive(Debug, Serialize)]
struct DivergenceJson {
    #[serde(flatten)]
    report: divergence::DivergenceReport,
    mean_nll: f64,
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
    let window = args.context.unwrap_or(WINDOW);
    if let Some(stride) = args.stride.filter(|&stride| stride > window && args.kl.is_none()) {
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
    let save = args.save_logits.as_deref();
    let save = save.map(|path| OutFile::open(path, model.weights(), &[file])).transpose()?;
    let base = match &args.kl {
        Some(path) => Some((path.as_path(), open_base(args, path, model.config().vocab_size, &ids)?)),
        None => None,
    };
    let windows = base.as_ref().map_or_else(|| windows(args, WINDOW, ids.len()), |(_, base)| base.windows);
    let options = args.split.over(akunu::EngineOptions {
        device: args.device.on.device.choice,
        threads: args.device.threads,
        backends: args.device.on.backends(),
        context: Some(windows.window),
        kv: args.kv_type,
        logit_rows: LOGIT_ROWS.min(windows.window),
        ..Default::default()
    });
    let mut engine = super::engine(&model, &options, false)?;
    match (base, save) {
        (Some((path, base)), _) => compare(args, &mut engine, &ids, base, path, out),
        (None, Some(file)) => {
            let found = save_logits(&mut engine, &ids, windows, file)?;
            if let Some(path) = &args.save_logits {
                output::note(&format!("predictions written to {}", path.display()));
            }
            print(args, found, windows, out)
        }
        (None, None) => {
            let found = score(&mut engine, &ids, windows, &mut |_| Ok(()))?;
            print(args, found, windows, out)
        }
    }
}

/// As asked for; a short text is a single window.
fn windows(args: &PerplexityArgs, usual: usize, tokens: usize) -> Windows {
    let window = args.context.unwrap_or(usual).min(tokens);
    Windows { window, stride: args.stride.unwrap_or(window).min(window) }
}

fn open_base(args: &PerplexityArgs, path: &Path, vocab: usize, ids: &[u32]) -> Result<Base, Failure> {
    let open = || {
        let base = Base::open(path, vocab, ids)?;
        let given = match (args.context, args.stride) {
            (None, None) => base.windows,
            _ => windows(args, base.windows.window, ids.len()),
        };
        match given == base.windows {
            true => Ok(base),
            false => Err(BaseError::Windows { base: base.windows, given }),
        }
    };
    open().map_err(|error| base_failure(path, &error))
}

fn base_failure(path: &Path, error: &BaseError) -> Failure {
    Failure::new(format!("{} cannot be the base: {error}", path.display())).hint(error.hint())
}

/// Scores the text; a failure of `visit` ends it.
fn score(
    engine: &mut Engine,
    ids: &[u32],
    windows: Windows,
    visit: &mut dyn FnMut(ScoredToken<'_>) -> Result<(), Failure>,
) -> Result<Perplexity, Failure> {
    let mut progress = Progress::new("scoring", ids.len() as u64);
    let mut failure = None;
    let found =
        engine.perplexity_with(ids, windows, &mut |done, _| progress.set(done as u64), &mut |token| {
            match visit(token) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
    failure.map_or(Ok(found), Err)
}

fn save_logits(
    engine: &mut Engine,
    ids: &[u32],
    windows: Windows,
    mut file: OutFile,
) -> Result<Perplexity, Failure> {
    file.append(&base::header(engine.vocab_size(), windows, ids))?;
    let found = score(engine, ids, windows, &mut |token| file.append(&base::row(&token)))?;
    file.finish()?;
    Ok(found)
}

fn compare(
    args: &PerplexityArgs,
    engine: &mut Engine,
    ids: &[u32],
    mut base: Base,
    path: &Path,
    out: &mut Output,
) -> Result<(), Failure> {
    let (windows, mut samples) = (base.windows, Samples::default());
    let found = score(engine, ids, windows, &mut |token| {
        let predicted = base.next().map_err(|error| base_failure(path, &error))?;
        let same_top = predicted.top == base::top(token.logits);
        samples.add(predicted.divergence(token.logits), same_top, predicted.log_p, token.log_p);
        Ok(())
    })?;
    let report = samples.report();
    if args.json {
        let Windows { window, stride } = windows;
        return out.json(&DivergenceJson { report, mean_nll: found.mean_nll, window, stride });
    }
    out.listing(&facts(&report.lines(), output::width()))
}

fn print(
    args: &PerplexityArgs,
    found: Perplexity,
    windows: Windows,
    out: &mut Output,
) -> Result<(), Failure> {
    let Windows { window, stride } = windows;
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

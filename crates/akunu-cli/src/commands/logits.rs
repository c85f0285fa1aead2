//! `akunu logits`: logits, for comparison with other engines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use akunu::audio::Audio;
use akunu::{EngineOptions, Model, Transcriber, TranscriberOptions};
use clap::Args;
use serde::Serialize;

use crate::args::{EngineArgs, ModelArg};
use crate::failure::Failure;
use crate::grid::Grid;
use crate::ids::{self, Ids};
use crate::out_file::OutFile;
use crate::output::{self, Output};
use crate::tensor_file::tensor_file;

/// Logit rows per pass if the logits of all positions are requested.
const LOGIT_ROWS: usize = 64;
/// Number of tokens in the text output.
const SHOWN: usize = 10;

/// Prints the logits after a sequence of tokens
///
/// Without --json and --out, prints the ten most likely tokens of each position.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Token ids: 1,2,3
    #[arg(long, required = true, value_parser = ids::parse)]
    ids: Ids,
    /// The audio that the tokens are about, of which the first window is encoded, for models that transcribe
    #[arg(long, value_name = "FILE")]
    audio: Option<PathBuf>,
    /// Logits of all positions instead of the last one
    #[arg(long)]
    all: bool,
    /// Writes a tensor `logits` of shape [positions, vocabulary] in f32
    #[arg(long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Prints {"logits": [[…], …]}, one row per position, exact in f32
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Serialize)]
struct LogitsReport<'a> {
    logits: Vec<&'a [f32]>,
}

pub fn run(args: &LogitsArgs, out: &mut Output) -> Result<(), Failure> {
    args.out.as_deref().map(OutFile::check_new).transpose()?;
    let model = super::open_generating(args.model.path(), args.engine.device.no_mmap)?;
    if args.audio.is_none() && model.config().encoder.is_some() {
        return Err(
            Failure::usage("the logits of this model depend on audio").hint("give it with --audio FILE")
        );
    }
    let input = args.audio.as_deref();
    let open = |path| OutFile::safetensors(path, model.weights(), input.as_slice());
    let file = args.out.as_deref().map(open).transpose()?;
    let Ids(ids) = &args.ids;
    let mut options = args.engine.options();
    if options.context.is_none() && !ids.is_empty() {
        options.context = Some(ids.len());
    }
    if args.all {
        options.logit_rows = ids.len().clamp(1, LOGIT_ROWS);
    }
    let vocab = model.config().vocab_size;
    let logits = match &args.audio {
        Some(audio) => over_audio(&model, options, audio, ids, args.all)?,
        None => super::engine(&model, &options, true)?.logits(ids, args.all, args.engine.chunk)?,
    };
    if let Some(file) = file {
        file.write(&tensor_file("logits", vocab, logits.iter().copied())?)?;
    }
    let first = if args.all { 0 } else { ids.len() - 1 };
    if let Some(at) = logits.iter().position(|l| !l.is_finite()) {
        return Err(akunu::Error::NotFinite { position: first + at / vocab }.into());
    }
    if args.json {
        let rows = logits.chunks(vocab).collect();
        return out.compact_json(&LogitsReport { logits: rows });
    }
    if args.out.is_none() {
        for (i, row) in logits.chunks(vocab).enumerate() {
            out.line(&format!("after position {} (token {}):", first + i, ids[first + i]))?;
            out.listing(&best(&model, row).render(output::width()))?;
        }
    }
    Ok(())
}

/// The logits of a decoder over the first window of a file.
fn over_audio(
    model: &Arc<Model>,
    engine: EngineOptions,
    audio: &Path,
    ids: &[u32],
    all: bool,
) -> Result<Vec<f32>, Failure> {
    let audio = Audio::open(audio).map_err(akunu::Error::from)?;
    let options = TranscriberOptions { engine, beams: 1, ..TranscriberOptions::default() };
    let mut transcriber = Transcriber::new(model.clone(), &options)?;
    let mut logits = transcriber.logits(audio, ids)?;
    if !all {
        logits.drain(..logits.len() - model.config().vocab_size);
    }
    Ok(logits)
}

fn best(model: &Model, row: &[f32]) -> Grid {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    let mut grid = Grid::new().number("id").number("logit").text("text");
    for &id in order.iter().take(SHOWN) {
        let text = model.decode(&[id as u32]).map(|text| format!("{text:?}")).unwrap_or_default();
        grid.row([id.to_string(), row[id].to_string(), text]);
    }
    grid
}

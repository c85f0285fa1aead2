//! `akunu imatrix`: measures which columns of the weights matter for a text, for `quantize`.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use akunu_file::NewFile;
use akunu_format::{FormatError, Imatrix};
use clap::Args;
use serde::Serialize;

use crate::args::{self, DeviceArgs, ModelArg};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::prompt;
use crate::sources;

/// Measures an importance matrix over a text, for quantize --imatrix
///
/// It says how much each column of each weight matrix matters, so that quantisation makes smaller errors there. The
/// text is processed in windows of -c tokens, each from the beginning, and the squares of what each weight matrix is
/// multiplied by are added up. Use the original model, and a text of the kind that the model is for. After Ctrl-C, what
/// was measured so far is written.
///
/// The file is in llama.cpp's format (GGUF), which llama-quantize reads too.
#[derive(Debug, Args)]
pub struct ImatrixArgs {
    #[command(flatten)]
    model: ModelArg,
    /// UTF-8 text file (- is stdin)
    #[arg(short, long)]
    file: PathBuf,
    /// Output file
    #[arg(short, long, default_value = "imatrix.gguf")]
    out: PathBuf,
    /// Window length in tokens [default: 512, or the model's training context if that is shorter]
    #[arg(short, long, value_parser = args::count, allow_negative_numbers = true)]
    context: Option<usize>,
    /// Maximum number of windows [default: the whole text]
    #[arg(long, value_name = "N", value_parser = args::count, allow_negative_numbers = true)]
    chunks: Option<usize>,
    /// Adds the sums of another file to the result; repeatable
    #[arg(long, value_name = "FILE")]
    merge: Vec<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

const WINDOW: usize = 512;

/// The output of `imatrix --json`.
#[derive(Debug, Serialize)]
struct ImatrixReport {
    file: String,
    /// Weight matrices.
    entries: usize,
    /// Of this text, without those of merged files.
    tokens: usize,
    chunks: usize,
    chunk_size: usize,
    /// Whether Ctrl-C ended it before the end of the text.
    interrupted: bool,
}

pub fn run(args: &ImatrixArgs, out: &mut Output) -> Result<(), Failure> {
    sources::refuse_existing(&args.out, args.force)?;
    let merged = args.merge.iter().map(|path| Imatrix::open(path)).collect::<Result<Vec<_>, _>>()?;
    sources::refuse_inputs(&args.out, &[&args.file])?;
    let text = prompt::read_text(&args.file)?;
    let model = super::open_generating(args.model.path(), args.device.no_mmap)?;
    sources::refuse(&args.out, model.weights())?;
    let mut ids = model.encode(&text)?;
    let trained = model.config().context_length.max(1);
    let window = args.context.unwrap_or(WINDOW.min(trained));
    if let Some(chunks) = args.chunks {
        ids.truncate(chunks.saturating_mul(window));
    }
    if ids.is_empty() {
        return Err(Failure::new(format!("{} has no tokens", args.file.display())));
    }
    let window = window.min(ids.len());
    interrupt::remove_unfinished_files();
    // Not before it is asked for: until workers have joined and the model is loaded, Ctrl-C ends the process.
    let mut cancel = None;
    let file = NewFile::create(&args.out).map_err(|error| Failure::io("write", &args.out, &error))?;
    let options = akunu::EngineOptions {
        device: args.device.on.device.choice,
        threads: args.device.threads,
        backends: args.device.on.backends(),
        context: Some(window),
        ..Default::default()
    };
    let (mut progress, mut tokens) = (Progress::new("measuring", ids.len() as u64), 0);
    let mut imatrix = akunu::importance(&model, &options, &ids, &mut |done, _| {
        tokens = done;
        progress.set(done as u64);
        let cancel = cancel.get_or_insert_with(interrupt::flag);
        if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    drop(progress);
    imatrix.datasets = vec![args.file.display().to_string()];
    let chunks = imatrix.chunks as usize;
    merged
        .iter()
        .zip(&args.merge)
        .try_for_each(|(other, path)| imatrix.merge(other).map_err(|error| error.in_file(path)))?;
    let interrupted = tokens < ids.len();
    if interrupted {
        output::note(&format!("note: interrupted after {tokens} of {} tokens", ids.len()));
    }
    write(args, &imatrix, file)?;
    let entries = imatrix.entries.len();
    if args.json {
        let file = args.out.display().to_string();
        let report = ImatrixReport { file, entries, tokens, chunks, chunk_size: window, interrupted };
        out.json(&report)?;
    } else {
        let windows = if chunks == 1 { "window" } else { "windows" };
        output::note(&format!(
            "{}: {entries} weight matrices, {tokens} tokens in {chunks} {windows} of {window}",
            args.out.display()
        ));
    }
    if interrupted { Err(Failure::Interrupted) } else { Ok(()) }
}

fn write(args: &ImatrixArgs, imatrix: &Imatrix, mut file: NewFile) -> Result<(), Failure> {
    let failed = |error| Failure::io("write", &args.out, &error);
    let bytes = imatrix.write(Vec::new()).map_err(|error: FormatError| error.in_file(&args.out))?;
    file.write_all(&bytes).map_err(failed)?;
    sources::commit(file, &args.out, args.force)
}

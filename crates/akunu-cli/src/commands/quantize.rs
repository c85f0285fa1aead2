//! `akunu quantize`: converts a model to a GGUF file with other types.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use akunu_arch::convert::{Conversion, ConvertOptions, ImatrixFile, Planned};
use akunu_arch::{WeightProvider, open_model};
use akunu_file::NewFile;
use akunu_format::quantise::{MIXES, Mix};
use akunu_format::{DType, FormatError, Gguf, Imatrix, Metadata};
use akunu_tokenizer::{gguf_of_ranks, gguf_vocabulary};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::args;
use crate::failure::Failure;
use crate::hub;
use crate::interrupt;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::sources;

/// Writes a model as a GGUF file with smaller weights, or converts a Hugging Face folder to GGUF
///
/// Types are mixed as in llama-quantize: Q6_K for the output or tied embedding, more bits for some tensors in the _S,
/// _M and _L mixes, and a type with blocks of 32 for rows that are not a multiple of 256; norms and biases stay F32.
/// Q2_K, Q3_K, Q4_K and Q5_K are aliases of the M mixes. --dry-run shows the type of each tensor.
#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// The model: a GGUF file, a SafeTensors file, a folder with config.json, or a file of whisper.cpp
    #[arg(value_name = "IN")]
    model: PathBuf,
    /// Output file
    out: PathBuf,
    /// Type of the weights
    #[arg(short = 'q', long = "type", value_name = "TYPE", value_parser = mix(), ignore_case = true)]
    mix: Mix,
    /// Use this type for every matrix, including output and embedding
    #[arg(long)]
    pure: bool,
    /// Importance matrix by which errors are weighted: a file of akunu imatrix or llama-imatrix
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Take the vocabulary from this GGUF file of the same model [default: from the folder]
    #[arg(long, value_name = "GGUF", conflicts_with = "no_vocab")]
    vocab: Option<PathBuf>,
    /// Write no vocabulary, for SafeTensors models
    #[arg(long)]
    no_vocab: bool,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    /// Show the type of each tensor without writing a file
    #[arg(long)]
    dry_run: bool,
    /// CPU threads [default: one per core]
    #[arg(short, long, value_parser = args::threads, allow_negative_numbers = true)]
    threads: Option<usize>,
}

/// The names of all mixes.
pub(super) fn mix() -> impl TypedValueParser<Value = Mix> {
    PossibleValuesParser::new(MIXES.iter().map(|m| m.name))
        .try_map(|name| Mix::find(&name).ok_or("unknown type"))
}

pub fn run(args: &QuantizeArgs, out: &mut Output) -> Result<(), Failure> {
    if !args.dry_run {
        refuse_places(args)?;
    }
    let imatrix = args.imatrix.as_deref().map(Imatrix::open).transpose()?;
    let path = hub::resolve(&args.model)?;
    let weights = open_model(&path)?;
    let vocabulary = vocabulary(args, &path, weights.as_ref())?;
    if !args.dry_run {
        sources::refuse(&args.out, weights.as_ref())?;
        if let Some(Vocabulary::File(gguf)) = &vocabulary {
            sources::refuse_regions(&args.out, gguf.regions())?;
        }
    }
    let imatrix_name = args.imatrix.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let recipe = ConvertOptions {
        mix: args.mix,
        pure: args.pure,
        vocabulary: vocabulary.as_ref().map(Vocabulary::metadata),
        imatrix: imatrix.as_ref().map(|imatrix| ImatrixFile { imatrix, name: &imatrix_name }),
    };
    let conversion = Conversion::new(weights.as_ref(), &recipe)?;
    if args.imatrix.is_some() {
        check_importance(args, &conversion)?;
    }
    if args.dry_run {
        return list(&conversion, out);
    }
    notes(args, &conversion);

    let cancel = interrupt::flag();
    if let Err(failure) = write(args, &conversion, &cancel) {
        return Err(if cancel.load(Ordering::Relaxed) { Failure::Interrupted } else { failure });
    }
    let before: u64 = weights.tensors().iter().map(|tensor| tensor.stored_bytes() as u64).sum();
    output::note(&format!(
        "{}: {}, {} from {}",
        args.out.display(),
        types(conversion.tensors().iter().map(|planned| planned.spec.dtype)),
        akunu::human(conversion.bytes()),
        akunu::human(before)
    ));
    Ok(())
}

/// Rejects output paths that must not be written.
fn refuse_places(args: &QuantizeArgs) -> Result<(), Failure> {
    if args.out.is_dir() {
        let shown = args.out.display();
        return Err(Failure::new(format!("{shown} is a folder")).hint("give a file name, such as model.gguf"));
    }
    sources::refuse_inputs(&args.out, args.imatrix.as_deref().as_slice())?;
    sources::refuse_existing(&args.out, args.force)
}

/// The source of the new file's vocabulary, if not the model's own metadata.
enum Vocabulary {
    File(Gguf),
    Folder(Metadata),
}

impl Vocabulary {
    fn metadata(&self) -> &Metadata {
        match self {
            Vocabulary::File(gguf) => gguf.metadata(),
            Vocabulary::Folder(metadata) => metadata,
        }
    }
}

/// The vocabulary of the file given by `--vocab`, or of the model itself or of the files beside it.
fn vocabulary(
    args: &QuantizeArgs,
    model: &Path,
    weights: &dyn WeightProvider,
) -> Result<Option<Vocabulary>, Failure> {
    if let Some(path) = &args.vocab {
        return Ok(Some(Vocabulary::File(Gguf::open(path)?)));
    }
    if args.no_vocab || weights.metadata().is_some() {
        return Ok(None);
    }
    let rows = weights.config().vocab_size;
    let folder = if model.is_dir() { model } else { model.parent().unwrap_or(Path::new(".")) };
    let found = match weights.ranked_tokens() {
        Some(tokens) => gguf_of_ranks(&tokens, rows),
        None => gguf_vocabulary(folder, rows),
    };
    match found {
        Ok(found) => {
            found.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
            Ok(Some(Vocabulary::Folder(found.metadata)))
        }
        Err(error) => Err(Failure::new(error.to_string())
            .hint("--vocab FILE.gguf takes the vocabulary from a GGUF file of the same model")
            .hint("--no-vocab writes none: the file can then be used with token ids only")),
    }
}

fn write(args: &QuantizeArgs, conversion: &Conversion<'_>, cancel: &AtomicBool) -> Result<(), Failure> {
    let failed = |error: FormatError| match error {
        FormatError::Io { error, .. } => Failure::io("write", &args.out, &error),
        other => other.into(),
    };
    let file = NewFile::create(&args.out).map_err(|error| Failure::io("write", &args.out, &error))?;
    let mut progress = Progress::bytes("quantising", conversion.bytes());
    let threads = super::threads(args.threads);
    let written = conversion.write(file, threads, cancel, &mut |done| progress.set(done));
    sources::commit(written.map_err(failed)?, &args.out, args.force)
}

/// An importance matrix of another model is an error, and tensors that it lacks are a note.
fn check_importance(args: &QuantizeArgs, conversion: &Conversion<'_>) -> Result<(), Failure> {
    const SHOWN: usize = 3;
    let (with, without) = conversion.importance();
    let all = with.len() + without.len();
    if all == 0 {
        output::note("note: no tensor gets a type that an importance matrix matters for");
    } else if with.is_empty() {
        let file = args.imatrix.as_deref().unwrap_or(Path::new("")).display();
        return Err(Failure::new(format!(
            "{file} has no entry for any of the {all} tensors to be quantised"
        ))
        .hint("the importance matrix must have been made from the same model"));
    } else if !without.is_empty() {
        let names: Vec<&str> = without.iter().take(SHOWN).map(|planned| &*planned.spec.name).collect();
        let more = if without.len() > SHOWN { ", …" } else { "" };
        output::note(&format!(
            "note: the importance matrix has no entry for {} of {all} tensors: {}{more}",
            without.len(),
            names.join(", ")
        ));
    }
    Ok(())
}

/// Notes on results that a user may not expect.
fn notes(args: &QuantizeArgs, conversion: &Conversion<'_>) {
    let sources = || conversion.tensors().iter().filter_map(|planned| conversion.source(planned));
    let is_rounded = |dtype: DType| dtype.is_quantised() || matches!(dtype, DType::Fp8(_));
    let rounded: Vec<DType> = sources().map(|t| t.dtype).filter(|dtype| is_rounded(*dtype)).collect();
    let again = |planned: &&Planned| {
        let source = conversion.source(planned).map(|tensor| tensor.dtype);
        source.is_some_and(|dtype| is_rounded(dtype) && dtype != planned.spec.dtype)
    };
    if conversion.tensors().iter().any(|planned| again(&planned)) {
        output::note(&format!(
            "note: the model is quantised already ({}): quantise the original model for a smaller error",
            types(rounded.into_iter())
        ));
    }
    let coarse = [DType::IQ1S, DType::IQ1M, DType::IQ2XXS, DType::IQ2XS];
    if args.imatrix.is_none() && coarse.contains(&args.mix.base) {
        output::note(&format!(
            "note: {} without an importance matrix makes a model much worse: measure one with akunu imatrix",
            args.mix.name
        ));
    }
    let block = args.mix.base.block_len();
    let odd = conversion.tensors().iter().filter(|planned| {
        let cols = planned.spec.shape.last().copied().unwrap_or(1);
        planned.spec.shape.len() > 1 && !cols.is_multiple_of(block)
    });
    let odd: Vec<DType> = odd.map(|planned| planned.spec.dtype).collect();
    if !odd.is_empty() {
        output::note(&format!(
            "note: rows of {} tensors are not a multiple of {block}; they become {}",
            odd.len(),
            types(odd.into_iter())
        ));
    }
}

/// `225 F32, 193 Q4_K, 33 Q6_K`
fn types(dtypes: impl Iterator<Item = DType>) -> String {
    let mut counts = BTreeMap::new();
    for dtype in dtypes {
        *counts.entry(dtype).or_insert(0) += 1;
    }
    counts.iter().map(|(dtype, count)| format!("{count} {dtype}")).collect::<Vec<_>>().join(", ")
}

fn list(conversion: &Conversion<'_>, out: &mut Output) -> Result<(), Failure> {
    let width = conversion.tensors().iter().map(|planned| planned.spec.name.len()).max().unwrap_or(0);
    let before = |planned: &Planned| conversion.source(planned).map_or("new", |tensor| tensor.dtype.name());
    let types = conversion.tensors().iter().map(|planned| before(planned).len()).max().unwrap_or(0).max(5);
    for planned in conversion.tensors() {
        let before = before(planned);
        let name = &planned.spec.name;
        out.line(&format!("{name:width$}  {before:<types$} {}", planned.spec.dtype))?;
    }
    Ok(())
}

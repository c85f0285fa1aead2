//! `akunu embed`: embeddings of texts.

use std::ffi::OsString;
use std::path::PathBuf;

use akunu::embed::normalise;
use akunu::{EmbedOptions, EmbedTask, Embedder, Model, Pooling, TextIds};
use clap::Args;
use serde::Serialize;

use crate::args::{self, TextArgs};
use crate::failure::Failure;
use crate::ids::{self, Ids};
use crate::out_file::OutFile;
use crate::output::Output;
use crate::prompt;
use crate::tensor_file::tensor_file;
use crate::texts::Source;

/// Computes embeddings of texts
///
/// Prints one line of numbers per text. Texts are arguments, lines of a file (-f) or token ids (--ids). Embeddings are
/// normalized to length 1, so that their dot products are cosines.
#[derive(Debug, Args)]
pub struct EmbedArgs {
    /// The model
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    first: Option<OsString>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The texts
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// File with one text per line (- is stdin)
    #[arg(short, long, group = "source", conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// A text as token ids, including special tokens: 1,2,3 (may be repeated)
    #[arg(long, value_name = "IDS", group = "source", conflicts_with = "texts", value_parser = ids::parse)]
    ids: Vec<Ids>,
    /// How the hidden states of a text are reduced to one vector [default: what the model's files state]
    #[arg(long, value_parser = args::pooling())]
    pooling: Option<Pooling>,
    /// Does not normalize embeddings
    #[arg(long)]
    no_normalize: bool,
    /// Name of a prompt in the model's files that is put before each text
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    prompt: Option<String>,
    /// Truncates embeddings to this many dimensions, for models trained for it
    #[arg(long, value_name = "N", value_parser = args::count, allow_negative_numbers = true)]
    dimensions: Option<usize>,
    /// Truncates texts that are longer than the model supports, with a note
    #[arg(long)]
    truncate: bool,
    /// Writes a tensor `embeddings` of shape [vectors, dimensions] in f32
    #[arg(long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Prints {"embeddings": [[…], …]}, exact in f32; with --pooling none a list of vectors per text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: TextArgs,
}

#[derive(Serialize)]
struct EmbedReport<T> {
    embeddings: Vec<T>,
}

impl EmbedArgs {
    /// The model. With `-m`, the first argument is a text.
    fn take_model(&mut self) -> Result<Option<PathBuf>, Failure> {
        let first = self.first.take();
        let Some(model) = &self.model else { return Ok(first.map(PathBuf::from)) };
        self.texts.splice(..0, first.map(prompt::utf8).transpose()?);
        Ok(Some(model.clone()))
    }
}

pub fn run(mut args: EmbedArgs, out: &mut Output) -> Result<(), Failure> {
    args.out.as_deref().map(OutFile::check_new).transpose()?;
    let model = super::open(args.take_model()?.as_deref(), args.engine.device.no_mmap)?;
    let args = &args;
    let source = Source::of_texts(args.file.as_deref());
    let texts = texts(args, &model, &source)?;
    if texts.is_empty() {
        return Err(Failure::usage("no text was given")
            .hint("akunu embed MODEL \"some text\" \"another\", or -f FILE with one text per line"));
    }
    let input = args.file.as_deref();
    let open = |path| OutFile::safetensors(path, model.weights(), input.as_slice());
    let file = args.out.as_deref().map(open).transpose()?;
    let options = EmbedOptions { task: EmbedTask::Vectors(args.pooling), ..args.engine.options() };
    let mut embedder = super::embedder(&model, &options)?;
    let texts = super::cut(&embedder, texts, args.truncate);
    source.check(&embedder, &texts)?;
    let width = args.dimensions.unwrap_or(embedder.width());
    if width > embedder.width() {
        let problem =
            format!("--dimensions is {width}, but the model's embeddings have {}", embedder.width());
        return Err(Failure::usage(problem));
    }
    let found = embedder.encode(&texts)?;
    let vectors: Vec<Vec<Vec<f32>>> =
        found.iter().map(|text| finish(text, &embedder, width, !args.no_normalize)).collect();
    if let Some(file) = file {
        file.write(&tensor_file("embeddings", width, vectors.iter().flatten().flatten().copied())?)?;
    }
    if args.json {
        let every_token =
            matches!(embedder.plan().options.output, akunu::EncodeOutput::Vectors(Pooling::None));
        return match every_token {
            true => out.compact_json(&EmbedReport { embeddings: vectors }),
            false => out.compact_json(&EmbedReport { embeddings: vectors.into_iter().flatten().collect() }),
        };
    }
    if args.out.is_none() {
        for vector in vectors.iter().flatten() {
            let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
            out.line(&numbers.join(" "))?;
        }
    }
    Ok(())
}

/// The vectors of one text: one, or one per token.
fn finish(text: &[f32], embedder: &Embedder, width: usize, normalised: bool) -> Vec<Vec<f32>> {
    let vector = |vector: &[f32]| {
        let mut vector = vector[..width].to_vec();
        if normalised {
            normalise(&mut vector);
        }
        vector
    };
    text.chunks(embedder.width()).map(vector).collect()
}

fn texts(args: &EmbedArgs, model: &Model, source: &Source) -> Result<Vec<TextIds>, Failure> {
    if !args.ids.is_empty() {
        return Ok(args.ids.iter().map(|Ids(ids)| ids.clone().into()).collect());
    }
    let prompt = model.embedding_prompt(args.prompt.as_deref())?;
    let texts = source.read(&args.texts, args.file.as_deref())?;
    texts.iter().map(|text| Ok(model.text_ids(text, prompt)?)).collect()
}

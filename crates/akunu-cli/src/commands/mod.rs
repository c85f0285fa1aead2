//! One file per command, with its arguments and its implementation.

pub mod bench;
pub mod bench_serve;
mod ceilings;
pub mod chat;
pub mod completions;
pub mod detokenize;
pub mod doctor;
pub mod embed;
pub mod imatrix;
pub mod inspect;
pub mod logits;
mod man;
mod markdown;
pub mod models;
pub mod perplexity;
pub mod plan;
pub mod profile;
pub mod pull;
pub mod quantize;
pub mod rerank;
pub mod rm;
pub mod run;
pub mod serve;
pub mod synth;
pub mod table;
pub mod tokenize;
pub mod transcribe;
pub mod verify;
pub mod worker;

use std::path::Path;
use std::sync::Arc;

use akunu::{
    EmbedOptions, EmbedTask, Embedder, EncodeOutput, Engine, EngineOptions, Model, Pooling, TextIds,
};
use akunu_format::Gguf;
use akunu_tokenizer::Tokenizer;

use crate::args::Command;
use crate::failure::Failure;
use crate::hub;
use crate::output::{self, Output};

pub fn run(command: Command) -> Result<(), Failure> {
    let mut out = Output::new();
    let advice = without_vocabulary(&command);
    let done = match command {
        Command::Run(args) => run::run(args, &mut out),
        Command::Chat(args) => chat::run(args, &mut out),
        Command::Serve(args) => serve::run(&args),
        Command::Worker(args) => worker::run(&args),
        Command::Bench(args) => bench::run(&args, &mut out),
        Command::BenchServe(args) => bench_serve::run(&args, &mut out),
        Command::Inspect(args) => inspect::run(&args, &mut out),
        Command::Plan(args) => plan::run(&args, &mut out),
        Command::Table(args) => table::run(&args, &mut out),
        Command::Profile(args) => profile::run(&args, &mut out),
        Command::Verify(args) => verify::run(&args, &mut out),
        Command::Logits(args) => logits::run(&args, &mut out),
        Command::Perplexity(args) => perplexity::run(&args, &mut out),
        Command::Imatrix(args) => imatrix::run(&args, &mut out),
        Command::Embed(args) => embed::run(args, &mut out),
        Command::Rerank(args) => rerank::run(args, &mut out),
        Command::Transcribe(args) => transcribe::run(args, &mut out),
        Command::Tokenize(args) => tokenize::run(args, &mut out),
        Command::Detokenize(args) => detokenize::run(&args, &mut out),
        Command::Quantize(args) => quantize::run(&args, &mut out),
        Command::Pull(args) => pull::run(&args, &mut out),
        Command::Models(args) => models::run(&args, &mut out),
        Command::Rm(args) => rm::run(&args, &mut out),
        Command::Synth(args) => synth::run(&args, &mut out),
        Command::Doctor(args) => doctor::run(&args, &mut out),
        Command::Completions(args) => completions::run(&args, &mut out),
        Command::Version => out.line(concat!("akunu ", env!("CARGO_PKG_VERSION"))),
        Command::Complete(args) => completions::complete(&args, &mut out),
        Command::Man { folder } => man::run(&folder),
        Command::Markdown => markdown::run(&mut out),
        Command::Fields => out.text(&akunu_server::field_table::page()),
    };
    done.map_err(|failure| failure.without_vocabulary(advice))?;
    out.flush()
}

/// Advice for models without a usable vocabulary: the command's option for token ids, or another command that has one.
fn without_vocabulary(command: &Command) -> Option<&'static str> {
    match command {
        Command::Run(_) | Command::Chat(_) => {
            Some("akunu run MODEL --prompt-ids 1,2,3 --ids works without a vocabulary")
        }
        Command::Perplexity(_) => Some("akunu logits MODEL --ids 1,2,3 works without a vocabulary"),
        Command::Embed(_) => Some("akunu embed MODEL --ids 1,2,3 works without a vocabulary"),
        Command::Rerank(_) => Some("akunu rerank MODEL --ids 1,2,3 works without a vocabulary"),
        _ => None,
    }
}

/// Whether an argument is the name of the embedded model, and not that of a file.
fn is_embedded(model: &Path) -> bool {
    model.to_str() == Some(akunu_server::EMBEDDED) && !model.exists()
}

/// Opens a model, whose files are mapped, or with `no_mmap` read.
fn open(model: Option<&Path>, no_mmap: bool) -> Result<Arc<Model>, Failure> {
    let model = match model.filter(|path| !is_embedded(path)) {
        Some(path) => {
            let path = hub::resolve(path)?;
            let model = if no_mmap { Model::read(&path)? } else { Model::open(&path)? };
            match hub::name(&path, &model) {
                Some(name) => model.named(&name),
                None => model,
            }
        }
        None => Model::embedded()?,
    };
    Ok(Arc::new(model))
}

/// Opens a generative model. Other models are rejected, with the commands that support them.
fn open_generating(model: Option<&Path>, no_mmap: bool) -> Result<Arc<Model>, Failure> {
    let model = open(model, no_mmap)?;
    match model.text_task() {
        Some(EmbedTask::Scores) => Err(Failure::new("this model is a reranker and does not generate text")
            .hint("use akunu rerank MODEL, or /v1/rerank of akunu serve")),
        Some(EmbedTask::Vectors(_)) if model.config().bidirectional => {
            Err(Failure::new("this model computes embeddings and does not generate text")
                .hint("use akunu embed MODEL, or /v1/embeddings of akunu serve"))
        }
        _ => Ok(model),
    }
}

/// The tokenizer of a model, or of a GGUF file that contains only a vocabulary.
fn open_tokenizer(model: Option<&Path>) -> Result<Arc<dyn Tokenizer>, Failure> {
    let model = model.filter(|path| !is_embedded(path)).map(hub::resolve).transpose()?;
    let model = model.as_deref();
    if let Some(gguf) = model.and_then(|path| Gguf::open(path).ok()) {
        let found = akunu_tokenizer::from_gguf(gguf.metadata());
        return match found {
            Ok(tokenizer) => Ok(Arc::new(tokenizer)),
            Err(error) => Err(akunu::Error::NoTokenizer { reason: error.to_string() }.into()),
        };
    }
    Ok(open(model, false)?.tokenizer()?.clone())
}

/// Loads a model on its device, and prints notes about automatic choices.
fn engine(model: &Arc<Model>, options: &EngineOptions, quiet: bool) -> Result<Engine, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(threads) = options.threads.filter(|&threads| threads > cores && !quiet) {
        output::note(&format!("note: {threads} threads on {cores} cores slow each other down"));
    }
    let mut engine = Engine::new(model.clone(), options)?;
    engine.set_log(|warning| output::note(&format!("warning: {warning}")));
    if !quiet {
        for note in engine.notes() {
            output::note(&format!("note: {note}"));
        }
        if model.text_task().is_some() {
            output::note("note: this is an embedding model (akunu embed), not a generative one");
        }
    }
    Ok(engine)
}

/// Loads an embedding model or reranker on its device, and prints notes about automatic choices.
fn embedder(model: &Arc<Model>, options: &EmbedOptions) -> Result<Embedder, Failure> {
    let embedder = Embedder::new(model.clone(), options)?;
    for note in embedder.notes() {
        output::note(&format!("note: {note}"));
    }
    Ok(embedder)
}

/// Truncates texts that are too long, if requested; otherwise they are rejected when they are encoded.
fn cut(embedder: &Embedder, mut texts: Vec<TextIds>, wanted: bool) -> Vec<TextIds> {
    let longest = embedder.longest();
    if wanted {
        texts.iter_mut().for_each(|text| embedder.model().cut(text, longest));
    }
    let count = texts.iter().filter(|text| text.is_cut).count();
    if count > 0 {
        let texts = if count == 1 { "text was" } else { "texts were" };
        let tokens = if longest == 1 { "token" } else { "tokens" };
        output::note(&format!("note: {count} {texts} truncated to {longest} {tokens}"));
    }
    texts
}

/// A description of the output for texts.
fn describe(output: EncodeOutput) -> String {
    match output {
        EncodeOutput::Vectors(Pooling::None) => "embeddings of all tokens".into(),
        EncodeOutput::Vectors(pooling) => format!("vectors (pooling {})", pooling.name()),
        EncodeOutput::Scores => "scores of a classifier".into(),
        EncodeOutput::Logits => "logits of the next token".into(),
    }
}

/// Number of threads that a device uses, given the option.
fn threads(threads: Option<usize>) -> usize {
    threads.unwrap_or_else(akunu::devices::physical_cores)
}

/// Pseudorandom ids that depend only on the seed.
fn random_ids(count: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut rng = akunu_format::blocks::Rng::new(seed);
    (0..count).map(|_| (rng.next_u64() % vocab as u64) as u32).collect()
}

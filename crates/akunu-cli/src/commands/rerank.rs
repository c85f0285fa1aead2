//! `akunu rerank`: scores documents for a query.

use std::ffi::OsString;
use std::path::PathBuf;

use akunu::{EmbedOptions, EmbedTask, Model, TextIds};
use akunu_arch::Card;
use clap::Args;
use serde::Serialize;

use crate::args::TextArgs;
use crate::failure::Failure;
use crate::ids::{self, Ids};
use crate::output::{Output, printable};
use crate::prompt;
use crate::texts::Source;

/// Scores how well documents answer a query
///
/// Prints one line per document: the unmodified score of the model's classifier, and the document, with line breaks and
/// other control characters escaped.
#[derive(Debug, Args)]
pub struct RerankArgs {
    /// The model
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    first: Option<OsString>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The query
    #[arg(required_unless_present_any = ["ids", "model"])]
    query: Option<String>,
    /// The documents
    #[arg(value_name = "DOCUMENT")]
    documents: Vec<String>,
    /// File with one document per line (- is stdin)
    #[arg(short, long, conflicts_with_all = ["documents", "ids"])]
    file: Option<PathBuf>,
    /// Instruction that defines relevance, for models that support one
    #[arg(long, value_name = "TEXT", conflicts_with = "ids")]
    instruction: Option<String>,
    /// A query and its document as token ids, including special tokens: 1,2,3 (may be repeated)
    #[arg(long, value_name = "IDS", conflicts_with_all = ["query", "documents"], value_parser = ids::parse)]
    ids: Vec<Ids>,
    /// The token types of these ids, 0 for the query and 1 for the document (repeated as often as --ids)
    #[arg(long, value_name = "KINDS", requires = "ids", value_parser = ids::parse)]
    segments: Vec<Ids>,
    /// Truncates pairs that are longer than the model supports, with a note
    #[arg(long)]
    truncate: bool,
    /// Prints {"scores": […]}, exact in f32
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: TextArgs,
}

#[derive(Serialize)]
struct RerankReport {
    scores: Vec<f32>,
}

impl RerankArgs {
    /// The model. With `-m`, the first argument is the query.
    fn take_model(&mut self) -> Result<Option<PathBuf>, Failure> {
        let first = self.first.take();
        let Some(model) = &self.model else { return Ok(first.map(PathBuf::from)) };
        let query = std::mem::replace(&mut self.query, first.map(prompt::utf8).transpose()?);
        self.documents.splice(..0, query);
        Ok(Some(model.clone()))
    }
}

pub fn run(mut args: RerankArgs, out: &mut Output) -> Result<(), Failure> {
    let model = args.take_model()?;
    if args.query.is_none() && args.ids.is_empty() {
        return Err(Failure::usage("no query was given"));
    }
    let model = super::open(model.as_deref(), args.engine.device.no_mmap)?;
    let args = &args;
    refuse_unused_options(args, &model)?;
    if args.query.as_ref().is_some_and(String::is_empty) {
        return Err(
            Failure::new("the query is empty").hint("give the question that the documents should answer")
        );
    }
    let source = Source::of_documents(args.file.as_deref());
    let documents = source.read(&args.documents, args.file.as_deref())?;
    if documents.is_empty() && args.ids.is_empty() {
        return Err(Failure::usage("no document was given").hint(
            "akunu rerank MODEL \"a query\" \"a document\" \"another\", or -f FILE with one document per line",
        ));
    }
    let options = EmbedOptions { task: EmbedTask::Scores, ..args.engine.options() };
    let mut embedder = super::embedder(&model, &options)?;
    let most = args.truncate.then(|| embedder.longest());
    let texts: Vec<TextIds> = match &args.query {
        None => pairs_of_ids(args)?,
        Some(query) => {
            let pair = |document: &String| model.pair_ids(query, document, args.instruction.as_deref(), most);
            documents.iter().map(pair).collect::<Result<_, _>>()?
        }
    };
    let texts = super::cut(&embedder, texts, args.truncate);
    source.check(&embedder, &texts)?;
    let scores = embedder.scores(&texts)?;
    if args.json {
        return out.compact_json(&RerankReport { scores });
    }
    for (index, score) in scores.iter().enumerate() {
        match documents.get(index) {
            Some(document) => out.line(&format!("{score:>12.6}  {}", printable(document)))?,
            None => out.line(&score.to_string())?,
        }
    }
    Ok(())
}

/// Rejects options that have no effect with this model.
fn refuse_unused_options(args: &RerankArgs, model: &Model) -> Result<(), Failure> {
    let config = model.config();
    let card = Card::find(&config.architecture);
    let is_told = card.is_some_and(|card| card.rerank.is_some()) && !config.bidirectional;
    if args.instruction.is_some() && !is_told {
        return Err(Failure::usage(
            "--instruction is for models with an instruction in the prompt, but this model has only query and document",
        ));
    }
    let has_kinds = model.weights().tensor("token_types.weight").is_some_and(|kinds| kinds.rows() > 1);
    if !args.segments.is_empty() && !has_kinds {
        return Err(Failure::usage("--segments is for models with token types, but this model has none"));
    }
    Ok(())
}

fn pairs_of_ids(args: &RerankArgs) -> Result<Vec<TextIds>, Failure> {
    if !args.segments.is_empty() && args.segments.len() != args.ids.len() {
        return Err(Failure::usage("--segments must be given as often as --ids, or not at all"));
    }
    let pair = |(index, Ids(ids)): (usize, &Ids)| {
        let segments = args.segments.get(index).map_or(vec![], |Ids(segments)| segments.clone());
        if !segments.is_empty() && segments.len() != ids.len() {
            return Err(Failure::usage("--segments must have as many numbers as its --ids"));
        }
        if segments.iter().any(|&kind| kind > 1) {
            return Err(Failure::usage("the numbers of --segments must be 0 or 1"));
        }
        Ok(TextIds { ids: ids.clone(), segments, is_cut: false })
    };
    args.ids.iter().enumerate().map(pair).collect()
}

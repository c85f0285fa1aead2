//! `akunu serve`: models over HTTP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use akunu::Pooling;
use akunu_server::{Cors, Keys, Limits, ModelSpec, ModelsOptions, Options, PARALLEL, Server, TlsFiles};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::args::{self, GeneratingArgs};
use crate::failure::Failure;
use crate::hub;
use crate::interrupt;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  akunu serve                                             the model inside the binary
  akunu serve model.gguf --alias gpt-4o-mini --port 8000
  akunu serve all-MiniLM-L6-v2                            vectors: /v1/embeddings
  akunu serve small.gguf large.gguf --alias fast=small --idle-unload 600

  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'";

/// Serves models over HTTP
///
/// Speaks OpenAI's, Ollama's and Anthropic's APIs, ranks in Cohere's and Jina's form, and has a chat page at /. Encoders
/// make vectors (/v1/embeddings), models with a classifier rank documents (/v1/rerank), the others generate text. A model is loaded when it is
/// first asked for. Ctrl-C or SIGTERM lets what is running finish and takes nothing new; Ctrl-C again ends at
/// once.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ServeArgs {
    /// The models; the first answers where nobody names one [default: the one inside the binary]
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Another name for a model: NAME for the first, or NAME=MODEL; may be given several times
    #[arg(long, value_name = "NAME[=MODEL]")]
    alias: Vec<String>,
    /// The address to listen at; 0.0.0.0 lets other machines in
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen at; 0: any that is free
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Requests that a model works at together; each has a context of its own
    #[arg(long, value_name = "N", default_value_t = PARALLEL, value_parser = args::count)]
    parallel: usize,
    /// Requests that may wait for each model; more are turned away
    #[arg(long, value_name = "N", default_value = "256", value_parser = args::count)]
    queue: usize,
    /// Puts a model away that nobody asked for this many seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = args::count)]
    idle_unload: Option<usize>,
    /// Most memory of all models together, in MiB; one that is idle makes room [default: what the machine has]
    #[arg(long, value_name = "MIB", value_parser = args::count)]
    max_memory: Option<usize>,
    /// Makes vectors with every model that has no classifier, pooled this way [default: encoders and models whose files
    /// name a pooling make vectors, the others generate text]
    #[arg(long, value_parser = pooling())]
    pooling: Option<Pooling>,
    /// Scores documents with generative models, by whether they would answer with yes: for Qwen3-Reranker
    #[arg(long, conflicts_with = "pooling")]
    rerank: bool,
    /// A file with API keys, a line each: KEY, or KEY PRIORITY; $AKUNU_API_KEY may have more. Without any, everybody is
    /// let in
    #[arg(long, value_name = "FILE", help_heading = "Guards")]
    api_keys: Option<PathBuf>,
    /// Lets pages of another origin read answers; * lets all; may be given several times
    #[arg(long, value_name = "ORIGIN", help_heading = "Guards")]
    cors: Vec<String>,
    /// Speaks HTTPS with this certificate chain, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Guards")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Guards")]
    tls_key: Option<PathBuf>,
    /// Requests a minute of each key, or of each address where there are no keys [default: any number]
    #[arg(long, value_name = "N", value_parser = args::count, help_heading = "Guards")]
    rate_limit: Option<usize>,
    /// Seconds that an answer may take [default: as long as it takes]
    #[arg(long, value_name = "SECONDS", value_parser = args::count, help_heading = "Guards")]
    request_timeout: Option<usize>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value = "1024", value_parser = args::count, help_heading = "Guards")]
    max_connections: usize,
    /// Most bytes of a request's body
    #[arg(long, value_name = "BYTES", default_value = "33554432", value_parser = args::count, help_heading = "Guards")]
    max_body: usize,
    /// Seconds that what is running may go on when the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = args::count_or_zero)]
    drain: usize,
    /// No notes
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    engine: GeneratingArgs,
}

/// One vector for each text: no API has a form for one of each token.
fn pooling() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(["mean", "cls", "last"])
        .try_map(|name| Pooling::from_name(&name).ok_or("it is none of mean, cls and last"))
}

pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let options = options(args)?;
    let names: Vec<String> = options.models.models.iter().map(|spec| spec.name.clone()).collect();
    let is_open = options.keys.is_empty();
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    // A second Ctrl-C ends the process; the first is the server's.
    let _listening = interrupt::listen();
    let server = Server::start(options)?;
    if !args.quiet {
        output::note(&format!("{} at {scheme}://{}", names.join(", "), server.address()));
    }
    if is_open && !server.address().ip().is_loopback() && !args.quiet {
        output::note(
            "note: whoever reaches this address may use it: --api-keys lets in only those who have one",
        );
    }
    server.wait_for_signal()?;
    if !args.quiet {
        output::note("stopping: what is running may finish; Ctrl-C again ends at once");
    }
    server.stop();
    Ok(())
}

fn options(args: &ServeArgs) -> Result<Options, Failure> {
    let defaults = Options::default();
    let seconds = |seconds: usize| Duration::from_secs(seconds as u64);
    let models = ModelsOptions {
        models: specs(args)?,
        engine: args.engine.options().batching(args.parallel),
        scheduler: akunu::schedule::SchedulerOptions { queue: args.queue, ..Default::default() },
        idle_unload: args.idle_unload.map(seconds),
        memory: args.max_memory.map(|mib| (mib as u64) << 20),
        pooling: args.pooling,
        rerank: args.rerank,
        log: crate::output::note,
        ..defaults.models
    };
    let limits = Limits {
        body: args.max_body,
        connections: args.max_connections,
        request: args.request_timeout.map(seconds),
        rate: args.rate_limit.and_then(|rate| u32::try_from(rate).ok()),
        ..defaults.limits
    };
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    Ok(Options {
        host: args.host.clone(),
        port: args.port,
        models,
        limits,
        keys: keys(args)?,
        cors: cors(&args.cors),
        tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
        drain: seconds(args.drain),
    })
}

fn keys(args: &ServeArgs) -> Result<Keys, Failure> {
    let mut keys = Keys::new(&crate::environment::api_key().unwrap_or_default());
    if let Some(path) = &args.api_keys {
        keys.extend(Keys::from_file(path)?);
    }
    Ok(keys)
}

fn cors(origins: &[String]) -> Cors {
    match origins {
        [] => Cors::Off,
        all if all.iter().any(|origin| origin == "*") => Cors::Any,
        some => Cors::Origins(some.to_vec()),
    }
}

fn specs(args: &ServeArgs) -> Result<Vec<ModelSpec>, Failure> {
    let mut specs = Vec::with_capacity(args.models.len());
    for model in &args.models {
        let path = hub::resolve(model)?.into_owned();
        // What is missing now would be missing later, when nobody looks.
        akunu::Model::open(&path)?;
        let name = if hub::is_meant(model) { model.display().to_string() } else { stem(&path) };
        specs.push(ModelSpec { name, path: Some(path), aliases: Vec::new() });
    }
    if specs.is_empty() {
        specs.push(ModelSpec::embedded());
    }
    for alias in &args.alias {
        let (alias, model) = match alias.split_once('=') {
            Some((alias, model)) => (alias, Some(model)),
            None => (alias.as_str(), None),
        };
        let spec = match model {
            Some(model) => specs.iter_mut().find(|spec| spec.name == model),
            None => specs.first_mut(),
        };
        let spec = spec.ok_or_else(|| {
            Failure::usage(format!("--alias {alias}: there is no model \"{}\"", model.unwrap_or_default()))
        })?;
        spec.aliases.push(alias.to_string());
    }
    check_names(&specs)?;
    Ok(specs)
}

/// A file's name without `.gguf`, a folder's name.
fn stem(path: &Path) -> String {
    let name =
        path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
    name.strip_suffix(".gguf").map(str::to_string).unwrap_or(name)
}

fn check_names(specs: &[ModelSpec]) -> Result<(), Failure> {
    let mut names: Vec<&str> = Vec::new();
    for spec in specs {
        for name in std::iter::once(&spec.name).chain(&spec.aliases) {
            if names.contains(&name.as_str()) {
                return Err(Failure::usage(format!("two models are called \"{name}\""))
                    .hint("rename a file, or give another --alias"));
            }
            names.push(name);
        }
    }
    Ok(())
}

//! `akunu serve`: models over HTTP.

mod banner;
mod found;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use akunu::Pooling;
use akunu::chat::ChatTemplates;
use akunu_server::{
    Cors, Endpoint, Finder, Keys, KvEventsForm, KvEventsOptions, Limits, LogFormat, McpServers, ModelSpec,
    ModelsOptions, Options, PARALLEL, RequestLog, Server, TlsFiles,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args};

use crate::args::{self, GeneratingArgs};
use crate::failure::Failure;
use crate::hub;
use crate::interrupt;
use crate::mcp;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  akunu serve                          the model inside the binary
  akunu serve model.gguf --alias gpt-4o-mini --port 8000
  akunu serve all-MiniLM-L6-v2         vectors: /v1/embeddings
  akunu serve whisper-small            transcripts: /v1/audio/transcriptions
  akunu serve --models /srv/models     what is there, on demand
  akunu serve small.gguf large.gguf --alias fast=small --idle-unload 600

  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'";

/// Serves models over HTTP
///
/// Implements the APIs of OpenAI, Ollama and Anthropic and the rerank APIs of Cohere and Jina, and has a chat page at
/// /. Encoders compute embeddings (/v1/embeddings), models with a classifier rank documents (/v1/rerank), Whisper models
/// transcribe (/v1/audio/transcriptions), all others generate text. A model is loaded on its first request. Ctrl-C or
/// SIGTERM completes running requests and rejects new ones; a second Ctrl-C ends the process immediately.
///
/// Each option is also read from the environment, under its name in capitals after AKUNU_: AKUNU_MAX_MEMORY for
/// --max-memory. The command line comes first.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ServeArgs {
    /// The models; the first is used for requests that name none [default: the embedded model]
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// A model, as an option; may be repeated
    #[arg(short, long, value_name = "MODEL")]
    model: Vec<PathBuf>,
    /// Also serves the models below a folder, or without one those in the cache of the hub, loading them on demand
    #[arg(long = "models", value_name = "DIR", num_args = 0..=1)]
    found: Option<Option<PathBuf>>,
    /// Loads all models at the start, and not on their first requests; /ready says when they are. A model that cannot be
    /// loaded beside the others ends the server
    #[arg(long)]
    preload: bool,
    /// Lets clients download models from the hub (/api/pull), with this server's disk and token
    #[arg(long, help_heading = "Guards")]
    allow_pull: bool,
    /// Lets clients delete models in the cache of the hub (/api/delete)
    #[arg(long, help_heading = "Guards")]
    allow_delete: bool,
    /// An alias of a model: NAME for the first, or NAME=MODEL; may be repeated
    #[arg(long, value_name = "NAME[=MODEL]")]
    alias: Vec<String>,
    /// Address to listen on; 0.0.0.0 accepts other machines
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0: any free port
    #[arg(long, default_value_t = 8080, value_parser = args::port)]
    port: u16,
    /// Maximum concurrent requests per model. Whisper models decode this many windows of audio together
    #[arg(long, value_name = "N", default_value_t = PARALLEL, value_parser = args::count)]
    parallel: usize,
    /// Memory of each model's KV cache in MiB, which all requests share; those that need more than is left wait
    /// [default: with -c, full contexts for --parallel requests if they fit, else a part of the free memory]
    #[arg(long, value_name = "MIB", value_parser = args::count)]
    kv_memory: Option<usize>,
    /// Maximum queued requests per model; further ones are rejected
    #[arg(long, value_name = "N", default_value = "256", value_parser = args::count)]
    queue: usize,
    /// Rejects requests that are expected to wait longer than this for their turn, instead of queueing them [default:
    /// never]
    #[arg(long, value_name = "SECONDS", value_parser = args::count)]
    deadline: Option<usize>,
    /// Longest time by which prompts of new requests should delay the next token of running ones, if that is more than a
    /// token takes; with less, prompts take longer [default: 20 on an NVIDIA GPU, otherwise 200]
    #[arg(long, value_name = "MS", value_parser = args::count)]
    stall: Option<usize>,
    /// Unloads a model after this many seconds without requests [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = args::count)]
    idle_unload: Option<usize>,
    /// Maximum memory of all models in MiB; idle models are unloaded to make room [default: the machine's memory]
    #[arg(long, value_name = "MIB", value_parser = args::count)]
    max_memory: Option<usize>,
    /// Pooling type; all models without a classifier compute embeddings [default: encoders and models whose files state
    /// a pooling type compute embeddings, the others generate text]
    #[arg(long, value_parser = pooling())]
    pooling: Option<Pooling>,
    /// Scores documents with generative models, by the probability of answering yes: for Qwen3-Reranker
    #[arg(long, conflicts_with = "pooling")]
    rerank: bool,
    /// Chat template of all models instead of their own: a .jinja file, or JSON with `chat_template`
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Texts of each window of audio that Whisper models follow; 1: greedy. Each takes memory
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::count)]
    beam: usize,
    /// File with API keys, one per line: KEY [PRIORITY] [name=NAME]; $AKUNU_API_KEY adds more [default: no key is required]
    #[arg(long, value_name = "FILE", help_heading = "Guards")]
    api_keys: Option<PathBuf>,
    /// Allows pages of this origin to read responses (CORS); * allows all; may be repeated
    #[arg(long, value_name = "ORIGIN", help_heading = "Guards")]
    cors: Vec<String>,
    /// A host name of this server, besides localhost; may be repeated. Requests to other hosts are refused, by default only
    /// on a loopback address
    #[arg(long, value_name = "HOST", help_heading = "Guards")]
    allow_host: Vec<String>,
    /// Lets requests reuse what is cached of prompts with other API keys, which they can tell from the time
    #[arg(long, help_heading = "Guards")]
    share_cache: bool,
    /// Removes the billing header that coding agents put first in system prompts of Anthropic's protocol, and
    /// moves a date there to the end: they would keep the cache from being reused
    #[arg(long, value_name = "on|off", default_value = "on", action = ArgAction::Set, value_parser = on_or_off())]
    stable_prompts: bool,
    /// Lets clients save the texts of slots in this folder, and restore and erase them (/slots/{id})
    #[arg(long, value_name = "DIR", help_heading = "Guards")]
    slot_save_path: Option<PathBuf>,
    /// Keeps stored responses (/v1/responses) and models made by clients (/api/create) in this folder too, so that they are
    /// there after a restart
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Publishes what is in the KV caches over ZeroMQ on tcp://HOST:PORT, with the tokens of prompts, for routers such as
    /// llm-d's. Whoever can connect can read it
    #[arg(long, value_name = "URL", value_parser = endpoint, help_heading = "Fleet")]
    kv_events: Option<Endpoint>,
    /// Repeats events for subscribers that have missed some, on tcp://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = endpoint, requires = "kv_events", help_heading = "Fleet")]
    kv_events_replay: Option<Endpoint>,
    /// How events are written: list, for llm-d; map, for vLLM's router
    #[arg(long, value_name = "FORM", default_value = "list", value_parser = events_form(), help_heading = "Fleet")]
    kv_events_form: KvEventsForm,
    /// The topic of events, in which {model} stands for a model's name [default: kv@HOST:PORT@{model}; of maps, none]
    #[arg(long, value_name = "TOPIC", requires = "kv_events", help_heading = "Fleet")]
    kv_events_topic: Option<String>,
    /// Offers the tools of the MCP servers in this file ({"mcpServers": ...}) on the chat page, which asks before each call
    #[arg(long, value_name = "FILE")]
    mcp: Option<PathBuf>,
    /// Certificate chain for HTTPS, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Guards")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Guards")]
    tls_key: Option<PathBuf>,
    /// Maximum requests per minute for each key, or for each address without keys [default: unlimited]
    #[arg(long, value_name = "N", value_parser = args::count, help_heading = "Guards")]
    rate_limit: Option<usize>,
    /// Maximum seconds per response [default: unlimited]
    #[arg(long, value_name = "SECONDS", value_parser = args::count, help_heading = "Guards")]
    request_timeout: Option<usize>,
    /// Maximum connections
    #[arg(long, value_name = "N", default_value = "1024", value_parser = args::count, help_heading = "Guards")]
    max_connections: usize,
    /// Maximum connections of one address (of one /64 network of IPv6)
    #[arg(long, value_name = "N", default_value = "256", value_parser = args::count, help_heading = "Guards")]
    max_connections_per_address: usize,
    /// Maximum memory of the requests that are being read and tokenized, in MiB; one may take half
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = args::count, help_heading = "Guards")]
    max_request_memory: usize,
    /// Maximum stop strings of a request
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::count_or_zero, help_heading = "Guards")]
    max_stops: usize,
    /// Maximum size of a request body in bytes
    #[arg(long, value_name = "BYTES", default_value = "33554432", value_parser = args::count, help_heading = "Guards")]
    max_body: usize,
    /// Maximum size of a request body with audio in bytes
    #[arg(long, value_name = "BYTES", default_value = "134217728", value_parser = args::count, help_heading = "Guards")]
    max_audio: usize,
    /// Seconds that running requests may continue after the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = args::count_or_zero)]
    drain: usize,
    /// The request log: a line for each request when it ends, without any text of it. requests: for people, on stderr;
    /// json: an object on each line, on stdout; off [default: requests, with --quiet off]
    #[arg(long, value_name = "FORMAT", value_parser = log_format())]
    log: Option<LogChoice>,
    /// Logs sampling settings, the names of client programs, and health checks too
    #[arg(short, long)]
    verbose: bool,
    /// No notes on stderr
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    engine: GeneratingArgs,
}

/// Of the request log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogChoice {
    Requests,
    Json,
    Off,
}

const LOG_CHOICES: [(&str, LogChoice); 3] =
    [("requests", LogChoice::Requests), ("json", LogChoice::Json), ("off", LogChoice::Off)];

fn log_choice(name: &str) -> Option<LogChoice> {
    LOG_CHOICES.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice)
}

fn log_format() -> impl TypedValueParser<Value = LogChoice> {
    PossibleValuesParser::new(LOG_CHOICES.map(|(name, _)| name))
        .try_map(|name| log_choice(&name).ok_or("it must be requests, json or off"))
}

/// The log that is written to stderr.
static NOTES: OnceLock<RequestLog> = OnceLock::new();

/// A message of a server that runs. If nobody reads stderr, it fills with lines of the log; no thread of the server waits
/// for that, since the log's own thread writes both.
fn note(text: &str) {
    match NOTES.get() {
        Some(log) => log.note(output::printable_lines(text)),
        None => output::note(text),
    }
}

/// The log goes where no other output of the server is in its way: stdout has nothing but JSON.
fn log(args: &ServeArgs) -> Result<Option<RequestLog>, Failure> {
    let default = if args.quiet { LogChoice::Off } else { LogChoice::Requests };
    let (format, to): (_, Box<dyn Write + Send>) = match args.log.unwrap_or(default) {
        LogChoice::Off => return Ok(None),
        LogChoice::Requests => (LogFormat::Text, Box::new(std::io::stderr())),
        LogChoice::Json => (LogFormat::Json, Box::new(std::io::stdout())),
    };
    let log = RequestLog::new(format, args.verbose, to, note)?;
    if format == LogFormat::Text {
        let _ = NOTES.set(log.clone());
    }
    Ok(Some(log))
}

/// With `--models`, how many models are expected to be in memory at once.
const SHARES: usize = 4;

/// One vector per text: no API has a format for one vector per token.
fn pooling() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(["mean", "cls", "last"])
        .try_map(|name| Pooling::from_name(&name).ok_or("it must be mean, cls or last"))
}

fn events_form() -> impl TypedValueParser<Value = KvEventsForm> {
    PossibleValuesParser::new(["list", "map"]).map(|name| match name.as_str() {
        "map" => KvEventsForm::Map,
        _ => KvEventsForm::List,
    })
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse().map_err(String::from)
}

fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|name| name == "on")
}

pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let options = options(args)?;
    // Models are loaded later, and each request would fail.
    let engine = &options.models.engine;
    akunu::check_device(engine.device, &engine.backends)?;
    check_split(&options)?;
    let is_open = options.keys.is_empty();
    let (pulls, has_tools, deletes) =
        (options.pull.is_some(), options.mcp.is_some(), options.delete.is_some());
    let banner = banner::Banner::new(&options);
    // A second Ctrl-C ends the process; the first one is handled by the server.
    let _listening = interrupt::listen();
    let server = Server::start(options)?;
    // Whoever reads the address may send SIGTERM.
    let signals = server.signals()?;
    if !args.quiet {
        output::note(&banner.lines(server.address()));
    }
    if is_open && !server.address().ip().is_loopback() && !args.quiet {
        output::note(
            "note: anyone who can reach this address can use the server: use --api-keys to require a key",
        );
    }
    if is_open && pulls && !args.quiet {
        output::note(
            "note: anyone who can use the server can fill its disk with models: use --api-keys to require a key",
        );
    }
    if is_open && deletes && !args.quiet {
        output::note(
            "note: anyone who can use the server can delete its downloaded models: use --api-keys to require a key",
        );
    }
    if is_open && has_tools && !args.quiet {
        output::note(
            "note: every program and user of this machine can call the tools: use --api-keys to require a key",
        );
    }
    server.wait_for(signals)?;
    if !args.quiet {
        note("stopping: running requests are completed; press Ctrl-C again to end immediately");
    }
    server.stop();
    Ok(())
}

/// Checks that the named models can be divided as the options state. Those of a folder may be of any kind.
fn check_split(options: &Options) -> Result<(), Failure> {
    let ModelsOptions { models, finder, engine, no_mmap, .. } = &options.models;
    if finder.is_some() || (engine.gpu_layers.is_none() && engine.cpu_experts.is_none()) {
        return Ok(());
    }
    for spec in models {
        akunu::check_split(&spec.open(*no_mmap)?, engine)?;
    }
    Ok(())
}

fn options(args: &ServeArgs) -> Result<Options, Failure> {
    let defaults = Options::default();
    let seconds = |seconds: usize| Duration::from_secs(seconds as u64);
    let specs = specs(args)?;
    let count = specs.len();
    let has_workers = args.engine.engine.device.on.hosts.is_given();
    if has_workers && (count > 1 || args.found.is_some() || args.idle_unload.is_some()) {
        return Err(Failure::usage("workers have one model, for as long as the server runs")
            .hint("with --world, serve one MODEL, without --models and --idle-unload"));
    }
    let models = ModelsOptions {
        models: specs,
        finder: args.found.clone().map(|folder| Finder {
            find: found::find_again,
            folder,
            every: Duration::from_secs(3),
        }),
        engine: akunu::EngineOptions {
            kv_memory: args.kv_memory.map(|mib| (mib as u64) << 20),
            ..args.engine.options().batching(args.parallel)
        },
        scheduler: akunu::schedule::SchedulerOptions {
            queue: args.queue,
            deadline: args.deadline.map(seconds),
            stall: args.stall.map(|ms| Duration::from_millis(ms as u64)),
            keep_texts: args.slot_save_path.is_some(),
        },
        idle_unload: args.idle_unload.map(seconds),
        keep_alive: args.idle_unload.is_some() || args.found.is_some(),
        shares: args.found.as_ref().map(|_| count.clamp(1, SHARES)),
        memory: args.max_memory.map(|mib| (mib as u64) << 20),
        pooling: args.pooling,
        rerank: args.rerank,
        beams: args.beam,
        chat_templates: args.chat_template.as_deref().map(ChatTemplates::from_file).transpose()?,
        no_mmap: args.engine.engine.device.no_mmap,
        log: note,
        ..defaults.models
    };
    let limits = Limits {
        body: args.max_body,
        audio: args.max_audio,
        connections: args.max_connections,
        client_connections: args.max_connections_per_address,
        memory: args.max_request_memory.saturating_mul(1 << 20),
        stops: args.max_stops,
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
        allowed_hosts: args.allow_host.clone(),
        share_cache: args.share_cache,
        stable_prompts: args.stable_prompts,
        slots: args.slot_save_path.clone(),
        response_folder: args.store.clone(),
        // Workers join when the model is loaded.
        preload: args.preload || has_workers,
        kv_events: kv_events(args, count)?,
        pull: if args.allow_pull { Some(hub::settings()?) } else { None },
        delete: if args.allow_delete { Some(hub::settings()?) } else { None },
        mcp: args
            .mcp
            .as_deref()
            .map(|config| mcp::start(config, args.quiet))
            .transpose()?
            .map(McpServers::new),
        tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
        log: log(args)?,
        drain: seconds(args.drain),
    })
}

/// `models`: how many are served.
fn kv_events(args: &ServeArgs, models: usize) -> Result<Option<KvEventsOptions>, Failure> {
    let Some(publish) = args.kv_events.clone() else { return Ok(None) };
    if args.kv_events_replay.is_some() && (models > 1 || args.found.is_some()) {
        return Err(Failure::usage(
            "--kv-events-replay needs a server with one model: replays do not name it",
        ));
    }
    let (replay, topic) = (args.kv_events_replay.clone(), args.kv_events_topic.clone());
    Ok(Some(KvEventsOptions { publish, replay, topic, form: args.kv_events_form }))
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
    let mut specs = Vec::with_capacity(args.models.len() + args.model.len());
    let models = || args.models.iter().chain(&args.model);
    // Nothing is downloaded for a server that cannot start because another model is missing.
    for model in models().filter(|model| !super::is_embedded(model) && !hub::is_reference(model)) {
        akunu::Model::open(model)?;
    }
    for model in models() {
        if super::is_embedded(model) {
            specs.push(ModelSpec::embedded());
            continue;
        }
        let path = hub::resolve(model)?.into_owned();
        // Open all models now, so that errors are reported at the start and not at the first request.
        akunu::Model::open(&path)?;
        let name = if hub::is_reference(model) { model.display().to_string() } else { stem(&path) };
        specs.push(ModelSpec { name, path: Some(path), aliases: Vec::new() });
    }
    if let Some(folder) = &args.found {
        let found = found::usable(found::find(folder.as_deref())?);
        // A model may be named itself, too.
        let is_new = |spec: &ModelSpec| specs.iter().all(|known: &ModelSpec| known.path != spec.path);
        let found: Vec<ModelSpec> = found.into_iter().filter(is_new).collect();
        specs.extend(found);
        if specs.is_empty() && !args.allow_pull {
            let place =
                folder.as_ref().map_or("the cache of the hub".into(), |path| path.display().to_string());
            return Err(Failure::new(format!("there are no models in {place}"))
                .hint("akunu pull downloads one, and --allow-pull lets clients do so"));
        }
    } else if specs.is_empty() {
        specs.push(ModelSpec::embedded());
    }
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
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
                .hint(format!("the models are {}", names.join(", ")))
        })?;
        spec.aliases.push(alias.to_string());
    }
    check_names(&specs)?;
    Ok(specs)
}

/// A file's name without `.gguf`, or a folder's name.
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
                return Err(Failure::usage(format!("two models have the name \"{name}\""))
                    .hint("rename a file, or use another --alias"));
            }
            names.push(name);
        }
    }
    Ok(())
}

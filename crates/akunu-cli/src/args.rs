//! The structure of the command line, and options shared by several commands.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use akunu::devices::{Hosts, Secret, Timing};
use akunu::{
    BackendOptions, Capabilities, ChipChoice, DeviceChoice, EmbedOptions, EmbedTask, EngineOptions, KvDisk,
    KvType, Model, Pooling,
};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::commands;
use crate::environment;
use crate::failure::Failure;
use crate::output;

const AFTER_HELP: &str = "\
MODEL is a GGUF file (any part of a split one), a SafeTensors file, a folder with config.json, \
hf:OWNER/NAME on the Hugging Face hub (akunu pull --help), or a short name such as qwen3:0.6b (akunu models --known). \
Without MODEL, the small embedded model is used: \
akunu run \"Once upon a time\"

Text goes to stdout; statistics, notes and progress go to stderr. Control characters are escaped in listings and \
messages, and in generated text on a terminal.
Exit codes: 0 success, 1 failure, 2 invalid command line, 130 interrupted by Ctrl-C.";

/// Runs transformer models on the local machine
#[derive(Debug, Parser)]
#[command(name = "akunu", version, after_help = AFTER_HELP, arg_required_else_help = true)]
#[command(max_term_width = 100)]
pub struct Cli {
    /// Use cached models only, and download nothing
    #[arg(long, global = true)]
    pub offline: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// The definition of the command line. Every option with a value takes a negative number, to say what is allowed.
pub fn command() -> clap::Command {
    let option = |arg: clap::Arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    };
    Cli::command()
        .mut_subcommands(|command| command.mut_args(option))
        .mut_subcommand("serve", |command| command.mut_args(environment::option_of_server))
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(commands::run::RunArgs),
    Chat(commands::chat::ChatArgs),
    Serve(commands::serve::ServeArgs),
    Worker(commands::worker::WorkerArgs),
    Bench(commands::bench::BenchArgs),
    BenchServe(commands::bench_serve::BenchServeArgs),
    #[command(visible_alias = "show")]
    Inspect(commands::inspect::InspectArgs),
    Plan(commands::plan::PlanArgs),
    Table(commands::table::TableArgs),
    Profile(commands::profile::ProfileArgs),
    Verify(commands::verify::VerifyArgs),
    Logits(commands::logits::LogitsArgs),
    Perplexity(commands::perplexity::PerplexityArgs),
    Embed(commands::embed::EmbedArgs),
    Rerank(commands::rerank::RerankArgs),
    Transcribe(commands::transcribe::TranscribeArgs),
    Tokenize(commands::tokenize::TokenizeArgs),
    Detokenize(commands::detokenize::DetokenizeArgs),
    Imatrix(commands::imatrix::ImatrixArgs),
    Quantize(commands::quantize::QuantizeArgs),
    Pull(commands::pull::PullArgs),
    #[command(visible_aliases = ["list", "ls"])]
    Models(commands::models::ModelsArgs),
    Rm(commands::rm::RmArgs),
    Synth(commands::synth::SynthArgs),
    Doctor(commands::doctor::DoctorArgs),
    Completions(commands::completions::CompletionsArgs),
    /// Prints the version
    Version,
    /// Prints candidates for a word of the command line, for the scripts of `completions`
    #[command(name = "__complete", hide = true)]
    Complete(commands::completions::CompleteArgs),
    /// Writes a manual page for each command into a folder
    #[command(name = "__man", hide = true)]
    Man {
        folder: PathBuf,
    },
    /// Prints this reference as Markdown, to generate docs/cli.md
    #[command(name = "__markdown", hide = true)]
    Markdown,
    /// Prints the fields of requests to the server as Markdown, to generate docs/server-fields.md
    #[command(name = "__fields", hide = true)]
    Fields,
}

/// The model, for commands without other positional arguments.
#[derive(Debug, Args)]
pub struct ModelArg {
    /// The model [default: the embedded model]
    #[arg(value_name = "MODEL")]
    argument: Option<PathBuf>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL", conflicts_with = "argument")]
    model: Option<PathBuf>,
}

impl ModelArg {
    pub fn path(&self) -> Option<&Path> {
        self.argument.as_deref().or(self.model.as_deref())
    }
}

/// Which device runs a model, or which devices together.
#[derive(Clone, Debug, Args)]
pub struct OnDevices {
    /// Device that runs the model; with numbers, as in cuda:0,1, these GPUs run it together
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceParser, help_heading = "Engine")]
    pub device: SelectedDevice,
    /// Divides each layer between N devices: the first N GPUs, or parts of the CPU's threads
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Engine")]
    pub tensor_parallel: Option<usize>,
    /// Divides the layers between N devices, which take turns: the first N GPUs
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "tensor_parallel", help_heading = "Engine")]
    pub pipeline_parallel: Option<usize>,
    #[command(flatten)]
    pub hosts: HostsArgs,
}

impl OnDevices {
    pub fn backends(&self) -> BackendOptions {
        let (ranks, stages, cards) =
            (self.tensor_parallel, self.pipeline_parallel, self.device.cards.clone());
        BackendOptions { ranks, stages, cards, hosts: self.hosts.hosts(), ..environment::backends() }
    }

    /// For this process alone, whatever others there are.
    pub fn own_backends(&self) -> BackendOptions {
        BackendOptions { hosts: None, ..self.backends() }
    }
}

/// The processes that share out a model, of which this one is the first.
#[derive(Clone, Debug, Args)]
pub struct HostsArgs {
    /// Divides the model between N processes, on this machine or others: this one, and N - 1 of akunu worker
    #[arg(long, value_name = "N", value_parser = count, requires = "listen", conflicts_with_all = ["tensor_parallel", "pipeline_parallel"], help_heading = "Engine")]
    world: Option<usize>,
    /// Address at which the workers of --world join; port 0: any free port
    #[arg(long, value_name = "HOST:PORT", requires = "world", help_heading = "Engine")]
    listen: Option<String>,
    /// File with the secret that workers have to know; $AKUNU_WORKER_SECRET has another one [default: none, on a loopback address]
    #[arg(long, value_name = "FILE", value_parser = secret_file, requires = "world", help_heading = "Engine")]
    secret_file: Option<Secret>,
}

impl HostsArgs {
    pub fn is_given(&self) -> bool {
        self.world.is_some()
    }

    fn hosts(&self) -> Option<Hosts> {
        let (ranks, listen) = (self.world?, self.listen.clone()?);
        let listening = |address| output::note(&format!("note: waiting for workers at {address}"));
        let lost = |reason: &str| output::note(&format!("note: {reason}; another worker may take its place"));
        let secret = secret(self.secret_file.as_ref());
        Some(Hosts { ranks, listen, secret, timing: Timing::default(), listening, lost })
    }
}

/// The secret in a file, or in `AKUNU_WORKER_SECRET`.
pub fn secret(of_file: Option<&Secret>) -> Option<Secret> {
    of_file.cloned().or_else(|| environment::worker_secret().map(Secret::new))
}

/// Reads a file with a secret.
pub fn secret_file(path: &str) -> Result<Secret, String> {
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        // More than a secret may have, so that a larger file is refused.
        std::fs::File::open(path)?.take(1 << 16).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map(|text| Secret::new(&text)).map_err(|error| error.to_string())
}

/// What the CPU computes of a model that runs on a GPU, and how much memory experts may take.
#[derive(Clone, Debug, Args)]
pub struct SplitArgs {
    /// Layers on the GPU: the last N, and the output; the CPU computes those before, from its memory [default: all]
    #[arg(long, alias = "n-gpu-layers", value_name = "N", value_parser = count_or_zero, help_heading = "Engine")]
    gpu_layers: Option<usize>,
    /// The CPU computes the experts of all layers, and the GPU everything else
    #[arg(long, conflicts_with = "n_cpu_moe", help_heading = "Engine")]
    cpu_moe: bool,
    /// The CPU computes the experts of the first N layers
    #[arg(long, value_name = "N", value_parser = count_or_zero, help_heading = "Engine")]
    n_cpu_moe: Option<usize>,
    /// Prompts copy the CPU's weights to the GPU in passes of N tokens and more, if there is memory for a layer; 0: in none [default: where that is faster]
    #[arg(long, value_name = "N", value_parser = count_or_zero, help_heading = "Engine")]
    stream_rows: Option<usize>,
    /// Memory in MiB for the experts that the CPU computes; others are read from the file when they are needed; 0: all are used in the mapped file [default: what is left beside the rest, if the model is larger than the memory]
    #[arg(long, value_name = "MIB", value_parser = count_or_zero, help_heading = "Engine")]
    expert_memory: Option<usize>,
}

impl SplitArgs {
    fn is_empty(&self) -> bool {
        let SplitArgs { gpu_layers, cpu_moe, n_cpu_moe, stream_rows, expert_memory } = self;
        let counts = [gpu_layers, n_cpu_moe, stream_rows, expert_memory];
        !cpu_moe && counts.iter().all(|count| count.is_none())
    }

    pub fn over(&self, options: EngineOptions) -> EngineOptions {
        let cpu_experts = if self.cpu_moe { Some(usize::MAX) } else { self.n_cpu_moe };
        let expert_memory = self.expert_memory.map(|mib| (mib as u64) << 20);
        let SplitArgs { gpu_layers, stream_rows, .. } = *self;
        EngineOptions { gpu_layers, cpu_experts, stream_rows, expert_memory, ..options }
    }
}

/// The value of `--device`.
#[derive(Clone, Debug)]
pub struct SelectedDevice {
    pub choice: DeviceChoice,
    /// The numbers of cards; empty if none are stated.
    pub cards: Vec<u32>,
}

#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// CPU threads [default: one per core]
    #[arg(short, long, value_parser = threads, allow_negative_numbers = true, help_heading = "Engine")]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub on: OnDevices,
    /// Read the model's files into memory instead of mapping them: if a mapped file is truncated, the process ends
    #[arg(long, help_heading = "Engine")]
    pub no_mmap: bool,
}

#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Context length in tokens [default: the model's training context, as far as memory allows]
    #[arg(short, long, value_parser = count, allow_negative_numbers = true, help_heading = "Engine")]
    pub context: Option<usize>,
    /// Storage type of the KV cache [default: f16]
    #[arg(long, value_parser = kv_type(), help_heading = "Engine")]
    pub kv_type: Option<KvType>,
    /// Maximum prompt tokens per pass [default: depends on the device]
    #[arg(long, value_parser = count, allow_negative_numbers = true, help_heading = "Engine")]
    pub chunk: Option<usize>,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    split: SplitArgs,
}

/// Engine options of a command that generates text.
#[derive(Debug, Args)]
pub struct GeneratingArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Maximum duration of a chain (decode steps on the device without the host) in milliseconds; longer chains are
    /// faster, but text arrives in larger pieces; 0: single steps
    #[arg(long, value_name = "MS", default_value_t = default_chain_ms(), value_parser = count_or_zero, help_heading = "Engine")]
    pub chain_ms: usize,
    #[command(flatten)]
    pub tiers: TierArgs,
}

impl GeneratingArgs {
    pub fn options(&self) -> EngineOptions {
        let chain_time = milliseconds(self.chain_ms);
        self.tiers.over(EngineOptions { chain_time, ..self.engine.options() })
    }
}

/// The KV cache outside of the device.
#[derive(Debug, Args)]
pub struct TierArgs {
    /// Memory of the host in MiB for blocks of the KV cache that the device has no memory for any more [default: such
    /// blocks are forgotten]
    #[arg(long, value_name = "MIB", value_parser = count, allow_negative_numbers = true, help_heading = "Engine")]
    kv_host: Option<usize>,
    /// Folder for blocks of the KV cache that memory has no place for, and that later processes find again; several may
    /// share it
    #[arg(long, value_name = "DIR", help_heading = "Engine")]
    kv_disk: Option<PathBuf>,
    /// Maximum size of the files of the cache in that folder, in MiB
    #[arg(long, value_name = "MIB", value_parser = count, requires = "kv_disk", default_value_t = default_disk_mib(), help_heading = "Engine")]
    kv_disk_size: usize,
}

fn default_disk_mib() -> usize {
    (KvDisk::DEFAULT_BYTES >> 20) as usize
}

impl TierArgs {
    /// Engine options with these tiers of the cache.
    pub fn over(&self, options: EngineOptions) -> EngineOptions {
        let bytes = |mib: usize| (mib as u64) << 20;
        let disk = self.kv_disk.clone().map(|folder| KvDisk { folder, bytes: bytes(self.kv_disk_size) });
        EngineOptions { kv_host: self.kv_host.map(bytes), kv_disk: disk, ..options }
    }

    /// Refuses tiers, which models for texts have none of.
    pub fn refuse(&self) -> Result<(), Failure> {
        match self.kv_host.is_none() && self.kv_disk.is_none() {
            true => Ok(()),
            false => Err(Failure::usage("models for texts keep no blocks of a KV cache")
                .hint("leave out --kv-host and --kv-disk")),
        }
    }
}

fn default_chain_ms() -> usize {
    akunu::DEFAULT_CHAIN_TIME.as_millis() as usize
}

pub fn milliseconds(ms: usize) -> Duration {
    Duration::from_millis(ms as u64)
}

/// What to plan for: the local device, or any supported chip.
#[derive(Debug, Args)]
pub struct PlannedArgs {
    /// Plan for another chip instead of a local device
    ///
    /// BACKEND selects a default chip: cpu for AVX2 (8 threads, unless -t is given), cuda for an H200, metal for an M1.
    /// BACKEND:CHIP selects another one, such as metal:m3-max; an unknown name lists them all.
    #[arg(long = "for", value_name = "BACKEND[:CHIP]", conflicts_with = "device", help_heading = "Engine")]
    pub chip: Option<ChipChoice>,
    /// Context length in tokens, or maximum text length for embedding models [default: the model's training context,
    /// as far as memory allows; for texts, the limit in the model's files, at most 8192]
    #[arg(short, long, value_parser = count, allow_negative_numbers = true, help_heading = "Engine")]
    pub context: Option<usize>,
    #[command(flatten)]
    pub engine: EitherArgs,
}

impl PlannedArgs {
    pub fn options(&self) -> EngineOptions {
        self.engine.options(self.context)
    }

    /// The same for embedding models and rerankers.
    pub fn text_options(&self, task: EmbedTask) -> Result<EmbedOptions, Failure> {
        self.engine.text_options(task, self.context)
    }

    /// The capabilities of the chip, or of the local device, which is opened for that.
    pub fn capabilities(&self) -> Result<Capabilities, akunu::Error> {
        let DeviceArgs { threads, on, .. } = &self.engine.device;
        match self.chip {
            Some(chip) => akunu::capabilities_of_all(chip.capabilities(*threads), &on.backends()),
            None => {
                let device = akunu::open_device(on.device.choice, *threads, &on.own_backends())?;
                let capabilities = device.capabilities().clone();
                Ok(Capabilities { ranks: on.hosts.world.unwrap_or(capabilities.ranks), ..capabilities })
            }
        }
    }
}

impl EngineArgs {
    pub fn options(&self) -> EngineOptions {
        self.split.over(engine_options(&self.device, self.context, self.kv_type, self.chunk))
    }
}

fn engine_options(
    device: &DeviceArgs,
    context: Option<usize>,
    kv: Option<KvType>,
    chunk: Option<usize>,
) -> EngineOptions {
    EngineOptions {
        device: device.on.device.choice,
        threads: device.threads,
        backends: device.on.backends(),
        context,
        kv: kv.unwrap_or(EngineOptions::default().kv),
        chunk,
        ..EngineOptions::default()
    }
}

fn text_options(
    device: &DeviceArgs,
    longest: Option<usize>,
    kv: Option<KvType>,
    rows: Option<usize>,
) -> EmbedOptions {
    EmbedOptions {
        device: device.on.device.choice,
        threads: device.threads,
        backends: device.on.backends(),
        longest,
        kv,
        rows,
        ..EmbedOptions::default()
    }
}

/// Engine options of a command that accepts both kinds of models. The default length without `-c` differs between
/// commands, so each has its own `-c` option.
#[derive(Debug, Args)]
pub struct EitherArgs {
    /// Storage type of the KV cache [default: f16; for texts f32 on a CPU, f16 on a GPU]
    #[arg(long, value_parser = kv_type(), help_heading = "Engine")]
    pub kv_type: Option<KvType>,
    /// Maximum tokens per pass [default: depends on the device; for texts at least the maximum length]
    #[arg(long, value_parser = count, allow_negative_numbers = true, help_heading = "Engine")]
    pub chunk: Option<usize>,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    split: SplitArgs,
}

impl EitherArgs {
    pub fn options(&self, context: Option<usize>) -> EngineOptions {
        self.split.over(engine_options(&self.device, context, self.kv_type, self.chunk))
    }

    /// The same for embedding models and rerankers.
    pub fn text_options(&self, task: EmbedTask, longest: Option<usize>) -> Result<EmbedOptions, Failure> {
        match self.split.is_empty() {
            true => {
                Ok(EmbedOptions { task, ..text_options(&self.device, longest, self.kv_type, self.chunk) })
            }
            false => Err(Failure::usage("models for texts run on one device as a whole")
                .hint("leave out --gpu-layers, --cpu-moe, --n-cpu-moe, --stream-rows and --expert-memory")),
        }
    }
}

/// Selects the task, for commands that accept both generative models and embedding models or rerankers.
#[derive(Debug, Args)]
pub struct TaskArgs {
    /// Use the model for embeddings with this pooling [default: what the model's files state]
    #[arg(long, value_parser = pooling())]
    pub pooling: Option<Pooling>,
}

impl TaskArgs {
    /// The task of a model for texts; `None` if it generates text.
    pub fn task(&self, model: &Model) -> Option<EmbedTask> {
        match self.pooling {
            Some(pooling) => Some(EmbedTask::Vectors(Some(pooling))),
            None => model.text_task(),
        }
    }
}

/// Engine options of an embedding model or reranker.
#[derive(Debug, Args)]
pub struct TextArgs {
    /// Maximum text length in tokens [default: the limit in the model's files, at most 8192]
    #[arg(short, long, value_parser = count, allow_negative_numbers = true, help_heading = "Engine")]
    pub context: Option<usize>,
    /// Storage type of keys and values during a pass [default: f32 on a CPU, f16 on a GPU]
    #[arg(long, value_parser = kv_type(), help_heading = "Engine")]
    pub kv_type: Option<KvType>,
    /// Maximum tokens per pass [default: depends on the device, and at least the maximum text length]
    #[arg(long, value_parser = count, allow_negative_numbers = true, help_heading = "Engine")]
    pub chunk: Option<usize>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

impl TextArgs {
    pub fn options(&self) -> EmbedOptions {
        text_options(&self.device, self.context, self.kv_type, self.chunk)
    }
}

/// A positive integer.
pub fn count(text: &str) -> Result<usize, String> {
    within(text, 1, i32::MAX as usize)
}

/// A text at which generation stops.
pub fn stop(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("it must be a text that is not empty".into()),
        false => Ok(text.to_string()),
    }
}

pub fn threads(text: &str) -> Result<usize, String> {
    within(text, 1, 1024)
}

pub fn port(text: &str) -> Result<u16, String> {
    if text.starts_with("tcp://") {
        return Err(
            "it must be a number; Kubernetes sets AKUNU_PORT to a URL in pods beside a service named akunu: \
                    set enableServiceLinks: false, or call the service otherwise"
                .into(),
        );
    }
    within(text, 0, u16::MAX.into()).map(|port| port as u16)
}

/// A non-negative integer.
pub fn count_or_zero(text: &str) -> Result<usize, String> {
    within(text, 0, i32::MAX as usize)
}

fn within(text: &str, least: usize, most: usize) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("it must be an integer from {least} to {most}")),
    }
}

/// The name of a device, and of CUDA's the numbers of cards after a colon.
#[derive(Clone, Debug)]
pub struct DeviceParser;

impl TypedValueParser for DeviceParser {
    type Value = SelectedDevice;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<SelectedDevice, clap::Error> {
        let text = value.to_string_lossy();
        let (name, cards) = text.split_once(':').map_or((&*text, None), |(name, cards)| (name, Some(cards)));
        let names = PossibleValuesParser::new(DeviceChoice::ALL.iter().map(|device| device.name()));
        let choice =
            names.try_map(|name| DeviceChoice::from_str(&name)).parse_ref(command, arg, OsStr::new(name))?;
        let Some(cards) = cards else { return Ok(SelectedDevice { choice, cards: Vec::new() }) };
        let numbers = move |text: &str| choice.cards(text);
        let cards = numbers.parse_ref(command, arg, OsStr::new(cards))?;
        Ok(SelectedDevice { choice, cards })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(DeviceChoice::ALL.iter().map(|device| PossibleValue::new(device.name()))))
    }
}

pub fn pooling() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(["mean", "cls", "last", "none"])
        .try_map(|name| Pooling::from_name(&name).ok_or("it must be mean, cls, last or none"))
}

pub fn kv_type() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new([KvType::F32, KvType::F16, KvType::Q8_0].map(KvType::name))
        .try_map(|name| KvType::from_name(&name).ok_or("it must be f32, f16 or q8_0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn counts_start_at_one() {
        assert_eq!(count("7"), Ok(7));
        for text in ["0", "-1", "", "x", "1.5", "99999999999999999999", "2147483648"] {
            assert!(count(text).is_err(), "{text}");
        }
        assert_eq!(count_or_zero("0"), Ok(0));
        assert!(threads("1025").is_err());
    }
}

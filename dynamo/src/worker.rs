//! The program's arguments.

use std::path::PathBuf;
use std::time::Duration;

use akunu::schedule::SchedulerOptions;
use akunu::{BackendOptions, DeviceChoice, EngineOptions, KvType};
use anyhow::{Context, Result, bail};
use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, WorkerConfig};

use crate::{Backend, Options, folder};

/// Akunu as a worker of NVIDIA Dynamo: serves a model behind `python -m dynamo.frontend`.
#[derive(Debug, Parser)]
#[command(name = "akunu-dynamo", version)]
pub struct Args {
    /// A GGUF file, a SafeTensors file or a folder; without it the embedded model
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The name for clients; without it the file's name
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// A folder with tokenizer.json, tokenizer_config.json and config.json for the frontend, or a name on the Hugging
    /// Face hub; without it the model's folder, or files made of a GGUF file
    #[arg(long, value_name = "FOLDER")]
    tokenizer: Option<String>,
    /// auto, cpu, cuda or metal
    #[arg(long, default_value = "auto", env = "AKUNU_DEVICE")]
    device: DeviceChoice,
    /// CPU threads; without it one for each physical core
    #[arg(long, value_name = "N", env = "AKUNU_THREADS")]
    threads: Option<usize>,
    /// Context length of each request; without it the model's own, as far as there is memory
    #[arg(long, short, value_name = "TOKENS", env = "AKUNU_CONTEXT")]
    context: Option<usize>,
    /// Requests that run at once
    #[arg(long, default_value_t = 4, value_name = "N", env = "AKUNU_PARALLEL")]
    parallel: usize,
    /// Requests that may wait; further ones are refused, so that Dynamo can try another worker
    #[arg(long, default_value_t = 256, value_name = "N", env = "AKUNU_QUEUE")]
    queue: usize,
    /// Type of the KV cache: f32, f16 or q8_0
    #[arg(long, default_value = "f16", value_parser = kv_type, env = "AKUNU_KV_TYPE")]
    kv_type: KvType,
    /// Memory of the KV cache; without it a part of what is free
    #[arg(long, value_name = "MIB", env = "AKUNU_KV_MEMORY")]
    kv_memory: Option<u64>,
    /// How long requests may run on when the worker ends. Dynamo ends the process after
    /// DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT (30 s)
    #[arg(long, default_value_t = 20, value_name = "SECONDS", env = "AKUNU_DRAIN")]
    drain: u64,
    #[command(flatten)]
    common: CommonArgs,
}

fn kv_type(name: &str) -> Result<KvType, String> {
    KvType::from_name(name).ok_or_else(|| "it must be f32, f16 or q8_0".into())
}

/// Serves until the process is told to end.
pub fn run(args: Args) -> Result<()> {
    let common = args.common;
    if common.disaggregation_mode != DisaggregationMode::Aggregated {
        bail!("only --disaggregation-mode agg is supported: each worker processes prompts and generates");
    }
    if common.route_to_encoder {
        bail!("--route-to-encoder is not supported: no model here reads images");
    }
    let engine = EngineOptions {
        device: args.device,
        threads: args.threads,
        backends: BackendOptions::from_variables(|name| std::env::var_os(name)),
        context: args.context,
        kv: args.kv_type,
        kv_memory: args.kv_memory.map(|mib| mib << 20),
        ..EngineOptions::default()
    };
    let mut options = Options {
        model: args.model,
        name: String::new(),
        engine: engine.batching(args.parallel),
        scheduler: SchedulerOptions { queue: args.queue, ..SchedulerOptions::default() },
        drain: Duration::from_secs(args.drain),
    };
    let model = options.open()?;
    options.name = args.model_name.unwrap_or_else(|| match &options.model {
        Some(_) => model.name().strip_suffix(".gguf").unwrap_or(model.name()).to_string(),
        None => "akunu-tales".to_string(),
    });
    let folder = folder::find(args.tokenizer.as_deref(), options.model.as_deref(), &model)?;
    drop(model);
    let config = WorkerConfig {
        namespace: common.namespace,
        component: common.component,
        endpoint: common.endpoint,
        model_name: folder,
        served_model_name: Some(options.name.clone()),
        endpoint_types: common.endpoint_types,
        custom_jinja_template: common.custom_jinja_template,
        tool_call_parser: common.dyn_tool_call_parser,
        reasoning_parser: common.dyn_reasoning_parser,
        exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
        runtime: common.runtime,
        enable_rl: common.enable_rl,
        metrics_labels: vec![("model".into(), options.name.clone())],
        ..WorkerConfig::default()
    };
    let engine = std::sync::Arc::new(Backend::new(options));
    dynamo_backend_common::run(engine, config).context("the worker has failed")
}

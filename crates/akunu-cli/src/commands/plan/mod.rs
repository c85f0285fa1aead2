//! `akunu plan`: the memory of a model, before it is loaded.

mod paging;
mod speed;
mod stages;

use akunu::{EngineOptions, MemoryPlan, Model, TranscriberOptions, human};
use akunu_plan::{Capabilities, EncodeOptions, Entries, InPlace, Row};
use clap::Args;
use serde::Serialize;

use crate::args::{self, ModelArg, PlannedArgs, TaskArgs, TierArgs};
use crate::bars::{MemoryBar, Style};
use crate::failure::Failure;
use crate::grid::{Grid, grouped};
use crate::output::{self, Output};
use paging::PagingReport;
use speed::Speed;
use stages::Stage;

/// Shows exactly how much memory a model needs, and whether it fits
///
/// The bar shows the needed memory beside what is available: blocks on a terminal with UTF-8, ASCII elsewhere.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelArg,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    /// Exits with 1 if it does not fit into the available memory
    #[arg(long, conflicts_with = "chip")]
    check: bool,
    /// Runs a few layers on the device and on the CPU, and shows the speeds that divisions between both would have
    #[arg(long, conflicts_with = "chip")]
    speed: bool,
    #[command(flatten)]
    task: TaskArgs,
    #[command(flatten)]
    planned: PlannedArgs,
    #[command(flatten)]
    tiers: TierArgs,
    #[command(flatten)]
    hearing: HearingArgs,
}

/// What a model that transcribes decodes at once.
#[derive(Debug, Args)]
struct HearingArgs {
    /// Windows that are decoded together, as in transcribe [default: 1]
    #[arg(long, value_name = "N", value_parser = args::count, help_heading = "Transcription")]
    batch: Option<usize>,
    /// Texts of a window that are followed or sampled at once: the larger one of transcribe's --beam and --best-of [default: 5]
    #[arg(long, value_name = "N", value_parser = args::count, help_heading = "Transcription")]
    beam: Option<usize>,
    /// With memory for the times of words, as transcribe --timestamps word
    #[arg(long, help_heading = "Transcription")]
    word_times: bool,
}

impl HearingArgs {
    /// The options of the engine that `transcribe` has with a model, of those of other models.
    fn over(&self, options: EngineOptions, model: &Model) -> Result<EngineOptions, Failure> {
        if model.config().encoder.is_none() {
            return self.refuse().map(|()| options);
        }
        if options.context.is_some() || options.kv_host.is_some() || options.kv_disk.is_some() {
            return Err(Failure::usage(
                "a model that transcribes has the context of its windows, and a cache for them alone",
            )
            .hint("leave out -c, --kv-host and --kv-disk"));
        }
        let (windows, beams) = (self.batch.unwrap_or(1), self.beam.unwrap_or(5));
        Ok(TranscriberOptions { engine: options, windows, beams, word_times: self.word_times }.engine()?)
    }

    fn refuse(&self) -> Result<(), Failure> {
        match self.batch.is_none() && self.beam.is_none() && !self.word_times {
            true => Ok(()),
            false => Err(Failure::usage("this model does not transcribe")
                .hint("leave out --batch, --beam and --word-times")),
        }
    }
}

#[derive(Debug, Serialize)]
struct PlanReport<'a> {
    model: &'a str,
    device: &'a str,
    /// Description by the device, or the name of the chip.
    detail: &'a str,
    #[serde(flatten)]
    pass: Pass,
    /// Devices that have a part of each layer; `memory` is that of each of them.
    #[serde(skip_serializing_if = "is_one")]
    ranks: usize,
    /// What the CPU computes beside the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Host>,
    memory: Parts,
    /// Of devices that have some of the layers each; `memory` is that of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stages: Vec<Stage>,
    /// Of a mixture of experts: the bytes of weights that one token reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<u64>,
    /// Of experts that are read from the file when they are needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    paging: Option<PagingReport>,
    /// With --no-mmap: the model's files, which include the weights in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    files_read: Option<u64>,
    /// Memory that the device allocates, and the files that are read.
    allocated: u64,
    /// Including weights in the mapped file.
    total: u64,
    available: Option<u64>,
    fits: Option<bool>,
    /// With --speed: what some divisions between the device and the CPU would reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    speeds: Vec<Speed>,
    /// Why what is on the CPU does not fit into the host's memory.
    #[serde(skip)]
    on_host: Option<String>,
    /// Memory that has to be free on the device.
    #[serde(skip)]
    needed: u64,
}

fn is_one(ranks: &usize) -> bool {
    *ranks == 1
}

#[derive(Debug, Serialize)]
struct Host {
    layers: usize,
    experts: usize,
    /// Tokens of a pass from which its weights are copied to the device; absent: they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_rows: Option<usize>,
    #[serde(skip)]
    described: String,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Pass {
    Generates {
        context: usize,
        kv_type: &'static str,
        prefill_rows: usize,
        chain: usize,
        /// Of models that transcribe: windows of audio that are decoded together, and texts of each.
        #[serde(skip_serializing_if = "Option::is_none")]
        windows: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        beams: Option<usize>,
    },
    Encodes {
        /// The result for a text.
        output: String,
        /// Dimensions of an embedding.
        width: usize,
        /// Maximum text length in tokens.
        longest: usize,
        kv_type: &'static str,
        /// Maximum tokens of a pass.
        rows: usize,
        /// Maximum embeddings or scores of a pass.
        texts: usize,
    },
}

/// Bytes by purpose.
#[derive(Debug, Serialize)]
struct Parts {
    weights_in_place: u64,
    weights_made: u64,
    weights_copied: u64,
    constants: u64,
    kv: u64,
    slots: u64,
    expert_slots: u64,
    scratch: u64,
    io: u64,
    workspace: u64,
    tables: u64,
    loading: u64,
    host_cache: u64,
    host_weights: u64,
    host_work: u64,
}

impl From<MemoryPlan> for Parts {
    fn from(plan: MemoryPlan) -> Parts {
        let MemoryPlan { weights_in_place, weights_copied, constants, kv, slots, scratch, io, .. } = plan;
        let MemoryPlan {
            workspace,
            tables,
            loading,
            host_cache,
            host_weights,
            host_work,
            expert_slots,
            weights_made,
            ..
        } = plan;
        Parts {
            weights_in_place,
            weights_made,
            weights_copied,
            constants,
            kv,
            slots,
            expert_slots,
            scratch,
            io,
            workspace,
            tables,
            loading,
            host_cache,
            host_weights,
            host_work,
        }
    }
}

pub fn run(args: &PlanArgs, out: &mut Output) -> Result<(), Failure> {
    let model = super::open(args.model.path(), false)?;
    let capabilities = args.planned.capabilities()?;
    let (pass, memory, active, host, (speeds, paging, stages)) = match args.task.task(&model) {
        None => {
            if args.speed && !capabilities.stages.is_empty() {
                return Err(Failure::usage(
                    "devices with some of the layers each take turns: their speed is that of one",
                )
                .hint("leave out --speed or --pipeline-parallel"));
            }
            let options = args.hearing.over(args.tiers.over(args.planned.options()), &model)?;
            let plan = akunu::plan(&model, &capabilities, &options)?;
            let (context, prefill_rows) = (plan.options.context, plan.options.prefill_rows);
            let (kv_type, chain) = (options.kv.name(), plan.options.chain);
            let step = plan.tables.decode().cost(Entries::Rows(&[Row::causal(0, 0, 0)]), 1);
            let active = plan.config.experts.map(|_| step.weight_bytes);
            let on_host = plan.options.host;
            let host = (!on_host.is_nothing()).then(|| Host {
                layers: on_host.layers,
                experts: on_host.experts,
                stream_rows: plan.options.stream_rows,
                described: akunu::describe_split(on_host, plan.config.layer_count),
            });
            let mut paging = plan.paging.as_ref().map(PagingReport::new);
            if let (Some(report), Some(paging), true) = (&mut paging, &plan.paging, args.speed) {
                report.measure(&model, paging)?;
            }
            let speeds = match args.speed {
                true => speed::speeds(&model, &capabilities, &options, (on_host, paging.as_ref()))?,
                false => Vec::new(),
            };
            let windows = plan.config.encoder.is_some().then(|| options.slots / options.beams);
            let beams = windows.map(|_| options.beams);
            let pass = Pass::Generates { context, kv_type, prefill_rows, chain, windows, beams };
            let stages = stages::of(&plan, &capabilities, args.planned.chip.is_some());
            (pass, plan.whole_memory(), active, host, (speeds, paging, stages))
        }
        Some(_) if args.speed => {
            return Err(
                Failure::usage("models for texts run on one device as a whole").hint("leave out --speed")
            );
        }
        Some(task) => {
            args.hearing.refuse()?;
            args.tiers.refuse()?;
            let options = args.planned.text_options(task)?;
            let (plan, note) = akunu::plan_texts(&model, &capabilities, &options)?;
            if let Some(note) = note {
                output::note(&format!("note: {note}"));
            }
            let EncodeOptions { longest, rows, texts, kv, output, .. } = plan.options;
            let (output, kv_type, width) = (super::describe(output), kv.name(), plan.width);
            (
                Pass::Encodes { output, width, longest, kv_type, rows, texts },
                plan.memory,
                None,
                None,
                (Vec::new(), None, Vec::new()),
            )
        }
    };
    // The available memory of another chip is unknown; this machine's memory is irrelevant for it.
    let available = match args.planned.chip {
        Some(_) => None,
        None => self::available_of_all(&capabilities),
    };
    let files = model.weights().regions().iter().filter(|region| region.file().is_some());
    let files_read =
        args.planned.engine.device.no_mmap.then(|| files.map(|region| region.bytes().len() as u64).sum());
    let allocated = memory.allocated() + files_read.unwrap_or(0);
    let needed = needed(&memory, &capabilities) + files_read.unwrap_or(0);
    let on_host = match available {
        Some(_) => akunu::check_host(&memory, &capabilities, akunu::available_memory()),
        None => Ok(()),
    };
    let report = PlanReport {
        model: model.name(),
        device: capabilities.name,
        detail: &capabilities.detail,
        pass,
        ranks: capabilities.ranks,
        host,
        memory: memory.into(),
        active,
        paging,
        files_read,
        allocated,
        total: if files_read.is_some() {
            allocated + memory.weights_made + memory.tables + memory.host_cache
        } else {
            memory.total()
        },
        available,
        needed,
        speeds,
        fits: available.map(|available| {
            needed <= available && on_host.is_ok() && stages.iter().all(|stage| stage.fits != Some(false))
        }),
        stages,
        on_host: on_host.err().map(|error| error.to_string()),
    };
    match args.json {
        true => out.json(&report)?,
        false => print(args, &report, out)?,
    }
    match report.fits {
        Some(false) if args.check => Err(Failure::Reported),
        _ => Ok(()),
    }
}

fn available(capabilities: &Capabilities) -> Option<u64> {
    capabilities.available_bytes.or_else(akunu::available_memory)
}

/// With that of the devices before the last one, if they have memory of their own.
fn available_of_all(capabilities: &Capabilities) -> Option<u64> {
    match capabilities.in_place {
        InPlace::Nothing => capabilities.devices().map(available).sum(),
        _ => available(capabilities),
    }
}

/// Memory that has to be free on the device, beside that for files.
fn needed(memory: &MemoryPlan, capabilities: &Capabilities) -> u64 {
    let shares = capabilities.in_place != InPlace::Nothing;
    // The device has allocated its workspace already.
    let on_device = memory.allocated() - memory.workspace + memory.loading + memory.weights_made;
    on_device + if shares { memory.host_cache + memory.host_work } else { 0 }
}

fn fits(memory: &MemoryPlan, capabilities: &Capabilities, available: u64) -> bool {
    let on_host = akunu::check_host(memory, capabilities, akunu::available_memory());
    needed(memory, capabilities) <= available && on_host.is_ok()
}

fn print(args: &PlanArgs, report: &PlanReport<'_>, out: &mut Output) -> Result<(), Failure> {
    let (m, files_read) = (&report.memory, report.files_read);
    let mut grid = Grid::new().text("memory").number("bytes").number("").spare("what");
    let (scratch, encodes) = match report.pass {
        Pass::Generates { .. } => ("activations of one pass", false),
        Pass::Encodes { .. } => ("activations, keys and values of one pass", true),
    };
    let parts = [
        (
            "weights in place",
            m.weights_in_place,
            match files_read {
                Some(_) => "used in the memory that the files are read into",
                None => "used in the mapped file; the system may drop pages and read them again",
            },
        ),
        (
            "made of files",
            m.weights_made,
            "of these: transposed or joined when they are first read, in memory that stays theirs",
        ),
        (
            "weights copied",
            m.weights_copied,
            "norms and biases as f32, or all weights on a device with its own memory",
        ),
        (
            "read by a token",
            report.active.unwrap_or(0),
            "the weights of one token: it is routed to some of the experts",
        ),
        ("constants", m.constants, "RoPE frequencies"),
        ("KV cache", m.kv, "keys and values of the context"),
        (
            "slots",
            m.slots,
            "the CPU's weights of a layer, which prompts copy to the device, and those of the next one",
        ),
        ("experts", m.expert_slots, "slots for experts; those that are not there are read from the file"),
        ("scratch", m.scratch, scratch),
        ("rows and logits", m.io, "data exchanged between host and device"),
        ("workspace", m.workspace, "for the device's internal use"),
        ("tables", m.tables, "the commands"),
        (
            "cache in memory",
            m.host_cache,
            "the host's memory for blocks that leave the device (--kv-host, --kv-disk)",
        ),
        ("files", files_read.unwrap_or(0), "the model's files, read into memory (--no-mmap)"),
        (
            "allocated",
            report.allocated,
            match m.host_cache {
                0 => "everything except the weights in place and the tables",
                _ => "everything except the weights in place, the tables and the cache in memory",
            },
        ),
        ("total", report.total, ""),
        (
            "for loading",
            m.loading,
            "beside that: a copy of the largest weight while it is loaded, and rounding",
        ),
        ("weights on CPU", m.host_weights, "beside that: what the CPU computes, in the mapped file"),
        (
            "work on CPU",
            m.host_work,
            "beside that: the CPU's KV cache, activations, tables and slots for experts",
        ),
    ];
    let is_shown = |name: &str| match name {
        "KV cache" => !encodes,
        "made of files" => m.weights_made > 0,
        "files" => files_read.is_some(),
        "read by a token" => report.active.is_some(),
        "cache in memory" => m.host_cache > 0,
        "slots" => m.slots > 0,
        "experts" => m.expert_slots > 0,
        "for loading" => m.loading > 0,
        "weights on CPU" | "work on CPU" => m.host_work > 0,
        _ => true,
    };
    for (name, bytes, what) in parts.into_iter().filter(|part| is_shown(part.0)) {
        grid.row([name.to_string(), grouped(bytes), human(bytes), what.to_string()]);
    }
    let pass = match &report.pass {
        Pass::Generates { context, kv_type, windows: Some(windows), beams: Some(beams), .. } => format!(
            "{windows} windows at once, {beams} texts of each, {context} positions of {kv_type} keys and values"
        ),
        Pass::Generates { context, kv_type, prefill_rows, .. } => format!(
            "{} positions of {kv_type} keys and values, prefill in passes of {prefill_rows} rows",
            grouped(*context as u64)
        ),
        Pass::Encodes { output, longest, rows, texts, .. } => format!(
            "{output}, texts of at most {} tokens, passes of {} rows and at most {} results",
            grouped(*longest as u64),
            grouped(*rows as u64),
            grouped(*texts as u64)
        ),
    };
    out.line(&format!("{} on {}: {pass}", report.model, report.device))?;
    if report.ranks > 1 {
        out.line(&format!("Each of {} devices has a part of each layer, and needs this:", report.ranks))?;
    }
    if let Some(host) = &report.host {
        let prompts = match host.stream_rows {
            Some(rows) => format!(" Prompts copy its weights in passes of {rows} tokens and more."),
            None => " Prompts do not copy its weights.".to_string(),
        };
        out.line(&format!("The CPU computes {}.{prompts}", host.described))?;
    }
    report.paging.iter().flat_map(PagingReport::lines).try_for_each(|line| out.line(&line))?;
    out.text("\n")?;
    out.listing(&grid.render(output::width()))?;
    if !report.stages.is_empty() {
        out.text("\n")?;
        out.listing(&stages::grid(&report.stages).render(output::width()))?;
    }
    out.text("\n")?;
    out.text(&memory_bar(report).render(Style::of_stdout(), output::width()))?;
    out.text("\n")?;
    if !report.speeds.is_empty() {
        out.line("Predicted tokens/s, from a few layers that were run:")?;
        out.listing(&speed::grid(&report.speeds).render(output::width()))?;
        if report.speeds.iter().any(Speed::is_unknown) {
            out.line("–: not even a few of its layers fit into memory, so that they were not run.")?;
        }
        out.text("\n")?;
    }
    match args.planned.chip {
        Some(_) => out.line(&format!("Planned for chip: {}", report.detail)),
        None => out.line(&verdict(report)),
    }
}

/// The parts add up to the total.
fn memory_bar(report: &PlanReport<'_>) -> MemoryBar {
    let m = &report.memory;
    let stored = report.files_read.map_or(m.weights_in_place, |files| files + m.weights_made);
    let parts = [
        ("weights", stored + m.weights_copied + m.slots + m.expert_slots + m.constants),
        ("KV cache", m.kv + m.host_cache),
        ("activations", m.scratch + m.io),
        ("workspace and tables", m.workspace + m.tables),
    ];
    MemoryBar { parts, available: report.available }
}

fn verdict(report: &PlanReport<'_>) -> String {
    let Some(available) = report.available else {
        return "The available memory of this system is unknown.".to_string();
    };
    let free = human(available);
    if let Some(problem) = report.stages.iter().find_map(Stage::problem) {
        return problem;
    }
    if let Some(reason) = report.on_host.as_ref().filter(|_| report.needed <= available) {
        format!("Does not fit: {reason}.")
    } else if report.fits == Some(false) {
        format!(
            "Does not fit: {} to allocate, {free} available. {} (-c) needs less.",
            human(report.needed),
            match report.pass {
                Pass::Generates { .. } => "A smaller context",
                Pass::Encodes { .. } => "A smaller maximum text length",
            }
        )
    } else if report.total > available {
        format!(
            "Fits, but will be slow: only {free} are available, so weights must be read from disk repeatedly."
        )
    } else {
        format!("Fits: {free} are available.")
    }
}

//! `akunu plan`: the memory that a model will take, before anything is loaded.

use akunu::{Capabilities, EngineOptions, MemoryPlan, ModelPlan, human};
use clap::Args;
use serde::Serialize;

use crate::args::{EngineArgs, ModelArg};
use crate::failure::Failure;
use crate::grid::{Grid, grouped};
use crate::output::{self, Output};

/// Shows the memory that a model takes, to the byte, and whether it fits
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelArg,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    context: usize,
    kv_type: &'static str,
    prefill_rows: usize,
    chain: usize,
    memory: Parts,
    /// What the device allocates.
    allocated: u64,
    /// With the weights that stay in the file's mapping.
    total: u64,
    available: Option<u64>,
    fits: Option<bool>,
}

/// Bytes by purpose.
#[derive(Debug, Serialize)]
struct Parts {
    weights_in_place: u64,
    weights_copied: u64,
    constants: u64,
    kv: u64,
    scratch: u64,
    io: u64,
    workspace: u64,
    tables: u64,
}

impl From<MemoryPlan> for Parts {
    fn from(plan: MemoryPlan) -> Parts {
        let MemoryPlan { weights_in_place, weights_copied, constants, kv, scratch, io, workspace, tables } =
            plan;
        Parts { weights_in_place, weights_copied, constants, kv, scratch, io, workspace, tables }
    }
}

pub fn run(args: &PlanArgs, out: &mut Output) -> Result<(), Failure> {
    let model = super::open(args.model.model.as_deref())?;
    let options = args.engine.options();
    let device = akunu::open_device(options.device, options.threads, &options.backends)?;
    let plan = akunu::plan(&model, device.capabilities(), &options)?;
    let report = report(model.name(), device.capabilities(), &plan, &options);
    if args.json {
        return out.json(&report);
    }
    let m = &report.memory;
    let mut grid = Grid::new().text("memory").number("bytes").number("").spare("what");
    for (name, bytes, what) in [
        (
            "weights in place",
            m.weights_in_place,
            "used where the file is mapped; the system may drop and re-read them",
        ),
        (
            "weights copied",
            m.weights_copied,
            "norms and biases as f32, or all on a device with its own memory",
        ),
        ("constants", m.constants, "RoPE frequencies"),
        ("KV cache", m.kv, "keys and values of the context"),
        ("scratch", m.scratch, "activations of one pass"),
        ("rows and logits", m.io, "what host and device hand each other"),
        ("workspace", m.workspace, "the device's own"),
        ("tables", m.tables, "the commands"),
        ("allocated", report.allocated, "all but the weights in place and the tables"),
        ("total", report.total, ""),
    ] {
        grid.row([name.to_string(), grouped(bytes), human(bytes), what.to_string()]);
    }
    out.line(&format!(
        "{} on {}: {} positions of {} keys and values, prefill in passes of {} rows",
        report.model,
        report.device,
        grouped(report.context as u64),
        report.kv_type,
        report.prefill_rows
    ))?;
    out.text("\n")?;
    out.text(&grid.render(output::width()))?;
    out.text("\n")?;
    out.line(&verdict(&report))
}

fn report<'a>(
    model: &'a str,
    capabilities: &'a Capabilities,
    plan: &ModelPlan,
    options: &EngineOptions,
) -> Report<'a> {
    let available = capabilities.available_bytes.or_else(akunu::available_memory);
    Report {
        model,
        device: capabilities.name,
        context: plan.options.context,
        kv_type: options.kv.name(),
        prefill_rows: plan.options.prefill_rows,
        chain: plan.options.chain,
        memory: plan.memory.into(),
        allocated: plan.memory.allocated(),
        total: plan.memory.total(),
        available,
        fits: available.map(|available| plan.memory.allocated() <= available),
    }
}

fn verdict(report: &Report<'_>) -> String {
    let Some(available) = report.available else {
        return "This system does not say how much memory is available.".to_string();
    };
    let free = human(available);
    if report.allocated > available {
        format!(
            "Does not fit: {} to allocate, {free} available. A smaller context (-c) takes less.",
            human(report.allocated)
        )
    } else if report.total > available {
        format!("Fits, but slowly: {free} are available, so weights will be read from disk again and again.")
    } else {
        format!("Fits: {free} are available.")
    }
}

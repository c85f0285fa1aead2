//! `akunu table`: the commands of a pass, in order.

use akunu::DispatchTable;
use akunu_plan::{BufferSpec, Entries, PassKind, Row, Side};
use clap::Args;
use serde::Serialize;

use crate::args::{self, ModelArg, PlannedArgs, TaskArgs};
use crate::failure::Failure;
use crate::grid::{Grid, grouped};
use crate::output::{self, Output};

/// Prints the dispatch table of a pass: the commands that run, in order
///
/// Written buffers are marked with >. More than one row gives the table that processes a prompt in chunks of this size.
/// Embedding models and rerankers have one table.
#[derive(Debug, Args)]
pub struct TableArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Rows of the pass: 1 is a decode step [default: 1, or those of a pass over texts]
    #[arg(long, value_parser = args::count)]
    rows: Option<usize>,
    /// Without fused QKV, gate·up and activations, and without folded norms and RoPE
    #[arg(long)]
    unfused: bool,
    /// Prints the table of this device of several, from 0, with the part of each weight that it has
    ///
    /// For --tensor-parallel, several GPUs in --device, and --world. The commands are the same on all of them.
    #[arg(long, value_name = "R", value_parser = args::count_or_zero)]
    rank: Option<usize>,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    task: TaskArgs,
    #[command(flatten)]
    planned: PlannedArgs,
}

#[derive(Debug, Serialize)]
struct TableReport<'a> {
    model: &'a str,
    device: &'a str,
    /// Description by the device, or the name of the chip.
    detail: &'a str,
    /// Absent if the tables of all devices are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    table: &'static str,
    rows: usize,
    logit_rows: usize,
    steps: usize,
    bytes: u64,
    commands: Vec<Command<'a>>,
}

#[derive(Debug, Serialize)]
struct Command<'a> {
    label: &'a str,
    kernel: String,
    /// `device`; `stage N`: on one of the devices before it; or `host`: on the CPU beside it.
    side: String,
    bindings: Vec<String>,
    params: serde_json::Map<String, serde_json::Value>,
    /// Fields of its rows that it reads, or counts that it depends on.
    follows: Vec<&'static str>,
    weight_bytes: u64,
    kv_bytes_per_position: u64,
}

impl TableArgs {
    fn check_rank(&self, ranks: usize) -> Result<(), Failure> {
        match self.rank {
            Some(_) if ranks == 1 => Err(Failure::usage(
                "--rank is for a model of which several devices have a part of each layer",
            )
            .hint("give --tensor-parallel N, or several GPUs as in --device cuda:0,1")),
            Some(rank) if rank >= ranks => {
                Err(Failure::usage(format!("--rank {rank}: the ranks are 0 to {}", ranks - 1)))
            }
            _ => Ok(()),
        }
    }
}

pub fn run(args: &TableArgs, out: &mut Output) -> Result<(), Failure> {
    let model = super::open(args.model.path(), false)?;
    let capabilities = args.planned.capabilities()?;
    args.check_rank(capabilities.ranks)?;
    let (table, mut buffers, layers) = match args.task.task(&model) {
        None => {
            let mut options = args.planned.options();
            options.fuse = !args.unfused;
            let rows = args.rows.unwrap_or(1);
            if rows > 1 {
                options.chunk = Some(rows);
            }
            let plan = akunu::plan(&model, &capabilities, &options)?;
            let table = match plan.tables.kind_for(rows) {
                kind @ (PassKind::Decode | PassKind::StreamedPrefill) => &plan.tables[kind],
                _ => plan.tables.prefill(),
            };
            (table.clone(), plan.buffers, plan.config.layer_count)
        }
        Some(task) => {
            let mut options = args.planned.text_options(task)?;
            options.fuse = !args.unfused;
            if let Some(rows) = args.rows {
                options.rows = Some(rows);
                options.longest = options.longest.or(Some(rows.min(model.config().context_length)));
            }
            let (plan, _) = akunu::plan_texts(&model, &capabilities, &options)?;
            (plan.table, plan.buffers, plan.config.layer_count)
        }
    };
    if let Some(rank) = args.rank {
        buffers = buffers.iter().map(|buffer| buffer.of_rank(rank)).collect();
    }
    if args.json {
        let report = TableReport {
            model: model.name(),
            device: capabilities.name,
            detail: &capabilities.detail,
            rank: args.rank,
            table: table.name,
            rows: table.rows,
            logit_rows: table.logit_rows,
            steps: table.steps,
            bytes: table.bytes(),
            commands: commands(&table, &buffers),
        };
        return out.json(&report);
    }
    out.line(&format!(
        "{} on {}, {}: {} commands for {} {}, {} layers",
        model.name(),
        capabilities.name,
        table.name,
        table.commands.len(),
        table.rows,
        if table.rows == 1 { "row" } else { "rows" },
        layers
    ))?;
    if args.planned.chip.is_some() {
        out.line(&format!("planned for chip: {}", capabilities.detail))?;
    }
    if let Some(rank) = args.rank {
        out.line(&format!(
            "rank {rank} of {}: [1/2] is the first of two parts of a weight",
            capabilities.ranks
        ))?;
    }
    out.text("\n")?;
    let mut grid = Grid::new()
        .number("#")
        .text("label")
        .text("kernel")
        .text("follows")
        .number("weight bytes")
        .spare("buffers");
    for (i, command) in commands(&table, &buffers).into_iter().enumerate() {
        let bytes = if command.weight_bytes == 0 { String::new() } else { grouped(command.weight_bytes) };
        let side = table.commands[i].side;
        grid.row([
            i.to_string(),
            side.of_label(command.label),
            command.kernel,
            command.follows.join(" "),
            bytes,
            command.bindings.join(" "),
        ]);
    }
    out.listing(&grid.render(output::width()))
}

fn commands<'a>(table: &'a DispatchTable, buffers: &[BufferSpec]) -> Vec<Command<'a>> {
    // One row that attends to one position.
    let row = [Row::causal(0, 0, 0)];
    let pairs = table.commands.iter().zip(&table.labels).enumerate();
    pairs
        .map(|(index, (command, label))| Command {
            label,
            kernel: command.kernel.name(),
            side: match command.side {
                Side::Device => "device".into(),
                Side::Stage(stage) => format!("stage {stage}"),
                Side::Host => "host".into(),
            },
            bindings: table.describe_bindings(index, buffers),
            params: command
                .describe_params()
                .into_iter()
                .map(|(name, value)| (name.to_string(), number(&value)))
                .collect(),
            follows: command.follows(),
            weight_bytes: command.cost(Entries::Rows(&row), 1).weight_bytes,
            kv_bytes_per_position: command.cost(Entries::Rows(&row), 1).kv_bytes,
        })
        .collect()
}

/// Parameters are given as text; numbers become JSON numbers.
fn number(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::from(text))
}

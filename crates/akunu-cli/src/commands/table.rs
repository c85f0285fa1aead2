//! `akunu table`: the commands of a pass, in order.

use akunu::DispatchTable;
use akunu_plan::{BufferSpec, Row};
use clap::Args;
use serde::Serialize;

use crate::args::{self, EngineArgs, ModelArg};
use crate::failure::Failure;
use crate::grid::{Grid, grouped};
use crate::output::{self, Output};

/// Prints the dispatch table of a pass: the commands that run, in order
///
/// Written buffers are marked with >. A number of rows above 1 gives the table that feeds a prompt in such chunks.
#[derive(Debug, Args)]
pub struct TableArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Rows of the pass: 1 is a decode step
    #[arg(long, default_value = "1", value_parser = args::count)]
    rows: usize,
    /// Leave QKV and gate·up unfused, and norms and rotations apart
    #[arg(long)]
    unfused: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
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
    bindings: Vec<String>,
    params: serde_json::Map<String, serde_json::Value>,
    /// Fields of its rows that it reads, or the counts that it follows.
    follows: Vec<&'static str>,
    weight_bytes: u64,
    kv_bytes_per_position: u64,
}

pub fn run(args: &TableArgs, out: &mut Output) -> Result<(), Failure> {
    let model = super::open(args.model.model.as_deref())?;
    let mut options = args.engine.options();
    options.fuse = !args.unfused;
    if args.rows > 1 {
        options.chunk = Some(args.rows);
    }
    let device = akunu::open_device(options.device, options.threads, &options.backends)?;
    let plan = akunu::plan(&model, device.capabilities(), &options)?;
    let table = if args.rows == 1 { &plan.tables.decode } else { &plan.tables.prefill };
    if args.json {
        let report = Report {
            model: model.name(),
            device: device.capabilities().name,
            table: table.name,
            rows: table.rows,
            logit_rows: table.logit_rows,
            steps: table.steps,
            bytes: table.bytes(),
            commands: commands(table, &plan.buffers),
        };
        return out.json(&report);
    }
    out.line(&format!(
        "{} on {}, {}: {} commands for {} {}, {} layers",
        model.name(),
        device.capabilities().name,
        table.name,
        table.commands.len(),
        table.rows,
        if table.rows == 1 { "row" } else { "rows" },
        plan.config.layer_count
    ))?;
    out.text("\n")?;
    let mut grid = Grid::new()
        .number("#")
        .text("label")
        .text("kernel")
        .text("follows")
        .number("weight bytes")
        .spare("buffers");
    for (i, command) in commands(table, &plan.buffers).into_iter().enumerate() {
        let bytes = if command.weight_bytes == 0 { String::new() } else { grouped(command.weight_bytes) };
        let label = command.label.to_string();
        grid.row([
            i.to_string(),
            label,
            command.kernel,
            command.follows.join(" "),
            bytes,
            command.bindings.join(" "),
        ]);
    }
    out.text(&grid.render(output::width()))
}

fn commands<'a>(table: &'a DispatchTable, buffers: &[BufferSpec]) -> Vec<Command<'a>> {
    // What one row sees of one position.
    let row = [Row::causal(0, 0, 0)];
    let pairs = table.commands.iter().zip(&table.labels);
    pairs
        .map(|(command, label)| Command {
            label,
            kernel: command.kernel.name(),
            bindings: command.describe_bindings(buffers),
            params: command
                .describe_params()
                .into_iter()
                .map(|(name, value)| (name.to_string(), number(&value)))
                .collect(),
            follows: command.follows(),
            weight_bytes: command.cost(&row, 1).weight_bytes,
            kv_bytes_per_position: command.cost(&row, 1).kv_bytes,
        })
        .collect()
}

/// Parameters come as text; in JSON a number is a number.
fn number(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::from(text))
}

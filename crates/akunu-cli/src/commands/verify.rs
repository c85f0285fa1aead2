//! `akunu verify`: compares a device with the reference, command by command.

use akunu::{DeviceChoice, MemoryPlan, Model, TextIds, human};
use akunu_plan::verify::{Difference, Report, verify_against};
use akunu_plan::{Capabilities, InPlace};
use clap::Args;
use serde_json::json;

use crate::args::{self, EitherArgs, ModelArg, TaskArgs};
use crate::failure::Failure;
use crate::grid::Grid;
use crate::output::{self, Output};
use crate::progress::Progress;

/// Number of kernels in the table without `--all`.
const SHOWN: usize = 20;
const FEWER: &str = "compare fewer (--tokens)";

/// Compares a device with the reference, command by command
///
/// Both run the same table on the same random tokens: a prefill pass and a decode step, or for embedding models and
/// rerankers a pass over texts of different lengths. Reports the first command whose output differs by more than
/// rounding, with exit code 1. The table shows the worst output of each kernel, worst first.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Number of random tokens; for texts, of the longest one
    #[arg(long, default_value = "8", value_parser = args::count)]
    tokens: usize,
    /// Without fused QKV, gate·up and activations, and without folded norms and RoPE
    #[arg(long)]
    unfused: bool,
    /// Shows every compared output, in the order of the commands, instead of the worst ones
    #[arg(long)]
    all: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    task: TaskArgs,
    /// Context length in tokens, or maximum text length for embedding models [default: as needed for the tokens]
    #[arg(short, long, value_parser = args::count, allow_negative_numbers = true, help_heading = "Engine")]
    context: Option<usize>,
    #[command(flatten)]
    engine: EitherArgs,
}

pub fn run(args: &VerifyArgs, out: &mut Output) -> Result<(), Failure> {
    let model = super::open(args.model.path(), args.engine.device.no_mmap)?;
    let mut options = args.engine.options(args.context);
    let mut device = akunu::open_device(options.device, options.threads, &options.backends)?;
    if options.device == DeviceChoice::Reference {
        output::note("note: this compares the reference with itself");
    }
    let mut progress = Progress::new("verifying", 1);
    let mut told = |done: usize, all: usize| {
        progress.total(all as u64);
        progress.set(done as u64);
    };
    let report = match args.task.task(&model) {
        None => {
            let trained = model.config().context_length;
            let longest = options.context.unwrap_or(trained);
            if longest <= args.tokens {
                let problem =
                    format!("a context of {longest} has no room for {} tokens and one more", args.tokens);
                return Err(Failure::usage(problem).hint(FEWER));
            }
            options.context.get_or_insert(args.tokens + 1);
            options.chunk.get_or_insert(args.tokens);
            options.fuse = !args.unfused;
            options.word_times = true;
            let plan = akunu::plan(&model, device.capabilities(), &options)?;
            check_memory(&plan.whole_memory(), device.capabilities())?;
            device = akunu::device_for_plan(&plan, device, &options)?;
            let tokens = super::random_ids(args.tokens + 1, plan.config.vocab_size, 1);
            let mut reference = akunu::devices::reference_for(device.capabilities())?;
            let both: [&mut dyn akunu_plan::Device; 2] = [&mut *reference, &mut *device];
            verify_against(&plan, model.weights(), both, &tokens, &mut told).map_err(akunu::Error::from)?
        }
        Some(task) => {
            let mut options = args.engine.text_options(task, args.context)?;
            let texts = texts(&model, args.tokens);
            options.longest.get_or_insert(args.tokens);
            options.rows.get_or_insert(texts.iter().map(|text| text.ids.len()).sum());
            options.fuse = !args.unfused;
            akunu::verify_texts(&model, &mut *device, &options, &texts, &mut told)?
        }
    };
    drop(progress);
    let name = device.capabilities().name;
    if args.json {
        out.json(&json(name, &report, args.all))?;
    } else {
        print(name, &report, args.all, out)?;
    }
    match report.first_bad() {
        None => Ok(()),
        Some(bad) => Err(wrong(name, bad)),
    }
}

/// The reference has its buffers in the host's memory, beside those of a device that has no other.
fn check_memory(memory: &MemoryPlan, capabilities: &Capabilities) -> Result<(), Failure> {
    let shares = capabilities.in_place != InPlace::Nothing;
    let needed = memory.allocated() * if shares { 2 } else { 1 };
    match akunu::available_memory() {
        Some(free) if free < needed => {
            let (needed, free) = (human(needed), human(free));
            Err(Failure::new(format!(
                "comparing needs {needed} of the host's memory, and {free} are available"
            ))
            .hint(FEWER))
        }
        _ => Ok(()),
    }
}

/// Texts of different lengths: all tokens, about half of them, and one.
fn texts(model: &Model, tokens: usize) -> Vec<TextIds> {
    let lengths = [tokens, tokens.div_ceil(2), 1];
    let ids = |(length, seed)| super::random_ids(length, model.config().vocab_size, seed);
    lengths.into_iter().zip(1..).map(|text| ids(text).into()).collect()
}

fn print(device: &str, report: &Report, all: bool, out: &mut Output) -> Result<(), Failure> {
    let worst = report.worst_by_kernel();
    let shown: Vec<&Difference> = match all {
        true => report.differences.iter().collect(),
        false => worst.iter().copied().take(SHOWN).collect(),
    };
    let mut grid = Grid::new()
        .text("kernel")
        .text(if all { "at" } else { "worst at" })
        .word("output")
        .number("difference")
        .number("allowed")
        .word("");
    for d in &shown {
        let verdict = if d.exceeds() { "BAD" } else { "ok" };
        grid.row([
            d.kernel.clone(),
            format!("{} {}", d.table, d.label),
            d.output.to_string(),
            format!("{:.2e}", d.relative),
            format!("{:.2e}", d.tolerance),
            verdict.to_string(),
        ]);
    }
    out.listing(&grid.render(output::width()))?;
    if !all && worst.len() > shown.len() {
        let rest = &worst[shown.len()..];
        let bad = rest.iter().filter(|d| d.exceeds()).count();
        let verdict = if bad == 0 { "all ok".to_string() } else { format!("{bad} of them BAD") };
        out.line(&format!("and {} more kernels, {verdict} (--all shows every output)", rest.len()))?;
    }
    out.text("\n")?;
    if report.first_bad().is_none() {
        let count = report.differences.len();
        out.line(&format!("{device} agrees with the reference in all {count} outputs."))?;
    }
    out.flush()
}

fn wrong(device: &str, bad: &Difference) -> Failure {
    Failure::new(format!(
        "{device} differs from the reference first at command {} of the {} table, {} ({}): its {} is off by {:.2e} of the \
         largest value, and {:.2e} is allowed",
        bad.command, bad.table, bad.label, bad.kernel, bad.output, bad.relative, bad.tolerance
    ))
    .hint("please report this line with the output of `akunu doctor`")
}

fn json(device: &str, report: &Report, all: bool) -> serde_json::Value {
    let one = |d: &Difference| {
        json!({
            "table": d.table, "command": d.command, "label": d.label, "kernel": d.kernel,
            "output": d.output, "difference": d.relative, "allowed": d.tolerance, "ok": !d.exceeds(),
        })
    };
    let mut about = json!({
        "device": device,
        "ok": report.first_bad().is_none(),
        "outputs": report.differences.len(),
        "first_bad": report.first_bad().map(one),
        "worst_by_kernel": report.worst_by_kernel().into_iter().map(one).collect::<Vec<_>>(),
    });
    if all {
        about["differences"] = report.differences.iter().map(one).collect();
    }
    about
}

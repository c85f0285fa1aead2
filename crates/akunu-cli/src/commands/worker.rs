//! `akunu worker`: one of several processes that share out a model.

use akunu::devices::{Join, Secret, Timing, Worker};
use clap::Args;

use crate::args::{self, DeviceParser, ModelArg, SelectedDevice};
use crate::environment;
use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  akunu serve model.gguf --world 2 --listen 10.0.0.1:9000          on the first
  akunu worker model.gguf --rank 1 --world 2 --join 10.0.0.1:9000  on the second

Both need the same secret, in AKUNU_WORKER_SECRET or --secret-file. The connection is not encrypted.";

/// Computes a part of the model of another process
///
/// Joins a command that was started with --world and --listen, which then runs its model on the devices of all these
/// processes. Each reads its own copy of the model's files. The worker waits until that command is there, and ends with
/// it: with exit code 0 if it has ended as it should, else 1.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct WorkerArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Which part of the model this process has: 1 to N - 1; the other command has part 0
    #[arg(long, value_name = "R", value_parser = args::count)]
    rank: usize,
    /// Number of processes, as for the other command
    #[arg(long, value_name = "N", value_parser = args::count)]
    world: usize,
    /// Address at which the other command listens
    #[arg(long, value_name = "HOST:PORT")]
    join: String,
    /// File with the secret of these processes; $AKUNU_WORKER_SECRET has another one [default: none, on a loopback address]
    #[arg(long, value_name = "FILE", value_parser = args::secret_file)]
    secret_file: Option<Secret>,
    /// No notes on stderr
    #[arg(short, long)]
    quiet: bool,
    /// CPU threads [default: one per core]
    #[arg(short, long, value_parser = args::threads, allow_negative_numbers = true, help_heading = "Engine")]
    threads: Option<usize>,
    /// Device of this process; with a number, as in cuda:1, that GPU
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceParser, help_heading = "Engine")]
    device: SelectedDevice,
    /// Read the model's files into memory instead of mapping them: if a mapped file is truncated, the process ends
    #[arg(long, help_heading = "Engine")]
    no_mmap: bool,
}

pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let model = super::open(args.model.path(), args.no_mmap)?;
    let backends = akunu::BackendOptions { cards: args.device.cards.clone(), ..environment::backends() };
    let note = |text: String| {
        if !args.quiet {
            output::note(&format!("note: {text}"));
        }
    };
    let join = Join {
        address: args.join.clone(),
        rank: args.rank,
        ranks: args.world,
        secret: args::secret(args.secret_file.as_ref()),
        timing: Timing::default(),
    };
    note(format!("joining the leader at {}", args.join));
    let worker = Worker::join(&join, args.device.choice, args.threads, &backends)?;
    note(format!("this is rank {} of {}", args.rank, args.world));
    worker.work(&model)?;
    note("the leader has ended".into());
    Ok(())
}

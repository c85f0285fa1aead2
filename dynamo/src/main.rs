use clap::Parser;

fn main() -> anyhow::Result<()> {
    akunu_dynamo::worker::run(akunu_dynamo::worker::Args::parse())
}

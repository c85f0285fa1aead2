//! Measures a chain that reaches a stop token early. Its later steps do nothing, but some of them are submitted.
//!
//! `cargo run --release -p akunu --example chain_end -- DEVICE [MODEL]`
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu::{BackendOptions, DeviceChoice, Engine, EngineOptions, Error, Model, Session};

const RUNS: usize = 31;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let device: DeviceChoice = args.next().ok_or("usage: chain_end DEVICE [MODEL]")?.parse()?;
    let model = Arc::new(args.next().map_or_else(Model::embedded, Model::open)?);
    let backends = BackendOptions::from_variables(|name| std::env::var_os(name));
    let options = EngineOptions { device, backends, context: Some(256), ..Default::default() };
    let mut engine = Engine::new(model, &options)?;
    let mut session = engine.session()?;
    let longest = engine.plan().tables.decode().steps;

    let found = (0..engine.vocab_size() as u32).find_map(|first| {
        session.clear();
        match engine.chain(&mut session, &[first], None, 2, &[], None) {
            Ok(&[one, two]) if one != two => Some((first, two)),
            _ => None,
        }
    });
    let (first, second) = found.ok_or("no chain has two different tokens")?;
    let mut run = |steps, stop: &[u32]| median(&mut engine, &mut session, first, steps, stop);
    let (all, whole) = run(longest, &[])?;
    let (two, short) = run(2, &[])?;
    let (stopped, early) = run(longest, &[second])?;
    if (all, two, stopped) != (longest, 2, 2) {
        return Err(
            format!("chains of {all}, {two} and {stopped} steps instead of {longest}, 2 and 2").into()
        );
    }
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    println!("{} steps: {:.0} µs, {:.1} each", longest, us(whole), us(whole) / longest as f64);
    println!("2 steps: {:.0} µs", us(short));
    println!(
        "2 of {longest} steps, stopped: {:.0} µs, so stopping takes {:.0}",
        us(early),
        us(early) - us(short)
    );
    Ok(())
}

/// The number of steps of a chain, and its median duration, after a warm-up.
fn median(
    engine: &mut Engine,
    session: &mut Session,
    first: u32,
    steps: usize,
    stop: &[u32],
) -> Result<(usize, Duration), Error> {
    let mut done = 0;
    let mut times = Vec::with_capacity(RUNS + 1);
    for _ in 0..=RUNS {
        session.clear();
        let start = Instant::now();
        done = engine.chain(session, &[first], None, steps, stop, None)?.len();
        times.push(start.elapsed());
    }
    times.remove(0);
    times.sort();
    Ok((done, times[RUNS / 2]))
}

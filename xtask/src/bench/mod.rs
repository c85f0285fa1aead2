//! `bench cpu`: models in several shapes and types compared with this machine's ceilings, a peer, and a baseline.

mod options;
mod print;
mod programs;
mod row;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

use options::{MAIN_TYPE, MLX, MLX_MODEL, Options};
use programs::{Akunu, Ceilings, Measured, Peer};
use row::{Machine, Report, Row, Unit, median_min_max};

/// Measures and prints. `build` builds akunu if cargo is available.
pub(crate) fn cpu(args: &[String], repository: &Path, build: impl Fn() -> Result<PathBuf>) -> Result<()> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        say!("{}", options::USAGE);
        return Ok(());
    }
    let options = Options::parse(args, repository)?;
    let akunu = Akunu::find(build)?;
    let doctor = akunu.doctor()?;
    let (cpu, isa) = (doctor.cpu.clone().unwrap_or_else(|| std::env::consts::ARCH.into()), doctor.isa());
    let kind = row::kind(&cpu, doctor.cores, &isa);
    let baseline_file = options.baselines.join(format!("{kind}.json"));
    let before = Report::read(&baseline_file)?;
    let threads = options.threads.unwrap_or(doctor.cores);
    let commit = options.commit.clone().unwrap_or_else(|| commit(repository));
    let machine = Machine { kind, cpu, cores: doctor.cores, isa, features: doctor.features };
    let mut bench =
        Bench { akunu, peer: Peer::find(), options, threads, rows: Vec::new(), models: Vec::new() };
    bench.all()?;

    let Bench { akunu, options, rows, models, .. } = bench;
    let report = Report { machine, date: row::today(), commit, rows };
    say!("{}", print::table(&report, before.as_ref(), options.margin));
    print::worst(&akunu, &report.rows, &models, threads)?;
    if let Some(path) = &options.json {
        report.write(path)?;
    }
    let worse = before.iter().flat_map(|before| print::worse(&report.rows, before, options.margin)).count();
    if options.write_baseline {
        match before {
            Some(mut kept) => {
                kept.update(report);
                kept.write(&baseline_file)?;
            }
            None => report.write(&baseline_file)?,
        }
        say!("baseline written to {}", baseline_file.display());
    }
    if options.check && worse > 0 {
        bail!("{worse} rows are slower than the baseline by more than {:.0}%", 100.0 * options.margin);
    }
    Ok(())
}

fn commit(repository: &Path) -> String {
    let git = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(repository).output();
    let found = git.ok().filter(|output| output.status.success());
    found.map_or("unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

struct Bench {
    akunu: Akunu,
    peer: Option<Peer>,
    options: Options,
    threads: usize,
    rows: Vec<Row>,
    /// Shape, type and file.
    models: Vec<(String, String, PathBuf)>,
}

impl Bench {
    fn all(&mut self) -> Result<()> {
        for shape in self.options.models.clone() {
            let types = self.options.types.clone();
            for quant in types.into_iter().filter(|quant| quant != MLX || shape == MLX_MODEL) {
                eprintln!("{shape} {quant}");
                let file = self.akunu.synth(&shape, &quant, &self.options.cache)?;
                self.models.push((shape.clone(), quant.clone(), file.clone()));
                self.model(&shape, &quant, &file)?;
            }
        }
        Ok(())
    }

    fn model(&mut self, shape: &str, quant: &str, file: &Path) -> Result<()> {
        let is_main = quant == MAIN_TYPE;
        let wants = |bench: &Bench, test: &str| bench.options.tests(test) && (is_main || test == "speed");
        let n = self.threads.to_string();
        if wants(self, "speed") {
            self.speeds(shape, quant, file, &n, &["-p", "512", "-n", "128"])?;
        }
        if wants(self, "threads") {
            // One thread, and more threads than cores. The number of cores is measured above.
            let n = self.threads;
            for threads in [1, 2 * n].into_iter().filter(|&t| t != n) {
                self.speeds(shape, quant, file, &threads.to_string(), &["-p", "512", "-n", "128"])?;
            }
        }
        if wants(self, "shared") {
            let test = ["-p", "0", "-n", "128"];
            let mut rows = beside_a_busy_thread(|| self.ours(file, &n, &test, self.options.repetitions))?;
            rows.iter_mut().for_each(|row| row.test += "@busy");
            self.take(shape, quant, rows, &[]);
        }
        if wants(self, "depth") {
            self.speeds(shape, quant, file, &n, &["-p", "0", "-n", "128", "-d", "4096"])?;
        }
        if wants(self, "batch") {
            let rows = self.ours(file, &n, &["-p", "0", "-n", "32", "-b", "16"], self.options.repetitions)?;
            self.take(shape, quant, rows, &[]);
        }
        if wants(self, "load") {
            self.load(shape, quant, file, &n)?;
        }
        Ok(())
    }

    fn ours(&self, file: &Path, threads: &str, test: &[&str], repetitions: usize) -> Result<Vec<Measured>> {
        let repetitions = repetitions.to_string();
        let args = [test, &["--ceilings", "-t", threads, "-r", &repetitions]].concat();
        self.akunu.bench(file, &args)
    }

    /// Alone, or alternating with the peer: A B A B.
    fn speeds(&mut self, shape: &str, quant: &str, file: &Path, threads: &str, test: &[&str]) -> Result<()> {
        let Some(peer) = self.peer.as_ref().filter(|_| quant != MLX) else {
            let rows = self.ours(file, threads, test, self.options.repetitions)?;
            self.take(shape, quant, rows, &[]);
            return Ok(());
        };
        let half = self.options.repetitions.div_ceil(2);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            ours.extend(self.ours(file, threads, test, half)?);
            let repetitions = half.to_string();
            theirs.extend(peer.bench(file, &[test, &["-t", threads, "-r", &repetitions]].concat())?);
        }
        self.take(shape, quant, ours, &theirs);
        Ok(())
    }

    /// Adds a row for all measurements of one test.
    fn take(&mut self, shape: &str, quant: &str, measured: Vec<Measured>, peer: &[(String, Vec<f64>)]) {
        let mut left = measured;
        while let Some(first) = left.first().cloned() {
            let (same, others): (Vec<Measured>, Vec<Measured>) =
                left.into_iter().partition(|m| m.test == first.test && m.threads == first.threads);
            left = others;
            let runs: Vec<f64> = same.iter().flat_map(|m| m.runs.clone()).collect();
            let (value, min, max) = median_min_max(&runs);
            let mean = |of: &dyn Fn(&Measured) -> Option<f64>| {
                let found: Vec<f64> = same.iter().filter_map(of).collect();
                (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
            };
            let ceiling = |of: fn(&Ceilings) -> f64| mean(&|m| m.ceilings.as_ref().map(of));
            let theirs: Vec<f64> = peer
                .iter()
                .filter(|(test, _)| *test == first.test)
                .flat_map(|(_, runs)| runs.clone())
                .collect();
            self.rows.push(Row {
                model: shape.into(),
                quant: quant.into(),
                threads: first.threads,
                test: first.test,
                unit: Unit::TokensPerSecond,
                value,
                min,
                max,
                of_ceiling: mean(&|m| m.of_ceiling.map(|part| part / m.tok_s)).map(|part| part * value),
                read_gb_s: ceiling(|c| c.read_gb_s),
                int8_gop_s: ceiling(|c| c.int8_gop_s),
                f32_gop_s: ceiling(|c| c.f32_gop_s),
                peer: (!theirs.is_empty()).then(|| median_min_max(&theirs).0),
            });
        }
    }

    /// Time to first token, and memory of the process in excess of the plan.
    fn load(&mut self, shape: &str, quant: &str, file: &Path, threads: &str) -> Result<()> {
        // Run once, so that the file is in memory.
        self.akunu.first_token(file, threads)?;
        let runs: Result<Vec<f64>> =
            (0..self.options.repetitions).map(|_| self.akunu.first_token(file, threads)).collect();
        let runs = runs?;
        self.push_plain(shape, quant, "first_token", Unit::Milliseconds, &runs);
        let measured = self.akunu.bench(file, &["-p", "512", "-n", "16", "-r", "1", "-t", threads])?;
        let beyond = measured.iter().filter_map(|m| Some(m.own_memory?.saturating_sub(m.planned_memory)));
        if let Some(bytes) = beyond.max() {
            self.push_plain(shape, quant, "memory_beyond_plan", Unit::Megabytes, &[bytes as f64 / 1e6]);
        }
        Ok(())
    }

    fn push_plain(&mut self, shape: &str, quant: &str, test: &str, unit: Unit, runs: &[f64]) {
        let (value, min, max) = median_min_max(runs);
        self.rows.push(Row {
            model: shape.into(),
            quant: quant.into(),
            threads: self.threads,
            test: test.into(),
            unit,
            value,
            min,
            max,
            of_ceiling: None,
            read_gb_s: None,
            int8_gop_s: None,
            f32_gop_s: None,
            peer: None,
        });
    }
}

/// Runs `work` while another thread of this program keeps a core busy.
fn beside_a_busy_thread<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

//! The measured programs: akunu, and a peer for comparison.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::options::MLX;

#[derive(Debug)]
pub(super) struct Akunu(PathBuf);

/// The result of `akunu bench --json` for one test.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Measured {
    pub(super) threads: usize,
    pub(super) test: String,
    pub(super) tok_s: f64,
    pub(super) own_memory: Option<u64>,
    pub(super) planned_memory: u64,
    pub(super) of_ceiling: Option<f64>,
    pub(super) ceilings: Option<Ceilings>,
    pub(super) runs: Vec<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Ceilings {
    pub(super) read_gb_s: f64,
    pub(super) int8_gop_s: f64,
    pub(super) f32_gop_s: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Doctor {
    pub(super) cpu: Option<String>,
    pub(super) cores: usize,
    pub(super) features: Vec<String>,
    devices: Vec<DoctorDevice>,
}

#[derive(Debug, Deserialize)]
struct DoctorDevice {
    name: String,
    detail: String,
}

impl Doctor {
    /// The instruction set in the CPU device's description `avx512, 2 threads`.
    pub(super) fn isa(&self) -> String {
        let cpu = self.devices.iter().find(|device| device.name == "cpu");
        cpu.and_then(|device| device.detail.split(',').next()).unwrap_or("unknown").to_string()
    }
}

impl Akunu {
    /// `AKUNU`; or the one beside this program; or, when run by cargo, one that is built now.
    pub(super) fn find(build: impl Fn() -> Result<PathBuf>) -> Result<Akunu> {
        if let Some(path) = std::env::var_os("AKUNU") {
            return Ok(Akunu(path.into()));
        }
        if std::env::var_os("CARGO").is_some() {
            return Ok(Akunu(build()?));
        }
        let beside =
            std::env::current_exe()?.with_file_name(format!("akunu{}", std::env::consts::EXE_SUFFIX));
        if !beside.is_file() {
            bail!("{} does not exist; put akunu there, or set AKUNU to its path", beside.display());
        }
        Ok(Akunu(beside))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.0);
        command.args(args).stdin(Stdio::null());
        command
    }

    pub(super) fn doctor(&self) -> Result<Doctor> {
        Ok(serde_json::from_str(&output(&mut self.command(&["doctor", "--json"]))?)?)
    }

    /// A model with this shape and type, generated if it does not exist.
    pub(super) fn synth(&self, shape: &str, quant: &str, folder: &Path) -> Result<PathBuf> {
        let (ending, kind) = if quant == MLX { ("", ["--mlx", "4"]) } else { (".gguf", ["-q", quant]) };
        let path = folder.join(format!("{shape}-{quant}{ending}"));
        // An incomplete folder has no configuration.
        let whole = if quant == MLX { path.join("config.json") } else { path.clone() };
        if !whole.exists() {
            std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
            output(self.command(&["synth", shape, "--force"]).args(kind).arg(&path))?;
        }
        Ok(path)
    }

    pub(super) fn bench(&self, model: &Path, args: &[&str]) -> Result<Vec<Measured>> {
        let text = output(self.command(&["bench", "--json", "--device", "cpu"]).args(args).arg(model))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Milliseconds from the start of the program until it has generated one token and exited.
    pub(super) fn first_token(&self, model: &Path, threads: &str) -> Result<f64> {
        let args = [
            "run",
            "--prompt-ids",
            "1",
            "-n",
            "1",
            "--ids",
            "--ignore-eos",
            "-q",
            "--device",
            "cpu",
            "-t",
            threads,
        ];
        let mut command = self.command(&args);
        command.arg(model);
        let started = Instant::now();
        output(&mut command)?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }

    /// The profile in text form.
    pub(super) fn profile(&self, model: &Path, args: &[&str]) -> Result<String> {
        output(self.command(&["profile", "--device", "cpu"]).args(args).arg(model).env("COLUMNS", "100"))
    }
}

/// llama-bench, or a fork of it.
#[derive(Debug)]
pub(super) struct Peer(PathBuf);

impl Peer {
    /// The program in `LLAMA_BENCH`.
    pub(super) fn find() -> Option<Peer> {
        std::env::var_os("LLAMA_BENCH").map(|path| Peer(path.into()))
    }

    /// Tokens per second of each run, by test name.
    pub(super) fn bench(&self, model: &Path, args: &[&str]) -> Result<Vec<(String, Vec<f64>)>> {
        let mut command = Command::new(&self.0);
        command.arg("-m").arg(model).args(args).args(["-o", "json"]).stdin(Stdio::null());
        peer_rows(&output(&mut command)?)
    }
}

fn peer_rows(json: &str) -> Result<Vec<(String, Vec<f64>)>> {
    let rows: Vec<Value> = serde_json::from_str(json).context("llama-bench did not print its JSON")?;
    let read = |row: &Value| {
        let number = |key: &str| row[key].as_u64();
        let mut name = match (number("n_prompt")?, number("n_gen")?) {
            (0, tokens) => format!("tg{tokens}"),
            (tokens, 0) => format!("pp{tokens}"),
            _ => return None,
        };
        if let Some(depth) = number("n_depth").filter(|&depth| depth > 0) {
            name += &format!("@d{depth}");
        }
        let runs = row["samples_ts"].as_array()?.iter().filter_map(Value::as_f64).collect();
        Some((name, runs))
    };
    Ok(rows.iter().filter_map(read).collect())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::piped()).output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_llama_bench_have_our_names() {
        let json = r#"[
            {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 2.0, "samples_ts": [1.0, 3.0]},
            {"n_prompt": 0, "n_gen": 128, "n_depth": 4096, "samples_ts": [5.5]},
            {"n_prompt": 8, "n_gen": 8, "samples_ts": [1.0]}
        ]"#;
        let expected = [("pp512".to_string(), vec![1.0, 3.0]), ("tg128@d4096".to_string(), vec![5.5])];
        assert_eq!(peer_rows(json).unwrap(), expected);
        assert!(peer_rows("error: no such model").is_err());
    }
}

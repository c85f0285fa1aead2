//! The table of models: sizes of files in their shapes, and the memory that is planned for them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Model {
    model: String,
    /// The preset of `akunu synth`.
    shape: String,
    #[serde(rename = "type")]
    dtype: String,
    hub: String,
    command: String,
    good_for: String,
    /// Tokens of the context, or of the longest text.
    context: usize,
    /// Bytes of the file.
    file: u64,
    /// Bytes in total, weights included.
    memory: u64,
}

pub(super) fn parse(json: &str) -> Result<Vec<Model>> {
    Ok(serde_json::from_str(json)?)
}

pub(super) fn table(models: &[Model], has_names: bool) -> String {
    let names = if has_names { [" name on the hub |", "---|"] } else { ["", ""] };
    let mut table = format!(
        "| model | type | on disk | memory | good for | command |{}\n|---|---|---|---|---|---|{}\n",
        names[0], names[1]
    );
    for Model { model, dtype, hub, command, good_for, file, memory, .. } in models {
        let command = match command.as_str() {
            "embed" => format!("akunu embed hf:{hub} \"a text\""),
            other => format!("akunu {other} hf:{hub}"),
        };
        let [file, memory] = [file, memory].map(|&bytes| size(bytes));
        let name =
            if has_names { format!(" [{hub}](https://huggingface.co/{hub}) |") } else { String::new() };
        table += &format!("| {model} | {dtype} | {file} | {memory} | {good_for} | `{command}` |{name}\n");
    }
    table
}

/// `639 MB`, `2.5 GB`: decimal, as files are listed on the hub.
fn size(bytes: u64) -> String {
    match bytes as f64 / 1e6 {
        mega @ 1000.0.. => format!("{:.1} GB", mega / 1e3),
        mega => format!("{mega:.0} MB"),
    }
}

/// Makes each file, and asks for its plan.
pub(super) fn measured(old: &str, akunu: &Path) -> Result<String> {
    let mut models = parse(old)?;
    let folder = std::env::temp_dir().join(format!("akunu-models-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    for model in &mut models {
        let path = folder.join("model.gguf");
        let made = Command::new(akunu)
            .args(["synth", &model.shape])
            .arg(&path)
            .args(["--force", "-q", &model.dtype])
            .status()?;
        let plan = Command::new(akunu)
            .arg("plan")
            .arg(&path)
            .args(["--device", "cpu", "--json", "-c", &model.context.to_string()])
            .output()?;
        if !(made.success() && plan.status.success()) {
            bail!("{}: {}", model.shape, String::from_utf8_lossy(&plan.stderr));
        }
        let plan: serde_json::Value = serde_json::from_slice(&plan.stdout)?;
        model.file = fs::metadata(&path)?.len();
        model.memory = plan["total"].as_u64().context("the plan has no total")?;
    }
    fs::remove_dir_all(&folder)?;
    Ok(serde_json::to_string_pretty(&models)? + "\n")
}

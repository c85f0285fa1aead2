//! A model that thinks before it answers, always the same.

use akunu_server::ModelSpec;
use tempfile::TempDir;

#[path = "../../../akunu-cli/tests/cli/scripted.rs"]
mod scripted;

pub const THINKER: &str = "thinker";

/// The folder is gone when it is dropped.
pub fn thinker() -> (TempDir, ModelSpec) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thinker.gguf");
    let template = format!("{}{{# <think> </think> #}}", scripted::CHATML);
    scripted::write(&path, Some(&template), &["\n", "<think>", "Hmm.", "</think>", "Yes."]);
    (folder, ModelSpec { name: THINKER.into(), path: Some(path), aliases: Vec::new() })
}

//! Models that say always the same.

use akunu_fixtures::scripted;
use akunu_server::ModelSpec;
use tempfile::TempDir;

pub const THINKER: &str = "thinker";

/// Thinks before it answers. The folder is gone when it is dropped.
pub fn thinker() -> (TempDir, ModelSpec) {
    says(THINKER, "<think> </think>", &["Yes."])
}

pub const CALLER: &str = "caller";

/// Thinks, says something, and calls two tools as Qwen does; a mark and an argument come in pieces.
pub fn caller() -> (TempDir, ModelSpec) {
    let tokens = [
        "Let me see.",
        "\n\n<tool_",
        "call>\n{\"name\": \"clock\", \"arguments\": {\"zo",
        "ne\": \"UTC\"}}\n</tool_call>",
        "\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>",
    ];
    says(CALLER, "<think> </think> <tool_call>", &tokens)
}

/// A model whose template has such marks, and that says so much once it has thought.
fn says(name: &str, marks: &str, tokens: &[&str]) -> (TempDir, ModelSpec) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{name}.gguf"));
    let template = format!("{}{{# {marks} #}}", scripted::CHATML);
    let chain = [&["\n", "<think>", "Hmm.", "</think>"], tokens].concat();
    scripted::write(&path, Some(&template), &chain);
    (folder, ModelSpec { name: name.into(), path: Some(path), aliases: Vec::new() })
}

//! Models that always generate the same tokens.

use akunu_fixtures::scripted;
use akunu_server::ModelSpec;
use tempfile::TempDir;

pub const THINKER: &str = "thinker";

/// A model that reasons before it answers. The folder is removed on drop.
pub fn thinker() -> (TempDir, ModelSpec) {
    scripted_model(THINKER, "<think> </think>", &["Yes."])
}

pub const CALLER: &str = "caller";

/// A model that reasons, answers, and calls two tools in Qwen's format. A tag and an argument are split between tokens.
pub fn caller() -> (TempDir, ModelSpec) {
    let tokens = [
        "Let me see.",
        "\n\n<tool_",
        "call>\n{\"name\": \"clock\", \"arguments\": {\"zo",
        "ne\": \"UTC\"}}\n</tool_call>",
        "\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>",
    ];
    scripted_model(CALLER, "<think> </think> <tool_call>", &tokens)
}

/// A model that calls one tool.
pub fn caller_of(tool: &str) -> (TempDir, ModelSpec) {
    let call = format!("<tool_call>\n{{\"name\": \"{tool}\", \"arguments\": {{}}}}\n</tool_call>");
    scripted_model(CALLER, "<think> </think> <tool_call>", &[&call])
}

/// A model of Functionary's family, whose prompts end with what precedes names, which are in its answers.
pub fn namer() -> (TempDir, ModelSpec) {
    let template = format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{}\
         {{% if add_generation_prompt %}}>>>{{% endif %}}{{# >>>${{recipient}} #}}",
        scripted::CHATML
    );
    // The first is the token of `>`.
    let chain = ["<0x3E>", "all\n", "Let me see.", ">>>clo", "ck\n{\"zone\": ", "\"UTC\"}"];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("namer.gguf");
    scripted::write(&path, Some(&template), &chain);
    (folder, ModelSpec { name: CALLER.into(), path: Some(path), aliases: Vec::new() })
}

/// A model that calls `clock` with numbers that are no number of a program.
pub fn counter() -> (TempDir, ModelSpec) {
    let call = "<tool_call>{\"name\": \"clock\", \"arguments\": {\"n\": [12345678901234567890123, 1e999]}}</tool_call>";
    scripted_model(CALLER, "<think> </think> <tool_call>", &[call])
}

/// A model whose template contains `marks`, and which generates `tokens` after its reasoning.
fn scripted_model(name: &str, marks: &str, tokens: &[&str]) -> (TempDir, ModelSpec) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{name}.gguf"));
    let template = format!("{}{{# {marks} #}}", scripted::CHATML);
    let chain = [&["\n", "<think>", "Hmm.", "</think>"], tokens].concat();
    scripted::write(&path, Some(&template), &chain);
    (folder, ModelSpec { name: name.into(), path: Some(path), aliases: Vec::new() })
}

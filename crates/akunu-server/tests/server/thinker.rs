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

/// Models of other families that call two tools: their names, whether they reason and write before they call, and what
/// their templates are known by.
const FAMILIES: [(&str, bool, &str, &[&str]); 3] = [
    (
        "harmony",
        true,
        "<|channel|>analysis<|message|> <|end|> <|call|>",
        &[
            "<|channel|>analysis<|message|>",
            "Hmm.",
            "<|end|>",
            "<|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>",
            "<|start|>assistant<|channel|>commentary to=functions.clo",
            "ck <|constrain|>json<|message|>{\"zo",
            "ne\": \"UTC\"}",
            "<|call|>",
            // With this token, `<|end|>` does not end a turn.
            "<|return|>",
        ],
    ),
    (
        "mistral",
        false,
        "[TOOL_CALLS] [ARGS]",
        &[
            "[TOOL_",
            "CALLS]clock[AR",
            "GS]{\"zone\": \"U",
            "TC\"}",
            "[TOOL_CALLS]add[ARGS]{\"b\": 1, \"a\": 2}",
        ],
    ),
    (
        "llama",
        false,
        "{\"name\": function name, \"parameters\": its arguments}",
        &[
            "{\"na",
            "me\": \"clock\", \"parameters\": {\"zo",
            "ne\": \"UTC\"}}",
            "; {\"name\": \"add\", \"parameters\": {\"b\": 1, \"a\": 2}}",
        ],
    ),
];

/// The folders and models of [`FAMILIES`], and whether they reason.
pub fn callers() -> Vec<(TempDir, ModelSpec, bool)> {
    let model = |(name, reasons, signs, tokens): (&str, bool, &str, &[&str])| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{name}.gguf"));
        let template = format!(
            "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{}{{# {signs} #}}",
            scripted::CHATML
        );
        scripted::write(&path, Some(&template), &[&["\n"], tokens].concat());
        (folder, ModelSpec { name: name.into(), path: Some(path), aliases: Vec::new() }, reasons)
    };
    FAMILIES.map(model).into()
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

//! Writes a model that calls the tool `clock` if the conversation has tools, and answers in words when it has the result:
//! `scripted_model FILE`. For tests of frameworks that act by what a model says.
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use akunu_fixtures::scripted;

/// The last character of a prompt says which text follows.
const TEMPLATE: &str = "{# <think> </think> <tool_call> #}\
    {% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant{% if messages[-1].role == 'tool' or not tools %}:\
    {% else %}{{ '\n' }}{% endif %}{% endif %}";

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: scripted_model FILE");
        return ExitCode::FAILURE;
    };
    let chain = [
        "\n",
        "<think>",
        "Which time",
        " is it?",
        "</think>",
        "<tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zo",
        "ne\": \"UTC\"}}\n</tool_call>",
        "<|im_end|>",
        ":",
        "It is",
        " noon.",
        "<|im_end|>",
    ];
    scripted::write(&path, Some(TEMPLATE), &chain);
    ExitCode::SUCCESS
}

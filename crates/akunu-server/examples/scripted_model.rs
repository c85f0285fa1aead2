//! Writes a model that calls a tool if the conversation has tools, and answers in words when it has the result:
//! `scripted_model FILE [TOOL ARGUMENTS]`, by default `clock '{"zone": "UTC"}'`. For tests of programs that act by what a
//! model says.
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
    let mut of_call = std::env::args().skip(2);
    let tool = of_call.next().unwrap_or_else(|| "clock".into());
    let arguments = of_call.next().unwrap_or_else(|| "{\"zone\": \"UTC\"}".into());
    // In two tokens, the first of which ends within the arguments.
    let half = arguments.floor_char_boundary(arguments.len() / 2);
    let begin = format!("<tool_call>\n{{\"name\": \"{tool}\", \"arguments\": {}", &arguments[..half]);
    let end = format!("{}}}\n</tool_call>", &arguments[half..]);
    let thoughts = ["\n", "<think>", "Which time", " is it?", "</think>"];
    let call = [begin.as_str(), end.as_str(), "<|im_end|>"];
    let answer = [":", "It is", " noon.", "<|im_end|>"];
    let chain = [&thoughts[..], &call, &answer].concat();
    scripted::write(&path, Some(TEMPLATE), &chain);
    ExitCode::SUCCESS
}

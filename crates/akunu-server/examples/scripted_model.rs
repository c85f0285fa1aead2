//! Writes a model that calls a tool if the conversation has tools, and answers in words when it has the result:
//! `scripted_model FILE [TOOL ARGUMENTS [FAMILY]]`, by default `clock '{"zone": "UTC"}' hermes`. For tests of programs that
//! act by what a model says.
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use akunu_fixtures::scripted;

/// The last character of a prompt says which text follows. `SIGNS` are those of the family.
const TEMPLATE: &str = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant{% if messages[-1].role == 'tool' or not tools %}:\
    {% else %}{{ '\n' }}{% endif %}{% endif %}{#SIGNS#}";

/// How models of a family write.
struct Family {
    name: &'static str,
    /// What its templates are known by.
    signs: &'static str,
    /// Around reasoning; none without a first text.
    reasoning: [&'static str; 2],
    /// What precedes an answer in words.
    answer: &'static str,
    /// Around the name of a tool, and what follows the arguments.
    call: [&'static str; 3],
    /// The tokens that end a call, and an answer in words.
    ends: [&'static str; 2],
}

const TURN_END: [&str; 2] = ["<|im_end|>"; 2];

const FAMILIES: [Family; 4] = [
    Family {
        name: "hermes",
        signs: "<think> </think> <tool_call>",
        reasoning: ["<think>", "</think>"],
        answer: "",
        call: ["<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"],
        ends: TURN_END,
    },
    Family {
        name: "harmony",
        signs: "<|channel|>analysis<|message|> <|end|> <|call|>",
        reasoning: ["<|channel|>analysis<|message|>", "<|end|>"],
        answer: "<|channel|>final<|message|>",
        call: ["<|start|>assistant<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""],
        ends: ["<|call|>", "<|return|>"],
    },
    Family {
        name: "mistral",
        signs: "[TOOL_CALLS] [ARGS]",
        reasoning: ["", ""],
        answer: "",
        call: ["[TOOL_CALLS]", "[ARGS]", ""],
        ends: TURN_END,
    },
    Family {
        name: "llama",
        signs: "{\"name\": function name, \"parameters\": its arguments}",
        reasoning: ["", ""],
        answer: "",
        call: ["{\"name\": \"", "\", \"parameters\": ", "}"],
        ends: TURN_END,
    },
];

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: scripted_model FILE [TOOL ARGUMENTS [FAMILY]]");
        return ExitCode::FAILURE;
    };
    let mut others = std::env::args().skip(2);
    let tool = others.next().unwrap_or_else(|| "clock".into());
    let arguments = others.next().unwrap_or_else(|| "{\"zone\": \"UTC\"}".into());
    let name = others.next().unwrap_or_else(|| "hermes".into());
    let Some(Family { signs, reasoning, answer, call: [before, between, after], ends, .. }) =
        FAMILIES.iter().find(|family| family.name == name)
    else {
        eprintln!("scripted_model: there is no family {name}");
        return ExitCode::FAILURE;
    };
    // In two tokens, the first of which ends within the arguments.
    let half = arguments.floor_char_boundary(arguments.len() / 2);
    let begin = format!("{before}{tool}{between}{}", &arguments[..half]);
    let end = format!("{}{after}", &arguments[half..]);
    let mut chain = vec!["\n"];
    let [open, close] = *reasoning;
    if !open.is_empty() {
        chain.extend([open, "Which time", " is it?", close]);
    }
    chain.extend([begin.as_str(), end.as_str(), ends[0], ":"]);
    chain.extend((!answer.is_empty()).then_some(*answer));
    chain.extend(["It is", " noon.", ends[1]]);
    scripted::write(&path, Some(&TEMPLATE.replace("SIGNS", signs)), &chain);
    ExitCode::SUCCESS
}

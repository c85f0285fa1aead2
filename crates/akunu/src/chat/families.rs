//! The formats of tool calls, by family of models.

use std::sync::Arc;

use akunu_grammar::CallPart::{
    Arguments, Gap, Id, Literals, Maybe, Name, Number, OneOf, QuotedName, Tagged, Text,
};
use akunu_grammar::{CallForm, CallLiterals, CallPart, CallTags, NAME_AND_ARGUMENTS};

use akunu_tokenizer::chat::ChatTemplate;
use serde_json::{Value as Json, json};

use super::adapted::reads_tools_of_system;
use super::call_literals::{self, LiteralForm};

/// The format of tool calls of a family of models: how they are written, and what else is accepted when they are parsed.
#[derive(Debug, PartialEq, Eq)]
pub struct CallMarks {
    pub(super) form: CallForm,
    /// What ends a name before its arguments, if only the arguments are JSON.
    pub(super) between: &'static [&'static str],
    /// What may precede a name there.
    pub(super) prefix: &'static str,
    /// What may follow arguments before the end of the call.
    pub(super) fence: &'static str,
    /// A token after calls that ends the answer.
    pub(super) ending: &'static str,
    /// A template with all of these is of the family.
    signs: &'static [&'static str],
}

const FORM: CallForm = CallForm {
    section: [""; 2],
    ends_text: false,
    open: "",
    call: NAME_AND_ARGUMENTS,
    other: &[],
    is_list: false,
    close: "",
    is_bare: false,
    may_lack_open: false,
    text_name: "",
};

const TOOL_CALL: CallForm = CallForm { open: "<tool_call>", close: "</tool_call>", ..FORM };

const DEFAULT: CallMarks =
    CallMarks { form: FORM, between: &[], prefix: "", fence: "", ending: "", signs: &[] };

const TAGS: CallTags = CallTags { key: ["<parameter=", ">"], value: ["", "</parameter>"], kinds: None };

const FUNCTION: &[CallPart] = &[Text("<function="), Name, Text(">"), Gap, Tagged(TAGS), Text("</function>")];

const QUOTED_TAGS: CallTags =
    CallTags { key: ["<parameter name=\"", "\">"], value: ["", "</parameter>"], kinds: None };

const DSML: CallMarks = CallMarks {
    form: CallForm {
        section: ["<｜DSML｜function_calls>", "</｜DSML｜function_calls>"],
        open: "<｜DSML｜invoke name=\"",
        call: &[
            Name,
            Text("\">"),
            Gap,
            Tagged(CallTags {
                key: ["<｜DSML｜parameter name=\"", "\">"],
                value: ["", "</｜DSML｜parameter>"],
                kinds: Some(["\" string=\"true\">", "\" string=\"false\">"]),
            }),
        ],
        close: "</｜DSML｜invoke>",
        ..FORM
    },
    signs: &["DSML"],
    ..DEFAULT
};

const DEEPSEEK: CallMarks = CallMarks {
    form: CallForm {
        section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        open: "<｜tool▁call▁begin｜>",
        call: &[Name, Text("<｜tool▁sep｜>"), Arguments],
        close: "<｜tool▁call▁end｜>",
        ..FORM
    },
    between: &["<｜tool▁sep｜>", "```json", "\n"],
    prefix: "function<｜tool▁sep｜>",
    fence: "```",
    signs: &["<｜tool▁call▁begin｜>"],
    ..DEFAULT
};

/// Llama 3.
const LLAMA: CallMarks = CallMarks {
    form: CallForm {
        open: "<|python_tag|>",
        call: &[
            Text("{"),
            Gap,
            Text("\"name\":"),
            Gap,
            QuotedName,
            Text(","),
            Gap,
            Text("\"parameters\":"),
            Gap,
            Arguments,
            Gap,
            Text("}"),
        ],
        other: &[Name, Text(".call("), Literals(PYTHON), Text(")")],
        is_bare: true,
        ..FORM
    },
    signs: &["\"name\": function name, \"parameters\""],
    ..DEFAULT
};

const GEMMA: CallLiterals =
    CallLiterals { assign: ":", separator: ",", quote: Some("<|\"|>"), is_sorted: true };

const PYTHON: CallLiterals = CallLiterals { assign: "=", separator: ", ", quote: None, is_sorted: false };

/// For models whose templates have no tools, or whose format is unknown: see `generic_tools`.
pub(super) static GENERIC: CallMarks =
    CallMarks { form: CallForm { open: "<tool_call>", close: "</tool_call>", ..FORM }, ..DEFAULT };

/// The first family whose signs are all in a template applies.
static FAMILIES: [CallMarks; 29] = [
    // GLM.
    CallMarks {
        form: CallForm {
            open: "<tool_call>",
            call: &[
                Name,
                Gap,
                Tagged(CallTags {
                    key: ["<arg_key>", "</arg_key>"],
                    value: ["<arg_value>", "</arg_value>"],
                    kinds: None,
                }),
            ],
            close: "</tool_call>",
            ..FORM
        },
        signs: &["<arg_key>"],
        ..DEFAULT
    },
    // MiniMax M2.
    CallMarks {
        form: CallForm {
            section: ["<minimax:tool_call>", "</minimax:tool_call>"],
            open: "<invoke name=\"",
            call: &[Name, Text("\">"), Gap, Tagged(QUOTED_TAGS)],
            close: "</invoke>",
            ..FORM
        },
        signs: &["<minimax:tool_call>"],
        ..DEFAULT
    },
    // DeepSeek V4, then V3.2.
    CallMarks {
        form: CallForm { section: ["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"], ..DSML.form },
        signs: &["DSML", "tool_calls>"],
        ..DEFAULT
    },
    DSML,
    // Seed.
    CallMarks {
        form: CallForm { open: "<seed:tool_call>", call: FUNCTION, close: "</seed:tool_call>", ..FORM },
        signs: &["<seed:tool_call>"],
        ..DEFAULT
    },
    // Qwen3-Coder, Qwen 3.5, Nemotron 3, Step.
    CallMarks {
        form: CallForm {
            open: "<tool_call>",
            call: FUNCTION,
            close: "</tool_call>",
            may_lack_open: true,
            ..FORM
        },
        signs: &["<parameter="],
        ..DEFAULT
    },
    // Gemma 4.
    CallMarks {
        form: CallForm {
            open: "<|tool_call>",
            call: &[Text("call:"), Name, Text("{"), Literals(GEMMA), Text("}")],
            close: "<tool_call|>",
            ..FORM
        },
        signs: &["<|tool_call>"],
        ..DEFAULT
    },
    // FunctionGemma.
    CallMarks {
        form: CallForm {
            open: "<start_function_call>",
            call: &[
                Text("call:"),
                Name,
                Text("{"),
                Literals(CallLiterals { quote: Some("<escape>"), ..GEMMA }),
                Text("}"),
            ],
            close: "<end_function_call>",
            ..FORM
        },
        ending: "<start_function_response>",
        signs: &["<start_function_call>"],
        ..DEFAULT
    },
    // LFM2: its templates have no marks.
    CallMarks {
        form: CallForm {
            open: "<|tool_call_start|>",
            call: &[Name, Text("("), Literals(PYTHON), Text(")")],
            other: NAME_AND_ARGUMENTS,
            is_list: true,
            close: "<|tool_call_end|>",
            ..FORM
        },
        signs: &["List of tools: "],
        ..DEFAULT
    },
    // Functionary 3.2: each part of an answer begins with the tool's name, or `all`.
    CallMarks {
        form: CallForm { open: ">>>", call: &[Name, Text("\n"), Arguments], text_name: "all\n", ..FORM },
        between: &["\n"],
        signs: &[">>>${recipient}"],
        ..DEFAULT
    },
    // Phi 4 mini with the template of servers, and Firefunction.
    CallMarks {
        form: CallForm { open: "functools[", is_list: true, ..FORM },
        signs: &["functools["],
        ..DEFAULT
    },
    // Phi 4 mini with its own template, which has no marks.
    CallMarks {
        form: CallForm { open: "<|tool_call|>", is_list: true, ..FORM },
        ending: "<|/tool_call|>",
        signs: &["<|/tool|>"],
        ..DEFAULT
    },
    // Apertus.
    CallMarks {
        form: CallForm {
            open: "<|tools_prefix|>",
            call: &[Text("{"), Gap, QuotedName, Text(":"), Gap, Arguments, Gap, Text("}")],
            is_list: true,
            close: "<|tools_suffix|>",
            ..FORM
        },
        signs: &["<|tools_prefix|>"],
        ..DEFAULT
    },
    // Functionary 3.1.
    CallMarks {
        form: CallForm {
            open: "<function=",
            call: &[Name, Text(">"), Arguments],
            close: "</function>",
            ..FORM
        },
        between: &[">"],
        signs: &["<function="],
        ..DEFAULT
    },
    // Apriel.
    CallMarks {
        form: CallForm {
            open: "<tool_calls>",
            call: &[
                Text("{"),
                Gap,
                Text("\"name\":"),
                Gap,
                QuotedName,
                Text(","),
                Gap,
                Text("\"arguments\":"),
                Gap,
                Arguments,
                Maybe(&[Text(", \"id\": \""), Id, Text("\"")]),
                Gap,
                Text("}"),
            ],
            is_list: true,
            close: "</tool_calls>",
            ..FORM
        },
        signs: &["<tool_calls>"],
        ..DEFAULT
    },
    // Hermes, Qwen, Granite 4.
    CallMarks { form: TOOL_CALL, signs: &["<tool_call>"], ..DEFAULT },
    // Mistral since 2025, and before.
    CallMarks {
        form: CallForm {
            open: "[TOOL_CALLS]",
            call: &[Name, Maybe(&[Text("[CALL_ID]"), Id]), OneOf(&["[ARGS]", ""]), Arguments],
            ..FORM
        },
        between: &["[CALL_ID]", "[ARGS]"],
        signs: &["[TOOL_CALLS]", "[ARGS]"],
        ..DEFAULT
    },
    CallMarks {
        form: CallForm {
            open: "[TOOL_CALLS]",
            call: &[
                Text("{\"name\": "),
                QuotedName,
                Text(", \"arguments\": "),
                Arguments,
                Maybe(&[Text(", \"id\": \""), Id, Text("\"")]),
                Text("}"),
            ],
            is_list: true,
            ..FORM
        },
        between: &["[CALL_ID]", "[ARGS]"],
        signs: &["[TOOL_CALLS]"],
        ..DEFAULT
    },
    // Granite 3, Phi 4.
    CallMarks {
        form: CallForm { open: "<|tool_call|>", is_list: true, ..FORM },
        ending: "<|/tool_call|>",
        signs: &["<|tool_call|>"],
        ..DEFAULT
    },
    // GigaChat 3.1, then 3, whose calls are messages of their own, one in an answer.
    CallMarks {
        form: CallForm { open: "<|function_call|>", ..FORM },
        signs: &["<|function_call|>"],
        ..DEFAULT
    },
    CallMarks {
        form: CallForm {
            section: ["<|message_sep|>\n\n"; 2],
            ends_text: true,
            open: "function call<|role_sep|>\n",
            ..FORM
        },
        signs: &["'function call'", "<|role_sep|>", "<|message_sep|>"],
        ..DEFAULT
    },
    // Command R7B and later.
    CallMarks {
        form: CallForm {
            open: "<|START_ACTION|>",
            call: &[
                Text("{\"tool_call_id\": \""),
                Id,
                Text("\", \"tool_name\": "),
                QuotedName,
                Text(", \"parameters\": "),
                Arguments,
                Gap,
                Text("}"),
            ],
            is_list: true,
            close: "<|END_ACTION|>",
            ..FORM
        },
        signs: &["<|START_ACTION|>"],
        ..DEFAULT
    },
    // gpt-oss: the header of a message has the name, and the type of the arguments.
    CallMarks {
        form: CallForm {
            open: "to=functions.",
            call: &[
                Name,
                OneOf(&["<|channel|>commentary", ""]),
                OneOf(&[" <|constrain|>json", "<|constrain|>json", " json", " code", ""]),
                Text("<|message|>"),
                Arguments,
            ],
            ..FORM
        },
        ending: "<|call|>",
        between: &[" ", "<|channel|>", "<|constrain|>", "<|message|>"],
        signs: &["<|call|>"],
        ..DEFAULT
    },
    // DeepSeek V3 and R1 have the type of a call before its name, and arguments in a block of code; V3.1 has neither.
    CallMarks {
        form: CallForm {
            call: &[Text("function<｜tool▁sep｜>"), Name, Text("\n```json\n"), Arguments, Text("\n```")],
            ..DEEPSEEK.form
        },
        signs: &["<｜tool▁call▁begin｜>", "```json"],
        ..DEEPSEEK
    },
    DEEPSEEK,
    // Kimi K2: names with the number of the call.
    CallMarks {
        form: CallForm {
            section: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
            open: "<|tool_call_begin|>",
            call: &[
                OneOf(&["functions.", ""]),
                Name,
                Text(":"),
                Number,
                Gap,
                Text("<|tool_call_argument_begin|>"),
                Gap,
                Arguments,
            ],
            close: "<|tool_call_end|>",
            ..FORM
        },
        between: &[":", "<|tool_call_argument_begin|>"],
        prefix: "functions.",
        signs: &["<|tool_call_begin|>"],
        ..DEFAULT
    },
    // Llama 3.2 and 4 with templates that ask for calls in Python.
    CallMarks {
        form: CallForm {
            open: "<|python_start|>",
            call: &[Name, Text("("), Literals(PYTHON), Text(")")],
            is_list: true,
            close: "<|python_end|>",
            is_bare: true,
            ..FORM
        },
        signs: &["[func_name1("],
        ..DEFAULT
    },
    // Llama 4: the template writes an empty piece of code before calls.
    CallMarks {
        form: CallForm {
            section: ["<|python_start|>", ""],
            open: "<|python_end|>",
            other: &[],
            ..LLAMA.form
        },
        signs: &["<|python_start|>", "\"name\": function name, \"parameters\""],
        ..DEFAULT
    },
    LLAMA,
];

/// Whether a template writes tools, in its own way or from a field of the system's message.
pub(super) fn writes_tools(template: &ChatTemplate) -> bool {
    template.writes_tools() || reads_tools_of_system(template)
}

impl CallMarks {
    /// The marks for a template's models; `None` if their format is unknown.
    pub fn of_template(source: &str) -> Option<&'static CallMarks> {
        FAMILIES.iter().find(|marks| marks.signs.iter().all(|sign| source.contains(sign)))
    }

    /// The marks for a template that writes tools, or calls in a form that can be described to its models. `None`: they get
    /// tools and calls as text.
    pub(super) fn of_tools(template: &ChatTemplate) -> Option<&'static CallMarks> {
        CallMarks::of_template(template.source())
            .filter(|marks| writes_tools(template) || marks.example().is_some())
    }

    /// The model's other template, for conversations with tools, if its models' format of calls is known.
    pub fn one_for_tools(template: &ChatTemplate) -> Option<&Arc<ChatTemplate>> {
        template.one_for_tools().filter(|other| CallMarks::of_tools(other).is_some())
    }

    /// A call of `NAME` with `ARGUMENTS`, as models of the family write it. `None`: see [`CallMarks::write`].
    pub(super) fn example(&self) -> Option<String> {
        let is_json = self.form.call.contains(&Arguments);
        let call = json!({ "function": { "name": "NAME", "arguments": {} } });
        self.write(&[call]).filter(|_| is_json).map(|written| written.replace("{}", "ARGUMENTS"))
    }

    /// All families, and the generic form.
    pub fn all() -> impl Iterator<Item = &'static CallMarks> {
        FAMILIES.iter().chain([&GENERIC])
    }

    /// How calls are written.
    pub fn form(&self) -> CallForm {
        self.form
    }

    /// What precedes calls.
    pub fn open(&self) -> &'static str {
        self.form.open
    }

    /// What may follow a call.
    pub(super) fn close(&self) -> &'static str {
        if self.form.close.is_empty() { self.ending } else { self.form.close }
    }

    /// How calls are written, if their arguments are literals.
    pub(super) fn literals(&self) -> Option<LiteralForm> {
        [self.form.call, self.form.other].into_iter().find_map(|call| match call {
            [Text(before), Name, Text(open), Literals(literals), Text(close)] => {
                Some(LiteralForm { before, around: [open, close], literals })
            }
            [Name, Text(open), Literals(literals), Text(close)] => {
                Some(LiteralForm { before: "", around: [open, close], literals })
            }
            _ => None,
        })
    }

    /// Whether a call is JSON with the tool's name as the key of the arguments.
    pub(super) fn names_by_key(&self) -> bool {
        let is_field = |part: &CallPart| matches!(part, Text(text) if text.contains("name\":"));
        self.form.call.contains(&QuotedName) && !self.form.call.iter().any(is_field)
    }

    /// Calls as models of the family write them. `None`: the family's form is not one of those that this writes.
    pub(super) fn write(&self, calls: &[Json]) -> Option<String> {
        let CallForm { section: [begin, end], open, call: parts, is_list, close, .. } = self.form;
        let one = |call: &Json| -> Option<String> {
            let (name, arguments) = (call["function"]["name"].as_str()?, &call["function"]["arguments"]);
            let mut written = String::new();
            for part in parts {
                match part {
                    Text(text) => written += text,
                    Name => written += name,
                    QuotedName => written += &Json::from(name).to_string(),
                    Arguments => written += &arguments.to_string(),
                    OneOf(texts) => written += texts.first()?,
                    Gap if written.ends_with([':', ',']) => written.push(' '),
                    Gap | Maybe(_) => {}
                    Literals(form) => written += &call_literals::write(form, arguments)?,
                    _ => return None,
                }
            }
            Some(written)
        };
        let written = calls.iter().map(one).collect::<Option<Vec<String>>>()?;
        let written = match is_list {
            true => format!("{}[{}]{close}", open.trim_end_matches('['), written.join(", ")),
            false => written.iter().map(|call| format!("{open}{call}{close}")).collect(),
        };
        Some(format!("{begin}{written}{end}"))
    }

    /// What begins a call of a tool of this name where models leave out the mark.
    pub(super) fn unmarked(&self, name: &str) -> Option<String> {
        match self.form.call {
            [Text(before), Name, Text(after), ..] if self.form.may_lack_open => {
                Some(format!("{before}{name}{after}"))
            }
            _ => None,
        }
    }

    /// How arguments are written, if they are between tags.
    pub(super) fn tags(&self) -> Option<&'static CallTags> {
        self.form.call.iter().find_map(|part| if let Tagged(tags) = part { Some(tags) } else { None })
    }

    /// What precedes the name in calls with arguments between tags, and what ends them.
    pub(super) fn around(&self) -> [&'static str; 2] {
        match self.form.call {
            [Text(before), .., Tagged(_), Text(after)] => [before, after],
            _ => ["", self.close()],
        }
    }

    /// Whether the text is part of a mark.
    pub(crate) fn contain(&self, text: &str) -> bool {
        let CallForm { section: [begin, end], open, call, other, close, .. } = self.form;
        let texts = call.iter().chain(other).flat_map(|part| match part {
            Text(text) => vec![*text],
            OneOf(texts) => texts.to_vec(),
            Tagged(CallTags { key, value, .. }) => [*key, *value].concat(),
            Literals(CallLiterals { quote: Some(quote), .. }) => vec![*quote],
            _ => Vec::new(),
        });
        let marks = [begin, end, open, close, self.ending].into_iter().chain(texts);
        !text.is_empty() && marks.chain(self.between.iter().copied()).any(|mark| mark.contains(text))
    }
}

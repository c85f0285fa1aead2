//! The fields of routes that run no model, under llama.cpp's names.

use super::openai::PREFILL;
use super::{Field, Group, POST, Route, done};

pub(crate) const TOKENIZE: Route = Route { paths: &["/tokenize"], groups: &[&TOKENIZE_FIELDS], ..POST };
pub(crate) const DETOKENIZE: Route = Route { paths: &["/detokenize"], groups: &[&DETOKENIZE_FIELDS], ..POST };
pub(crate) const APPLY_TEMPLATE: Route =
    Route { paths: &["/apply-template"], groups: &[&TEMPLATE_FIELDS], ..POST };
pub(crate) const SLOTS: Route = Route { paths: &["/slots/{id}"], groups: &[&SLOT_FIELDS], ..POST };

const MODEL: Field =
    done("model", r#""tales""#, "ours: a name or an alias; the first model if it is left out");

const TOKENIZE_FIELDS: Group = Group {
    title: "Tokens of a text, llama.cpp",
    fields: &[
        MODEL,
        done("content", r#""a fox""#, "the text, required"),
        done("add_special", "true", "the model's own tokens around a text; false by default"),
        done("parse_special", "false", "whether names of control tokens are these; true by default"),
        done("with_pieces", "true", "each id with its text"),
    ],
};

const DETOKENIZE_FIELDS: Group = Group {
    title: "The text of tokens, llama.cpp",
    fields: &[MODEL, done("tokens", "[5, 6]", "ids, required")],
};

const TEMPLATE_FIELDS: Group = Group {
    title: "The prompt of a conversation, llama.cpp",
    fields: &[
        MODEL,
        done("messages", r#"[{"role": "user", "content": "Hello"}]"#, "as in chat completions, required"),
        done("tools", r#"[{"type": "function", "function": {"name": "clock"}}]"#, "functions"),
        done("tool_choice", r#""none""#, "as in chat completions"),
        done("reasoning_effort", r#""low""#, "as in chat completions"),
        done("chat_template_kwargs", r#"{"enable_thinking": false}"#, "variables of the template"),
        done("continue_final_message", "true", "whether the assistant's last message is left open")
            .with(PREFILL),
        done("add_generation_prompt", "false", "false: no prompt for an answer is added"),
    ],
};

const SLOT_FIELDS: Group = Group {
    title: "Slots, llama.cpp (`--slot-save-path`; `?action=save`, `restore`, `erase`)",
    fields: &[
        MODEL,
        done("filename", r#""fox.bin""#, "a name in the server's folder; required to save and to restore"),
        done("cache_salt", r#""a""#, "ours: that of the request whose text is in the slot"),
    ],
};

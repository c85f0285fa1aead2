//! The fields of routes that run no model, under llama.cpp's names.

use super::openai::PREFILL;
use super::{Field, GET, Group, POST, Route, done, ignored, refused};

pub(crate) const TOKENIZE: Route = Route { paths: &["/tokenize"], groups: &[&TOKENIZE_FIELDS], ..POST };
pub(crate) const DETOKENIZE: Route = Route { paths: &["/detokenize"], groups: &[&DETOKENIZE_FIELDS], ..POST };
pub(crate) const APPLY_TEMPLATE: Route =
    Route { paths: &["/apply-template"], groups: &[&TEMPLATE_FIELDS], ..POST };
pub(crate) const SLOTS: Route = Route { paths: &["/slots/{id}"], groups: &[&SLOT_FIELDS], ..POST };
pub(crate) const SLOTS_QUERY: Route =
    Route { paths: &["/slots/{id}"], groups: &[&SLOT_QUERY], is_query: true, ..POST };
pub(crate) const SLOTS_LIST: Route =
    Route { paths: &["/slots"], groups: &[&MODEL_QUERY, &SLOTS_LIST_QUERY], ..GET };
pub(crate) const MODEL_FACTS: Route = Route {
    paths: &["/props", "/get_model_info", "/model_info", "/get_server_info", "/server_info"],
    groups: &[&MODEL_QUERY],
    ..GET
};
pub(crate) const RESPONSE: Route =
    Route { paths: &["/v1/responses/{id}"], groups: &[&RESPONSE_QUERY], ..GET };
pub(crate) const INPUT_ITEMS: Route =
    Route { paths: &["/v1/responses/{id}/input_items"], groups: &[&ITEMS_QUERY], ..GET };
pub(crate) const MCP_CALL: Route = Route { paths: &["/mcp/call"], groups: &[&MCP_FIELDS], ..POST };

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
    title: "Slots, llama.cpp (`--slot-save-path`)",
    fields: &[
        MODEL,
        done("filename", r#""fox.bin""#, "a name in the server's folder; required to save and to restore"),
        done("cache_salt", r#""a""#, "ours: that of the request whose text is in the slot"),
    ],
};

const SLOT_QUERY: Group = Group {
    title: "Slots, llama.cpp (in the query)",
    fields: &[done("action", r#""save""#, "`save`, `restore` or `erase`, required")],
};

const MODEL_QUERY: Group = Group { title: "One of the models (in the query)", fields: &[MODEL] };

const SLOTS_LIST_QUERY: Group = Group {
    title: "The list of slots, llama.cpp (in the query)",
    fields: &[done("fail_on_no_slot", "1", "1: 503 if no slot is free; 0 by default")],
};

const RESPONSE_QUERY: Group = Group {
    title: "A stored response, OpenAI (in the query)",
    fields: &[
        ignored("include", r#""reasoning.encrypted_content""#, "a response has all that there is"),
        refused("stream", "true", "a stored response is returned whole"),
        ignored("starting_after", "3", "nothing is streamed"),
        ignored("include_obfuscation", "true", "nothing is streamed"),
    ],
};

const ITEMS_QUERY: Group = Group {
    title: "Input items of a stored response, OpenAI (in the query)",
    fields: &[
        done("limit", "5", "items of a page, 1 to 100; 20 by default"),
        done("order", r#""asc""#, "`asc` or `desc`, the default: the last first"),
        done("after", r#""msg_0""#, "the id of the last item of the page before"),
        ignored("include", r#""message.output_text.logprobs""#, "items have all that there is"),
    ],
};

const MCP_FIELDS: Group = Group {
    title: "A call of a tool of an MCP server, for the chat page (`--mcp`)",
    fields: &[
        done("name", r#""clock""#, "the tool's, required"),
        done("arguments", r#"{"zone": "UTC"}"#, "an object, required"),
    ],
};

//! The fields of Anthropic's protocol.

use super::{Group, POST, Route, done, ignored, refused, warned};

pub(crate) const MESSAGES: Route = Route { paths: &["/v1/messages"], groups: &[&PROMPT, &ANSWER], ..POST };

/// A request to count has the fields of one to answer, of which only those of the prompt matter.
pub(crate) const COUNT_TOKENS: Route =
    Route { paths: &["/v1/messages/count_tokens"], groups: &[&PROMPT], ..POST };

const PROMPT: Group = Group {
    title: "Anthropic's prompts",
    fields: &[
        done("model", r#""tales""#, "a name or an alias, required"),
        done(
            "messages",
            r#"[{"role": "user", "content": "Hello"}]"#,
            "text, thinking, tool_use and tool_result; a last message of the assistant is continued",
        ),
        done("system", r#""Be brief.""#, "a text, or blocks of text"),
        done("tools", r#"[{"name": "clock", "input_schema": {"type": "object"}}]"#, "with an `input_schema`"),
        done(
            "tool_choice",
            r#"{"type": "none"}"#,
            "`auto`, `any`, `tool`, `none`; `disable_parallel_tool_use`",
        ),
        done(
            "thinking",
            r#"{"type": "disabled"}"#,
            "the template's `enable_thinking`, and `budget_tokens` its `thinking_budget`, if it has one; less than \
             `max_tokens`",
        ),
        ignored("cache_control", r#"{"type": "ephemeral"}"#, "prompts are always cached, in blocks too"),
        warned(
            "context_management",
            r#"{"edits": [{"type": "clear_tool_uses_20250919"}]}"#,
            "nothing is cleared: all of the conversation is read",
        ),
        refused("mcp_servers", r#"[{"type": "url", "url": "a", "name": "a"}]"#, "give 'tools'"),
        ignored("speed", r#""fast""#, "there is one speed"),
    ],
};

const ANSWER: Group = Group {
    title: "Anthropic's answers",
    fields: &[
        done("max_tokens", "5", "required"),
        done("stop_sequences", r#"["END"]"#, "texts that end an answer (`--max-stops`)"),
        done("stream", "true", "server-sent events"),
        done("temperature", "0.5", "0 to 1"),
        done("top_k", "5", "0: all tokens"),
        done("top_p", "0.9", "0 to 1"),
        done("seed", "7", "ours: the same seed gives the same answer"),
        done(
            "output_config",
            r#"{"format": {"type": "json_schema", "schema": {"type": "object"}}}"#,
            "`format`: a JSON Schema; `effort`: the template's `reasoning_effort`",
        ),
        done(
            "output_format",
            r#"{"type": "json_schema", "schema": {"type": "object"}}"#,
            "the same, as it was named in the beta",
        ),
        ignored("metadata", r#"{"user_id": "me"}"#, "users are told apart by their API keys").checked(),
        ignored("service_tier", r#""auto""#, "there is one tier"),
        ignored("inference_geo", r#""eu""#, "answers are generated here"),
        refused("container", r#""container_1""#, "there are no containers"),
    ],
};

//! The fields of OpenAI's protocol, and those of vLLM's and llama.cpp's servers for its routes.

use super::{Field, Group, POST, Route, done, ignored, refused, warned};

const CLOSED: &[&str] = &["guided_", "structured_outputs."];

pub(crate) const CHAT: Route = Route {
    paths: &["/v1/chat/completions", "/v1/chat/completions/render"],
    groups: &[
        &CHAT_FIELDS,
        &GENERATION,
        &SAMPLING,
        &FORMATS,
        &BOTH,
        &CHAT_OTHERS,
        &VLLM,
        &LENGTH,
        &LLAMA_CPP,
    ],
    closed: CLOSED,
    ..POST
};

pub(crate) const COMPLETIONS: Route = Route {
    paths: &["/v1/completions", "/v1/completions/render"],
    groups: &[&COMPLETION_FIELDS, &GENERATION, &SAMPLING, &FORMATS, &BOTH, &VLLM, &LENGTH, &LLAMA_CPP],
    closed: CLOSED,
    ..POST
};

pub(crate) const INFILL: Route = Route {
    paths: &["/infill"],
    groups: &[&INFILL_FIELDS, &GENERATION, &SAMPLING, &FORMATS, &VLLM, &LLAMA_CPP],
    closed: CLOSED,
    ..POST
};

pub(crate) const RESPONSES: Route = Route {
    paths: &["/v1/responses"],
    groups: &[&RESPONSE_FIELDS, &GENERATION, &SAMPLING, &FORMATS, &VLLM, &LENGTH, &LLAMA_CPP],
    closed: CLOSED,
    ..POST
};

pub(crate) const EMBEDDINGS: Route =
    Route { paths: &["/v1/embeddings"], groups: &[&EMBEDDING_FIELDS], ..POST };

const ONE_TIER: &str = "there is one tier";
const NO_STORE: &str = "chat completions are not stored; `/v1/responses` stores";
const NAMELESS: &str = "users are told apart by their API keys";
const CACHED: &str = "prompts are always cached; `cache_salt` keeps them apart";

const CHAT_FIELDS: Group = Group {
    title: "Chat completions",
    fields: &[
        done(
            "messages",
            r#"[{"role": "user", "content": "Hello"}]"#,
            "texts of system, developer, user, assistant and tool; other contents are refused",
        ),
        done("max_completion_tokens", "5", "the most tokens of an answer, those of reasoning included"),
        done("max_tokens", "5", "the same; if both are given, they must agree"),
        done("logprobs", "true", "log probabilities of the answer's tokens"),
        done("top_logprobs", "2", "so many alternatives to each, at most 20").with(r#""logprobs": true"#),
        done(
            "tools",
            r#"[{"type": "function", "function": {"name": "clock"}}]"#,
            "functions; other tools are refused",
        ),
        done("tool_choice", r#""none""#, "`auto`, `none`, `required`, or the name of a function"),
        done("parallel_tool_calls", "false", "false: an answer ends after its first call"),
        done(
            "reasoning_effort",
            r#""low""#,
            "the template's variable of that name, or whether or how long it reasons: `none`, `minimal`, `low`, \
             `medium`, `high`, `xhigh`, `max`",
        ),
        warned("verbosity", r#""low""#, "ask for it in a message").unless(r#"["medium"]"#).checked(),
        refused("modalities", r#"["text", "audio"]"#, "only text is generated").unless(r#"[["text"]]"#),
        refused("audio", r#"{"voice": "alloy", "format": "wav"}"#, "only text is generated"),
        refused("web_search_options", r#"{"search_context_size": "low"}"#, "this server has no web search"),
        refused("functions", r#"[{"name": "clock"}]"#, "give them as 'tools'"),
        refused("function_call", r#""auto""#, "use 'tool_choice'"),
        refused("moderation", r#"{"model": "omni"}"#, "this server moderates nothing"),
        warned(
            "prediction",
            r#"{"type": "content", "content": "a"}"#,
            "would only make the answer faster; it is the same without",
        )
        .checked(),
        ignored("store", "true", NO_STORE),
        ignored("metadata", r#"{"a": "b"}"#, NO_STORE).checked(),
    ],
};

const COMPLETION_FIELDS: Group = Group {
    title: "Completions",
    fields: &[
        done("prompt", r#""Once upon a time""#, "a text, token ids, or a list of either"),
        done("max_tokens", "5", "16 unless a request says otherwise"),
        done("logprobs", "2", "log probabilities, and so many alternatives, at most 5"),
        done("echo", "true", "the prompt before its continuation; with `logprobs`, those of both"),
        done(
            "best_of",
            "3",
            "so many answers, of which the `n` with the best mean log probability are returned",
        ),
        done(
            "prompt_logprobs",
            "1",
            "vLLM's: log probabilities of the prompt, with so many alternatives, at most 20",
        ),
        done(
            "suffix",
            r#""The end.""#,
            "the text after what is asked for; if the vocabulary has tokens for it",
        )
        .with(r#""model": "infiller""#),
    ],
};

const INFILL_FIELDS: Group = Group {
    title: "The middle of a text, llama.cpp (if the vocabulary has tokens for it)",
    fields: &[
        done("input_prefix", r#""And ""#, "the text before, required"),
        done("input_suffix", r#"", he said.""#, "the text after, required"),
        done("prompt", r#""so""#, "what follows `input_prefix`"),
        done(
            "input_extra",
            r#"[{"filename": "a.rs", "text": "fn a() {}"}]"#,
            "other files, before both; nothing is truncated",
        ),
        done("n_predict", "5", "the most tokens of the middle; -1, the default: as many as fit"),
        refused("n", "2", "a request has one middle").unless("[1]"),
        refused("max_tokens", "5", "use 'n_predict'"),
        refused("logprobs", "true", "/v1/completions has them"),
        refused("stream_options.include_usage", "true", "the last event has the counts")
            .with(r#""stream": true"#),
        done("response_format", r#"{"type": "json_object"}"#, "`text`, `json_object` or `json_schema`"),
    ],
};

const RESPONSE_FIELDS: Group = Group {
    title: "Responses",
    fields: &[
        done("input", r#""Hello""#, "a text, or a list of items"),
        done("instructions", r#""Be brief.""#, "the system message"),
        done("previous_response_id", r#""resp_1""#, "continues a stored response"),
        done("max_output_tokens", "5", "the most tokens of an answer, those of reasoning included"),
        done("reasoning", r#"{"effort": "low"}"#, "`effort`, as `reasoning_effort` of chat completions"),
        warned("reasoning.summary", r#""concise""#, "reasoning is returned whole, and not summarised")
            .unless(r#"["auto"]"#)
            .checked(),
        done("text", r#"{"format": {"type": "text"}}"#, "see its fields"),
        done("text.format", r#"{"type": "text"}"#, "`text`, `json_object` or `json_schema`"),
        warned("text.verbosity", r#""low""#, "ask for it in 'instructions'")
            .unless(r#"["medium"]"#)
            .checked(),
        done("tools", r#"[{"type": "function", "name": "clock"}]"#, "functions; other tools are refused"),
        done("tool_choice", r#""none""#, "`auto`, `none`, `required`, a function, or a list of allowed ones"),
        done("parallel_tool_calls", "false", "false: an answer ends after its first call"),
        done("max_tool_calls", "3", "returned; calls of built-in tools are meant, which do not exist"),
        done("include", r#"["message.output_text.logprobs"]"#, "log probabilities; encrypted reasoning"),
        done("top_logprobs", "2", "so many alternatives to each token, at most 20")
            .with(r#""include": ["message.output_text.logprobs"]"#),
        done("store", "false", "false: the response is not stored"),
        done("metadata", r#"{"a": "b"}"#, "returned: at most 16 texts"),
        done("truncation", r#""auto""#, "`auto`: early turns are left out if the conversation does not fit"),
        refused("background", "true", "responses are generated while the client waits"),
        refused("conversation", r#""conv_1""#, "use 'previous_response_id'"),
        refused("prompt", r#"{"id": "p"}"#, "there are no stored prompts; use 'instructions' and 'input'"),
        refused(
            "context_management",
            r#"[{"type": "compaction"}]"#,
            "nothing is compacted; use 'truncation'",
        ),
        refused("moderation", r#"{"model": "omni"}"#, "this server moderates nothing"),
        refused("messages", r#"[{"role": "user", "content": "a"}]"#, "use 'input'"),
        refused("response_format", r#"{"type": "json_object"}"#, "use 'text.format'"),
        refused("reasoning_effort", r#""low""#, "use 'reasoning.effort'"),
        refused("max_tokens", "5", "use 'max_output_tokens'"),
        refused("max_completion_tokens", "5", "use 'max_output_tokens'"),
        refused("n", "2", "a request has one answer").unless("[1]"),
        refused("logprobs", "true", "use 'include' and 'top_logprobs'"),
        refused("functions", r#"[{"name": "clock"}]"#, "give them as 'tools'"),
        refused("stream_options.include_usage", "true", "the last event has the usage")
            .with(r#""stream": true"#),
        done("chat_template_kwargs", r#"{"enable_thinking": false}"#, "variables of the template"),
    ],
};

const GENERATION: Group = Group {
    title: "Generation, OpenAI",
    fields: &[
        done("model", r#""tales""#, "a name or an alias; the first model if it is left out"),
        done("stream", "true", "server-sent events"),
        done("stream_options", r#"{"include_obfuscation": false}"#, "see its fields")
            .with(r#""stream": true"#),
        refused("stream_options.include_obfuscation", "true", "streams have no padding")
            .with(r#""stream": true"#),
        done("stop", r#"["END"]"#, "texts that end an answer (`--max-stops`)"),
        done("seed", "7", "the same seed gives the same answer"),
        done("temperature", "0.5", "0 to 2; 0: the most probable token"),
        done("top_p", "0.9", "0 to 1"),
        done("frequency_penalty", "0.5", "-2 to 2"),
        done("presence_penalty", "0.5", "-2 to 2"),
        done("logit_bias", r#"{"5": 1}"#, "token ids with numbers from -100 to 100"),
        ignored("service_tier", r#""auto""#, ONE_TIER),
        ignored("user", r#""me""#, NAMELESS),
        ignored("safety_identifier", r#""me""#, NAMELESS),
        ignored("prompt_cache_key", r#""me""#, CACHED),
        ignored("prompt_cache_options", r#"{"mode": "explicit"}"#, CACHED),
        ignored("prompt_cache_retention", r#""24h""#, CACHED),
    ],
};

const BOTH: Group = Group {
    title: "Chat completions and completions, OpenAI",
    fields: &[
        done("n", "2", "so many answers; answer `i` has the seed `seed + i`"),
        done("stream_options.include_usage", "true", "a last event has the usage").with(r#""stream": true"#),
        done("response_format", r#"{"type": "json_object"}"#, "`text`, `json_object` or `json_schema`"),
    ],
};

const SAMPLING: Group = Group {
    title: "Sampling beyond OpenAI's fields, under vLLM's and llama.cpp's names",
    fields: &[
        done("top_k", "5", "[sampling.md](sampling.md) defines these; 0 or -1: all tokens"),
        done("min_p", "0.1", "0 to 1"),
        done("repeat_penalty", "1.1", "0.001 to 1,000"),
        done("repetition_penalty", "1.1", "the same"),
        done("repeat_last_n", "64", "the window of the penalties in tokens"),
        done("top_n_sigma", "1", "-1 and 0: off"),
        done("typical_p", "0.9", "0 to 1"),
        done("xtc_probability", "0.5", "0 to 1"),
        done("xtc_threshold", "0.1", "0 to 1"),
        done("dynatemp_range", "0.5", "0 to 100"),
        done("dynatemp_exponent", "1", "0 to 100"),
        done("dry_multiplier", "0.8", "0 to 100"),
        done("dry_base", "1.75", "1 to 100"),
        done("dry_allowed_length", "2", "in tokens"),
        done("dry_penalty_last_n", "-1", "in tokens; -1: all"),
        done("dry_sequence_breakers", r#"["\n"]"#, "at most 16 texts of 64 bytes"),
        done("mirostat", "2", "0 or 2"),
        done("mirostat_tau", "5", "0.01 to 100"),
        done("mirostat_eta", "0.1", "0 to 10"),
        done("ignore_eos", "true", "goes on after the model's end of text"),
        done("priority", "1", "lower ones get a slot first; not below that of the API key"),
        done("cache_salt", r#""a""#, "cached prompts are reused only with the same one"),
    ],
};

const FORMATS: Group = Group {
    title: "Structured answers beyond OpenAI's fields, under vLLM's and llama.cpp's names",
    fields: &[
        done("structured_outputs", r#"{"regex": "a+"}"#, "one of the following; two formats are refused"),
        done("structured_outputs.json", r#"{"type": "object"}"#, "a JSON Schema"),
        done("structured_outputs.json_object", "true", "any object"),
        done("structured_outputs.regex", r#""a+""#, "a regular expression"),
        done("structured_outputs.choice", r#"["a", "b"]"#, "one of these texts"),
        done("structured_outputs.grammar", r#""root ::= \"a\"""#, "GBNF or Lark"),
        refused("structured_outputs.structural_tag", r#"{"a": 1}"#, "use 'tools'"),
        refused(
            "structured_outputs.whitespace_pattern",
            r#""[ ]?""#,
            "white space is that of the schema's form",
        ),
        refused(
            "structured_outputs.disable_any_whitespace",
            "true",
            "white space is that of the schema's form",
        ),
        refused("structured_outputs.disable_additional_properties", "true", "say so in the schema"),
        ignored(
            "structured_outputs.disable_fallback",
            "true",
            "there is one engine for formats, and no fallback",
        ),
        done("guided_json", r#"{"type": "object"}"#, "as `structured_outputs.json`"),
        done("guided_regex", r#""a+""#, "as `structured_outputs.regex`"),
        done("guided_choice", r#"["a", "b"]"#, "as `structured_outputs.choice`"),
        done("guided_grammar", r#""root ::= \"a\"""#, "as `structured_outputs.grammar`"),
        refused("guided_whitespace_pattern", r#""[ ]?""#, "white space is that of the schema's form"),
        ignored("guided_decoding_backend", r#""auto""#, "there is one engine for formats"),
        refused("structured_output", r#"{"regex": "a+"}"#, "use 'structured_outputs'"),
        refused("regex", r#""a+""#, "use 'structured_outputs'"),
        refused("ebnf", r#""root ::= \"a\"""#, "use 'structured_outputs'"),
        done("json_schema", r#"{"type": "object"}"#, "a JSON Schema"),
        done("grammar", r#""root ::= \"a\"""#, "GBNF or Lark"),
    ],
};

/// A conversation whose last message is the assistant's.
pub(super) const PREFILL: &str =
    r#""messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Once"}]"#;

const CHAT_OTHERS: Group = Group {
    title: "Chat completions beyond OpenAI's fields",
    fields: &[
        done("chat_template_kwargs", r#"{"enable_thinking": false}"#, "variables of the template"),
        done(
            "continue_final_message",
            "true",
            "whether the assistant's last message is continued; it is unless a request says otherwise",
        )
        .with(PREFILL),
        done(
            "add_generation_prompt",
            "false",
            "true: a new answer follows; false: no prompt for one is added",
        ),
        refused("echo", "true", "an answer is only what is new"),
        refused("prompt_logprobs", "1", "/v1/completions has them"),
        refused("suffix", r#""The end.""#, "/v1/completions has it"),
        refused("best_of", "3", "use 'n'; /v1/completions has it").unless("[1]"),
        refused("reasoning", r#"{"effort": "low"}"#, "use 'reasoning_effort'"),
        refused("thinking", r#"{"type": "enabled"}"#, "use 'chat_template_kwargs' or 'reasoning_effort'"),
        refused(
            "chat_template",
            r#""{{ messages }}""#,
            "the model's own is used (`akunu serve --chat-template`)",
        ),
        refused("documents", r#"[{"text": "a"}]"#, "give them in a message"),
        refused("mm_processor_kwargs", r#"{"a": 1}"#, "only text is read"),
        refused("include_reasoning", "false", "reasoning is always returned").unless("[true]"),
        refused("thinking_token_budget", "100", "reasoning has no limit of its own"),
        refused("reasoning_format", r#""none""#, "reasoning comes as 'reasoning_content'")
            .unless(r#"["auto", "deepseek"]"#),
        ignored("parse_tool_calls", "true", "calls are parsed where there are 'tools'"),
    ],
};

const VLLM: Group = Group {
    title: "Generation, vLLM",
    fields: &[
        refused("use_beam_search", "true", "there is no beam search"),
        refused("length_penalty", "0.5", "there is no beam search").unless("[1]"),
        refused("min_tokens", "3", "an answer ends where the model ends it; use 'ignore_eos'").unless("[0]"),
        done("stop_token_ids", "[2]", "tokens that end an answer, at most 64"),
        refused("include_stop_str_in_output", "true", "stop texts are left out"),
        refused("bad_words", r#"["a"]"#, "use 'logit_bias'"),
        refused("allowed_token_ids", "[5]", "use 'guided_regex' or 'logit_bias'"),
        refused("skip_special_tokens", "false", "control tokens are not text").unless("[true]"),
        refused("spaces_between_special_tokens", "false", "control tokens are not text").unless("[true]"),
        refused("add_special_tokens", "true", "the model's own special tokens are added").unless("[false]"),
        refused("truncate_prompt_tokens", "10", "nothing is truncated; shorten the prompt"),
        refused("logits_processors", r#"["a"]"#, "code is not loaded"),
        refused("return_tokens_as_token_ids", "true", "log probabilities have the tokens' bytes"),
        refused("return_token_ids", "true", "use /tokenize"),
        refused("kv_transfer_params", r#"{"a": 1}"#, "the cache is not transferred"),
        refused("vllm_xargs", r#"{"a": 1}"#, "there are no such arguments"),
        ignored("request_id", r#""a""#, "the server makes its own"),
    ],
};

const LENGTH: Group = Group {
    title: "Length, llama.cpp",
    fields: &[refused("n_predict", "5", "use 'max_tokens'").unless("[-1]")],
};

const LLAMA_CPP: Group = Group {
    title: "Generation, llama.cpp",
    fields: &[
        refused("n_keep", "5", "nothing is dropped from a prompt").unless("[0, -1]"),
        refused("n_discard", "5", "nothing is dropped from a prompt").unless("[0]"),
        refused("n_probs", "3", "use 'logprobs'").unless("[0]"),
        refused("post_sampling_probs", "true", "probabilities are those before sampling"),
        refused("min_keep", "2", "samplers keep one token at least").unless("[0, 1]"),
        refused("samplers", r#"["top_k"]"#, "the order of samplers is fixed (see sampling.md)"),
        refused("penalize_nl", "true", "newlines are penalised as other tokens; use 'logit_bias'"),
        refused("t_max_prompt_ms", "5", "the server has a limit (`--request-timeout`)").unless("[-1, 0]"),
        refused("t_max_predict_ms", "5", "the server has a limit (`--request-timeout`)").unless("[-1, 0]"),
        refused("lora", r#"[{"id": 0, "scale": 1}]"#, "there are no adapters"),
        refused("n_indent", "2", "there is no limit on indentation").unless("[0]"),
        refused("response_fields", r#"["content"]"#, "answers have all fields of the protocol"),
        refused("return_tokens", "true", "use /tokenize"),
        refused("return_progress", "true", "streams have no events for prompts"),
        refused("timings_per_token", "true", "the metrics have times"),
        ignored("id_slot", "0", "slots are given by the server"),
        ignored("cache_prompt", "true", CACHED),
    ],
};

const EMBEDDING_FIELDS: Group = Group {
    title: "Embeddings, OpenAI",
    fields: &[
        EMBEDDING_MODEL,
        done("input", r#""w5 w6""#, "a text, token ids, or a list of either"),
        done("encoding_format", r#""base64""#, "`float` or `base64`"),
        done("dimensions", "4", "keeps so many, and normalises again"),
        done("truncate", "true", "ours: truncates texts that are too long"),
        done("prompt_name", r#""query""#, "ours: a prompt of the model's files, before each text"),
        ignored("user", r#""me""#, NAMELESS),
        refused("truncate_prompt_tokens", "10", "use 'truncate'"),
        refused("normalize", "false", "vectors have length 1; /embed returns them as they are")
            .unless("[true]"),
        refused("add_special_tokens", "false", "the model's own are added; give token ids").unless("[true]"),
        refused("input_type", r#""query""#, "use 'prompt_name'"),
        refused("messages", r#"[{"role": "user", "content": "a"}]"#, "use 'input'"),
    ],
};

const EMBEDDING_MODEL: Field =
    done("model", r#""words""#, "a name or an alias; the first model if it is left out");

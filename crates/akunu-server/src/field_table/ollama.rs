//! The fields of Ollama's protocol.

use super::{Field, Group, POST, Route, done, ignored, refused};

/// Ollama ignores options that it does not know, and has a warning for each in its log.
const TOLD: &[&str] = &["options"];

pub(crate) const GENERATE: Route =
    Route { paths: &["/api/generate"], groups: &[&GENERATE_FIELDS, &ANSWER, &OPTIONS], told: TOLD, ..POST };

pub(crate) const CHAT: Route =
    Route { paths: &["/api/chat"], groups: &[&CHAT_FIELDS, &ANSWER, &OPTIONS], told: TOLD, ..POST };

pub(crate) const EMBED: Route = Route { paths: &["/api/embed"], groups: &[&EMBED_FIELDS], ..POST };

pub(crate) const EMBEDDINGS: Route =
    Route { paths: &["/api/embeddings"], groups: &[&EMBEDDINGS_FIELDS], ..POST };

const AT_START: &str = "set when the server starts";
const KEEP_ALIVE: Field = done(
    "keep_alive",
    r#""5m""#,
    "how long the model stays loaded, with `--idle-unload` or `--models`; else it stays",
);

const GENERATE_FIELDS: Group = Group {
    title: "Ollama's generate",
    fields: &[
        done("prompt", r#""Hello""#, "none: only loads the model"),
        done("system", r#""Be brief.""#, "the system message"),
        done("raw", "true", "true: the prompt is continued without a template"),
        done(
            "suffix",
            r#""The end.""#,
            "the text after what is asked for; if the vocabulary has tokens for it",
        )
        .with(r#""model": "infiller""#),
        refused(
            "template",
            r#""{{ .Prompt }}""#,
            "the model's own template is used, or that of /api/create; \"raw\": true uses none",
        ),
        refused("context", "[1]", "use /api/chat with the earlier messages"),
        refused("images", r#"["aGk="]"#, "only text content is"),
    ],
};

const CHAT_FIELDS: Group = Group {
    title: "Ollama's chat",
    fields: &[
        done("messages", r#"[{"role": "user", "content": "Hello"}]"#, "texts; `images` are refused"),
        done("tools", r#"[{"type": "function", "function": {"name": "clock"}}]"#, "functions"),
    ],
};

const ANSWER: Group = Group {
    title: "Ollama's answers",
    fields: &[
        done("model", r#""tales:latest""#, "a name or an alias, required; `:latest` means the same"),
        done("stream", "false", "true unless a request says otherwise"),
        done("format", r#""json""#, "`json` or a JSON Schema"),
        done(
            "think",
            "false",
            "the template's `enable_thinking`, or its `reasoning_effort`: `low`, `medium`, `high`, `max`",
        ),
        done("logprobs", "true", "log probabilities of the answer's tokens"),
        done("top_logprobs", "2", "so many alternatives to each, at most 20").with(r#""logprobs": true"#),
        done("options", r#"{"num_predict": 3}"#, "see below"),
        KEEP_ALIVE,
        ignored("truncate", "true", "nothing is truncated: a prompt that does not fit is 400"),
        ignored("shift", "true", "an answer that fills the context ends with `length`"),
    ],
};

const OPTIONS: Group = Group {
    title: "Ollama's options",
    fields: &[
        done("options.num_predict", "3", "-1 and -2: no limit"),
        done("options.stop", r#"["END"]"#, "texts that end an answer (`--max-stops`)"),
        done("options.seed", "7", "-1: random"),
        done("options.temperature", "0.5", "[sampling.md](sampling.md) defines these; 0 to 100"),
        done("options.top_k", "5", "0: all tokens"),
        done("options.top_p", "0.9", "0 to 1"),
        done("options.min_p", "0.1", "0 to 1"),
        done("options.repeat_penalty", "1.1", "0.001 to 1,000"),
        done("options.repeat_last_n", "64", "the window of the penalties in tokens; -1: all"),
        done("options.frequency_penalty", "0.5", "-2 to 2"),
        done("options.presence_penalty", "0.5", "-2 to 2"),
        done("options.top_n_sigma", "1", "-1 and 0: off"),
        done("options.typical_p", "0.9", "0 to 1"),
        done("options.xtc_probability", "0.5", "0 to 1"),
        done("options.xtc_threshold", "0.1", "0 to 1"),
        done("options.dynatemp_range", "0.5", "0 to 100"),
        done("options.dynatemp_exponent", "1", "0 to 100"),
        done("options.dry_multiplier", "0.8", "0 to 100"),
        done("options.dry_base", "1.75", "1 to 100"),
        done("options.dry_allowed_length", "2", "in tokens"),
        done("options.dry_penalty_last_n", "-1", "in tokens; -1: all"),
        done("options.dry_sequence_breakers", r#"["\n"]"#, "at most 16 texts of 64 bytes"),
        done("options.mirostat", "2", "0 or 2"),
        done("options.mirostat_tau", "5", "0.01 to 100"),
        done("options.mirostat_eta", "0.1", "0 to 10"),
        refused("options.tfs_z", "0.5", "this sampler is not").unless("[1]"),
        ignored("options.num_ctx", "2048", AT_START),
        ignored("options.num_batch", "512", AT_START),
        ignored("options.num_gpu", "1", AT_START),
        ignored("options.main_gpu", "0", AT_START),
        ignored("options.num_thread", "4", AT_START),
        ignored("options.use_mmap", "true", AT_START),
        ignored("options.use_mlock", "true", AT_START),
        ignored("options.low_vram", "true", AT_START),
        ignored("options.numa", "true", AT_START),
        ignored("options.num_keep", "4", "nothing is dropped from a prompt"),
        ignored("options.penalize_newline", "true", "newlines are penalised as other tokens"),
    ],
};

const EMBED_FIELDS: Group = Group {
    title: "Ollama's embed",
    fields: &[
        MODEL,
        done("input", r#""w5 w6""#, "a text, token ids, or a list of either"),
        done("truncate", "false", "true unless a request says otherwise"),
        DIMENSIONS,
        ignored("options", r#"{"num_ctx": 5}"#, AT_START),
        KEEP_ALIVE,
    ],
};

const EMBEDDINGS_FIELDS: Group = Group {
    title: "Ollama's embeddings, the older form",
    fields: &[
        MODEL,
        done("prompt", r#""w5 w6""#, "one text, or its token ids"),
        done("truncate", "false", "ours: true unless a request says otherwise"),
        DIMENSIONS,
        ignored("options", r#"{"num_ctx": 5}"#, AT_START),
        KEEP_ALIVE,
    ],
};

const MODEL: Field = done("model", r#""words""#, "a name or an alias, required; `:latest` means the same");
const DIMENSIONS: Field = done("dimensions", "4", "keeps so many, and normalises again");

//! Options and commands of llama.cpp and Ollama that have another name here, for hints. `docs/llama-cpp.md` has all.

/// Their options, in all spellings, and what to use.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["--ctx-size"], "the context is set by -c N"),
    (&["--predict", "--n-predict"], "the number of tokens is set by -n N"),
    (&["-ngl"], "the layers on the GPU are set by --gpu-layers N"),
    (&["--split-mode", "--tensor-split", "--main-gpu"], "GPUs are chosen by --device cuda:N or cuda:0,1"),
    (&["--batch-size", "--ubatch-size"], "the tokens of a prompt in one pass are set by --chunk N"),
    (&["--cache-type-k", "--cache-type-v"], "keys and values have the type of --kv-type"),
    (&["--flash-attn"], "attention is always of that kind"),
    (&["--keep"], "what is kept when the context is full is set by --context-shift=N"),
    (&["--reverse-prompt"], "texts that end an answer are set by --stop"),
    (&["--conversation", "--interactive"], "a conversation is akunu chat"),
    (&["--jinja"], "templates are always used so; leave it out"),
    (&["--chat-template-file"], "a template's file is set by --chat-template FILE"),
    (&["--grammar-file"], "a grammar's file is set by --grammar FILE"),
    (&["--json-schema-file"], "a schema's file is set by --json-schema FILE"),
    (&["--api-key"], "the key is set by the variable AKUNU_API_KEY, or --api-keys FILE"),
    (&["--ssl-cert-file", "--ssl-key-file"], "a certificate is set by --tls-cert and --tls-key"),
    (&["-ncmoe", "-cmoe"], "experts are left to the CPU by --n-cpu-moe N, or --cpu-moe"),
    (&["--override-tensor"], "what the CPU computes is set by --gpu-layers N and --n-cpu-moe N"),
];

const COMMANDS: &[(&str, &str)] = &[
    ("ps", "models that a server has loaded are at its /api/ps"),
    ("stop", "a server unloads a model by \"keep_alive\": 0, or akunu serve --idle-unload"),
    ("create", "a server makes models at /api/create; akunu quantize converts files"),
    ("cli", "a conversation is akunu chat, and a text is continued by akunu run"),
    ("server", "the server is akunu serve"),
];

/// A hint for an option that does not exist.
pub fn option(name: &str) -> Option<&'static str> {
    let name = name.split('=').next().unwrap_or(name);
    OPTIONS.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

/// A hint for a command that does not exist.
pub fn command(name: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(theirs, _)| *theirs == name).map(|(_, hint)| *hint)
}

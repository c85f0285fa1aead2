//! Options and commands of llama.cpp and Ollama that have another name here, for hints. `docs/llama-cpp.md` has all.

use std::ffi::OsString;

/// Their options, in all spellings, and what to use.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["--ctx-size"], "the context is set by -c N"),
    (&["--predict", "--n-predict"], "the number of tokens is set by -n N"),
    (&["-hf", "-hfr", "--hf-repo"], "a model of the hub is named hf:OWNER/NAME:QUANT"),
    (&["-hff", "--hf-file"], "a file of the hub is named hf:OWNER/NAME:FILE"),
    (&["-hft", "--hf-token"], "the hub's token is set by the variable HF_TOKEN"),
    (&["-s"], "the seed is set by --seed N"),
    (&["-ngl"], "the layers on the GPU are set by --gpu-layers N"),
    (
        &["-sm", "-ts", "-mg", "--split-mode", "--tensor-split", "--main-gpu"],
        "GPUs are chosen by --device cuda:N or cuda:0,1",
    ),
    (&["-dev"], "the device is set by --device"),
    (
        &["-b", "-ub", "--batch-size", "--ubatch-size"],
        "the tokens of a prompt in one pass are set by --chunk N",
    ),
    (&["-tb", "--threads-batch"], "the threads of prompts too are set by -t N"),
    (&["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"], "keys and values have the type of --kv-type"),
    (&["-fa", "--flash-attn"], "attention is always of that kind; leave it out"),
    (&["--keep"], "what is kept when the context is full is set by --context-shift=N"),
    (&["-r", "--reverse-prompt"], "texts that end an answer are set by --stop"),
    (&["-cnv", "--conversation", "-i", "--interactive"], "a conversation is akunu chat"),
    (&["-no-cnv", "--no-conversation"], "a text is continued by akunu run"),
    (&["-st", "--single-turn"], "one question is akunu chat -p TEXT"),
    (&["-sys", "--system-prompt"], "the system message is set by --system TEXT of akunu chat"),
    (&["-np"], "the requests that run at once are set by --parallel N"),
    (&["-cb", "--cont-batching"], "requests always join running ones; leave it out"),
    (&["-to", "--timeout"], "the time of a request is limited by --request-timeout N"),
    (&["--no-display-prompt"], "the prompt is left out by --no-echo"),
    (&["-e", "--escape"], "escapes are the shell's: $'two\\nlines'"),
    (&["--samplers", "--sampling-seq"], "samplers have no order here: leave it out"),
    (&["--prompt-cache"], "what was processed is kept by --kv-disk DIR"),
    (&["--log-disable"], "messages are left out by -q"),
    (&["--color"], "colours are those of the terminal, unless NO_COLOR is set"),
    (&["--mlock", "--numa"], "this is not there; the model's file is mapped"),
    (&["--lora", "--lora-scaled"], "LoRA adapters are not supported yet"),
    (&["-md", "--model-draft", "--spec-type"], "speculative decoding is not supported yet"),
    (&["-mm", "--mmproj", "--image"], "images are not supported yet"),
    (&["--jinja"], "templates are always used so; leave it out"),
    (&["--chat-template-file"], "a template's file is set by --chat-template FILE"),
    (&["--grammar-file"], "a grammar's file is set by --grammar FILE"),
    (&["--json-schema-file"], "a schema's file is set by --json-schema FILE"),
    (&["--api-key"], "the key is set by the variable AKUNU_API_KEY, or --api-keys FILE"),
    (&["--ssl-cert-file", "--ssl-key-file"], "a certificate is set by --tls-cert and --tls-key"),
    (&["-ncmoe", "-cmoe"], "experts are left to the CPU by --n-cpu-moe N, or --cpu-moe"),
    (&["-ot", "--override-tensor"], "what the CPU computes is set by --gpu-layers N and --n-cpu-moe N"),
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

/// The option of several letters after one hyphen among the arguments, which would be read as an option of one letter
/// with a value, or as several: `-ngl 99` as `-n gl`, `-hf NAME` as a call for help.
pub fn misread(arguments: impl Iterator<Item = OsString>) -> Option<&'static str> {
    let names = || OPTIONS.iter().flat_map(|(names, _)| names.iter());
    arguments
        .take_while(|argument| argument != "--")
        .find_map(|argument| names().find(|name| argument == **name && is_misread(name)).copied())
}

fn is_misread(name: &str) -> bool {
    !name.starts_with("--") && name.len() > 2
}

/// A hint for a command that does not exist.
pub fn command(name: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(theirs, _)| *theirs == name).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_users_of_llama_cpp_has_every_option() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/llama-cpp.md");
        let page = std::fs::read_to_string(file).unwrap();
        let words: Vec<&str> = page.split(['`', ' ', ',']).collect();
        for (names, _) in OPTIONS {
            assert!(names.iter().any(|name| words.contains(name)), "{names:?}");
        }
    }

    #[test]
    fn options_of_several_letters_are_found_before_two_hyphens() {
        let found = |words: &[&str]| misread(words.iter().map(OsString::from));
        assert_eq!(found(&["run", "-hf", "a/b"]), Some("-hf"));
        assert_eq!(found(&["run", "-n", "5", "-h"]), None);
        assert_eq!(found(&["run", "--", "-hf"]), None);
    }
}

//! MODEL arguments that are not models, or damaged ones: the error says what is wrong and what to do.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // in helpers of tests

use std::fs;
use std::path::{Path, PathBuf};

use akunu_format::{Array, Metadata, Strings, Value as Gguf};
use serde_json::{Value, json};

use crate::common::{ok, path, refuses, run, write_small_model};

/// One `error:` line with these words, and only `hint:` lines after it.
#[track_caller]
fn one_line(args: &[&str], words: &[&str]) {
    let done = refuses(args, 1, words);
    assert!(done.stdout.is_empty(), "{}", done.stdout);
    let mut lines = done.stderr.lines();
    assert!(lines.next().unwrap().starts_with("error: "), "{}", done.stderr);
    assert!(lines.all(|line| line.starts_with("hint: ")), "{}", done.stderr);
}

/// Every command rejects the file with the same words.
#[track_caller]
fn no_model(model: &Path, words: &[&str]) {
    one_line(&["inspect", path(model)], words);
    one_line(&["run", path(model), "Once"], words);
    one_line(&["chat", path(model), "-p", "Hi"], words);
}

fn little_endian(fields: &[u32]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_le_bytes()).collect()
}

#[test]
fn files_of_other_kinds_are_recognised_by_their_content() {
    const AS_SAFETENSORS: &str = "hint: save the model as SafeTensors";
    const GGML: u32 = 0x6767_6d6c;
    // whisper.cpp's tiny model, and LLaMA from before GGUF: vocabulary, width, multiple, heads, layers, RoPE, type.
    let whisper = little_endian(&[GGML, 51865, 1500, 384, 6, 4, 448, 384, 6, 4, 80, 1, 80, 201]);
    let llama = little_endian(&[GGML, 32000, 4096, 256, 32, 32, 128, 2, 1, 1, 1, 1, 1, 1]);
    let cases: [(&str, &[u8], [&str; 2]); 9] = [
        ("pytorch_model.bin", b"PK\x03\x04 archive/data.pkl", ["as PyTorch writes weights", AS_SAFETENSORS]),
        ("model.pt", b"PK\x03\x04 model/data.pkl", ["as PyTorch writes weights", AS_SAFETENSORS]),
        ("model.pth", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", ["a Python pickle", AS_SAFETENSORS]),
        ("ggml-tiny.bin", &whisper, ["cut short or damaged", "download it again"]),
        ("ggml-model.bin", &llama, ["a GGML file, from before GGUF", "hint: take a GGUF file"]),
        ("model.gguf", b"", ["an empty file", "hint: download it again"]),
        ("cut.gguf", b"GGUF", ["cut short or damaged", "download it again"]),
        (
            "story.txt",
            "Es wär schön".as_bytes(),
            ["a text file", "hint: give a GGUF file, or a Hugging Face"],
        ),
        ("noise.gguf", b"\x01\x02\x03\xff\xfe", ["a file of an unknown kind", "hint: give a GGUF file"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, [what, next]) in cases {
        let file = dir.path().join(name);
        fs::write(&file, bytes).unwrap();
        no_model(&file, &[name, what, next]);
    }
    let config = dir.path().join("config.json");
    fs::write(&config, "{}").unwrap();
    one_line(&["run", path(&config), "Once"], &["config.json", "a JSON file", "hint: give its folder"]);
}

#[test]
fn a_whisper_file_without_tensors_is_no_model() {
    let test = "a_whisper_file_without_tensors_is_no_model";
    let Some(file) = akunu_testing::data(test, "whisper/for-tests-ggml-tiny.bin") else { return };
    no_model(&file, &["a GGML file without tensors", "hint: it holds a vocabulary only"]);
}

/// A Hugging Face folder with one layer and 16 embeddings, all zeros, to be damaged by tests.
struct Folder {
    dir: tempfile::TempDir,
    config: Value,
}

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
const INDEX: &str = "model.safetensors.index.json";
const WIDTH: usize = 32;

impl Folder {
    fn new() -> Folder {
        let config = json!({
            "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        });
        let folder = Folder { dir: tempfile::tempdir().unwrap(), config };
        folder.write("config.json", folder.config.to_string());
        folder.write("model.safetensors", safetensors(&Folder::tensors()));
        folder
    }

    /// The same in two files.
    fn sharded() -> Folder {
        let folder = Folder::new();
        let tensors = Folder::tensors();
        fs::remove_file(folder.file("model.safetensors")).unwrap();
        for (name, half) in SHARDS.iter().zip(tensors.chunks(6)) {
            folder.write(name, safetensors(half));
        }
        folder.write(INDEX, Folder::index(&[]).to_string());
        folder
    }

    /// An index of the shards that also lists `more` in the second one.
    fn index(more: &[&str]) -> Value {
        let tensors = Folder::tensors();
        let (first, second) = tensors.split_at(6);
        let place = |shard: usize| move |name: &str| (name.to_string(), json!(SHARDS[shard]));
        let map: serde_json::Map<String, Value> = first
            .iter()
            .map(|(name, _)| place(0)(name))
            .chain(second.iter().map(|(name, _)| place(1)(name)))
            .chain(more.iter().map(|name| place(1)(name)))
            .collect();
        json!({ "weight_map": map })
    }

    fn tensors() -> Vec<(String, Vec<usize>)> {
        let layer = |name: &str| format!("model.layers.0.{name}.weight");
        vec![
            ("model.embed_tokens.weight".into(), vec![16, WIDTH]),
            (layer("input_layernorm"), vec![WIDTH]),
            (layer("self_attn.q_proj"), vec![WIDTH, WIDTH]),
            (layer("self_attn.k_proj"), vec![WIDTH / 2, WIDTH]),
            (layer("self_attn.v_proj"), vec![WIDTH / 2, WIDTH]),
            (layer("self_attn.o_proj"), vec![WIDTH, WIDTH]),
            (layer("post_attention_layernorm"), vec![WIDTH]),
            (layer("mlp.gate_proj"), vec![2 * WIDTH, WIDTH]),
            (layer("mlp.up_proj"), vec![2 * WIDTH, WIDTH]),
            (layer("mlp.down_proj"), vec![WIDTH, 2 * WIDTH]),
            ("model.norm.weight".into(), vec![WIDTH]),
        ]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.file(name), bytes).unwrap();
    }

    /// With another value of a key in its configuration, or without the key.
    fn with(self, key: &str, value: Option<Value>) -> Folder {
        let mut config = self.config.clone();
        match value {
            Some(value) => config[key] = value,
            None => drop(config.as_object_mut().unwrap().remove(key)),
        }
        self.write("config.json", config.to_string());
        self
    }

    /// With a vocabulary of single bytes, the first `tokens` of them.
    fn with_vocabulary(self, tokens: usize, pre_tokenizer: &str) -> Folder {
        let vocab: serde_json::Map<String, Value> =
            ('a'..='z').take(tokens).zip(0..).map(|(letter, id)| (letter.to_string(), json!(id))).collect();
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": pre_tokenizer},
            "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        self.write("tokenizer.json", tokenizer.to_string());
        self
    }
}

fn safetensors(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        let about = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), about);
    }
    let header = serde_json::to_string(&header).unwrap();
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    bytes
}

/// A model's table without the line that names the model.
fn commands(model: &Path) -> String {
    let table = ok(&["table", path(model)]);
    table.split_once('\n').unwrap().1.to_string()
}

#[test]
fn folders_without_weights_or_configuration() {
    let dir = tempfile::tempdir().unwrap();
    no_model(dir.path(), &["an empty folder", "hint: a Hugging Face folder has config.json"]);

    let folder = Folder::new();
    let weights = folder.file("model.safetensors");
    // A weights file beside its configuration is equivalent to the folder.
    assert_eq!(commands(&weights), commands(folder.dir.path()));
    fs::rename(&weights, folder.file("aside")).unwrap();
    no_model(folder.dir.path(), &["without SafeTensors weights", "hint: it needs model.safetensors"]);
    folder.write("pytorch_model.bin", b"PK\x03\x04");
    let pytorch = "hint: its weights are in PyTorch's format: convert them to SafeTensors";
    no_model(folder.dir.path(), &["without SafeTensors weights", pytorch]);
    fs::remove_file(folder.file("config.json")).unwrap();
    no_model(folder.dir.path(), &["without config.json", pytorch]);

    fs::rename(folder.file("aside"), &weights).unwrap();
    let both = ["without config.json", "hint: put the config.json and the tokenizer.json"];
    one_line(&["run", path(folder.dir.path()), "Once"], &both);
    one_line(&["run", path(&weights), "Once"], &both);
}

#[test]
fn incomplete_folders_name_the_missing_part() {
    let whole = Folder::sharded();
    let expected = commands(Folder::new().dir.path());
    assert_eq!(commands(whole.dir.path()), expected);
    assert_eq!(commands(&whole.file(SHARDS[1])), expected, "a shard stands for its folder");

    let check = |folder: Folder, words: &[&str]| {
        for command in ["plan", "table"] {
            one_line(&[command, path(folder.dir.path())], words);
        }
        one_line(&["run", path(folder.dir.path()), "--prompt-ids", "1", "-n", "1"], words);
    };
    let missing = Folder::sharded();
    fs::remove_file(missing.file(SHARDS[1])).unwrap();
    check(missing, &[INDEX, "of 2 files", SHARDS[1], "is missing: download"]);
    let absent = Folder::sharded();
    absent.write(INDEX, Folder::index(&["lm_head.weight"]).to_string());
    check(
        absent,
        &[SHARDS[1], "tensor lm_head.weight: it is not in this file", INDEX, "download both again"],
    );
    let cut = Folder::new();
    let bytes = fs::read(cut.file("model.safetensors")).unwrap();
    cut.write("model.safetensors", &bytes[..bytes.len() - 1]);
    check(cut, &["model.safetensors", "cut short or damaged"]);

    check(Folder::new().with("hidden_size", Some(json!(64))), &["hidden size", "64", "32 columns"]);
    check(Folder::new().with("intermediate_size", Some(json!(48))), &["blk.0.ffn_", "48"]);
    check(Folder::new().with("num_key_value_heads", Some(json!(4))), &["blk.0.attn_k.weight", "32"]);
    check(Folder::new().with("num_hidden_layers", Some(json!(2))), &["blk.1.", "missing"]);
    check(Folder::new().with("model_type", None), &["`model_type` is missing", "take the config.json"]);
    for field in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads"] {
        let words = [&format!("{field} in the config.json: it is missing"), "take the config.json"];
        check(Folder::new().with(field, None), &words);
    }
    let text = Folder::new();
    text.write("config.json", "hello");
    check(text, &["config.json", "it is not JSON"]);
}

#[test]
fn an_unusable_vocabulary_is_reported_when_text_is_used() {
    let check = |model: &Path, words: &[&str]| {
        one_line(&["run", path(model), "Once"], words);
        one_line(&["chat", path(model), "-p", "Hi"], words);
        // Token ids work without a vocabulary.
        ok(&["run", path(model), "--prompt-ids", "1", "--ids", "-n", "1", "-q"]);
    };
    let folder = |tokens, pre| Folder::new().with_vocabulary(tokens, pre);
    let ids = "hint: akunu run MODEL --prompt-ids";
    check(Folder::new().dir.path(), &["neither a tokenizer.json nor a tokenizer.model", ids]);
    check(folder(16, "Martian").dir.path(), &["`pre_tokenizer` of the unknown type `Martian`", ids]);
    let small = ["smaller than the embedding, 8 tokens for 16 rows", "published with the weights", ids];
    check(folder(8, "Whitespace").dir.path(), &small);
    let large = ["20 tokens and the embedding only 16 rows", "published with the weights", ids];
    check(folder(20, "Whitespace").dir.path(), &large);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    write_small_model(&file, |metadata| byte_level(metadata, 16, "martian"), None);
    check(&file, &["tokenizer.ggml.pre", "martian", ids]);
    write_small_model(&file, |metadata| byte_level(metadata, 8, "gpt-2"), None);
    check(&file, &["smaller than the embedding, 8 tokens for 16 rows", ids]);
}

fn byte_level(metadata: &mut Metadata, tokens: usize, pre: &str) {
    let mut texts: Vec<String> = ('a'..='z').take(tokens - 1).map(String::from).collect();
    texts.push("ab".into());
    let texts: Strings = texts.iter().map(String::as_str).collect();
    metadata.insert("tokenizer.ggml.model", Gguf::String("gpt2".into()));
    metadata.insert("tokenizer.ggml.pre", Gguf::String(pre.into()));
    metadata.insert("tokenizer.ggml.tokens", Gguf::Array(Array::Strings(texts)));
    metadata.insert("tokenizer.ggml.token_type", Gguf::Array(Array::I32(vec![1; tokens])));
    metadata.insert("tokenizer.ggml.merges", Gguf::Array(Array::Strings(["a b"].into_iter().collect())));
}

#[test]
fn a_folder_without_a_chat_template_can_be_given_one() {
    let folder = Folder::new().with_vocabulary(16, "Whitespace");
    let words = ["chat template missing", "hint: ", "--chat-template FILE"];
    one_line(&["chat", path(folder.dir.path()), "-p", "Hi"], &words);
}

#[test]
fn a_text_for_a_model_that_chats_is_continued_with_a_note() {
    let folder = Folder::new().with_vocabulary(16, "Whitespace");
    let continued = ["run", path(folder.dir.path()), "a", "-n", "1", "--temp", "0"];
    let note = "note: run continues a text; akunu chat MODEL -p \"…\" answers it";
    assert!(!run(&continued).stderr.contains(note));
    fs::write(folder.dir.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    let done = run(&continued);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stderr.contains(note), "{}", done.stderr);
    for silent in [&["-q"][..], &["--ids"]] {
        assert!(!run(&[&continued, silent].concat()).stderr.contains(note), "{silent:?}");
    }
}

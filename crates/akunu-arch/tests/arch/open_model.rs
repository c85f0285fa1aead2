//! Paths that are not models: what they are recognised as, and the advice given.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::Path;

use akunu_arch::{SuggestedSampling, open_model};
use akunu_format::FormatError;

fn refused(path: &Path) -> String {
    open_model(path).unwrap_err().to_string()
}

#[test]
fn files_that_are_not_models_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, expected) in [
        (&b""[..], "this is an empty file, not a model that can be run. Download it again."),
        (
            b"PK\x03\x04archive/data.pkl",
            "this is a zip archive, as PyTorch writes weights, not a model that can be run. Save the model as SafeTensors (transformers' save_pretrained does), or take a GGUF file of it.",
        ),
        (
            b"\x80\x02}q\x00.",
            "this is a Python pickle, as PyTorch writes weights, not a model that can be run. Save the model as SafeTensors (transformers' save_pretrained does), or take a GGUF file of it.",
        ),
        (
            b"lmgg\x01\0\0\0",
            "this is a GGML file, from before GGUF, not a model that can be run. Take a GGUF file of the model.",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "this is a Git LFS pointer, not a model that can be run. Run `git lfs pull` to get the file itself.",
        ),
        (
            b"<!DOCTYPE html>",
            "this is a web page, not a model that can be run. The download went wrong: download the file again.",
        ),
        (
            b"{\"model_type\": \"llama\"}",
            "this is a JSON file, not a model that can be run. Give its folder, or the file with the weights.",
        ),
        (
            b"Once upon a time",
            "this is a text file (it begins with “Once upo”), not a model that can be run. Give a GGUF file, or a Hugging Face folder with config.json and SafeTensors.",
        ),
        (
            b"\x40\0\0\0\xac\0\0\0",
            "this is a file of an unknown kind (it begins with “@\\x00\\x00\\x00\\xac\\x00\\x00\\x00”), not a model that can be run. Give a GGUF file, or a Hugging Face folder with config.json and SafeTensors.",
        ),
        (
            b"GGUF",
            "the file ends inside the header: 4 bytes needed, 0 left. It is cut short or damaged: download it again",
        ),
    ] {
        // The name is wrong on purpose: the content decides.
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(refused(&path), format!("{}: {expected}", path.display()));
    }
}

#[test]
fn folders_without_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display();
    assert_eq!(
        refused(folder.path()),
        format!(
            "{here}: this is an empty folder, not a model that can be run. A Hugging Face folder has config.json and model.safetensors in it."
        )
    );
    std::fs::write(folder.path().join("tiny.gguf"), "").unwrap();
    assert_eq!(
        refused(folder.path()),
        format!(
            "{here}: this is a folder without config.json, not a model that can be run. Give a file in it, such as {here}/tiny.gguf."
        )
    );
    let config = folder.path().join("config.json");
    std::fs::write(&config, r#"{"model_type": "llama"}"#).unwrap();
    let error = refused(folder.path());
    assert!(error.contains("a folder without SafeTensors weights"), "{error}");
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    let error = refused(folder.path());
    assert!(error.contains("Its weights are in PyTorch's format: convert them to SafeTensors"), "{error}");
    std::fs::write(&config, "{").unwrap();
    let error = refused(folder.path());
    assert!(error.contains("config.json: the text in the config.json: it is not JSON"), "{error}");
}

#[test]
fn missing_paths_and_pipes() {
    let error = open_model(Path::new("/nowhere/at/all.gguf")).unwrap_err();
    assert!(matches!(error.kind(), FormatError::Io { .. }));
    assert_eq!(
        error.to_string(),
        "/nowhere/at/all.gguf: cannot open it: No such file or directory (os error 2)"
    );
    #[cfg(unix)]
    {
        let error = refused(Path::new("/dev/null"));
        assert!(error.contains("this is neither a file nor a folder"), "{error}");
    }
}

#[test]
fn safetensors_needs_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let bytes = [&8u64.to_le_bytes()[..], b"{}      "].concat();
    std::fs::write(&path, bytes).unwrap();
    let error = refused(&path);
    assert!(error.ends_with("this is a SafeTensors file without config.json, not a model that can be run. Put the config.json and the tokenizer.json that were published with it into its folder."), "{error}");
    // Rejected from the configuration alone.
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    assert!(refused(&path).contains("`model_type` is mamba"));
    // The configuration of a single file takes precedence over the folder's.
    std::fs::write(folder.path().join("model_config.json"), r#"{"model_type": "rwkv"}"#).unwrap();
    assert!(refused(&path).contains("`model_type` is rwkv"));
}

#[test]
fn shards_are_combined_and_missing_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, tensor: &str, shape: &str, bytes: usize| {
        let header =
            format!(r#"{{"{tensor}":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#);
        let padding = " ".repeat(header.len().next_multiple_of(8) - header.len());
        let mut file = ((header.len() + padding.len()) as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(padding.as_bytes());
        file.resize(file.len() + bytes, 0);
        std::fs::write(folder.path().join(name), file).unwrap();
    };
    let config = r#"{"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
        "intermediate_size": 4, "vocab_size": 2}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let generation = |text: &str| {
        std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
    };
    generation(r#"{"eos_token_id": [1, 0], "do_sample": true, "top_k": 20, "repetition_penalty": 1.25}"#);
    let index = |second: &str| {
        let text = format!(
            r#"{{"weight_map": {{"model.embed_tokens.weight": "a.safetensors", "model.norm.weight": "{second}"}}}}"#
        );
        std::fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
    };
    write("a.safetensors", "model.embed_tokens.weight", "[2,4]", 32);
    index("b.safetensors");
    let error = refused(folder.path());
    assert!(
        error.contains("split model: ")
            && error.contains("of 2 files, b.safetensors is missing: download what is missing"),
        "{error}"
    );
    index("../b.safetensors");
    assert!(refused(folder.path()).contains(r#""../b.safetensors" is not a plain file name"#));
    index("b.safetensors");
    write("b.safetensors", "other.weight", "[4]", 16);
    let error = refused(folder.path());
    assert!(error.contains("b.safetensors: tensor model.norm.weight: it is not in this file"), "{error}");
    write("b.safetensors", "model.norm.weight", "[4]", 16);
    let shard = open_model(&folder.path().join("b.safetensors")).unwrap();
    assert_eq!(shard.tensors().len(), 2, "a shard stands for its folder");
    let model = open_model(folder.path()).unwrap();
    assert_eq!(model.tensors().len(), 2);
    assert_eq!(model.config().eos_ids, [1, 0]);
    // transformers' default temperature applies only with `do_sample`.
    let suggested = SuggestedSampling {
        temperature: Some(1.0),
        top_k: Some(20),
        repeat_penalty: Some(1.25),
        repeat_last_n: Some(usize::MAX),
        ..SuggestedSampling::default()
    };
    assert_eq!(model.config().sampling, suggested);
    let sampling = |text: &str| {
        generation(text);
        open_model(folder.path()).map(|model| model.config().sampling).map_err(|error| error.to_string())
    };
    let greedy = sampling(r#"{"do_sample": false, "temperature": 0.7}"#).unwrap();
    assert_eq!((greedy.temperature, greedy.top_p), (Some(0.0), None));
    assert_eq!(sampling(r#"{"temperature": 0.5, "min_p": 0.125}"#).unwrap().min_p, Some(0.125));
    assert_eq!(sampling("{}"), Ok(SuggestedSampling::default()));
    assert!(sampling(r#"{"top_p": 1.5}"#).unwrap_err().contains("the suggested value 1.5 is out of range"));
    assert!(sampling(r#"{"temperature": "hot"}"#).unwrap_err().contains("temperature"));
    generation("{}");
    assert_eq!(model.tensor_bytes(model.tensor("output_norm.weight").unwrap()).len(), 16);
    write("b.safetensors", "model.embed_tokens.weight", "[2,4]", 32);
    // This tensor is not needed, so it may be absent.
    let map = r#"{"weight_map": {"model.embed_tokens.weight": "a.safetensors",
        "model.layers.0.self_attn.rotary_emb.inv_freq": "b.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), map).unwrap();
    assert!(refused(folder.path()).contains("tensor model.embed_tokens.weight: it occurs twice"));
}

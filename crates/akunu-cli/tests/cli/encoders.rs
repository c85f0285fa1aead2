//! Embedding models and rerankers, also with commands that are meant for other models.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{json, ok, path, refuses, run, with_stdin};

/// A small model of `testdata/encoders`, without a vocabulary.
fn small(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/encoders").join(name)
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&fs::read(small(name).join("golden.json")).unwrap()).unwrap()
}

/// `1,2,3`
fn listed(ids: &Value) -> String {
    let ids: Vec<String> = ids.as_array().unwrap().iter().map(Value::to_string).collect();
    ids.join(",")
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn unit(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|v| v * v).sum::<f64>().sqrt();
    vector.iter().map(|v| v / length).collect()
}

fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{what}: {found} {expected}");
    }
}

/// The command with `--ids` for each text of a golden, and further options.
fn with_ids(command: &str, name: &str, texts: &[Value], options: &[&str]) -> Vec<String> {
    let mut args = vec![command.to_string(), path(&small(name)).to_string()];
    args.extend(texts.iter().flat_map(|text| ["--ids".to_string(), listed(&text["ids"])]));
    args.extend(options.iter().map(ToString::to_string));
    args
}

fn json_of(args: &[String]) -> Value {
    json(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn texts_of(golden: &Value) -> &[Value] {
    golden["texts"].as_array().unwrap()
}

const EMBEDDERS: [&str; 6] =
    ["bert-cls", "bert-mean", "nomic-bert-mean", "qwen3-embedding", "roberta-mean", "xlm-roberta-cls"];

#[test]
fn embeddings_match_transformers_and_do_not_depend_on_other_texts() {
    for name in EMBEDDERS {
        let golden = golden(name);
        let texts = texts_of(&golden);
        let found = json_of(&with_ids("embed", name, texts, &["--no-normalize", "--json"]));
        for (index, text) in texts.iter().enumerate() {
            let vector = &found["embeddings"][index];
            assert_near(&numbers(vector), &numbers(&golden["pooled"][index]), name);
            let one = std::slice::from_ref(text);
            let alone = json_of(&with_ids("embed", name, one, &["--no-normalize", "--json"]));
            assert_eq!(alone["embeddings"][0], *vector, "{name}, text {index} alone");
        }
    }
}

#[test]
fn embeddings_are_normalized_by_default_and_can_be_truncated() {
    let golden = golden("bert-mean");
    let texts = texts_of(&golden);
    let whole = json_of(&with_ids("embed", "bert-mean", texts, &["--json"]));
    let cut = json_of(&with_ids("embed", "bert-mean", texts, &["--dimensions", "8", "--json"]));
    for index in 0..texts.len() {
        let pooled = numbers(&golden["pooled"][index]);
        assert_near(&numbers(&whole["embeddings"][index]), &unit(&pooled), "whole");
        assert_near(&numbers(&cut["embeddings"][index]), &unit(&pooled[..8]), "cut");
    }
}

#[test]
fn without_pooling_there_is_a_vector_per_token() {
    let golden = golden("bert-mean");
    let options = ["--pooling", "none", "--no-normalize", "--json"];
    let found = json_of(&with_ids("embed", "bert-mean", texts_of(&golden), &options));
    for (index, states) in golden["states"].as_array().unwrap().iter().enumerate() {
        let vectors = found["embeddings"][index].as_array().unwrap();
        assert_eq!(vectors.len(), states.as_array().unwrap().len());
        for (vector, state) in vectors.iter().zip(states.as_array().unwrap()) {
            assert_near(&numbers(vector), &numbers(state), "a token");
        }
    }
}

#[test]
fn embeddings_are_the_same_as_text_json_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vectors.safetensors");
    let golden = golden("bert-mean");
    let texts = texts_of(&golden);
    let found = json_of(&with_ids("embed", "bert-mean", texts, &["--json", "--out", path(&file)]));
    let told: Vec<f32> =
        found["embeddings"].as_array().unwrap().iter().flat_map(numbers).map(|v| v as f32).collect();
    let bytes = fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("embeddings").unwrap();
    assert_eq!(tensor.shape(), [3, 48]);
    let stored: Vec<f32> =
        tensor.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(stored, told);
    let args = with_ids("embed", "bert-mean", texts, &[]);
    let lines = ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let printed: Vec<f32> = lines.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!((lines.lines().count(), printed), (3, told));
    let quiet = with_ids("embed", "bert-mean", texts, &["--out", path(&file)]);
    assert_eq!(ok(&quiet.iter().map(String::as_str).collect::<Vec<_>>()), "");
}

#[test]
fn scores_match_transformers_with_token_types() {
    for name in ["bert-cross-encoder", "xlm-roberta-reranker"] {
        let golden = golden(name);
        let texts = texts_of(&golden);
        let mut options: Vec<String> = Vec::new();
        for text in texts.iter().filter(|text| text.get("segments").is_some()) {
            options.extend(["--segments".to_string(), listed(&text["segments"])]);
        }
        options.push("--json".to_string());
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let found = json_of(&with_ids("rerank", name, texts, &options));
        assert_near(&numbers(&found["scores"]), &numbers(&golden["scores"]), name);
    }
    let golden = golden("bert-cross-encoder");
    let plain = json_of(&with_ids("rerank", "bert-cross-encoder", texts_of(&golden), &["--json"]));
    assert_ne!(numbers(&plain["scores"]), numbers(&golden["scores"]), "the kinds of tokens count");
}

#[test]
fn invalid_input_of_embed() {
    let folder = small("bert-mean");
    let model = path(&folder);
    refuses(&["embed", model], 2, &["no text was given", "hint: "]);
    refuses(&["embed", model, "--ids", ""], 1, &["text number 1 is empty"]);
    let done = refuses(&["embed", model, "a text"], 1, &["token ids only", "hint: akunu embed MODEL --ids"]);
    assert!(!done.stderr.contains("akunu run"), "{}", done.stderr);
    let ids = ["embed", model, "--ids", "1", "--ids", "1,2,64"];
    refuses(&ids, 1, &["token id 64 (number 3 of text number 2)", "0 to 63"]);
    let long = vec!["5"; 49].join(",");
    refuses(&["embed", model, "--ids", &long, "-c", "10"], 1, &["49 tokens", "maximum is 10", "--truncate"]);
    refuses(&["embed", model, "--ids", "1", "-c", "49"], 1, &["the maximum length of a text is 49"]);
    refuses(&["embed", model, "--ids", "1,2", "--dimensions", "49"], 2, &["--dimensions is 49", "have 48"]);
    refuses(&["embed", model, "--ids", "1,2", "--dimensions", "0"], 2, &["0"]);
    refuses(&["embed", model, "--ids", "1,2", "--pooling", "median"], 2, &["median", "mean"]);
    refuses(&["embed", model, "--ids", "1", "a text"], 2, &["cannot be used with"]);
    refuses(&["embed", model, "a text", "--prompt", "query"], 1, &["no prompt \"query\"", "they have none"]);
    let nomic = small("nomic-bert-mean");
    refuses(&["embed", path(&nomic), "x", "--prompt", "q"], 1, &["search_document", "search_query"]);
    let cut = run(&["embed", model, "--ids", &long, "-c", "10", "--truncate"]);
    assert_eq!((cut.code, cut.stdout.lines().count()), (0, 1), "{}", cut.stderr);
    assert!(cut.stderr.contains("1 text was truncated to 10 tokens"), "{}", cut.stderr);
    // A pass need not have this many tokens for the longest text.
    let done = refuses(&["embed", model, "--ids", "1,2", "--chunk", "99999999"], 1, &["hint: ", "--chunk"]);
    assert!(!done.stderr.contains("-c)"), "{}", done.stderr);
}

#[test]
fn empty_texts_are_named_by_number_or_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("texts.txt");
    fs::write(&file, "one\n\nthree\n").unwrap();
    let line = format!("line 2 of {} is empty", path(&file));
    let (embedder, ranker) = (small("bert-mean"), small("bert-cross-encoder"));
    refuses(&["embed", path(&embedder), "one", ""], 1, &["text number 2 is empty"]);
    refuses(&["embed", path(&embedder), "-f", path(&file)], 1, &[&line, "hint: "]);
    refuses(&["rerank", path(&ranker), "", ""], 1, &["the query is empty"]);
    refuses(&["rerank", path(&ranker), "a query", "one", ""], 1, &["document number 2 is empty"]);
    refuses(&["rerank", path(&ranker), "a query", "-f", path(&file)], 1, &[&line, "hint: "]);
    let done = with_stdin(&["embed", path(&embedder), "-f", "-"], b"\n");
    assert!(done.code == 1 && done.stderr.contains("line 1 of stdin is empty"), "{}", done.stderr);
}

/// A device behind a link, so that replacing the link does no harm.
#[cfg(target_os = "linux")]
#[test]
fn tensors_are_written_through_links_and_to_devices() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let embedder = small("bert-mean");
    let tiny = at("tiny.gguf");
    assert_eq!(run(&["synth", "tiny", path(&tiny), "--layers", "1"]).code, 0);
    let (full, null, fifo) = (at("full"), at("null"), at("fifo"));
    symlink("/dev/full", &full).unwrap();
    symlink("/dev/null", &null).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for (command, model) in [("embed", &embedder), ("logits", &tiny)] {
        let to = |out: &Path| run(&[command, path(model), "--ids", "1,2", "--out", path(out)]);
        let file = at("file.safetensors");
        fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        let link = at("link");
        let _ = fs::remove_file(&link);
        symlink(&file, &link).unwrap();
        assert_eq!(to(&link).code, 0);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{command}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640, "{command}");
        let bytes = fs::read(&file).unwrap();
        assert!(
            safetensors::SafeTensors::deserialize(&bytes).is_ok(),
            "{command}: nothing of the old file stays"
        );

        let ahead = at("ahead");
        let _ = fs::remove_file(&ahead);
        let new = at(&format!("{command}.safetensors"));
        symlink(&new, &ahead).unwrap();
        assert_eq!(to(&ahead).code, 0);
        assert_eq!(fs::read(&new).unwrap(), bytes, "a link to a file that was not there yet");

        assert_eq!(to(&null).code, 0);
        let done = to(&full);
        assert_eq!(done.code, 1, "{}", done.stderr);
        assert!(done.stderr.contains(&format!("error: cannot write {}: ", path(&full))), "{}", done.stderr);
        for device in [&full, &null] {
            assert!(fs::symlink_metadata(device).unwrap().is_symlink(), "{command}");
        }

        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::read(fifo).unwrap()
        });
        assert_eq!(to(&fifo).code, 0);
        assert_eq!(reader.join().unwrap(), bytes, "{command}");
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo(), "{command}");
    }
}

#[test]
fn an_unwritable_path_is_reported_before_the_computation() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, absent) = (small("bert-mean"), dir.path().join("no/such/vectors.safetensors"));
    for out in [absent.as_path(), dir.path()] {
        // The invalid id would be reported during the computation.
        let args = ["embed", path(&folder), "--ids", "64", "--out", path(out)];
        let done = refuses(&args, 1, &[&format!("error: cannot write {}: ", path(out))]);
        assert!(!done.stderr.contains("tmp."), "{}", done.stderr);
    }
    let new = dir.path().join("new.safetensors");
    refuses(&["embed", path(&folder), "--ids", "64", "--out", path(&new)], 1, &["token id 64"]);
    assert!(!new.exists(), "a command that fails leaves no empty file");
    fs::write(&new, "of before").unwrap();
    refuses(&["embed", path(&folder), "--ids", "64", "--out", path(&new)], 1, &["token id 64"]);
    assert_eq!(fs::read(&new).unwrap(), b"of before");
}

#[test]
fn pairs_that_cannot_be_scored() {
    let folder = small("bert-cross-encoder");
    let model = path(&folder);
    refuses(&["rerank", model], 2, &["QUERY"]);
    refuses(&["rerank", model, "a query"], 2, &["no document was given", "hint: "]);
    refuses(&["rerank", model, "--ids", "1,2", "--segments", "0"], 2, &["as many numbers"]);
    refuses(&["rerank", model, "--ids", "1,2", "--segments", "0,2"], 2, &["0 or 1"]);
    refuses(&["rerank", model, "--ids", "1", "--ids", "2", "--segments", "0"], 2, &["as often as --ids"]);
    refuses(&["rerank", model, "a query", "a document"], 1, &["hint: akunu rerank MODEL --ids"]);
    let long = vec!["5"; 49].join(",");
    let words = ["document number 2 has 49 tokens together with its query", "maximum is 48", "--truncate"];
    refuses(&["rerank", model, "--ids", "1", "--ids", &long], 1, &words);
    refuses(&["rerank", model, "a query", "x", "--instruction", "judge"], 2, &["--instruction"]);
    for name in ["xlm-roberta-reranker", "modernbert-reranker", "qwen3-classifier"] {
        let folder = small(name);
        let args = ["rerank", path(&folder), "--ids", "1,2", "--segments", "0,1"];
        refuses(&args, 2, &["--segments", "token types"]);
    }
    for name in ["bert-mean", "qwen3-reranker"] {
        refuses(&["rerank", path(&small(name)), "--ids", "1,2"], 1, &["no classifier"]);
    }
    refuses(&["rerank", "embedded", "--ids", "1,2"], 1, &["no classifier"]);
}

/// Adds a vocabulary of letters to the cross-encoder.
fn reads_letters(folder: &Path) {
    let mut tokens: Vec<String> = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"].map(String::from).to_vec();
    tokens.extend(('a'..='z').map(String::from));
    tokens.extend(('a'..='z').map(|letter| format!("##{letter}")));
    let special = |id: usize| {
        json!({"id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let vocab: serde_json::Map<String, Value> = tokens.iter().cloned().zip((0..).map(Value::from)).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0), special(1), special(2), special(3)],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(small("bert-cross-encoder").join(name), folder.join(name)).unwrap();
    }
}

#[test]
fn documents_are_shown_on_one_line_each_and_named_by_their_line() {
    let dir = tempfile::tempdir().unwrap();
    reads_letters(dir.path());
    let model = path(dir.path());
    let printed = ok(&["rerank", model, "cat", "a cat's \"nap\"", "one\ntwo\u{1b}[2J\u{7}"]);
    let documents: Vec<&str> =
        printed.lines().map(|line| line.trim_start().split_once("  ").unwrap().1).collect();
    assert_eq!(documents, ["a cat's \"nap\"", "one\\ntwo\\u{1b}[2J\\u{7}"]);

    let file = dir.path().join("documents.txt");
    fs::write(&file, format!("short\n{}\n", "word ".repeat(12))).unwrap();
    let line = format!("line 2 of {} has 54 tokens together with its query", path(&file));
    refuses(&["rerank", model, "cat", "-f", path(&file)], 1, &[&line, "maximum is 48", "--truncate"]);
    let cut = run(&["rerank", model, "cat", "-f", path(&file), "--truncate"]);
    assert_eq!((cut.code, cut.stdout.lines().count()), (0, 2), "{}", cut.stderr);
}

#[test]
fn generative_models_compute_embeddings_only_with_pooling() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tiny.gguf");
    assert_eq!(run(&["synth", "tiny", path(&file), "--layers", "1"]).code, 0);
    refuses(&["embed", path(&file), "--ids", "1,2"], 1, &["--pooling"]);
    let done = run(&["embed", path(&file), "--ids", "1,2", "--pooling", "last"]);
    assert_eq!((done.code, done.stdout.lines().count()), (0, 1), "{}", done.stderr);
    assert!(done.stderr.contains("generates text") && done.stderr.contains("last"), "{}", done.stderr);
    let plan = ok(&["plan", path(&file), "--pooling", "last"]);
    assert!(plan.contains("pooling last"), "{plan}");
}

#[test]
fn encoders_are_rejected_by_generating_commands_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    fs::write(&text, "Once upon a time").unwrap();
    for (name, can, cannot) in [
        ("bert-mean", ["akunu embed MODEL", "/v1/embeddings"], "rerank"),
        ("bert-cross-encoder", ["akunu rerank MODEL", "/v1/rerank"], "embed"),
        ("qwen3-classifier", ["akunu rerank MODEL", "/v1/rerank"], "embed"),
    ] {
        let folder = small(name);
        let model = path(&folder);
        for args in [
            &["run", model, "--prompt-ids", "1,2", "--ids"][..],
            // Neither model has a vocabulary; the hint must not suggest token ids.
            &["run", model, "hello"],
            &["chat", model, "-p", "hello"],
            &["perplexity", model, path(&text)],
            &["logits", model, "--ids", "1,2"],
        ] {
            let done = refuses(args, 1, &can);
            assert!(!done.stderr.contains(cannot) && !done.stderr.contains("token ids"), "{}", done.stderr);
        }
    }
}

#[test]
fn generating_with_an_embedding_model_prints_a_note() {
    let folder = small("qwen3-embedding");
    let args = ["run", path(&folder), "--prompt-ids", "1,2", "--ids", "-n", "2"];
    let note = "note: this is an embedding model";
    let done = run(&args);
    assert!(done.code == 0 && done.stderr.contains(note), "{}", done.stderr);
    let quiet = run(&[&args[..], &["-q"]].concat());
    assert!(quiet.code == 0 && !quiet.stderr.contains(note), "{}", quiet.stderr);
}

#[test]
fn plan_table_verify_profile_and_inspect_know_encoders() {
    let folder = small("bert-mean");
    let model = path(&folder);
    let plan = json(&["plan", model, "--json"]);
    assert_eq!((&plan["width"], &plan["longest"]), (&48.into(), &48.into()), "{plan}");
    assert_eq!(plan["memory"]["kv"], 0, "no keys outlive a pass: {plan}");
    assert!(plan["memory"]["scratch"].as_u64().unwrap() > 0 && plan.get("context").is_none(), "{plan}");
    assert!(ok(&["plan", model, "-c", "20"]).contains("texts of at most 20 tokens"));

    let table = json(&["table", model, "--json", "--rows", "8"]);
    assert_eq!((&table["table"], &table["rows"]), (&"encode".into(), &8.into()), "{table}");
    let commands = table["commands"].as_array().unwrap();
    assert!(commands.iter().any(|command| command["kernel"] == "pool_mean"), "{table}");
    assert!(ok(&["table", model, "--for", "cuda"]).contains("planned for chip"));

    for options in [&[][..], &["--unfused"], &["--pooling", "none"], &["--tokens", "1"]] {
        let found = json(&[&["verify", model, "--json"], options].concat());
        assert_eq!(found["ok"], true, "{found}");
    }
    let scores = small("bert-cross-encoder");
    assert_eq!(json(&["verify", path(&scores), "--json"])["ok"], true);

    let profile = json(&["profile", model, "-p", "16", "-r", "2", "--json"]);
    assert!(profile["total_ns"].as_u64().unwrap() > 0, "{profile}");
    refuses(&["profile", model, "--depth", "4"], 2, &["--depth"]);

    let inspect = ok(&["inspect", model]);
    for line in ["bidirectional", "pooling       mean", "longest text  48 tokens"] {
        assert!(inspect.contains(line), "{line}: {inspect}");
    }
    assert!(!inspect.contains("end of text"), "{inspect}");
    let nomic = json(&["inspect", path(&small("nomic-bert-mean")), "--json"]);
    assert_eq!(nomic["texts"]["prompts"]["search_query"], "search_query: ");
    assert!(ok(&["inspect", path(&scores)]).contains("one score for a query and a document"));
}

#[test]
fn bench_counts_texts_and_their_tokens() {
    let folder = small("bert-mean");
    let model = path(&folder);
    let rows = json(&["bench", model, "--batch", "1,3", "--length", "4,8", "-r", "2", "--json"]);
    let names: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["1x4", "1x8", "3x4", "3x8"]);
    for row in rows.as_array().unwrap() {
        assert!(row["min"].as_f64() <= row["tok_s"].as_f64() && row["tok_s"].as_f64() <= row["max"].as_f64());
        let (tokens, texts) = (row["tok_s"].as_f64().unwrap(), row["texts_s"].as_f64().unwrap());
        assert!((tokens / texts - row["length"].as_f64().unwrap()).abs() < 1e-6, "{row}");
    }
    let usual = run(&["bench", model, "-r", "1"]);
    assert!(usual.stdout.contains("texts/s") && usual.stdout.contains("32x16"), "{}", usual.stdout);
    assert!(usual.stderr.contains("texts of 128 tokens are skipped"), "{}", usual.stderr);
    refuses(&["bench", model, "-n", "4"], 2, &["--generate", "--length"]);
    refuses(&["bench", "--length", "4"], 2, &["--length", "--pooling"]);
    refuses(&["bench", model, "--length", "4,49"], 2, &["--length is 49", "is 48 tokens"]);
}

#[test]
fn chat_rejects_encoders() {
    let Some((folder, _)) = minilm("chat_rejects_encoders") else { return };
    for command in ["chat", "run"] {
        refuses(&[command, path(&folder), "-p", "hello"], 1, &["akunu embed MODEL", "/v1/embeddings"]);
    }
}

/// The folder of all-MiniLM-L6-v2, and the results of transformers.
fn minilm(test: &str) -> Option<(PathBuf, Value)> {
    let folder = akunu_testing::data(test, "minilm")?;
    let golden = fs::read(folder.join("minilm_embeddings_hf_f64.json")).unwrap();
    Some((folder, serde_json::from_slice(&golden).unwrap()))
}

#[test]
fn minilm_reads_text_from_arguments_files_and_stdin() {
    let Some((folder, golden)) = minilm("minilm_reads_text_from_arguments_files_and_stdin") else { return };
    let model = path(&folder);
    let one_line = |case: &&Value| {
        let text = case["text"].as_str().unwrap();
        !text.is_empty()
            && !text.starts_with('-')
            && text.lines().count() == 1
            && text.lines().next() == Some(text)
    };
    let longest = |case: &&Value| case["input_ids"].as_array().unwrap().len() < 256;
    let cases: Vec<&Value> =
        golden["cases"].as_array().unwrap().iter().filter(one_line).filter(longest).collect();
    assert!(cases.len() >= 6, "{}", cases.len());
    let texts: Vec<&str> = cases.iter().map(|case| case["text"].as_str().unwrap()).collect();
    let found = json(&[&["embed", model, "--json"], &texts[..]].concat());
    for (index, case) in cases.iter().enumerate() {
        assert_near(&numbers(&found["embeddings"][index]), &numbers(&case["embedding"]), texts[index]);
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("texts.txt");
    fs::write(&file, texts.join("\n") + "\n").unwrap();
    assert_eq!(json(&["embed", model, "--json", "-f", path(&file)]), found);
    let done = with_stdin(&["embed", model, "--json", "-f", "-"], texts.join("\n").as_bytes());
    assert_eq!(serde_json::from_str::<Value>(&done.stdout).unwrap(), found);
}

#[test]
fn empty_and_too_long_texts_are_named_by_number() {
    let Some((folder, _)) = minilm("empty_and_too_long_texts_are_named_by_number") else {
        return;
    };
    let model = path(&folder);
    refuses(&["embed", model, "one", ""], 1, &["text number 2 is empty"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("texts.txt");
    fs::write(&file, "one\n\nthree\n").unwrap();
    refuses(&["embed", model, "-f", path(&file)], 1, &["line 2 of ", "texts.txt is empty"]);
    let long = "word ".repeat(300);
    fs::write(&file, format!("one\n{long}\n")).unwrap();
    refuses(
        &["embed", model, "-f", path(&file)],
        1,
        &["line 2 of ", "texts.txt has 302 tokens", "maximum is 256"],
    );
    refuses(
        &["embed", model, "one", &long],
        1,
        &["text number 2 has 302 tokens", "maximum is 256", "--truncate"],
    );
    let done = run(&["embed", model, "--json", "--truncate", &long]);
    assert!(done.stderr.contains("1 text was truncated to 256 tokens"), "{}", done.stderr);
    let cut = "word ".repeat(254);
    assert_eq!(done.stdout, ok(&["embed", model, "--json", &cut]), "what stays is the text's beginning");
}

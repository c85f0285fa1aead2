//! `imatrix`, and `quantize` with its files.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::path::{Path, PathBuf};

use akunu_format::{Gguf, Imatrix, ImatrixEntry};

use crate::common::{json, ok, path, refuses, run, write_small_model};

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn embedded() -> PathBuf {
    repository("crates/akunu/embedded/akunu-tales.gguf")
}

/// Writes stories that the embedded model tells.
fn stories(file: &Path, seed: &str) {
    let begin = ["run", "Once upon a time", "-n", "500", "--seed", seed, "--ignore-eos", "-q"];
    fs::write(file, ok(&begin)).unwrap();
}

#[test]
fn an_importance_matrix_brings_a_quantised_model_closer_to_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let [text, held_out, imatrix, base] = ["a.txt", "b.txt", "tales.gguf", "base"].map(file);
    stories(Path::new(&text), "1");
    stories(Path::new(&held_out), "2");
    let made = json(&["imatrix", "-f", &text, "-o", &imatrix, "-c", "128", "--json"]);
    let tokens = made["tokens"].as_u64().unwrap();
    assert_eq!((&made["entries"], &made["chunk_size"]), (&43.into(), &128.into()));
    assert_eq!((&made["chunks"], &made["interrupted"]), (&tokens.div_ceil(128).into(), &false.into()));

    ok(&["perplexity", &held_out, "--save-logits", &base]);
    let model = embedded();
    let divergence = |more: &[&str]| {
        let quantised = file("quantised.gguf");
        ok(&[&["quantize", path(&model), &quantised, "--type", "Q2_K", "--pure", "--force"], more].concat());
        let found = json(&["perplexity", &quantised, &held_out, "--kl", &base, "--json"]);
        (found["kl_mean"]["value"].as_f64().unwrap(), Gguf::open(Path::new(&quantised)).unwrap())
    };
    let (without, plain) = divergence(&[]);
    let (with, weighted) = divergence(&["--imatrix", &imatrix]);
    assert!(with < 0.7 * without, "{with}, and {without} without");
    assert!(plain.metadata().get("quantize.imatrix.file").is_none());
    let metadata = weighted.metadata();
    let texts =
        ["file", "dataset"].map(|key| metadata.str(&format!("quantize.imatrix.{key}")).unwrap().unwrap());
    assert_eq!(texts, [&imatrix, &text]);
    let counts = ["entries_count", "chunks_count"]
        .map(|key| metadata.u32(&format!("quantize.imatrix.{key}")).unwrap().map(u64::from));
    assert_eq!(counts, [Some(43), made["chunks"].as_u64()]);
}

#[test]
fn importance_matrices_are_merged_limited_and_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let [text, first, both] = ["a.txt", "first.gguf", "both.gguf"].map(file);
    fs::write(&text, "Once upon a time, there was a little fox. ".repeat(20)).unwrap();
    let base = ["imatrix", "-f", &text, "-c", "16", "--chunks", "2", "-o"];
    ok(&[&base[..], &[&first]].concat());
    refuses(&[&base[..], &[&first]].concat(), 1, &["first.gguf exists", "--force"]);
    ok(&[&base[..], &[&both, "--merge", &first]].concat());
    let [one, two] = [&first, &both].map(|file| Imatrix::open(Path::new(file)).unwrap());
    assert_eq!((one.chunks, two.chunks, two.datasets.len()), (2, 4, 2));
    for (name, entry) in &one.entries {
        assert_eq!((&*entry.counts, &*two.entries[name].counts), (&[32.0][..], &[64.0][..]), "{name}");
        assert!(entry.sums.iter().zip(&two.entries[name].sums).all(|(a, b)| 2.0 * a == *b), "{name}");
    }
    let shown = ok(&["inspect", &both]);
    for words in ["importance matrix (GGUF)", "entries", "43", "tokens", "64", "imatrix.chunk_count"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let dat = repository("testdata/imatrix/llama-hd64-gqa2.dat");
    let shown = json(&["inspect", path(&dat), "--tensors", "--json"]);
    assert_eq!((&shown["content"], &shown["facts"]["entries"]), (&"importance matrix".into(), &15.into()));
    assert_eq!(
        (&shown["facts"]["dataset"], &shown["tensors"][0]["shape"][0]),
        (&"make.py".into(), &64.into())
    );
    refuses(&[&base[..], &[&file("c"), "--merge", path(&dat)]].concat(), 1, &[".dat", "cannot be merged"]);
}

#[test]
fn an_importance_matrix_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [model, file, out] = ["model.gguf", "imatrix.gguf", "out.gguf"].map(|name| dir.path().join(name));
    write_small_model(&model, |_| (), None);
    let write = |entries: &[(&str, usize)]| {
        let entry = |columns: usize| ImatrixEntry { sums: vec![1.0; columns], counts: vec![1.0] };
        let entries = entries.iter().map(|(name, columns)| (name.to_string(), entry(*columns))).collect();
        let imatrix = Imatrix { entries, ..Imatrix::default() };
        fs::write(&file, imatrix.write(Vec::new()).unwrap()).unwrap();
    };
    let arguments = ["quantize", path(&model), path(&out), "--imatrix", path(&file), "--type"];
    let quantise = |mix: &'static str| [&arguments[..], &[mix, "--force"]].concat();
    write(&[("blk.0.attn_q.weight", 64)]);
    refuses(&quantise("Q4_0"), 1, &["blk.0.attn_q.weight", "32 columns, but 64", "another model"]);
    write(&[("blk.9.attn_q.weight", 32)]);
    refuses(&quantise("Q4_0"), 1, &["imatrix.gguf has no entry for any of the 7 tensors", "same model"]);
    assert!(!out.exists());
    write(&[("blk.0.attn_q.weight", 32)]);
    let done = run(&quantise("Q4_0"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stderr.contains("no entry for 6 of 7 tensors: blk.0.attn_k.weight, "), "{}", done.stderr);
    let done = run(&quantise("Q8_0"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stderr.contains("no tensor gets a type"), "{}", done.stderr);
    refuses(
        &[&arguments[..4], &[path(&model), "--force", "--type", "Q4_0"]].concat(),
        1,
        &["model.gguf", "importance matrix"],
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_measured() {
    use std::process::Stdio;
    use std::time::Duration;

    let dir = tempfile::tempdir().unwrap();
    let [text, out] = ["a.txt", "imatrix.gguf"].map(|name| dir.path().join(name));
    fs::write(&text, "Once upon a time, there was a little fox. ".repeat(40_000)).unwrap();
    let interrupted_after = |delay: u64| {
        let mut command = crate::common::akunu(&["imatrix", "-f", path(&text), "-o", path(&out)]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The unfinished file is made after the handler is there.
        while fs::read_dir(dir.path()).unwrap().count() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(delay));
        crate::signals::signal(&child, "INT");
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(130));
        String::from_utf8(done.stderr).unwrap()
    };
    // Nothing is measured while the model is loaded, which takes longer on a busy machine.
    let delays = (0..6).map(|power| 100 << power);
    let stderr = delays.map(interrupted_after).find(|stderr| stderr.contains("interrupted after")).unwrap();
    assert!(stderr.contains("43 weight matrices"), "{stderr}");
    let imatrix = Imatrix::open(&out).unwrap();
    let tokens = imatrix.entries["blk.0.attn_q.weight"].counts[0];
    assert!(tokens > 0.0 && stderr.contains(&format!("interrupted after {tokens} of ")), "{stderr}");
}

//! The fields of `--json`: those of real output are those of the pages of the documentation.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use akunu_format::{Metadata, Value as Fact};
use akunu_hub_testing::FakeHub;
use serde_json::Value;

use crate::common::{file, finish, json, ok, path, run, write_small_model};
use crate::hub;
use crate::serve::serve;

/// Fields that tests cannot cause, with the reason.
const UNSEEN: [(&str, &str, &str); 7] = [
    ("akunu bench", "[].metal_icb", "needs a Mac"),
    ("akunu bench, with --compare", "tests[].metal_icb", "needs a Mac"),
    ("akunu bench-serve", "errors.KIND", "needs a server that fails"),
    ("akunu bench-serve", "examples.KIND", "needs a server that fails"),
    ("akunu doctor", "gpu[].", "depends on the machine"),
    ("akunu doctor", "measured[].", "takes half a minute"),
    ("akunu verify", "first_bad.", "needs a device that is wrong"),
];

const OTHER: &str = "akunu inspect, of what is not a model that can be run";

/// The fields of each command in the pages.
const PAGES: [&str; 3] = ["docs/json.md", "docs/json-measurements.md", "docs/transcription.md"];

fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let mut fields: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for page in PAGES {
        let text = fs::read_to_string(file(page)).unwrap();
        for section in text.split("\n## ").filter(|section| section.starts_with("akunu ")) {
            let (command, section) = section.split_once('\n').unwrap();
            let rows = section.lines().filter(|line| line.starts_with("| `"));
            let cells = rows.map(|row| row.split(" | ").next().unwrap());
            let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_string));
            assert!(fields.insert(command.to_string(), names.collect()).is_none(), "{command} occurs twice");
        }
    }
    fields
}

/// `a[].b` for each value that is no object and no list of objects.
fn found(value: &Value, place: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (name, value) in object {
                let dot = if place.is_empty() { "" } else { "." };
                found(value, &format!("{place}{dot}{name}"), fields);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            list.iter().for_each(|value| found(value, &format!("{place}[]"), fields));
        }
        _ => {
            fields.insert(place.to_string());
        }
    }
}

/// Whether a documented field is the one that was found; a last part in capitals stands for any name.
fn names(documented: &str, found: &str) -> bool {
    let is_name = |part: &str| part.chars().all(|c| c.is_ascii_uppercase());
    let (mut documented, mut found) = (documented.split('.'), found.split('.'));
    loop {
        match (documented.next(), found.next()) {
            (None, None) => return true,
            (Some(part), Some(_)) if is_name(part) => {
                // A key of metadata has dots in it.
                return match documented.next() {
                    None => true,
                    Some(last) => found.next_back() == Some(last),
                };
            }
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// An empty list or a missing object, whose fields are documented.
fn is_empty_parent(documented: &str, found: &str) -> bool {
    documented.strip_prefix(found).is_some_and(|rest| rest.starts_with('.') || rest.starts_with("[]"))
}

/// The object in a line of stderr, beside notes.
fn stats(arguments: &[&str]) -> Value {
    let done = run(arguments);
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(done.stderr.lines().find(|line| line.starts_with('{')).unwrap()).unwrap()
}

fn outputs() -> Vec<(&'static str, Value)> {
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small.gguf");
    let suggestion = |metadata: &mut Metadata| {
        metadata.insert("general.sampling.temp", Fact::F32(0.5));
    };
    write_small_model(&small, suggestion, None);
    let story = folder.path().join("story.txt");
    fs::write(&story, "Once upon a time, there was a little fox.").unwrap();
    let base = folder.path().join("base");
    let earlier = folder.path().join("earlier.json");
    let unknown = folder.path().join("unknown.gguf");
    let martian = |metadata: &mut Metadata| {
        metadata.insert("general.architecture", Fact::String("martian".into()));
    };
    write_small_model(&unknown, martian, None);
    let tokenizer = file("xtask/clients/words.json");
    let imatrix = folder.path().join("imatrix.gguf");
    let paged = folder.path().join("experts.gguf");
    ok(&["synth", "tiny-experts", path(&paged), "--layers", "8"]);
    let paged = [path(&paged), "--device", "cpu", "--expert-memory", "1", "--json"];
    let [small, story, base, earlier, imatrix] =
        [&small, &story, &base, &earlier, &imatrix].map(|file| path(file));
    json(&["perplexity", story, "--save-logits", base, "--json"]);
    let bench = ["bench", small, "-p", "2", "-n", "0", "-r", "1", "--device", "cpu", "--json"];
    fs::write(earlier, json(&[&bench[..], &["--kv-type", "f32"]].concat()).to_string()).unwrap();
    let mut compared = json(&[&bench[..], &["--compare", earlier]].concat());
    assert!(compared["results"].is_array());
    compared["results"] = Value::Null; // The fields of `akunu bench`.
    let [encoder, prompts, reranker] = ["bert-mean", "embedding-gemma", "bert-cross-encoder"]
        .map(|name| file("testdata/encoders").join(name));
    let [encoder, prompts, reranker] = [path(&encoder), path(&prompts), path(&reranker)];
    let hearing = file("testdata/speech/akunu-speech-q8_0.gguf");
    let hearing = path(&hearing);
    let speech = file("testdata/speech/short.flac");
    let experts = file("testdata/models/qwen3-moe");
    let mut all = vec![
        ("akunu inspect", json(&["inspect", "--json", "--tensors", "--metadata"])),
        ("akunu inspect", json(&["inspect", small, "--json"])),
        ("akunu inspect", json(&["inspect", prompts, "--json"])),
        (OTHER, json(&["inspect", path(&tokenizer), "--json"])),
        (OTHER, json(&["inspect", path(&unknown), "--json", "--tensors", "--metadata"])),
        ("akunu plan", json(&["plan", "--json", "--no-mmap"])),
        ("akunu plan", json(&["plan", encoder, "--json"])),
        ("akunu plan", json(&["plan", hearing, "--json"])),
        ("akunu plan", json(&["plan", "--json", "--for", "cuda", "--gpu-layers", "1"])),
        ("akunu plan", json(&["plan", "--json", "--device", "cpu", "--pipeline-parallel", "2"])),
        ("akunu plan", json(&["plan", path(&experts), "--speed", "-c", "8", "--json"])),
        ("akunu plan", json(&[&["plan", "--speed", "-c", "8"], &paged[..]].concat())),
        ("akunu bench", json(&[&["bench", "-p", "2", "-n", "2", "-r", "1"], &paged[..]].concat())),
        ("akunu doctor", json(&["doctor", "--json"])),
        ("akunu tokenize", json(&["tokenize", "A fox", "--json"])),
        ("akunu detokenize", json(&["detokenize", "5,6", "--json"])),
        ("akunu embed", json(&["embed", encoder, "--ids", "1,2", "--json"])),
        ("akunu rerank", json(&["rerank", reranker, "--ids", "1,2", "--json"])),
        ("akunu logits", json(&["logits", "--ids", "1,2", "--json"])),
        ("akunu perplexity", json(&["perplexity", story, "--json"])),
        ("akunu perplexity, with --kl", json(&["perplexity", story, "--kl", base, "--json"])),
        ("akunu models, with --known", json(&["models", "--known", "--json"])),
        ("akunu bench, with --compare", compared),
        ("akunu transcribe", json(&["transcribe", hearing, path(&speech), "--timestamps", "word", "--json"])),
        ("akunu imatrix", json(&["imatrix", "-f", story, "-o", imatrix, "--json"])),
        ("akunu table", json(&["table", "--json"])),
        (
            "akunu table",
            json(&["table", "--json", "--device", "cpu", "--tensor-parallel", "2", "--rank", "1"]),
        ),
        ("akunu verify", json(&["verify", small, "--tokens", "2", "--all", "--json"])),
        ("akunu profile", json(&["profile", small, "-r", "1", "--device", "cpu", "--json"])),
        (
            "akunu bench",
            json(&["bench", small, "-p", "2", "-n", "2", "-r", "1", "--device", "cpu", "--json"]),
        ),
        (
            "akunu bench",
            json(&[
                "bench",
                small,
                "-p",
                "0",
                "-n",
                "2",
                "-r",
                "1",
                "--ceilings",
                "--device",
                "cpu",
                "--json",
            ]),
        ),
        (
            "akunu bench",
            json(&["bench", hearing, "-n", "1", "-d", "1", "-r", "1", "--device", "cpu", "--json"]),
        ),
        ("akunu bench", json(&["bench", encoder, "-b", "1", "-l", "4", "-r", "1", "--json"])),
        ("akunu run", stats(&["run", "Once", "-n", "2", "--stats", "json"])),
        ("akunu chat", stats(&["chat", "-p", "Hello", "-n", "2", "--stats", "json"])),
    ];
    all.extend(served());
    all.extend(cached());
    all
}

fn served() -> Option<(&'static str, Value)> {
    let (mut child, address) = serve(&[]);
    let url = format!("http://{address}");
    let report = json(&["bench-serve", &url, "-n", "2", "-s", "1", "-p", "2", "-o", "2", "--json"]);
    child.kill().unwrap();
    child.wait().unwrap();
    Some(("akunu bench-serve", report))
}

fn cached() -> Vec<(&'static str, Value)> {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", b"no model")]));
    let json = |arguments: &[&str]| {
        let done = finish(hub::command(&fake, cache.path(), arguments));
        assert_eq!(done.code, 0, "{}", done.stderr);
        serde_json::from_str(&done.stdout).unwrap()
    };
    vec![("akunu pull", json(&["pull", hub::NAME, "--json"])), ("akunu models", json(&["models", "--json"]))]
}

#[test]
fn fields_of_json_are_those_of_the_pages() {
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (command, output) in outputs() {
        found(&output, "", seen.entry(command).or_default());
    }
    let pages = documented();
    let mut problems = Vec::new();
    for (command, fields) in &seen {
        let Some(documented) = pages.get(*command) else {
            problems.push(format!("{command} is not documented"));
            continue;
        };
        for field in fields {
            if !documented.iter().any(|known| names(known, field) || is_empty_parent(known, field)) {
                problems.push(format!("{command}: `{field}` is not documented"));
            }
        }
    }
    for (command, fields) in &pages {
        let unseen = |field: &str| {
            UNSEEN.iter().any(|(of, name, _)| {
                of == command && (*name == field || (name.ends_with('.') && field.starts_with(*name)))
            })
        };
        let output = seen.get(command.as_str());
        for field in fields.iter().filter(|field| !unseen(field)) {
            if !output.is_some_and(|output| output.iter().any(|found| names(field, found))) {
                problems.push(format!("{command}: `{field}` is documented, and was not found"));
            }
        }
    }
    assert!(problems.is_empty(), "{PAGES:?}: {problems:#?}");
}

//! The commands that measure speed and memory, mainly their JSON output.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;

use serde_json::Value;

use crate::common::{akunu, finish, json, ok, path, refuses, run};

#[test]
fn bench_gives_an_object_for_each_test() {
    let rows = json(&["bench", "-p", "8,16", "-n", "4", "-d", "0,8", "-r", "2", "-t", "1,2", "--json"]);
    let rows = rows.as_array().unwrap();
    let names: Vec<&str> = rows[..6].iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp8", "pp16", "tg4", "pp8@d8", "pp16@d8", "tg4@d8"]);
    assert_eq!(rows.len(), 12);
    for row in rows {
        for key in ["tok_s", "min", "max", "bytes_per_token", "gb_s"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
        assert!(row["min"].as_f64() <= row["tok_s"].as_f64() && row["tok_s"].as_f64() <= row["max"].as_f64());
        assert!(row["model"].is_string() && row["device"].is_string() && row["threads"].is_u64(), "{row}");
    }
    // A generated token reads all weights; the tokens of a prompt share one pass over the weights.
    assert!(rows[2]["bytes_per_token"].as_f64() > rows[1]["bytes_per_token"].as_f64());
    assert!(rows[5]["bytes_per_token"].as_f64() > rows[2]["bytes_per_token"].as_f64());
}

#[test]
fn sequences_that_decode_at_once_share_the_reading_of_weights() {
    let rows =
        json(&["bench", "-p", "0", "-n", "4", "-b", "1,3", "-d", "0,5", "-r", "1", "-t", "1", "--json"]);
    let names: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["tg4", "tg4@b3", "tg4@d5", "tg4@d5@b3"]);
    let (one, three) =
        (rows[0]["bytes_per_token"].as_f64().unwrap(), rows[1]["bytes_per_token"].as_f64().unwrap());
    assert!(three < 0.5 * one, "{three} {one}");
    assert_eq!(rows[0]["ops_per_token"], rows[1]["ops_per_token"]);
    assert_eq!(run(&["bench", "-n", "4", "-b", "8", "--chunk", "4"]).code, 2);
}

#[test]
fn batches_are_measured_between_prompts_and_single_sequences_and_sampled_too() {
    let rows =
        json(&["bench", "-p", "8", "-n", "4", "-b", "3,1", "--sampled", "-r", "2", "-t", "1", "--json"]);
    let names: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp8", "tg4@b3@sampled", "tg4@sampled"]);
    assert!(rows.as_array().unwrap().iter().all(|row| row["tok_s"].as_f64().unwrap() > 0.0), "{rows}");
    let limited =
        json(&["bench", "-p", "0", "-n", "4", "-b", "3", "--sampled=run", "-r", "1", "-t", "1", "--json"]);
    assert_eq!(limited[0]["test"], "tg4@b3@sampled-run");
    assert_eq!(run(&["bench", "--sampled=greedy"]).code, 2);
}

/// `testdata/whisper`: small models with random weights.
fn hearing() -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/whisper/whisper-80");
    folder.to_string()
}

#[test]
fn both_towers_of_a_model_that_transcribes_are_measured() {
    let model = hearing();
    let options = ["--windows", "1,3", "-n", "4", "-b", "1,2", "-d", "0,2", "-r", "1", "-t", "1", "--json"];
    let rows = json(&[&["bench", &model], &options[..]].concat());
    let rows = rows.as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["encode", "encode@w3", "tg4", "tg4@b2", "tg4@d2", "tg4@d2@b2"]);
    for row in rows {
        for key in ["tok_s", "pass_ms", "bytes_per_token", "ops_per_token", "planned_memory"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
        assert_eq!(row["real_time"].is_f64(), row["test"].as_str().unwrap().starts_with("encode"), "{row}");
    }
    // Windows of a pass share the reading of weights, and so do sequences; each has its own keys.
    assert_eq!(rows[0]["ops_per_token"], rows[1]["ops_per_token"]);
    assert!(rows[1]["bytes_per_token"].as_f64() < rows[0]["bytes_per_token"].as_f64());
    assert!(rows[3]["bytes_per_token"].as_f64() < rows[2]["bytes_per_token"].as_f64());
    let text = ok(&["bench", &model, "-n", "2", "-r", "1"]);
    assert!(text.contains("× real time") && text.contains("tg2@b8"), "{text}");
}

#[test]
fn options_of_other_models_are_refused_for_models_that_transcribe() {
    let model = hearing();
    refuses(&["bench", &model, "-p", "8"], 2, &["--prompt is not for models that transcribe"]);
    refuses(&["bench", &model, "-n", "4000"], 2, &["the decoder has"]);
    refuses(&["bench", "--windows", "2"], 2, &["--windows is for models that transcribe"]);
    refuses(&["profile", "--windows", "2"], 2, &["--windows is for models that transcribe"]);
    refuses(&["profile", &model, "-p", "8"], 2, &["--prompt is not for models that transcribe"]);
    let both = ["profile", &model, "--windows", "2", "-b", "2"];
    refuses(&both, 2, &["--batch is for the decoder, and --windows for the encoder"]);
    refuses(&["profile", "-p", "8", "-b", "2"], 2, &["--prompt is one sequence"]);
}

#[test]
fn a_profile_of_a_model_that_transcribes_is_of_its_encoder_or_of_a_step() {
    let model = hearing();
    let labels = |found: serde_json::Value| found["labels"].to_string();
    let encoder = labels(json(&["profile", &model, "--windows", "2", "-r", "1", "-t", "1", "--json"]));
    assert!(encoder.contains("conv2") && encoder.contains("layer.*.across.k"), "{encoder}");
    let step = labels(json(&["profile", &model, "-d", "3", "-r", "1", "-t", "1", "--json"]));
    assert!(step.contains("layer.*.cross_attention") && step.contains("logits"), "{step}");
    let attended = |batch| {
        let found = json(&["profile", &model, "-b", batch, "-r", "1", "-t", "1", "--json"]);
        let of = |line: &&serde_json::Value| line["label"] == "layer.*.attention";
        found["labels"].as_array().unwrap().iter().find(of).unwrap()["bytes"].as_u64().unwrap()
    };
    assert_eq!(attended("3"), 3 * attended("1"));
}

/// A result whose speeds are changed by a factor.
fn scaled(rows: &serde_json::Value, factor: f64) -> serde_json::Value {
    let mut rows = rows.clone();
    for row in rows.as_array_mut().unwrap() {
        for key in ["tok_s", "min", "max"] {
            row[key] = (row[key].as_f64().unwrap() * factor).into();
        }
        for run in row["runs"].as_array_mut().unwrap() {
            *run = (run.as_f64().unwrap() * factor).into();
        }
    }
    rows
}

/// Whatever is paged, as many bytes of experts are read; the part of the file is told beside it.
#[test]
fn bench_counts_the_experts_that_were_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("experts.gguf");
    ok(&["synth", "tiny-experts", path(&model), "--layers", "8"]);
    let bench = |more: &[&str]| {
        let arguments = ["bench", path(&model), "-p", "12", "-n", "4", "-b", "1,3", "-r", "1"];
        [&arguments[..], more].concat().into_iter().map(str::to_string).collect::<Vec<String>>()
    };
    let run = |more: &[&str]| -> Vec<Value> {
        let arguments = bench(&[more, &["--json"]].concat());
        let report = json(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        report.as_array().unwrap().clone()
    };
    let whole = run(&["--device", "cpu", "--expert-memory", "0"]);
    let paged = run(&["--device", "cpu", "--expert-memory", "1"]);
    assert_eq!((whole.len(), paged.len()), (3, 3));
    for (whole, paged) in whole.iter().zip(&paged) {
        assert_eq!((&whole["experts_counted"], &paged["experts_counted"]), (&true.into(), &true.into()));
        assert_eq!(whole["bytes_per_token"], paged["bytes_per_token"], "{paged}");
        assert!(whole.get("expert_misses").is_none());
        let of = |field: &str| paged[field].as_u64().unwrap();
        assert!(of("expert_misses") > 0 && of("expert_file_bytes") > 0, "{paged}");
    }
    let arguments = bench(&["--device", "cpu", "--expert-memory", "1"]);
    let told = ok(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(told.contains("tg4@b3: ") && told.contains("of the experts were in memory"), "{told}");
    assert!(!told.contains('≤'), "{told}");
}

#[test]
fn bench_compares_with_an_earlier_result() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("old.json");
    let bench = ["bench", "-p", "8", "-n", "4", "-r", "3", "-t", "1"];
    let measured = json(&[&bench[..], &["--json"]].concat());
    let compare = |old: &serde_json::Value, more: &[&str]| {
        fs::write(&file, old.to_string()).unwrap();
        run(&[&bench[..], &["--compare", path(&file)], more].concat())
    };
    // Far outside of any spread.
    let faster = compare(&scaled(&measured, 0.001), &["--json"]);
    assert_eq!(faster.code, 0, "{}", faster.stderr);
    let found: serde_json::Value = serde_json::from_str(&faster.stdout).unwrap();
    for test in found["tests"].as_array().unwrap() {
        assert_eq!(test["result"], "faster", "{test}");
        let ratio = test["new"].as_f64().unwrap() / test["old"].as_f64().unwrap();
        assert!((test["ratio"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9, "{test}");
    }
    assert_eq!(found["tests"].as_array().unwrap().len(), 2);
    assert_eq!(found["differences"].as_array().unwrap().len(), 0, "{found}");
    assert_eq!(found["results"][1]["test"], "tg4");

    let mut other = scaled(&measured, 1000.0);
    other[0]["test"] = "pp16".into();
    other[1]["machine"] = "an abacus\u{1b}[2J".into();
    let slower = compare(&other, &[]);
    assert_eq!(slower.code, 1, "{}", slower.stdout);
    for words in [
        "slower",
        "machine: an abacus\\u{1b}[2J → ",
        "only in ",
        ": pp16, 1 thread",
        "not in ",
        ": pp8, 1 thread",
    ] {
        assert!(slower.stdout.contains(words), "{words}: {}", slower.stdout);
    }
    // The file of a comparison can be compared with, too.
    assert_eq!(compare(&found, &["--json"]).code & !1, 0);
}

#[test]
fn bench_refuses_files_that_are_not_results_before_it_measures() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("old.json");
    for (text, words) in [
        ("text", "it is not JSON"),
        ("{}", "it has no results"),
        ("[]", "is empty"),
        ("[{\"model\": \"m\"}]", "result 1: missing field `device`"),
    ] {
        fs::write(&file, text).unwrap();
        refuses(&["bench", "--compare", path(&file)], 1, &[words, "hint: akunu bench --json"]);
    }
    refuses(&["bench", "--compare", "/no/such.json"], 1, &["cannot be read"]);
    let row = json(&["bench", "-p", "0", "-n", "4", "-r", "1", "--json"]);
    fs::write(&file, row.to_string()).unwrap();
    let words = ["no test of", "was measured", "hint: its tests are tg4"];
    refuses(&["bench", "-p", "8", "-n", "0", "-r", "1", "--compare", path(&file)], 1, &words);
    #[cfg(unix)]
    refuses(&["bench", "--compare", "/dev/zero"], 1, &["/dev/zero: it has more than 64.00 MiB"]);
}

#[test]
fn bench_reports_fractions_of_the_ceilings() {
    let rows = json(&["bench", "-p", "8", "-n", "4", "-r", "1", "-t", "1", "--ceilings", "--json"]);
    for row in rows.as_array().unwrap() {
        assert!(row["of_ceiling"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["ceilings"]["threads"], 1);
        for key in ["read_gb_s", "int8_gop_s", "f32_gop_s"] {
            assert!(row["ceilings"][key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
    }
    let plain = json(&["bench", "-p", "0", "-n", "4", "-r", "1", "--json"]);
    assert!(plain[0]["of_ceiling"].is_null() && plain[0]["ceilings"].is_null(), "{plain}");
}

#[test]
fn profile_reports_fractions_of_the_ceilings_for_decoding_and_prompts() {
    let decode = json(&["profile", "-r", "2", "--json"]);
    let prompt = json(&["profile", "-r", "2", "-p", "20", "--chunk", "8", "--json"]);
    let ops = |found: &serde_json::Value| -> f64 {
        found["labels"].as_array().unwrap().iter().map(|l| l["ops"].as_f64().unwrap()).sum()
    };
    assert!(ops(&prompt) > 10.0 * ops(&decode));
    assert!(decode["of_ceiling"].as_f64().unwrap() > 0.0 && decode["ceilings"].is_object(), "{decode}");
    let reference = json(&["profile", "-r", "1", "--device", "reference", "--json"]);
    assert!(reference["ceilings"].is_null() && reference["of_ceiling"].is_null(), "{reference}");
}

#[test]
fn bench_prints_a_table_and_needs_no_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tiny.gguf");
    assert_eq!(run(&["synth", "tiny", path(&file), "-q", "Q4_K_M", "--layers", "1"]).code, 0);
    let table = ok(&["bench", path(&file), "-p", "8", "-n", "4", "-r", "1"]);
    assert!(table.contains("tok/s") && table.contains("pp8") && table.contains("tg4"), "{table}");
    assert!(table.contains("load "), "{table}");
}

#[test]
fn profile_shares_add_up_and_the_trace_is_chromes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.json");
    let found = json(&["profile", "-r", "2", "--depth", "4", "--json", "--trace", path(&file)]);
    let labels = found["labels"].as_array().unwrap();
    let sum: f64 = labels.iter().map(|l| l["share"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    let trace: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().all(|e| e["ph"] == "X" && e["dur"].is_number() && e["ts"].is_number()));
    assert!(events.len() > labels.len());
}

#[test]
fn verify_accepts_a_correct_device() {
    let found = json(&["verify", "--tokens", "3", "--json"]);
    assert_eq!(found["ok"], true, "{found}");
    let text = ok(&["verify", "--tokens", "20", "--unfused"]);
    assert!(text.contains("agrees with the reference"), "{text}");
}

#[test]
fn doctor_names_the_device_that_is_used() {
    let found = json(&["doctor", "--json"]);
    let devices = found["devices"].as_array().unwrap();
    assert_eq!(devices.iter().filter(|d| d["default"] == true).count(), 1, "{found}");
    assert!(found["cores"].as_u64().unwrap() > 0);
    assert!(ok(&["doctor"]).contains("device"));
}

#[test]
fn doctor_ends_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let doctor = |args: &[&str]| {
        let mut command = akunu(args);
        command.env("AKUNU_ISA", "scalar").env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", dir.path());
        let done = finish(command);
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout
    };
    let text = doctor(&["doctor"]);
    let last: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("advice  ")).collect();
    // The available memory is known on Linux only.
    assert_eq!(last.iter().any(|line| line.contains("are free")), cfg!(target_os = "linux"), "{text}");
    assert!(
        last.iter().any(|line| line.starts_with("AKUNU_ISA selects scalar, but this processor has ")),
        "{text}"
    );
    assert!(
        text.trim_end()
            .ends_with("HF_HUB_OFFLINE is set: models are taken from the cache, and none is downloaded.")
    );
    let found: serde_json::Value = serde_json::from_str(&doctor(&["doctor", "--json"])).unwrap();
    assert_eq!(found["advice"].as_array().unwrap().len(), last.len());
    let device =
        found["devices"].as_array().unwrap().iter().find(|device| device["default"] == true).unwrap();
    assert_eq!(last.iter().any(|line| line.contains("GPU memory")), device["name"] != "cpu", "{text}");
}

#[test]
fn verify_shows_the_worst_kernels_and_with_all_every_output() {
    let found = json(&["verify", "--tokens", "3", "--json", "--all"]);
    let all = found["differences"].as_array().unwrap().len();
    assert_eq!(found["outputs"], all);
    assert!(json(&["verify", "--tokens", "3", "--json"])["differences"].is_null());
    refuses(&["verify", "--tokens", "3", "-c", "3"], 2, &["context of 3", "--tokens"]);
    // Of a model that was trained for less, and with memory that no machine has.
    refuses(&["verify", "--tokens", "1000000"], 2, &["has no room for 1000000 tokens", "--tokens"]);
    let many = ["verify", "--tokens", "1000000000", "-c", "1000000001"];
    refuses(&many, 1, &["memory", "--tokens"]);
    // A line for the titles, an empty one and the verdict.
    let short = ok(&["verify", "--tokens", "3"]).lines().count();
    let long = ok(&["verify", "--tokens", "3", "--all"]).lines().count();
    assert_eq!(long, all + 3);
    assert!(short < long && short <= 24, "{short} of {long} lines");
}

//! `--pipeline-parallel`: commands whose model several devices share out by layers.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use crate::common::{akunu, ok};

const STAGES: [&str; 6] = ["--device", "cpu", "-t", "1", "--pipeline-parallel", "3"];

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(args)).unwrap()
}

#[test]
fn text_and_logits_are_those_of_one_device() {
    for args in [
        &["run", "Once upon a time", "-n", "40", "--temp", "0.7", "--seed", "3"][..],
        &["logits", "--ids", "1,2,3,4,5,6,7", "--all", "--json"],
    ] {
        let one = ok(&[args, &STAGES[..4]].concat());
        let three = ok(&[args, &STAGES].concat());
        assert_eq!(three, one, "{args:?}");
    }
}

#[test]
fn plans_tables_profiles_and_comparisons_know_the_stages() {
    let one = json(&["plan", "--json", "-c", "64", "--device", "cpu"]);
    let plan = json(&[&["plan", "--json", "-c", "64"], &STAGES[..]].concat());
    let stages = plan["stages"].as_array().unwrap();
    let sum = |of: &dyn Fn(&serde_json::Value) -> u64| stages.iter().map(of).sum::<u64>();
    assert_eq!(sum(&|stage| stage["memory"]["kv"].as_u64().unwrap()), one["memory"]["kv"]);
    assert_eq!(sum(&|stage| stage["allocated"].as_u64().unwrap()), plan["allocated"]);
    assert!(stages.len() == 3 && one["stages"].is_null());
    let shown = ok(&["plan", "-c", "64", "--for", "cuda", "--pipeline-parallel", "2"]);
    assert!(shown.contains("device  layers"), "{shown}");

    let table = json(&[&["table", "--json"], &STAGES[..]].concat());
    let sides: Vec<&str> =
        table["commands"].as_array().unwrap().iter().map(|c| c["side"].as_str().unwrap()).collect();
    let mut seen = sides.clone();
    seen.dedup();
    assert_eq!(seen, ["stage 0", "stage 1", "device"]);

    let verified = ok(&[&["verify"], &STAGES[..]].concat());
    assert!(verified.contains("cpu agrees with the reference"), "{verified}");
    let profile = ok(&[&["profile", "-r", "1", "--json"], &STAGES[..]].concat());
    assert!(profile.contains("(stage 1)"), "{profile}");
}

#[test]
fn plans_say_how_many_devices_need_that_much() {
    let ranks = ["plan", "--for", "cuda", "-c", "64", "--tensor-parallel", "2"];
    let shown = ok(&ranks);
    assert!(shown.contains("Each of 2 devices has a part of each layer, and needs this:"), "{shown}");
    assert_eq!(json(&[&ranks[..], &["--json"]].concat())["ranks"], 2);
    let one = json(&[&ranks[..5], &["--json"]].concat());
    assert!(one["ranks"].is_null(), "{one}");
}

#[test]
fn command_lines_that_cannot_work_say_why() {
    let refused = |args: &[&str]| {
        let output = akunu(args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let run = |more: &[&str]| refused(&[&["run", "x", "--device", "cpu"], more].concat());
    let (code, stderr) = run(&["--pipeline-parallel", "2", "--tensor-parallel", "2"]);
    assert!(code == 2 && stderr.contains("cannot be used with"), "{stderr}");
    let (code, stderr) = run(&["--pipeline-parallel", "17"]);
    assert!(code == 1 && stderr.contains("the number of stages is 17"), "{stderr}");
    let (code, stderr) = run(&["--pipeline-parallel", "2", "--gpu-layers", "1"]);
    assert!(code == 1 && stderr.contains("cannot leave layers or experts to the CPU"), "{stderr}");
    let (code, stderr) = refused(&["run", "x", "--device", "cuda:1,0,1", "--pipeline-parallel", "3"]);
    assert!(code == 1 && stderr.contains("the list of GPUs is 1, 0, 1"), "{stderr}");
    let (code, stderr) = refused(&[&["plan", "--speed"], &STAGES[..]].concat());
    assert!(code == 2 && stderr.contains("leave out --speed or --pipeline-parallel"), "{stderr}");
    let (code, stderr) = run(&["--tensor-parallel", "7"]);
    assert!(code == 1 && stderr.contains("--pipeline-parallel gives each device whole layers"), "{stderr}");
    let embed = ["embed", "embedded", "--ids", "1,2", "--pooling", "mean", "--device", "cpu"];
    let (code, stderr) = refused(&[&embed[..], &["--pipeline-parallel", "2"]].concat());
    assert!(code == 1 && stderr.contains("by one device"), "{stderr}");
}

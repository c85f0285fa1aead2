//! Output of the file commands, for the embedded model and for synthetic ones.

use crate::common::{akunu, finish, json, ok, path, refuses, run};

/// Replaces the amount of available memory, which differs from run to run.
fn settled(text: &str) -> String {
    let settled = |line| match line {
        line if str::starts_with(line, "Fits: ") => "Fits: […] are available.",
        line if line.starts_with(". free ") => ". free […]",
        line => line,
    };
    text.lines().map(settled).collect::<Vec<_>>().join("\n")
}

#[test]
fn inspect_of_the_embedded_model() {
    insta::assert_snapshot!(ok(&["inspect"]));
}

#[test]
fn inspect_lists_tensors_and_metadata() {
    let found = json(&["inspect", "--tensors", "--metadata", "--json"]);
    assert_eq!(found["architecture"], "llama");
    let tensors = found["tensors"].as_array().unwrap();
    assert!(tensors.iter().any(|t| t["name"] == "token_embd.weight" && t["dtype"] == "Q8_0"));
    assert_eq!(found["metadata"]["general.architecture"], "llama");
    assert!(ok(&["inspect", "--tensors"]).contains("blk.0.attn_q.weight"));
    assert!(ok(&["inspect", "--metadata"]).contains("llama.block_count"));
}

#[test]
fn plan_of_the_embedded_model() {
    insta::assert_snapshot!(settled(&ok(&["plan", "--device", "reference", "-c", "256"])));
}

#[test]
fn plan_as_json_adds_up() {
    let found = json(&["plan", "-c", "64", "--json"]);
    let memory = &found["memory"];
    let of = |keys: &[&str]| keys.iter().map(|k| memory[*k].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        of(&["weights_copied", "constants", "kv", "scratch", "io", "workspace"]),
        found["allocated"].as_u64().unwrap()
    );
    assert_eq!(found["fits"], true);
}

#[test]
fn a_plan_has_a_bar_of_the_memory_that_fits_the_terminal() {
    // A context that needs about twice the available memory.
    let found = json(&["plan", "--device", "cpu", "-c", "1000", "--json"]);
    let of = |value: &serde_json::Value| value.as_u64().unwrap();
    let context = 2 * of(&found["available"]) / (of(&found["memory"]["kv"]) / 1000);
    let mut narrow = akunu(&["plan", "--device", "cpu", "-c", &context.to_string()]);
    narrow.env("COLUMNS", "40");
    let text = finish(narrow).stdout;
    let bar = text.lines().find(|line| line.starts_with('[')).unwrap();
    assert_eq!(bar.len(), 40, "{bar}");
    // Nearly everything is KV cache, and the mark is where the available memory ends.
    assert!(bar.starts_with("[#") && bar.ends_with("=+-]") && bar.contains('|'), "{bar}");
    assert!(text.contains("| available ") && text.contains("= KV cache "), "{text}");
    let chip = ok(&["plan", "--for", "cuda"]);
    assert!(!chip.contains("free") && chip.contains("# weights "), "{chip}");
}

#[test]
fn table_of_the_embedded_model() {
    insta::assert_snapshot!(ok(&["table", "--device", "reference"]));
}

#[test]
fn the_table_of_a_rank_says_which_parts_it_has() {
    let two = ["table", "--device", "cpu", "-t", "2", "--tensor-parallel", "2"];
    for (rank, part) in [("0", "[1/2]"), ("1", "[2/2]")] {
        let text = ok(&[&two[..], &["--rank", rank]].concat());
        assert!(text.contains(&format!("rank {rank} of 2")), "{text}");
        for weight in ["token_embd.weight", "blk.0.attn_q.weight", "blk.5.ffn_down.weight"] {
            assert!(text.contains(&format!("={weight}{part}")), "{weight}: {text}");
        }
        // Each rank has all of it.
        assert!(text.contains("=blk.0.attn_norm.weight ") && !text.contains("norm.weight["), "{text}");
        assert_eq!(json(&[&two[..], &["--rank", rank, "--json"]].concat())["rank"].to_string(), rank);
    }
    refuses(&[&two[..], &["--rank", "2"]].concat(), 2, &["--rank 2", "0 to 1"]);
    refuses(&["table", "--rank", "0"], 2, &["--rank", "--tensor-parallel"]);
}

#[test]
fn tables_and_plans_for_other_chips() {
    insta::assert_snapshot!("table_for_cuda", ok(&["table", "--for", "cuda"]));
    insta::assert_snapshot!("table_for_m3_max", ok(&["table", "--for", "metal:m3-max", "--rows", "100"]));
    insta::assert_snapshot!("plan_for_m3_max", ok(&["plan", "--for", "metal:m3-max", "-c", "256"]));
    let json = json(&["plan", "--for", "cpu:neon-i8mm", "-t", "4", "--json"]);
    assert_eq!(
        (json["device"].as_str(), json["detail"].as_str()),
        (Some("cpu"), Some("neon-i8mm, 4 threads"))
    );
    assert!(json["available"].is_null() && json["fits"].is_null());
}

#[test]
fn unknown_chips_and_a_device_with_a_chip_are_rejected() {
    for name in ["rocm", "metal:m9"] {
        let words = ["unknown chip", name, "cuda[:h200|", "m3-max", "reference"];
        refuses(&["table", "--for", name], 2, &words);
    }
    refuses(&["plan", "--for", "cuda", "--device", "cpu"], 2, &["--for", "--device"]);
}

#[test]
fn prefill_tables_have_the_rows_that_were_asked_for() {
    let found = json(&["table", "--rows", "32", "--json"]);
    assert_eq!((found["table"].as_str(), found["rows"].as_u64()), (Some("prefill"), Some(32)));
    assert!(found["commands"][0]["params"]["cols"].is_u64(), "{}", found["commands"][0]);
    let unfused = json(&["table", "--rows", "32", "--unfused", "--json"]);
    assert!(unfused["commands"].as_array().unwrap().len() > found["commands"].as_array().unwrap().len());
}

#[test]
fn tables_fit_a_narrow_terminal() {
    for args in
        [&["table"][..], &["inspect", "--tensors"], &["plan"], &["bench", "-p", "2", "-n", "1", "-r", "1"]]
    {
        for columns in [40, 80] {
            let mut command = crate::common::akunu(args);
            command.env("COLUMNS", columns.to_string());
            let done = crate::common::finish(command);
            assert_eq!(done.code, 0, "{}", done.stderr);
            // Only sentences may be longer than the terminal; tables may not.
            let table = done.stdout.lines().filter(|line| line.contains("  "));
            for line in table {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
        }
    }
}

#[test]
fn synthetic_models_of_every_family_and_type_can_be_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let types = [
        "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
        "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_M", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4",
        "Q2_K_S", "Q3_K_S", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S",
    ];
    for quant in akunu_testing::some_of(types, 4) {
        let made = run(&["synth", "tiny", path(&file), "-q", quant, "--layers", "2", "--force"]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let found = json(&["logits", path(&file), "--ids", "1,2,3", "--json"]);
        let logits = found["logits"][0].as_array().unwrap();
        assert_eq!(logits.len(), 1000);
        assert!(logits.iter().all(|l| l.as_f64().is_some_and(|l| l.abs() < 50.0)), "{quant}");
        let ids = ok(&["run", path(&file), "--prompt-ids", "1,2,3", "-n", "4", "--ids", "-q"]);
        assert_eq!(ids.split_whitespace().count(), 4, "{quant}: {ids}");
    }
}

#[test]
fn a_synthetic_model_is_the_same_for_the_same_seed() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, seed: &str| {
        let file = dir.path().join(name);
        assert_eq!(run(&["synth", "tiny", path(&file), "--seed", seed]).code, 0);
        std::fs::read(&file).unwrap()
    };
    assert_eq!(make("a.gguf", "1"), make("b.gguf", "1"));
    assert_ne!(make("c.gguf", "2"), make("d.gguf", "1"));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");
}

#[test]
fn every_preset_can_be_planned() {
    let dir = tempfile::tempdir().unwrap();
    // For the large ones only the parameter counts are checked: one layer is a gigabyte.
    for preset in ["smollm2-135m", "qwen3-0.6b", "whisper-tiny"] {
        let file = dir.path().join(preset);
        let made = run(&["synth", preset, path(&file), "-q", "Q4_0", "--layers", "1"]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let table = json(&["table", path(&file), "--json"]);
        assert!(table["commands"].as_array().unwrap().len() >= 10, "{preset}");
    }
}

/// A token is routed to 3 of 7 experts, and needs one row of the embedding.
#[test]
fn the_plan_of_a_mixture_of_experts_says_what_a_token_reads() {
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/qwen3-moe");
    let of = |command: &[&str]| json(&[command, &[path(&model), "--json"]].concat());
    let tensors = of(&["inspect", "--tensors"]);
    let read = |tensor: &serde_json::Value| {
        let (name, bytes) = (tensor["name"].as_str().unwrap(), tensor["bytes"].as_u64().unwrap());
        let shape = tensor["shape"].as_array().unwrap();
        match name {
            _ if shape.len() == 1 => 0,
            "token_embd.weight" => bytes / shape[0].as_u64().unwrap(),
            _ if name.contains("_exps") => bytes * 3 / 7,
            _ => bytes,
        }
    };
    let expected: u64 = tensors["tensors"].as_array().unwrap().iter().map(read).sum();
    assert_eq!(of(&["plan"])["active"].as_u64(), Some(expected));
    assert!(ok(&["plan", path(&model)]).contains("read by a token"));
    assert!(!ok(&["plan"]).contains("read by a token"));
}

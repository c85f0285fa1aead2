//! Models with an encoder of audio, as far as they can be used without one: seen, planned, compared, converted.

use super::common::{json, ok, path, refuses};

fn whisper(test: &str) -> Option<String> {
    akunu_testing::data(test, "golden/tiny_whisper.safetensors").map(|path| path.display().to_string())
}

#[test]
fn both_towers_are_planned_and_agree_with_the_reference() {
    let Some(model) = whisper("both_towers_are_planned_and_agree_with_the_reference") else { return };
    let report = json(&["verify", &model, "--device", "cpu", "--tokens", "8", "-c", "12", "--all", "--json"]);
    let outputs = report["differences"].as_array().expect("all outputs").iter();
    let of = |table: &str| outputs.clone().filter(|output| output["table"] == table).count();
    assert!(of("encode") > 30 && of("decode") > 30 && of("align") > of("decode"), "{report}");
    assert!(json(&["plan", &model, "--json"])["memory"]["kv"].as_u64() > Some(0));
}

#[test]
fn a_converted_model_is_the_same() {
    let Some(model) = whisper("a_converted_model_is_the_same") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("whisper.gguf");
    ok(&["quantize", &model, path(&out), "--type", "F32", "--no-vocab"]);
    ok(&["verify", path(&out), "--device", "cpu", "--tokens", "8", "-c", "12"]);
    let [before, after] = [model.as_str(), path(&out)].map(|model| json(&["inspect", model, "--json"]));
    assert_eq!(before["parameters"], after["parameters"]);
}

/// With its vocabulary, which the new file has too.
#[test]
fn a_file_of_whisper_cpp_is_used_and_converted() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/whisper/whisper-128-turbo.bin");
    let folder = tempfile::tempdir().expect("a folder");
    for kind in ["F32", "Q5_0"] {
        let out = folder.path().join(format!("{kind}.gguf"));
        ok(&["quantize", model, path(&out), "--type", kind]);
        ok(&["verify", path(&out), "--device", "cpu", "--tokens", "8", "-c", "12"]);
        let [before, after] = [model, path(&out)].map(|model| json(&["inspect", model, "--json"]));
        assert_eq!((before["format"].as_str(), after["format"].as_str()), (Some("GGML"), Some("GGUF")));
        assert_eq!(before["parameters"], after["parameters"]);
        let text = "A<|startoftranscript|>10";
        let [before, after] =
            [model, path(&out)].map(|model| json(&["tokenize", model, "-p", text, "--json"]));
        assert_eq!(before, after);
    }
    let report = json(&["verify", model, "--device", "cpu", "--tokens", "8", "-c", "12", "--all", "--json"]);
    assert!(report["differences"].as_array().is_some_and(|all| all.len() > 60), "{report}");
    assert!(json(&["plan", model, "--json"])["memory"]["kv"].as_u64() > Some(0));
}

#[test]
fn texts_are_refused() {
    let Some(model) = whisper("texts_are_refused") else { return };
    refuses(&["run", &model, "--prompt-ids", "1,2"], 1, &["transcribes audio"]);
    refuses(&["embed", &model, "--ids", "1,2", "--pooling", "mean"], 1, &["transcribes audio"]);
}

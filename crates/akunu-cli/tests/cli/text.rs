//! Tokens, logits and perplexity.

use std::fs;

use akunu_format::GgufWriter;

use crate::common::{json, ok, path, with_stdin};

#[test]
fn detokenize_inverts_tokenize() {
    for text in ["Once upon a time", "Zoë's  café – 日本", " two spaces  ", "line\nbreak"] {
        let ids = ok(&["tokenize", "-p", text]);
        assert_eq!(ok(&["detokenize", ids.trim()]), format!("{text}\n"));
        let listed = json(&["tokenize", "-p", text, "--json"]);
        assert_eq!(listed["ids"].as_array().unwrap().len(), ids.split(',').count());
    }
}

#[test]
fn a_vocabulary_file_without_weights_can_tokenize() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vocabulary.gguf");
    let model = akunu::Model::embedded().unwrap();
    let bytes = GgufWriter::new(Vec::new(), model.metadata().unwrap(), Vec::new()).unwrap().finish().unwrap();
    fs::write(&file, bytes).unwrap();
    let ids = ok(&["tokenize", path(&file), "Once upon a time"]);
    assert_eq!(ids, ok(&["tokenize", "Once upon a time"]));
    assert_eq!(ok(&["detokenize", path(&file), ids.trim()]), "Once upon a time\n");
}

#[test]
fn special_tokens_can_be_left_out() {
    let all = ok(&["tokenize", "Once"]);
    let plain = ok(&["tokenize", "Once", "--no-special"]);
    let bos = akunu::Model::embedded().unwrap().config().bos_id.unwrap();
    assert_eq!(all, format!("{bos},{plain}"));
    assert_eq!(ok(&["tokenize", "Once", "--list"]).lines().count(), 2);
}

#[test]
fn text_and_ids_may_come_from_stdin() {
    let ids = with_stdin(&["tokenize"], b"Once upon a time");
    assert_eq!(ids.stdout, ok(&["tokenize", "Once upon a time"]));
    assert_eq!(with_stdin(&["detokenize"], ids.stdout.as_bytes()).stdout, "Once upon a time\n");
}

#[test]
fn logits_are_the_same_in_json_and_safetensors_at_any_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("logits.safetensors");
    let base = ["logits", "--ids", "0,520,560,259,445", "--all"];
    let found = json(&[&base[..], &["--json", "--out", path(&file)]].concat());
    let rows = found["logits"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    let bytes = fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("logits").unwrap();
    assert_eq!(tensor.shape(), [5, rows[0].as_array().unwrap().len()]);
    let stored: Vec<f32> =
        tensor.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let flat = rows.iter().flat_map(|row| row.as_array().unwrap());
    let told: Vec<f32> = flat.map(|v| v.as_f64().unwrap() as f32).collect();
    assert_eq!(stored, told);
    for chunk in ["1", "2"] {
        assert_eq!(json(&[&base[..], &["--json", "--chunk", chunk]].concat()), found, "{chunk}");
    }
    let last = json(&["logits", "--ids", "0,520,560,259,445", "--json"]);
    assert_eq!(last["logits"][0], rows[4]);
}

#[test]
fn perplexity_prefers_stories_to_noise() {
    let dir = tempfile::tempdir().unwrap();
    let measure = |text: &str| {
        let file = dir.path().join("text.txt");
        fs::write(&file, text).unwrap();
        json(&["perplexity", path(&file), "-c", "64", "--stride", "32", "--json"])
    };
    let story = ok(&["run", "Once upon a time", "-n", "60", "--temp", "0", "-q"]);
    let (story, noise) = (measure(&story), measure("qz xv 9 kk; zzz bb vv. qq xq jj pw"));
    let perplexity = |v: &serde_json::Value| v["perplexity"].as_f64().unwrap();
    assert!(perplexity(&story) * 10.0 < perplexity(&noise), "{story} {noise}");
}

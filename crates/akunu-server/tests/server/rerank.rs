//! Reranking in all protocols.

use std::path::Path;
use std::sync::Arc;

use akunu::{DeviceChoice, EmbedOptions, EmbedTask, Embedder, Model, TextIds};
use akunu_server::ModelSpec;
use serde_json::{Map, Value as Json, json};
use tempfile::TempDir;

use crate::serve::{Served, serve_with};

const QUERY: &str = "w20 w21";
const DOCUMENTS: [&str; 4] = ["w30", "w31 w32 w33", "w40 w41", "w50 w20 w21"];

/// The small cross-encoder with a tokenizer of words.
fn folder() -> TempDir {
    words("bert-cross-encoder")
}

/// A small encoder with a tokenizer of 64 words, where `w4` has the id 4.
pub fn words(encoder: &str) -> TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/encoders").join(encoder);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"].map(String::from).into_iter();
    let words = words.chain((4..64).map(|id| format!("w{id}")));
    let vocab: Map<String, Json> = words.enumerate().map(|(id, word)| (word, json!(id))).collect();
    let special = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    let around = |id: u32, token: &str| json!({ "id": token, "ids": [id], "tokens": [token] });
    let part = |token: &str, kind: u32| json!({ "SpecialToken": { "id": token, "type_id": kind } });
    let text = |id: &str, kind: u32| json!({ "Sequence": { "id": id, "type_id": kind } });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "[PAD]"), special(1, "[CLS]"), special(2, "[SEP]"), special(3, "[UNK]")],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [part("[CLS]", 0), text("A", 0), part("[SEP]", 0)],
            "pair": [part("[CLS]", 0), text("A", 0), part("[SEP]", 0), text("B", 1), part("[SEP]", 1)],
            "special_tokens": { "[CLS]": around(1, "[CLS]"), "[SEP]": around(2, "[SEP]") },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

fn serve() -> (TempDir, Served) {
    let folder = folder();
    let spec = ModelSpec { name: "judge".into(), path: Some(folder.path().into()), aliases: Vec::new() };
    (folder, serve_with(|options| options.models.models = vec![spec]))
}

/// The classifier's scores from the engine.
fn scores(folder: &Path) -> Vec<f32> {
    let model = Arc::new(Model::open(folder).unwrap());
    let options = EmbedOptions {
        device: DeviceChoice::Cpu,
        threads: Some(1),
        task: EmbedTask::Scores,
        ..EmbedOptions::default()
    };
    let id = |word: &str| word[1..].parse::<u32>().unwrap();
    let pair = |document: &&str| {
        let mut ids = vec![1];
        ids.extend(QUERY.split(' ').map(id));
        ids.push(2);
        let mut segments = vec![0; ids.len()];
        ids.extend(document.split(' ').map(id));
        ids.push(2);
        segments.resize(ids.len(), 1);
        TextIds { ids, segments, is_cut: false }
    };
    let pairs: Vec<TextIds> = DOCUMENTS.iter().map(pair).collect();
    Embedder::new(model, &options).unwrap().scores(&pairs).unwrap()
}

fn order(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

fn sigmoid(score: f32) -> f32 {
    1.0 / (1.0 + (-score).exp())
}

#[test]
fn jina_and_cohere_results_are_sorted_sigmoids_of_the_scores() {
    let (folder, server) = serve();
    let scores = scores(folder.path());
    let objects: Vec<Json> = DOCUMENTS.iter().map(|text| json!({ "text": text })).collect();
    for path in ["/v1/rerank", "/v2/rerank"] {
        for documents in [json!(DOCUMENTS), json!(objects)] {
            let answer =
                server.ok(path, &json!({ "model": "judge", "query": QUERY, "documents": documents }));
            let results = answer["results"].as_array().unwrap();
            assert_eq!((results.len(), &answer["model"]), (DOCUMENTS.len(), &json!("judge")));
            for (result, index) in results.iter().zip(order(&scores)) {
                assert_eq!(result["index"], json!(index));
                assert_eq!(result["relevance_score"].as_f64().unwrap() as f32, sigmoid(scores[index]));
                assert_eq!(result.get("document"), None);
            }
            let tokens: usize = DOCUMENTS.iter().map(|text| 5 + text.split(' ').count()).sum();
            assert_eq!(answer["usage"]["total_tokens"], json!(tokens));
            assert!(answer["id"].is_string() && answer["meta"].is_object());
        }
    }
}

#[test]
fn top_n_and_return_documents_work() {
    let (folder, server) = serve();
    let body = json!({ "query": QUERY, "documents": DOCUMENTS, "top_n": 2, "return_documents": true });
    let answer = server.ok("/v1/rerank", &body);
    let best = order(&scores(folder.path()));
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!(results[0]["document"], json!({ "text": DOCUMENTS[best[0]] }));
}

#[test]
fn tei_results_are_a_list_with_optional_raw_scores() {
    let (folder, server) = serve();
    let scores = scores(folder.path());
    for is_raw in [false, true] {
        let body = json!({ "query": QUERY, "texts": DOCUMENTS, "raw_scores": is_raw, "return_text": is_raw });
        let answer = server.ok("/rerank", &body);
        assert_eq!(server.ok("/", &body), answer);
        for (result, index) in answer.as_array().unwrap().iter().zip(order(&scores)) {
            let score = if is_raw { scores[index] } else { sigmoid(scores[index]) };
            assert_eq!((&result["index"], result["score"].as_f64().unwrap() as f32), (&json!(index), score));
            assert_eq!(result["text"], if is_raw { json!(DOCUMENTS[index]) } else { Json::Null });
        }
    }
}

#[test]
fn a_document_that_is_too_long_is_refused_or_truncated() {
    let (_folder, server) = serve();
    let long = vec!["w9"; 100].join(" ");
    let body = |more: Json| {
        let mut body = json!({ "query": QUERY, "documents": ["w30", long] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let answer = server.post("/v1/rerank", &body(json!({})));
    let message = answer.json()["message"].as_str().unwrap().to_string();
    assert_eq!(answer.status, 400);
    assert!(message.contains("number 2") && message.contains("105") && message.contains("48"), "{message}");
    assert_eq!(answer.json()["detail"], json!(message));
    let cut = server.ok("/v1/rerank", &body(json!({ "truncate": true })));
    assert_eq!(cut["usage"]["total_tokens"], json!(6 + 48));
    let shorter = server.ok("/v2/rerank", &body(json!({ "max_tokens_per_doc": 10 })));
    assert_eq!(shorter["usage"]["total_tokens"], json!(6 + 15));
    let tei = server.post("/rerank", &json!({ "query": QUERY, "texts": [long] }));
    assert_eq!((tei.status, &tei.json()["error_type"]), (400, &json!("validation")));
    let left = json!({ "query": QUERY, "texts": ["w30"], "truncate": true, "truncation_direction": "Left" });
    assert_eq!(server.post("/rerank", &left).status, 400);
}

#[test]
fn a_long_query_is_not_tokenized_with_each_of_many_documents() {
    let (_folder, server) = serve();
    let query = "w20 ".repeat(64 << 10);
    for (path, documents) in [("/v1/rerank", "documents"), ("/rerank", "texts")] {
        let mut body = json!({ "query": query, "truncate": true });
        body[documents] = vec!["w30"; 2048].into();
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("shorten the query or send fewer documents"), "{}", answer.text());
    }
}

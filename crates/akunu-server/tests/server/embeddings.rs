//! Embeddings in all protocols.

use std::path::{Path, PathBuf};
use std::thread;

use akunu_server::ModelSpec;
use serde_json::{Value as Json, json};

use crate::http::{connect, request};
use crate::schema::Description;
use crate::serve::{Served, TALES, serve_with};

const EMBEDDINGS: &str = "/v1/embeddings";

fn encoder(name: &str) -> ModelSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/encoders").join(name);
    ModelSpec { name: name.into(), path: Some(path), aliases: Vec::new() }
}

/// Encoders without a tokenizer, and a model that generates text.
fn serve() -> Served {
    serve_with(|options| {
        options.models.models.insert(0, encoder("bert-mean"));
        options.models.models.push(encoder("bert-cross-encoder"));
        options.models.models.push(encoder("qwen3-embedding"));
    })
}

fn golden(name: &str) -> Json {
    let path = encoder(name).path.unwrap().join("golden.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(name: &str) -> Vec<Vec<u32>> {
    let texts = golden(name)["texts"].as_array().unwrap().clone();
    texts.into_iter().map(|text| serde_json::from_value(text["ids"].clone()).unwrap()).collect()
}

fn numbers(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn vectors(answer: &Json) -> Vec<Vec<f32>> {
    answer["data"].as_array().unwrap().iter().map(|data| numbers(&data["embedding"])).collect()
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    dot / length(a) / length(b)
}

/// The message of an error with status 400, in the format of the path's protocol.
fn refused(server: &Served, path: &str, body: &Json) -> String {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text());
    let answer = answer.json();
    let message = match path {
        "/v1/rerank" | "/v2/rerank" => &answer["message"],
        "/v1/messages" | EMBEDDINGS => &answer["error"]["message"],
        path if path.starts_with("/v1/") => &answer["error"]["message"],
        _ => &answer["error"],
    };
    message.as_str().unwrap_or_else(|| panic!("{path}: {answer}")).to_string()
}

#[test]
fn openai_response_has_a_normalised_vector_for_each_text() {
    let server = serve();
    let texts = ids("bert-mean");
    let answer = server.ok(EMBEDDINGS, &json!({ "model": "bert-mean", "input": texts }));
    let found = vectors(&answer);
    let tokens: usize = texts.iter().map(Vec::len).sum();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    assert_eq!((found.len(), found[0].len()), (texts.len(), 48));
    assert!(found.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-6));
    for (index, data) in answer["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&data["object"], &data["index"]), (&json!("embedding"), &json!(index)));
    }
    if let Some(description) = Description::open() {
        description.assert("CreateEmbeddingResponse", &answer);
    }
    // A single list of ids, for the default model.
    let alone = server.ok(EMBEDDINGS, &json!({ "input": texts[1] }));
    assert_eq!((vectors(&alone), &alone["model"]), (vec![found[1].clone()], &json!("bert-mean")));
}

#[test]
fn base64_has_the_same_bits() {
    let server = serve();
    let texts = ids("bert-mean");
    let floats = vectors(&server.ok(EMBEDDINGS, &json!({ "input": texts })));
    let answer = server.ok(EMBEDDINGS, &json!({ "input": texts, "encoding_format": "base64" }));
    for (data, floats) in answer["data"].as_array().unwrap().iter().zip(&floats) {
        let bytes = decode(data["embedding"].as_str().unwrap());
        let numbers: Vec<u32> =
            bytes.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
        assert_eq!(numbers, floats.iter().map(|number| number.to_bits()).collect::<Vec<_>>());
    }
}

fn decode(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{byte} is not a base64 digit"),
    };
    let digits = text.bytes().filter(|byte| *byte != b'=').map(digit).collect::<Vec<u8>>();
    let mut bytes = Vec::new();
    for four in digits.chunks(4) {
        let bits =
            four.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - four.len()));
        bytes.extend(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

#[test]
fn dimensions_truncate_and_normalise_again() {
    let server = serve();
    let texts = ids("bert-mean");
    let whole = vectors(&server.ok(EMBEDDINGS, &json!({ "input": texts })));
    let cut = vectors(&server.ok(EMBEDDINGS, &json!({ "input": texts, "dimensions": 8 })));
    for (whole, cut) in whole.iter().zip(&cut) {
        assert_eq!(cut.len(), 8);
        assert!((length(cut) - 1.0).abs() < 1e-6 && cosine(cut, &whole[..8]) > 1.0 - 1e-6);
    }
    let message = refused(&server, EMBEDDINGS, &json!({ "input": texts, "dimensions": 49 }));
    assert!(message.contains("49") && message.contains("48"), "{message}");
}

#[test]
fn all_protocols_give_the_same_vectors() {
    let server = serve();
    let texts = ids("bert-mean");
    let expected = vectors(&server.ok(EMBEDDINGS, &json!({ "input": texts })));
    let all = |list: &Json| list.as_array().unwrap().iter().map(numbers).collect::<Vec<_>>();
    let ollama = server.ok("/api/embed", &json!({ "model": "bert-mean:latest", "input": texts }));
    assert_eq!(all(&ollama["embeddings"]), expected);
    let tokens: usize = texts.iter().map(Vec::len).sum();
    assert_eq!(ollama["prompt_eval_count"], json!(tokens));
    assert!(ollama["total_duration"].is_u64() && ollama["load_duration"].is_u64());
    let older = server.ok("/api/embeddings", &json!({ "model": "bert-mean", "prompt": texts[0] }));
    assert_eq!(numbers(&older["embedding"]), expected[0]);
    let tei = server.ok("/embed", &json!({ "inputs": texts }));
    assert_eq!(all(&tei), expected);
    // The path that Hugging Face's client uses with a base URL.
    assert_eq!(server.ok("/", &json!({ "inputs": texts })), tei);
    let raw = all(&server.ok("/embed", &json!({ "inputs": texts, "normalize": false })));
    for (raw, scaled) in raw.iter().zip(&expected) {
        assert!((length(raw) - 1.0).abs() > 1e-3 && cosine(raw, scaled) > 1.0 - 1e-6);
    }
}

#[test]
fn concurrent_requests_get_the_same_bits_as_alone() {
    let server = serve();
    let texts = ids("bert-mean");
    let expected = vectors(&server.ok(EMBEDDINGS, &json!({ "input": texts })));
    let many: Vec<&Vec<u32>> = texts.iter().cycle().take(1000).collect();
    thread::scope(|scope| {
        let large = scope.spawn(|| vectors(&server.ok(EMBEDDINGS, &json!({ "input": many }))));
        let small: Vec<_> = (0..16)
            .map(|index| {
                let (server, text) = (&server, &texts[index % texts.len()]);
                scope.spawn(move || vectors(&server.ok(EMBEDDINGS, &json!({ "input": text }))))
            })
            .collect();
        for (index, vector) in small.into_iter().enumerate() {
            assert_eq!(vector.join().unwrap(), [expected[index % texts.len()].clone()]);
        }
        for (index, vector) in large.join().unwrap().iter().enumerate() {
            assert_eq!(vector, &expected[index % texts.len()]);
        }
    });
    assert_eq!(server.metric("akunu_embedded_texts_total"), (texts.len() + 1000 + 16) as f64);
    assert!(server.metric("akunu_embedded_tokens_total") > 1000.0);
    server.until(&["akunu_text_requests"], 0.0);
}

#[test]
fn disconnecting_cancels_a_request() {
    let server = serve();
    server.ok(EMBEDDINGS, &json!({ "input": [1, 2] }));
    let texts = vec![vec![1u32; 48]; 2048];
    let body = json!({ "input": texts }).to_string();
    use std::io::Write;
    let bytes = request("POST", EMBEDDINGS, &[], body.as_bytes());
    connect(server.address()).write_all(&bytes).unwrap();
    server.until(&["akunu_text_requests"], 0.0);
}

#[test]
fn errors_name_the_field_or_the_limits() {
    let server = serve();
    let inputs =
        [json!(""), json!([]), json!([[]]), json!(["a", ""]), json!([1, "a"]), json!([-1]), json!(3)];
    for input in inputs.into_iter().chain([json!(vec!["a"; 10_000])]) {
        for (path, name) in
            [(EMBEDDINGS, "input"), ("/api/embed", "input"), ("/embed", "inputs"), ("/", "inputs")]
        {
            let message = refused(&server, path, &json!({ "model": "bert-mean", name: input }));
            assert!(message.contains(&format!("'{name}'")), "{path} {input}: {message}");
        }
    }
    let missing = refused(&server, EMBEDDINGS, &json!({ "model": "bert-mean" }));
    assert!(missing.contains("'input' is missing"), "{missing}");
    let many = refused(&server, EMBEDDINGS, &json!({ "input": vec!["a"; 10_000] }));
    assert!(many.contains("10000") && many.contains("2048"), "{many}");
    let outside = refused(&server, EMBEDDINGS, &json!({ "input": [[1, 2], [1, 70, 2]] }));
    for word in ["number 2", "id 70", "vocabulary has 64", "the text itself"] {
        assert!(outside.contains(word), "{outside}");
    }
    let long = refused(&server, EMBEDDINGS, &json!({ "input": [[1, 2], vec![1; 100]] }));
    assert!(long.contains("number 2") && long.contains("100 tokens") && long.contains("at most"), "{long}");
    let text = refused(&server, EMBEDDINGS, &json!({ "input": "no vocabulary" }));
    assert!(text.contains("token ids only"), "{text}");
    let format = refused(&server, EMBEDDINGS, &json!({ "input": [1], "encoding_format": "hex" }));
    assert!(format.contains("base64"), "{format}");
    let none = refused(&server, EMBEDDINGS, &json!({ "input": [1], "dimensions": 0 }));
    assert!(none.contains("'dimensions'"), "{none}");
    // A text that is too long is truncated on request, and by default in Ollama's API.
    let cut = server.ok(EMBEDDINGS, &json!({ "input": vec![1; 100], "truncate": true }));
    let ollama = server.ok("/api/embed", &json!({ "model": "bert-mean", "input": vec![1; 100] }));
    assert_eq!(numbers(&ollama["embeddings"][0]), vectors(&cut)[0]);
    let body = json!({ "model": "bert-mean", "input": vec![1; 100], "truncate": false });
    assert!(refused(&server, "/api/embed", &body).contains("100 tokens"));
}

#[test]
fn errors_say_what_a_model_can_do() {
    let server = serve();
    let message = json!([{ "role": "user", "content": "hello" }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "model": "bert-mean", "messages": message })),
        ("/v1/completions", json!({ "model": "bert-mean", "prompt": [1, 2] })),
        ("/v1/messages", json!({ "model": "bert-mean", "messages": message, "max_tokens": 3 })),
        ("/api/chat", json!({ "model": "bert-mean", "messages": message })),
        ("/api/generate", json!({ "model": "bert-mean", "prompt": "hello" })),
    ] {
        let message = refused(&server, path, &body);
        assert!(message.contains("embeds texts") && message.contains("/v1/embeddings"), "{path}: {message}");
    }
    for (path, name) in [(EMBEDDINGS, "input"), ("/api/embed", "input"), ("/embed", "inputs")] {
        let message = refused(&server, path, &json!({ "model": TALES, name: "hello" }));
        assert!(message.contains("generates text") && message.contains("--pooling"), "{path}: {message}");
        let message = refused(&server, path, &json!({ "model": "bert-cross-encoder", name: [1] }));
        assert!(message.contains("/v1/rerank") && message.contains("does not embed"), "{path}: {message}");
    }
    for (path, name) in [("/v1/rerank", "documents"), ("/v2/rerank", "documents"), ("/rerank", "texts")] {
        let body = |model: &str| json!({ "model": model, "query": "q", name: ["a"] });
        assert!(refused(&server, path, &body(TALES)).contains("--rerank"));
        assert!(refused(&server, path, &body("bert-mean")).contains("/v1/embeddings"));
        let many = json!(vec!["a"; 10_000]);
        for (more, word) in [(json!([]), name), (json!([""]), "empty"), (json!([1]), name), (many, name)] {
            let body = json!({ "model": "bert-cross-encoder", "query": "q", name: more });
            let message = refused(&server, path, &body);
            assert!(message.contains(word), "{path}: {message}");
        }
    }
}

#[test]
fn lists_have_the_capabilities_of_models() {
    let server = serve();
    let capabilities = |list: &Json, name: &str| {
        let list = list.as_array().unwrap();
        let is_it = |model: &&Json| model["id"] == *name || model["name"] == format!("{name}:latest");
        list.iter().find(is_it).unwrap()["capabilities"].clone()
    };
    let models = server.get("/v1/models").json();
    let tags = server.get("/api/tags").json();
    for (name, expected) in [
        ("bert-mean", "embedding"),
        ("qwen3-embedding", "embedding"),
        ("bert-cross-encoder", "rerank"),
        (TALES, "completion"),
    ] {
        assert_eq!(capabilities(&models["data"], name), json!([expected]), "{name}");
        assert_eq!(capabilities(&tags["models"], name), json!([expected]), "{name}");
        assert_eq!(server.ok("/api/show", &json!({ "model": name }))["capabilities"][0], *expected);
    }
}

#[test]
fn lists_say_how_long_requests_may_be() {
    let server = serve_with(|options| {
        options.models.engine.context = Some(200);
        options.models.engine = options.models.engine.clone().batching(3);
        options.models.models.push(encoder("bert-mean"));
    });
    let numbers = |name: &str| {
        let model = server.get(&format!("/v1/models/{name}")).json();
        assert_eq!(model["id"], name);
        (model["context_length"].as_u64(), model["kv_cache_tokens"].as_u64())
    };
    assert_eq!((numbers(TALES), numbers("story-teller")), ((Some(200), None), (Some(200), None)));
    let ask = |ids: usize| {
        let body = json!({ "model": TALES, "prompt": vec![5; ids], "max_tokens": 1 });
        server.post("/v1/completions", &body).status
    };
    assert_eq!((ask(200), ask(201)), (200, 400));
    // Four blocks of 64 for each slot.
    assert_eq!(numbers(TALES), (Some(200), Some(3 * 256)));
    let (longest, _) = numbers("bert-mean");
    let embed = |ids: u64| {
        server.post(EMBEDDINGS, &json!({ "model": "bert-mean", "input": [vec![5; ids as usize]] })).status
    };
    let longest = longest.unwrap();
    assert_eq!((embed(longest), embed(longest + 1)), (200, 400), "{longest}");
}

#[test]
fn a_generative_model_embeds_with_a_pooling() {
    let server = serve_with(|options| options.models.pooling = Some(akunu::Pooling::Mean));
    let answer = server.ok(EMBEDDINGS, &json!({ "input": ["a fox", "a fox", "a house in the woods"] }));
    let found = vectors(&answer);
    assert_eq!(found[0], found[1]);
    assert!(cosine(&found[0], &found[2]) < 0.9999);
    let body = json!({ "prompt": "Once" });
    assert!(refused(&server, "/v1/completions", &body).contains("embeds texts"));
}

/// With `rerank`, models that cannot answer yes or no still generate text.
#[test]
fn rerank_does_not_affect_models_without_yes_and_no() {
    let server = serve_with(|options| options.models.rerank = true);
    let model = &server.get("/v1/models").json()["data"][0];
    assert_eq!(model["capabilities"], json!(["completion"]));
    server.ok("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }));
    let body = json!({ "query": "q", "documents": ["a"] });
    assert!(refused(&server, "/v1/rerank", &body).contains("generates text"));
}

fn minilm() -> Option<PathBuf> {
    akunu_testing::data("vectors of real text", "minilm/model.safetensors")
        .map(|file| file.parent().unwrap().into())
}

#[test]
fn vectors_of_real_text_match_transformers() {
    let Some(folder) = minilm() else { return };
    let expected = std::fs::read(folder.join("minilm_embeddings_hf_f64.json")).unwrap();
    let expected: Json = serde_json::from_slice(&expected).unwrap();
    let server = serve_with(|options| {
        let spec = ModelSpec { name: "minilm".into(), path: Some(folder.clone()), aliases: Vec::new() };
        options.models.models = vec![spec];
        options.models.engine.threads = Some(2);
    });
    let cases = expected["cases"].as_array().unwrap();
    let cases: Vec<&Json> = cases.iter().filter(|case| case["text"] != "").collect();
    let texts: Vec<&Json> = cases.iter().map(|case| &case["text"]).collect();
    let found = vectors(&server.ok(EMBEDDINGS, &json!({ "input": texts, "truncate": true })));
    for (case, vector) in cases.iter().zip(&found) {
        let similar = cosine(vector, &numbers(&case["embedding"]));
        assert!(similar > 0.99999, "{similar}: {}", case["text"]);
    }
    let one = server.ok("/api/embed", &json!({ "model": "minilm", "input": texts[0] }));
    assert_eq!(numbers(&one["embeddings"][0]), found[0]);
}

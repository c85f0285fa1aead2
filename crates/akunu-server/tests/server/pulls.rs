//! `/api/pull`, with a fake hub on loopback.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use akunu_hub::Settings;
use akunu_hub_testing::{FakeHub, Fault};
use akunu_server::ModelSpec;
use serde_json::{Value as Json, json};

use crate::http::{connect, request, send};
use crate::serve::{Served, TALES, serve, serve_with};

const MODEL: &[u8] = include_bytes!("../../../akunu/embedded/akunu-tales.gguf");
const NAME: &str = "hf.co/tiny/model-GGUF";

fn with_hub(fake: &FakeHub, cache: &Path) -> Served {
    serve_with(|options| {
        let mut settings = Settings::new(&fake.url, cache).unwrap();
        settings.retry_policy.backoff = Duration::from_millis(1);
        settings.retry_policy.attempts = 2;
        options.pull = Some(settings);
    })
}

fn lines(server: &Served, body: &Json) -> Vec<Json> {
    let answer = server.post("/api/pull", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_model_is_downloaded_with_progress_and_served() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("tales-Q8_0.gguf", MODEL)]));
    let server = with_hub(&fake, cache.path());
    let all = lines(&server, &json!({ "model": NAME }));
    assert_eq!(all[0], json!({ "status": "pulling manifest" }));
    assert_eq!(all.last(), Some(&json!({ "status": "success" })));
    let progress: Vec<&Json> = all.iter().filter(|line| line["total"] == MODEL.len()).collect();
    assert_eq!(progress.last().unwrap()["completed"], json!(MODEL.len()));
    assert!(progress[0]["digest"].as_str().unwrap().len() > 19, "{progress:?}");
    let chat = json!({ "model": NAME, "prompt": "Once", "stream": false, "options": { "num_predict": 3 } });
    assert_eq!(server.ok("/api/generate", &chat)["eval_count"], 3);
    // The name of the command line is the same model, and OpenAI's clients find it.
    let body = json!({ "model": "hf:tiny/model-GGUF", "prompt": "Once", "max_tokens": 2 });
    server.ok("/v1/completions", &body);
    let tags = server.get("/api/tags").json();
    let names: Vec<&Json> = tags["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["tales:latest", "story-teller:latest", "hf:tiny/model-GGUF"]);
    // Once more, and under another name.
    assert_eq!(
        server.ok("/api/pull", &json!({ "name": NAME, "stream": false })),
        json!({ "status": "success" })
    );
    server.ok("/api/pull", &json!({ "model": format!("{NAME}:Q8_0"), "stream": false }));
    server.ok("/api/generate", &json!({ "model": format!("{NAME}:Q8_0"), "prompt": "Once", "stream": false, "options": { "num_predict": 1 } }));
    // Its weights are loaded once.
    assert_eq!(server.metric("akunu_model_loaded"), 1.0);
    assert_eq!(server.get("/v1/models").json()["data"].as_array().unwrap().len(), 4);
}

#[test]
fn downloaded_models_are_deleted_where_that_is_allowed() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("tales-Q8_0.gguf", MODEL)]));
    let delete = |server: &Served, name: &str| {
        let body = json!({ "model": name }).to_string();
        send(server.address(), &request("DELETE", "/api/delete", &[], body.as_bytes()))
    };
    let server = with_hub(&fake, cache.path());
    lines(&server, &json!({ "model": NAME }));
    assert!(delete(&server, NAME).text().contains("--allow-delete"));
    drop(server);
    let server = serve_with(|options| {
        let settings = Settings::new(&fake.url, cache.path()).unwrap();
        (options.pull, options.delete) = (Some(settings.clone()), Some(settings));
    });
    lines(&server, &json!({ "model": NAME }));
    let folder = cache.path().join("models--tiny--model-GGUF");
    assert!(folder.exists());
    // The embedded model has no file.
    let kept = delete(&server, TALES);
    assert!(kept.status == 403 && kept.text().contains("not in the cache"), "{}", kept.text());
    assert_eq!(delete(&server, NAME).status, 200);
    assert!(!folder.exists());
    assert_eq!(delete(&server, NAME).status, 404);
}

#[test]
fn downloads_are_refused_by_name() {
    let refused = serve().post("/api/pull", &json!({ "model": NAME }));
    assert!(refused.status == 403 && refused.text().contains("--allow-pull"), "{}", refused.text());
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("tales-Q8_0.gguf", b"no model")]));
    let server = with_hub(&fake, cache.path());
    for (body, status, what) in [
        (json!({}), 400, "'model' is missing"),
        (json!({ "model": 5 }), 400, "'model' must be a string"),
        (json!({ "model": NAME, "insecure": true }), 400, "'insecure' is not supported"),
        (json!({ "model": "hf.co/../x" }), 400, "not a valid hub model name"),
        (json!({ "model": "hf.co/a/b:../x" }), 400, "not a valid hub model name"),
        (json!({ "model": "llama3.2", "stream": false }), 404, "llama3.2:1b"),
        (json!({ "model": "/etc/passwd", "stream": false }), 404, "there is no model of the short name"),
        (json!({ "model": "hf.co/tiny/none", "stream": false }), 404, "tiny/none"),
        (json!({ "model": format!("{NAME}:Q4_0"), "stream": false }), 404, "Q4_0"),
        (json!({ "model": NAME, "stream": false }), 400, "cannot be used"),
    ] {
        let answer = server.post("/api/pull", &body);
        let error = answer.json()["error"].as_str().unwrap().to_string();
        assert!(answer.status == status && error.contains(what), "{body}: {} {error}", answer.status);
        assert!(!error.contains(cache.path().to_str().unwrap()), "{error}");
    }
    // In a stream, the error is the last line.
    let all = lines(&server, &json!({ "model": "hf.co/tiny/none" }));
    assert!(all.last().unwrap()["error"].as_str().unwrap().contains("tiny/none"), "{all:?}");
    assert_eq!(server.get("/v1/models").json()["data"].as_array().unwrap().len(), 2);
}

#[test]
fn a_client_that_hangs_up_stops_its_download_and_few_run_at_once() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("tales-Q8_0.gguf", MODEL)]));
    fake.fault("tales-Q8_0.gguf", Fault::Stall(1000, Duration::from_secs(600)), 3);
    let server = with_hub(&fake, cache.path());
    let begin = || {
        let mut client = connect(server.address());
        let body = json!({ "model": NAME }).to_string();
        client.write_all(&request("POST", "/api/pull", &[], body.as_bytes())).unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
        client
    };
    let (first, second) = (begin(), begin());
    let third = server.post("/api/pull", &json!({ "model": NAME }));
    assert_eq!(third.status, 429, "{}", third.text());
    drop((first, second));
    // Once they have ended, another one may run; it waits for no other download of the file.
    let began = std::time::Instant::now();
    loop {
        let mut client = connect(server.address());
        let body = json!({ "model": "hf.co/tiny/none" }).to_string();
        client.write_all(&request("POST", "/api/pull", &[], body.as_bytes())).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        if !text.starts_with("HTTP/1.1 429") {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_name_of_a_hub_model_is_the_same_with_each_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    std::fs::write(&path, MODEL).unwrap();
    let server = serve_with(|options| {
        let spec = ModelSpec { name: "hf:a/b".into(), path: Some(path), aliases: Vec::new() };
        options.models.models.push(spec);
    });
    for name in ["hf:a/b", "hf.co/a/b", "huggingface.co/a/b", "hf.co/a/b:latest"] {
        server.ok("/api/show", &json!({ "model": name }));
    }
    assert_eq!(server.post("/api/show", &json!({ "model": "hf.co/a/c" })).status, 404);
    server.ok("/api/show", &json!({ "model": TALES }));
}

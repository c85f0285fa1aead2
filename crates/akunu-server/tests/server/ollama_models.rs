//! The models of Ollama's API: which there are, which are loaded and how long, and others made of them.

use std::time::{Duration, UNIX_EPOCH};

use akunu_server::Keys;
use serde_json::{Value as Json, json};

use crate::http::{Answer, request, send};
use crate::serve::{Served, TALES, serve, serve_with};
use crate::thinker::{THINKER, thinker};

fn delete(server: &Served, body: &Json) -> Answer {
    send(server.address(), &request("DELETE", "/api/delete", &[], body.to_string().as_bytes()))
}

fn error(answer: &Answer) -> String {
    answer.json()["error"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_string()
}

fn chat(model: &str, more: Json) -> Json {
    let mut body = json!({
        "model": model, "messages": [{ "role": "user", "content": "tell me a story about a fox" }],
        "options": { "temperature": 0 }, "stream": false,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn every_model_of_the_list_has_all_fields() {
    let (folder, model) = thinker();
    let path = model.path.clone().unwrap();
    let server = serve_with(|options| {
        options.models.models.push(model);
        let gone = akunu_server::ModelSpec {
            name: "gone".into(),
            path: Some(folder.path().join("gone.gguf")),
            aliases: Vec::new(),
        };
        options.models.models.push(gone);
    });
    let tags = server.get("/api/tags").json();
    let models = tags["models"].as_array().unwrap();
    assert_eq!(models.len(), 4);
    for model in models {
        let digest = model["digest"].as_str().unwrap();
        assert!(digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{model}");
        assert!(model["modified_at"].as_str().unwrap().ends_with('Z') && model["size"].is_u64(), "{model}");
        for field in ["parent_model", "format", "family", "parameter_size", "quantization_level"] {
            assert!(model["details"][field].is_string(), "{field}: {model}");
        }
        assert!(model["details"]["families"].is_array(), "{model}");
    }
    let of = |name: &str| models.iter().find(|model| model["name"] == name).unwrap();
    assert_eq!(of("tales:latest")["digest"], of("story-teller:latest")["digest"]);
    let thinker = of("thinker:latest");
    assert_eq!(thinker["size"], json!(path.metadata().unwrap().len()));
    assert_eq!(
        (&thinker["details"]["family"], &thinker["capabilities"]),
        (&json!("llama"), &json!(["completion", "thinking"]))
    );
    // The embedded model is as old as the program.
    for name in ["tales:latest", "thinker:latest"] {
        assert!(of(name)["modified_at"].as_str().unwrap() > "2020", "{}", of(name));
    }
    let shown = server.ok("/api/show", &json!({ "model": TALES }));
    assert_eq!(shown["modified_at"], of("tales:latest")["modified_at"]);
    // A file that has changed has another digest.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.push(0);
    std::fs::rename(&path, folder.path().join("old")).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let again = server.get("/api/tags").json();
    assert_ne!(again["models"][2]["digest"], thinker["digest"]);
    assert_eq!(again["models"][0], tags["models"][0]);
}

#[test]
fn models_in_memory_are_listed_with_the_time_that_they_stay() {
    let server = serve_with(|options| {
        options.models.idle_unload = Some(Duration::from_secs(300));
        options.models.keep_alive = true;
    });
    assert_eq!(server.get("/api/ps").json(), json!({ "models": [] }));
    let expires = |keep: Json| {
        let mut body = json!({ "model": TALES });
        if !keep.is_null() {
            body["keep_alive"] = keep;
        }
        server.ok("/api/generate", &body);
        let ps = server.get("/api/ps").json();
        let model = ps["models"][0].clone();
        assert_eq!((&model["model"], &model["size_vram"]), (&json!("tales:latest"), &json!(0)));
        assert!(model["size"].as_u64().unwrap() > 1000 && model["context_length"].as_u64().unwrap() > 0);
        assert!(model["digest"].is_string() && model["details"]["family"].is_string(), "{model}");
        model["expires_at"].as_str().unwrap().to_string()
    };
    let (default, hour) = (expires(Json::Null), expires(json!("1h")));
    assert!(default < hour, "{default} {hour}");
    assert_eq!(expires(json!(-1)), "2300-01-01T00:00:00.000000Z");
    assert!(expires(json!(600)) < hour);
    for (keep, what) in [(json!("soon"), "'keep_alive' must be"), (json!([]), "'keep_alive' must be")] {
        for path in ["/api/generate", "/api/chat", "/api/embed", "/api/embeddings"] {
            let body = json!({ "model": TALES, "keep_alive": keep, "input": "a", "prompt": "a" });
            let answer = server.post(path, &body);
            assert!(answer.status == 400 && error(&answer).contains(what), "{path}: {}", answer.text());
        }
    }
    assert_eq!(server.metric("akunu_model_loaded"), 1.0);
    let unloaded = server.ok("/api/chat", &json!({ "model": TALES, "messages": [], "keep_alive": 0 }));
    assert_eq!((&unloaded["done_reason"], &unloaded["done"]), (&json!("unload"), &json!(true)));
    assert_eq!(server.get("/api/ps").json(), json!({ "models": [] }));
    // After an answer, too.
    server.ok("/api/chat", &chat(TALES, json!({ "keep_alive": "0s", "options": { "num_predict": 2 } })));
    server.until(&["akunu_model_loaded"], 0.0);
    assert_eq!(server.post("/api/generate", &json!({ "model": "none", "keep_alive": 0 })).status, 404);
}

#[test]
fn clients_unload_nothing_unless_the_server_does() {
    let server = serve();
    server.ok("/api/generate", &json!({ "model": TALES, "keep_alive": "1ms" }));
    let refused = server.post("/api/generate", &json!({ "model": TALES, "keep_alive": 0 }));
    assert!(refused.status == 403 && error(&refused).contains("--idle-unload"), "{}", refused.text());
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.get("/api/ps").json()["models"][0]["expires_at"], "2300-01-01T00:00:00.000000Z");
}

#[test]
fn a_created_model_has_its_settings_in_all_protocols() {
    let server = serve();
    let started = UNIX_EPOCH.elapsed().unwrap().as_secs();
    let system = "You tell stories about dragons.";
    let lines = server.post(
        "/api/create",
        &json!({
            "model": "mario", "from": "tales:latest", "system": system, "license": "MIT",
            "parameters": { "temperature": 0, "num_predict": 9, "stop": ["zzz"], "num_ctx": 64 },
        }),
    );
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(lines.text().lines().last(), Some("{\"status\":\"success\"}"));
    let own = server.ok("/api/chat", &chat("mario:latest", json!({ "options": {} })));
    assert_eq!(own["eval_count"], 9);
    let messages = json!([
        { "role": "system", "content": system }, { "role": "user", "content": "tell me a story about a fox" },
    ]);
    let same = server.ok(
        "/api/chat",
        &chat(TALES, json!({ "messages": messages, "options": { "temperature": 0, "num_predict": 9 } })),
    );
    assert_eq!(own["message"], same["message"]);
    assert_eq!(own["prompt_eval_count"], same["prompt_eval_count"]);
    // What a request says comes first.
    let longer = server.ok("/api/chat", &chat("mario", json!({ "options": { "num_predict": 12 } })));
    assert_eq!(longer["eval_count"], 12);
    let body = json!({ "model": "mario", "messages": [messages[1]] });
    let openai = server.ok("/v1/chat/completions", &body);
    assert_eq!(openai["choices"][0]["message"]["content"], own["message"]["content"]);
    let counted = server.ok("/v1/messages/count_tokens", &body);
    assert_eq!(counted["input_tokens"], openai["usage"]["prompt_tokens"]);
    let prompt = server.ok("/apply-template", &body)["prompt"].clone();
    assert!(prompt.as_str().unwrap().contains(system), "{prompt}");
    let shown = server.ok("/api/show", &json!({ "name": "mario" }));
    assert_eq!((&shown["system"], &shown["license"]), (&json!(system), &json!("MIT")));
    assert_eq!(shown["details"]["parent_model"], "tales:latest");
    let modelfile = shown["modelfile"].as_str().unwrap();
    for part in
        ["FROM tales\n", "SYSTEM \"\"\"You tell", "PARAMETER num_predict 9\n", "PARAMETER stop \"zzz\"\n"]
    {
        assert!(modelfile.contains(part), "{modelfile}");
    }
    assert!(shown["parameters"].as_str().unwrap().contains("num_predict                    9"), "{shown}");
    let tags = server.get("/api/tags").json();
    let listed =
        tags["models"].as_array().unwrap().iter().find(|model| model["name"] == "mario:latest").unwrap();
    assert_ne!(listed["digest"], tags["models"][0]["digest"]);
    let models = server.get("/v1/models").json();
    let made = models["data"].as_array().unwrap().iter().find(|model| model["id"] == "mario").unwrap();
    assert_eq!(&server.get("/v1/models/mario").json(), made);
    // That of the model and not of its weights.
    let (made, of) = (made["created"].as_u64().unwrap(), models["data"][0]["created"].as_u64().unwrap());
    assert!(made >= started && of > 1_577_836_800 && of <= made, "{models}");
    // Its weights are those of the other.
    assert_eq!(server.metric("akunu_model_loaded"), 1.0);
}

#[test]
fn a_modelfile_and_copies_inherit() {
    let server = serve();
    let modelfile = "FROM tales\nPARAMETER temperature 0\nPARAMETER num_predict 5\nMESSAGE user Hello\nMESSAGE assistant Hi!";
    let made = server.ok("/api/create", &json!({ "name": "five", "modelfile": modelfile, "stream": false }));
    assert_eq!(made, json!({ "status": "success" }));
    let seven =
        json!({ "model": "seven", "from": "five", "parameters": { "num_predict": 7 }, "stream": false });
    server.ok("/api/create", &seven);
    assert_eq!(
        server.post("/api/copy", &json!({ "source": "seven:latest", "destination": "eight" })).status,
        200
    );
    let count = |name: &str| {
        let answer = server.ok("/api/chat", &chat(name, json!({ "options": {} })));
        (answer["eval_count"].clone(), answer["prompt_eval_count"].clone())
    };
    let (five, seven, eight) = (count("five"), count("seven"), count("eight"));
    assert_eq!((&five.0, &seven.0), (&json!(5), &json!(7)));
    assert_eq!(seven, eight);
    assert_eq!(five.1, seven.1);
    assert_eq!(server.ok("/api/show", &json!({ "model": "eight" }))["messages"].as_array().unwrap().len(), 2);
    assert_eq!(delete(&server, &json!({ "model": "seven" })).status, 200);
    let gone = server.post("/api/chat", &chat("seven", json!({})));
    assert_eq!(gone.status, 404);
    // Also under a name of the hub, with each of its prefixes.
    server.ok("/api/create", &json!({ "model": "hf.co/a/b", "from": "five", "stream": false }));
    assert_eq!(count("hf:a/b"), five);
    assert_eq!(delete(&server, &json!({ "model": "hf.co/a/b" })).status, 200);
    // A copy stays.
    assert_eq!(count("eight"), seven);
    assert_eq!(delete(&server, &json!({ "model": "seven" })).status, 404);
}

/// The prompt that a conversation with these messages has.
fn prompt(server: &Served, model: &str, messages: Json) -> String {
    let prompt = server.ok("/apply-template", &json!({ "model": model, "messages": messages }));
    prompt["prompt"].as_str().unwrap().into()
}

#[test]
fn a_created_model_has_its_own_template() {
    let server = serve();
    let make = |body: Json| {
        let mut whole = json!({ "from": TALES, "stream": false });
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        server.ok("/api/create", &whole)
    };
    let asked = json!([{ "role": "system", "content": "Rhyme." }, { "role": "user", "content": "a fox" }]);
    // The same conversation in the language of Go as in the model's own template.
    let go = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}\
              <|im_start|>assistant\n";
    make(json!({ "model": "same", "template": go }));
    assert_eq!(prompt(&server, "same", asked.clone()), prompt(&server, TALES, asked.clone()));
    for (path, body) in [
        ("/api/chat", chat("same", json!({}))),
        ("/api/generate", chat("same", json!({ "prompt": "tell me a story about a fox" }))),
        ("/v1/chat/completions", json!({ "model": "same", "messages": asked, "temperature": 0 })),
        (
            "/v1/messages",
            json!({ "model": "same", "messages": [asked[1]], "max_tokens": 30, "temperature": 0 }),
        ),
        ("/v1/messages/count_tokens", json!({ "model": "same", "messages": [asked[1]] })),
    ] {
        let text = |model: &str| {
            let mut body = body.clone();
            body["model"] = model.into();
            let answer = server.ok(path, &body);
            let shown = ["/message/content", "/response", "/choices/0/message", "/content", "/input_tokens"];
            let found = shown.iter().find_map(|at| answer.pointer(at).cloned());
            found.unwrap_or_else(|| panic!("{path}: {answer}"))
        };
        assert_eq!(text("same"), text(TALES), "{path}");
    }
    // One that differs, from a file, and its settings.
    let modelfile = "FROM tales\nTEMPLATE \"\"\"[{{ .System }}|{{ .Prompt }}] <tool_call> </think>\"\"\"";
    make(json!({ "model": "other", "modelfile": modelfile, "from": null }));
    assert_eq!(prompt(&server, "other", asked.clone()), "<|endoftext|>[Rhyme.|a fox] <tool_call> </think>");
    let shown = server.ok("/api/show", &json!({ "model": "other" }));
    assert_eq!(shown["template"], "[{{ .System }}|{{ .Prompt }}] <tool_call> </think>");
    assert!(shown["modelfile"].as_str().unwrap().contains(&modelfile[10..]), "{shown}");
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    assert_eq!(server.ok("/api/show", &json!({ "model": TALES }))["capabilities"], json!(["completion"]));
    let properties = server.get("/props?model=other").json();
    assert_eq!(properties["chat_template"], shown["template"]);
    assert_eq!(properties["chat_template_caps"]["supports_tools"], true);
    for (path, list, name) in [("/v1/models", "data", "other"), ("/api/tags", "models", "other:latest")] {
        let all = server.get(path).json();
        let is_it = |model: &&Json| model["id"] == name || model["name"] == name;
        let listed = all[list].as_array().unwrap().iter().find(is_it).unwrap();
        assert_eq!(listed["capabilities"], shown["capabilities"], "{path}");
    }
    let listed = server.get("/api/v0/models/other").json();
    assert_eq!(listed["capabilities"], json!(["tool_use"]));
    // What is made of it has it, unless it is given another, as Jinja.
    make(json!({ "model": "third", "from": "other" }));
    assert_eq!(prompt(&server, "third", asked.clone()), "<|endoftext|>[Rhyme.|a fox] <tool_call> </think>");
    make(
        json!({ "model": "third", "from": "other", "template": "{% for m in messages %}{{ m.content }};{% endfor %}" }),
    );
    assert_eq!(prompt(&server, "third", asked.clone()), "Rhyme.;a fox;");
    // One that never ends is an error of its request.
    let endless = "{{ define \"a\" }}{{ template \"a\" . }}{{ end }}{{ template \"a\" . }}";
    make(json!({ "model": "endless", "template": endless }));
    let answer = server.post("/api/chat", &chat("endless", json!({})));
    assert!(answer.status == 400 && error(&answer).contains("so it was stopped"), "{}", answer.text());
    assert_eq!(prompt(&server, "same", asked.clone()), prompt(&server, TALES, asked));
}

#[test]
fn what_cannot_be_made_or_deleted_is_refused_by_name() {
    let server = serve();
    for (body, status, what) in [
        (json!({}), 400, "'model' is missing"),
        (json!({ "model": 5 }), 400, "'model' must be a string"),
        (json!({ "model": "a" }), 400, "'from' is missing"),
        (json!({ "model": "a", "from": "none" }), 404, "unknown model \"none\""),
        (json!({ "model": "a b", "from": TALES }), 400, "'model' must be a name"),
        (json!({ "model": "../a", "from": TALES }), 400, "'model' must be a name"),
        (json!({ "model": TALES, "from": TALES }), 403, "cannot be replaced"),
        (json!({ "model": "story-teller", "from": TALES }), 403, "cannot be replaced"),
        (json!({ "model": "embedded", "from": TALES }), 403, "cannot be replaced"),
        (
            json!({ "model": "a", "from": TALES, "template": "Hi\n{{ if .Prompt }}" }),
            400,
            "'template': the chat template, line 2: a block has no {{ end }}",
        ),
        (
            json!({ "model": "a", "from": TALES, "template": "{% if %}" }),
            400,
            "'template': the chat template, line 1",
        ),
        (json!({ "model": "a", "from": TALES, "template": "x".repeat(70_000) }), 413, "may have 65536 bytes"),
        (
            json!({ "model": "a", "from": TALES, "adapters": { "a": "b" } }),
            400,
            "'adapters' is not supported",
        ),
        (json!({ "model": "a", "files": { "a.gguf": "sha256:0" } }), 400, "'files' is not supported"),
        (json!({ "model": "a", "from": TALES, "quantize": "q4_0" }), 400, "'quantize' is not supported"),
        (json!({ "model": "a", "modelfile": "FROM tales\nADAPTER x" }), 400, "ADAPTER is not supported"),
        (
            json!({ "model": "a", "from": TALES, "parameters": { "temperature": "hot" } }),
            400,
            "'parameters.temperature'",
        ),
        (json!({ "model": "a", "from": TALES, "parameters": [] }), 400, "'parameters' must be"),
        (
            json!({ "model": "a", "from": TALES, "parameters": { "stop": ["a", "b", "c", "d", "e"] } }),
            400,
            "stop strings",
        ),
        (
            json!({ "model": "a", "from": TALES, "messages": [{ "role": "user", "content": "a", "images": ["x"] }] }),
            400,
            "images",
        ),
        (json!({ "model": "a", "from": TALES, "system": "x".repeat(70_000) }), 413, "may have 65536 bytes"),
    ] {
        let answer = server.post("/api/create", &body);
        assert!(
            answer.status == status && error(&answer).contains(what),
            "{} {}",
            answer.status,
            answer.text()
        );
    }
    for (body, status, what) in [
        (json!({ "destination": "a" }), 400, "'source' is missing"),
        (json!({ "source": TALES }), 400, "'destination' is missing"),
        (json!({ "source": "none", "destination": "a" }), 404, "unknown model"),
        (json!({ "source": TALES, "destination": TALES }), 403, "cannot be replaced"),
        (json!({ "source": TALES, "destination": "a\nb" }), 400, "'destination' must be a name"),
    ] {
        let answer = server.post("/api/copy", &body);
        assert!(
            answer.status == status && error(&answer).contains(what),
            "{} {}",
            answer.status,
            answer.text()
        );
    }
    for (body, status, what) in [
        (json!({}), 400, "'model' is missing"),
        (json!({ "model": "none" }), 404, "unknown model"),
        (json!({ "model": TALES }), 403, "--allow-delete"),
    ] {
        let answer = delete(&server, &body);
        assert!(
            answer.status == status && error(&answer).contains(what),
            "{} {}",
            answer.status,
            answer.text()
        );
    }
    let blob = server.post("/api/blobs/sha256:0", &json!({}));
    assert!(blob.status == 400 && error(&blob).contains("'/api/blobs' is not supported"));
    let pushed = server.post("/api/push", &json!({ "model": TALES }));
    assert!(pushed.status == 400 && error(&pushed).contains("'/api/push' is not supported"));
    // No more than the server keeps.
    for index in 0..256 {
        let body = json!({ "source": TALES, "destination": format!("copy-{index}") });
        assert_eq!(server.post("/api/copy", &body).status, 200);
    }
    let answer = server.post("/api/copy", &json!({ "source": TALES, "destination": "one-more" }));
    assert!(answer.status == 429 && error(&answer).contains("256"), "{}", answer.text());
    assert_eq!(server.post("/api/copy", &json!({ "source": TALES, "destination": "copy-7" })).status, 200);
}

#[test]
fn a_model_that_a_key_made_is_not_there_for_others() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| {
        options.keys = Keys::new("one two");
        options.models.models.push(model);
    });
    let ask = |method: &str, path: &str, key: &str, body: Json| {
        send(server.address(), &request(method, path, &[("x-api-key", key)], body.to_string().as_bytes()))
    };
    let make = |key: &str, name: &str| {
        let body = json!({ "model": name, "from": THINKER, "system": format!("of {key}"), "stream": false });
        ask("POST", "/api/create", key, body).status
    };
    assert_eq!(make("one", "a"), 200);
    for (method, path, body) in [
        ("POST", "/api/show", json!({ "model": "a" })),
        ("DELETE", "/api/delete", json!({ "model": "a" })),
        ("POST", "/api/chat", chat("a", json!({}))),
        ("POST", "/api/create", json!({ "model": "b", "from": "a" })),
        ("POST", "/api/copy", json!({ "source": "a", "destination": "b" })),
        ("POST", "/v1/chat/completions", chat("a", json!({}))),
        ("GET", "/v1/models/a", Json::Null),
    ] {
        let refused = ask(method, path, "two", body.clone());
        assert_eq!(refused.status, 404, "{path}: {}", refused.text());
        assert!(!refused.text().contains("of one"), "{}", refused.text());
    }
    for path in ["/api/tags", "/v1/models"] {
        let names = |key: &str| ask("GET", path, key, Json::Null).text();
        assert!(
            names("one").contains("\"a")
                && !names("two").contains("\"a\"")
                && !names("two").contains("\"a:latest")
        );
    }
    // Each may have one of the same name, and only so many.
    assert_eq!(make("two", "a"), 200);
    let system = |key: &str| ask("POST", "/api/show", key, json!({ "model": "a" })).json()["system"].clone();
    assert_eq!([system("one"), system("two")], ["of one", "of two"]);
    assert_eq!(ask("DELETE", "/api/delete", "one", json!({ "model": "a" })).status, 200);
    assert_eq!(system("two"), "of two");
    let made: Vec<u16> = (0..33).map(|index| make("one", &format!("m{index}"))).collect();
    assert_eq!((made[31], made[32], make("two", "b")), (200, 429, 200));
}

#[test]
fn models_that_clients_made_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        serve_with(|options| {
            options.response_folder = Some(folder.path().into());
            options.keys = Keys::new("one two");
        })
    };
    let ask = |server: &Served, method: &str, path: &str, key: &str, body: Json| {
        send(server.address(), &request(method, path, &[("x-api-key", key)], body.to_string().as_bytes()))
    };
    let show = |server: &Served, key: &str| ask(server, "POST", "/api/show", key, json!({ "model": "a" }));
    let server = start();
    let made = json!({ "model": "a", "from": TALES, "system": "Rhyme.", "template": "{{ .Prompt }}", "parameters": { "temperature": 0.5 } });
    assert_eq!(ask(&server, "POST", "/api/create", "one", made).status, 200);
    let before = show(&server, "one").json();
    drop(server);
    let server = start();
    let after = show(&server, "one").json();
    assert_eq!((&after["system"], &after["parameters"]), (&json!("Rhyme."), &before["parameters"]));
    assert_eq!(after["template"], "{{ .Prompt }}");
    assert_eq!(show(&server, "two").status, 404);
    assert_eq!(ask(&server, "DELETE", "/api/delete", "one", json!({ "model": "a" })).status, 200);
    drop(server);
    assert_eq!(show(&start(), "one").status, 404);
    // A file that is damaged is an error, and not forgotten.
    std::fs::write(folder.path().join("models.json"), "[{\"name\": \"a\"}]").unwrap();
    let mut options = crate::serve::options();
    options.response_folder = Some(folder.path().into());
    let error = akunu_server::Server::start(options).unwrap_err().to_string();
    assert!(error.contains("cannot be read: \"a\""), "{error}");
}

//! The tables of fields: a request for each row.

use std::panic::{AssertUnwindSafe, catch_unwind};

use akunu_hub::Settings;
use akunu_hub_testing::FakeHub;
use akunu_server::ModelSpec;
use akunu_server::field_table::{Field, ROUTES, Route, Status, WARNINGS};
use akunu_testing::fewest_or;
use serde_json::{Map, Value as Json, json};
use tempfile::TempDir;

use crate::audio::{self, speech};
use crate::completions::infiller;
use crate::http::{self, Answer, request};
use crate::rerank::words;
use crate::serve::{Served, TALES, serve_with};

/// A value that no field takes: a list of a list of a number that is not an integer.
fn wrong() -> Json {
    json!([[7.5]])
}

/// A server with a model for each kind of route, and what it needs.
fn serve() -> (Served, ([TempDir; 5], FakeHub)) {
    let (embeds, ranks) = (words("bert-mean"), words("bert-cross-encoder"));
    let prompts = json!({ "prompts": { "query": "w9 " }, "default_prompt_name": null });
    std::fs::write(embeds.path().join("config_sentence_transformers.json"), prompts.to_string()).unwrap();
    let (infills, infiller) = infiller();
    let [slots, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let hub = FakeHub::new(&[("tales-Q8_0.gguf", TALES_FILE)]);
    let server = serve_with(|options| {
        options.pull = Some(Settings::new(&hub.url, cache.path()).unwrap());
        options.slots = Some(slots.path().into());
        #[cfg(unix)]
        {
            options.mcp = Some(crate::mcp::small("", std::time::Duration::from_secs(60)));
        }
        options.models.scheduler.keep_texts = true;
        options.models.models.push(speech());
        options.models.models.push(infiller);
        for (name, folder) in [("words", &embeds), ("ranker", &ranks)] {
            let path = Some(folder.path().into());
            options.models.models.push(ModelSpec { name: name.into(), path, aliases: Vec::new() });
        }
    });
    (server, ([embeds, ranks, infills, slots, cache], hub))
}

const TALES_FILE: &[u8] = include_bytes!("../../../akunu/embedded/akunu-tales.gguf");

/// A model that a client made.
const MADE: &str = "made";

/// Sends a request, after what it needs to be answered.
fn send(server: &Served, route: &Route, path: &str, body: &Json) -> Answer {
    let post = |path: &str, body: Json| server.post(path, &body);
    match path {
        _ if route.is_form => audio::post(server, path, &form(body)),
        "/api/delete" => {
            post("/api/create", json!({ "model": MADE, "from": TALES, "stream": false }));
            http::send(server.address(), &request("DELETE", path, &[], body.to_string().as_bytes()))
        }
        _ if route.method == "GET" => server.get(&with_query(server, path, body)),
        "/slots/{id}" => {
            let action = match &body["action"] {
                Json::Null => "save".to_string(),
                Json::String(action) => action.clone(),
                other => other.to_string(),
            };
            let salt = body["cache_salt"].as_str();
            let text =
                json!({ "model": TALES, "prompt": "Once upon a time", "max_tokens": 2, "cache_salt": salt });
            post("/v1/completions", text);
            // The text is in one of them.
            let change = |id| post(&format!("/slots/{id}?action={action}"), body.clone());
            let mut answers = (0..4).map(change);
            let first = answers.next().unwrap();
            if first.status == 404 {
                answers.find(|answer| answer.status != 404).unwrap_or(first)
            } else {
                first
            }
        }
        _ => post(path, body.clone()),
    }
}

/// A path with the fields of an object as its query, of a response that is stored.
fn with_query(server: &Served, path: &str, body: &Json) -> String {
    let stored = || server.ok("/v1/responses", &base("/v1/responses"))["id"].as_str().unwrap().to_string();
    let path = if path.contains("{id}") { path.replace("{id}", &stored()) } else { path.to_string() };
    let one = |(name, value): (&String, &Json)| match value {
        Json::String(text) => format!("{name}={text}"),
        value => format!("{name}={value}"),
    };
    let pairs: Vec<String> = body.as_object().unwrap().iter().map(one).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// A form with the fields of an object. The file is some audio, and a value that no field takes is a file elsewhere.
fn form(body: &Json) -> Vec<u8> {
    let (mut files, mut texts) = (Vec::new(), Vec::new());
    for (name, value) in body.as_object().unwrap() {
        match (name.as_str(), value) {
            ("file", value) if *value == wrong() => texts.push((name.clone(), "no file".into())),
            ("file", _) => files.push((name.clone(), audio::audio("../audio/mp3.mp3"))),
            (_, value) if *value == wrong() => files.push((name.clone(), Vec::new())),
            (_, Json::Array(list)) => {
                texts.extend(list.iter().map(|one| (format!("{name}[]"), one.as_str().unwrap().to_string())));
            }
            (_, Json::String(text)) => texts.push((name.clone(), text.clone())),
            (_, Json::Null) => {}
            (_, value) => texts.push((name.clone(), value.to_string())),
        }
    }
    audio::parts(&files, &texts)
}

/// A request that is answered.
fn base(path: &str) -> Json {
    let chat = json!([{ "role": "user", "content": "tell me a story about a dog" }]);
    match path {
        "/v1/chat/completions" | "/v1/chat/completions/render" => {
            json!({ "model": TALES, "messages": chat, "max_tokens": 5, "temperature": 0 })
        }
        "/v1/completions" | "/v1/completions/render" => {
            json!({ "model": TALES, "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0 })
        }
        "/infill" => json!({
            "model": "infiller", "input_prefix": "And ", "input_suffix": ", he said.", "n_predict": 5, "temperature": 0,
        }),
        "/v1/responses" => {
            json!({ "model": TALES, "input": "tell me a story", "max_output_tokens": 5, "temperature": 0 })
        }
        "/v1/messages" => json!({ "model": TALES, "messages": chat, "max_tokens": 5, "temperature": 0 }),
        "/v1/messages/count_tokens" => json!({ "model": TALES, "messages": chat }),
        "/api/generate" => json!({
            "model": TALES, "prompt": "tell me a story", "stream": false,
            "options": { "num_predict": 5, "temperature": 0 },
        }),
        "/api/chat" => json!({
            "model": TALES, "messages": chat, "stream": false,
            "options": { "num_predict": 5, "temperature": 0 },
        }),
        "/v1/embeddings" | "/api/embed" => json!({ "model": "words", "input": "w5 w6" }),
        "/api/embeddings" => json!({ "model": "words", "prompt": "w5 w6" }),
        "/embed" => json!({ "model": "words", "inputs": "w5 w6" }),
        "/v1/rerank" | "/v2/rerank" => json!({ "model": "ranker", "query": "w5", "documents": ["w5", "w6"] }),
        "/rerank" => json!({ "model": "ranker", "query": "w5", "texts": ["w5", "w6"] }),
        "/api/show" => json!({ "model": TALES }),
        "/api/create" => json!({ "model": MADE, "from": TALES, "stream": false }),
        "/api/copy" => json!({ "source": TALES, "destination": "copied" }),
        "/api/delete" => json!({ "model": MADE }),
        "/api/pull" => json!({ "model": "hf.co/tiny/model-GGUF", "stream": false }),
        "/v1/audio/transcriptions" | "/v1/audio/translations" => json!({ "model": "speech", "file": "" }),
        "/tokenize" => json!({ "model": TALES, "content": "a fox" }),
        "/detokenize" => json!({ "model": TALES, "tokens": [5, 6] }),
        "/apply-template" => json!({ "model": TALES, "messages": chat }),
        "/slots/{id}" => json!({ "model": TALES, "filename": "fox.bin" }),
        "/props" | "/slots" | "/get_model_info" | "/model_info" | "/get_server_info" | "/server_info" => {
            json!({ "model": TALES })
        }
        "/v1/responses/{id}" | "/v1/responses/{id}/input_items" => json!({}),
        "/mcp/call" => json!({ "name": "clock", "arguments": { "zone": "UTC" } }),
        path => panic!("no request for {path}"),
    }
}

/// Sets a field, within an object if its name has a dot.
fn set(body: &mut Json, name: &str, value: Json) {
    match name.split_once('.') {
        None => body[name] = value,
        Some((object, name)) => {
            if body[object].is_null() {
                body[object] = Json::Object(Map::new());
            }
            body[object][name] = value;
        }
    }
}

fn asked(path: &str, field: &Field, value: Json) -> Json {
    let mut body = base(path);
    let with: Json = serde_json::from_str(&format!("{{{}}}", field.with)).unwrap();
    body.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    set(&mut body, field.name, value);
    body
}

/// Whether an answer refuses a field by its name.
fn names(answer: &Answer, name: &str) -> bool {
    let text = answer.text().replace("\\\"", "\"");
    let json: Json = serde_json::from_str(&answer.text()).unwrap_or_default();
    let is_named = match json["error"]["param"].as_str() {
        Some(param) => {
            param == name || param.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', '[']))
        }
        // Other protocols have the name in their messages.
        None => [format!("'{name}"), format!("'{}", name.rsplit('.').next().unwrap())]
            .iter()
            .any(|n| text.contains(n)),
    };
    // A name in a query is a text, so a wrong one is that of a model that is not there.
    (answer.status == 400 || answer.status == 404 && name == "model") && is_named
}

/// What an answer says, without ids and times.
fn said(answer: &Answer) -> Json {
    fn strip(json: &mut Json) {
        match json {
            Json::Object(map) => {
                map.retain(|name, _| {
                    let varies =
                        ["created", "created_at", "completed_at", "usage", "timings", "tokens_cached"]
                            .contains(&name.as_str());
                    let is_id = name == "id" || name.ends_with("_id");
                    !varies && !is_id && !name.ends_with("_duration")
                });
                map.values_mut().for_each(strip);
            }
            Json::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    // Some answers have no body, or several lines.
    let mut json = serde_json::from_str(&answer.text()).unwrap_or_default();
    strip(&mut json);
    json
}

/// A value of the same type that asks for nothing.
fn nothing(example: &Json) -> Json {
    match example {
        Json::Bool(_) => json!(false),
        Json::String(_) => json!(""),
        Json::Array(_) => json!([]),
        _ => Json::Null,
    }
}

fn check(server: &Served, route: &Route, path: &str, field: &Field, plain: &Json) {
    let post = |value: Json| send(server, route, path, &asked(path, field, value));
    let mut example: Json = serde_json::from_str(field.example).unwrap();
    if (path, field.name) == ("/infill", "model") {
        // The model of the table's example fills in no middle.
        example = base(path)["model"].clone();
    }
    let place = format!("{path}: {}", field.name);
    let answer = post(example.clone());
    match field.status {
        Status::Done => {
            // An id that was never stored.
            let is_stored = !["previous_response_id", "after"].contains(&field.name);
            assert!(
                if is_stored { answer.status == 200 } else { names(&answer, field.name) },
                "{place}: {}",
                answer.text()
            );
            let refused = post(wrong());
            assert!(names(&refused, field.name), "{place}: {} {}", refused.status, refused.text());
        }
        Status::Ignored | Status::Warned => {
            assert_eq!(answer.status, 200, "{place}: {}", answer.text());
            assert_eq!(&said(&answer), plain, "{place}");
            let wrong = post(wrong());
            match field.is_checked {
                true => assert!(names(&wrong, field.name), "{place}: {} {}", wrong.status, wrong.text()),
                false => assert_eq!(wrong.status, 200, "{place}"),
            }
            let warned = format!("ignored: {}", field.name);
            let expected = (field.status == Status::Warned).then_some(warned.as_str());
            assert_eq!(answer.header(WARNINGS), expected, "{place}");
        }
        Status::Refused => {
            assert!(names(&answer, field.name), "{place}: {} {}", answer.status, answer.text());
            let off: Json = match field.unless {
                "" => nothing(&example),
                values => serde_json::from_str::<Vec<Json>>(values).unwrap().remove(0),
            };
            let accepted = post(off);
            assert_eq!(accepted.status, 200, "{place}: {}", accepted.text());
        }
    }
}

#[test]
fn every_row_is_as_the_table_says() {
    check_all(|route| !route.is_form);
}

#[test]
fn every_row_of_forms_is_as_the_table_says() {
    check_all(|route| route.is_form);
}

fn check_all(is_wanted: impl Fn(&Route) -> bool) {
    let (server, _folders) = serve();
    let mut failed = Vec::new();
    // The server of tools that is started is a script of a shell.
    let is_here = |route: &Route| cfg!(unix) || route.paths != ["/mcp/call"];
    for route in ROUTES.iter().filter(|route| is_wanted(route) && is_here(route)) {
        let Route { paths, .. } = route;
        // The paths of a route are read by the same code.
        for path in paths.iter().take(fewest_or(1, usize::MAX, usize::MAX)) {
            let plain = said(&send(&server, route, path, &base(path)));
            let fails = |field: &&Field| {
                catch_unwind(AssertUnwindSafe(|| check(&server, route, path, field, &plain))).is_err()
            };
            failed.extend(route.fields().filter(fails).map(|field| format!("{path}: {}", field.name)));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn the_tables_have_every_field_of_openais_description() {
    let Some(file) = akunu_testing::data("comparing fields with OpenAI's description", "openai/openapi.json")
    else {
        return;
    };
    let description: Json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    fn properties(description: &Json, schema: &Json, to: &mut Vec<String>) {
        if let Some(name) = schema["$ref"].as_str() {
            let schema = description.pointer(name.strip_prefix('#').unwrap()).unwrap();
            return properties(description, schema, to);
        }
        schema["allOf"].as_array().into_iter().flatten().for_each(|part| properties(description, part, to));
        to.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()));
    }
    for (path, schema) in [
        ("/v1/chat/completions", "CreateChatCompletionRequest"),
        ("/v1/completions", "CreateCompletionRequest"),
        ("/v1/responses", "CreateResponse"),
        ("/v1/embeddings", "CreateEmbeddingRequest"),
        ("/v1/audio/transcriptions", "CreateTranscriptionRequest"),
        ("/v1/audio/translations", "CreateTranslationRequest"),
    ] {
        let route = ROUTES.iter().find(|route| route.paths.contains(&path)).unwrap();
        let mut all = Vec::new();
        properties(&description, &description["components"]["schemas"][schema], &mut all);
        assert!(all.len() > 4, "{path}");
        for name in all {
            assert!(route.fields().any(|field| field.name == name), "{path} has no row for {name}");
        }
    }
}

#[test]
fn fields_of_the_servers_description_are_done() {
    let (server, _folders) = serve();
    let description = server.get("/openapi.json").json();
    let mut count = 0;
    for route in ROUTES {
        for path in route.paths {
            if route.is_query {
                let described = &description["paths"][*path][route.method.to_lowercase()]["parameters"];
                for parameter in described.as_array().unwrap().iter().filter(|one| one["in"] == "query") {
                    let is_known = |field: &Field| parameter["name"] == field.name;
                    assert!(route.fields().any(is_known), "{path} is described with {parameter}");
                    count += 1;
                }
                continue;
            }
            let kind = if route.is_form { "multipart/form-data" } else { "application/json" };
            let method = route.method.to_lowercase();
            let media = &description["paths"][*path][method]["requestBody"]["content"][kind]["schema"];
            let schema = match media["$ref"].as_str() {
                Some(name) => description.pointer(name.strip_prefix('#').unwrap()).unwrap(),
                None => media,
            };
            for name in schema["properties"].as_object().unwrap().keys() {
                let is_done = |field: &Field| {
                    field.name == name.trim_end_matches("[]")
                        && matches!(field.status, Status::Done | Status::Ignored)
                };
                assert!(route.fields().any(is_done), "{path} is described with {name}");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
}

//! The tables of fields: a request for each row.

use std::panic::{AssertUnwindSafe, catch_unwind};

use akunu_server::ModelSpec;
use akunu_server::field_table::{Field, ROUTES, Route, Status, WARNINGS};
use serde_json::{Map, Value as Json, json};
use tempfile::TempDir;

use crate::completions::infiller;
use crate::http::Answer;
use crate::rerank::words;
use crate::serve::{Served, TALES, serve_with};

/// A value that no field takes: a list of a list of a number that is not an integer.
fn wrong() -> Json {
    json!([[7.5]])
}

/// A server with a model for each kind of route, and their folders.
fn serve() -> (Served, [TempDir; 3]) {
    let (embeds, ranks) = (words("bert-mean"), words("bert-cross-encoder"));
    let prompts = json!({ "prompts": { "query": "w9 " }, "default_prompt_name": null });
    std::fs::write(embeds.path().join("config_sentence_transformers.json"), prompts.to_string()).unwrap();
    let (infills, infiller) = infiller();
    let server = serve_with(|options| {
        options.models.models.push(infiller);
        for (name, folder) in [("words", &embeds), ("ranker", &ranks)] {
            let path = Some(folder.path().into());
            options.models.models.push(ModelSpec { name: name.into(), path, aliases: Vec::new() });
        }
    });
    (server, [embeds, ranks, infills])
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

fn request(path: &str, field: &Field, value: Json) -> Json {
    let mut body = base(path);
    let with: Json = serde_json::from_str(&format!("{{{}}}", field.with)).unwrap();
    body.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    set(&mut body, field.name, value);
    body
}

/// Whether an answer refuses a field by its name.
fn names(answer: &Answer, name: &str) -> bool {
    let text = answer.text().replace("\\\"", "\"");
    let is_named = match answer.json()["error"]["param"].as_str() {
        Some(param) => {
            param == name || param.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', '[']))
        }
        // Other protocols have the name in their messages.
        None => [format!("'{name}"), format!("'{}", name.rsplit('.').next().unwrap())]
            .iter()
            .any(|n| text.contains(n)),
    };
    answer.status == 400 && is_named
}

/// What an answer says, without ids and times.
fn said(answer: &Answer) -> Json {
    fn strip(json: &mut Json) {
        match json {
            Json::Object(map) => {
                map.retain(|name, _| {
                    let varies =
                        ["id", "request_id", "created", "created_at", "completed_at", "usage", "timings"]
                            .contains(&name.as_str());
                    !varies && !name.ends_with("_duration")
                });
                map.values_mut().for_each(strip);
            }
            Json::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut json = answer.json();
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

fn check(server: &Served, path: &str, field: &Field, plain: &Json) {
    let example: Json = serde_json::from_str(field.example).unwrap();
    let place = format!("{path}: {}", field.name);
    let answer = server.post(path, &request(path, field, example.clone()));
    match field.status {
        Status::Done => {
            // An id that was never stored.
            let is_stored = field.name != "previous_response_id";
            assert!(
                if is_stored { answer.status == 200 } else { names(&answer, field.name) },
                "{place}: {}",
                answer.text()
            );
            let refused = server.post(path, &request(path, field, wrong()));
            assert!(names(&refused, field.name), "{place}: {} {}", refused.status, refused.text());
        }
        Status::Ignored | Status::Warned => {
            assert_eq!(answer.status, 200, "{place}: {}", answer.text());
            assert_eq!(&said(&answer), plain, "{place}");
            assert_eq!(server.post(path, &request(path, field, wrong())).status, 200, "{place}");
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
            let accepted = server.post(path, &request(path, field, off));
            assert_eq!(accepted.status, 200, "{place}: {}", accepted.text());
        }
    }
}

#[test]
fn every_row_is_as_the_table_says() {
    let (server, _folders) = serve();
    let mut failed = Vec::new();
    for route in ROUTES {
        let Route { paths, .. } = route;
        for path in *paths {
            let plain = said(&server.post(path, &base(path)));
            let fails = |field: &&Field| {
                catch_unwind(AssertUnwindSafe(|| check(&server, path, field, &plain))).is_err()
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
            let media =
                &description["paths"][*path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            let schema = match media["$ref"].as_str() {
                Some(name) => description.pointer(name.strip_prefix('#').unwrap()).unwrap(),
                None => media,
            };
            for name in schema["properties"].as_object().unwrap().keys() {
                let is_done = |field: &Field| {
                    field.name == name && matches!(field.status, Status::Done | Status::Ignored)
                };
                assert!(route.fields().any(is_done), "{path} is described with {name}");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
}

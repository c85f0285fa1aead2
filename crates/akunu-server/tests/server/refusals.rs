//! What is no request, at each path that takes one: refused in the form of the protocol's errors.

use serde_json::{Map, Value as Json, json};

use crate::http::{Answer, request, send};
use crate::serve::serve_with;

/// Paths whose requests need nothing in their bodies.
const NEED_NOTHING: [&str; 2] = ["/flush_cache", "/v1/responses/{id}/cancel"];

/// Paths that are refused whatever is sent, by this server or by all.
const REFUSED: [&str; 4] = ["/api/push", "/api/blobs/{digest}", "/v1/responses/compact", "/slots/{id}"];

/// Paths whose bodies are forms.
const FORMS: [&str; 2] = ["/v1/audio/transcriptions", "/v1/audio/translations"];

const BODY_LIMIT: usize = 10_000;

/// The fields of a protocol's errors, with those that have a value: texts by their beginnings, or null where any will do.
fn form(path: &str) -> Json {
    match path {
        "/v1/messages" | "/v1/messages/count_tokens" => {
            json!({ "type": "error", "error": { "type": "", "message": "" } })
        }
        "/v1/rerank" | "/v2/rerank" => json!({ "message": "", "detail": "" }),
        "/" | "/embed" | "/rerank" => json!({ "error": "", "error_type": "" }),
        _ if path.starts_with("/api/") && !path.starts_with("/api/v0/") => json!({ "error": "" }),
        _ => json!({ "error": { "message": "", "type": "", "param": null, "code": null } }),
    }
}

/// Whether a value has the fields of a form, and no others.
fn has_form(value: &Json, form: &Json) -> bool {
    let no_fields = Map::new();
    let is_text = |value: &Json| value.as_str().is_some_and(|text| !text.is_empty());
    match form {
        Json::Object(fields) => {
            let own = value.as_object().unwrap_or(&no_fields);
            own.len() == fields.len()
                && fields.iter().all(|(name, form)| own.get(name).is_some_and(|own| has_form(own, form)))
        }
        Json::Null => value.is_null() || is_text(value),
        _ => is_text(value),
    }
}

#[test]
fn what_is_no_request_is_refused_in_the_form_of_the_protocol() {
    let server = serve_with(|options| {
        options.limits.body = BODY_LIMIT;
        options.limits.audio = BODY_LIMIT;
    });
    let description = server.get("/openapi.json").json();
    let paths = description["paths"].as_object().unwrap();
    let takes_body = |methods: &Json, method: &str| methods.get(method).is_some();
    let mut failed = Vec::new();
    for (path, methods) in paths {
        for method in ["post", "delete"].into_iter().filter(|method| takes_body(methods, method)) {
            if method == "delete" && path.contains('{') {
                continue;
            }
            let place = path.replace("{id}", "0").replace("{digest}", "sha256:0");
            let ask = |body: &[u8], kind: &str| {
                let headers = [("content-type", kind)];
                send(server.address(), &request(&method.to_uppercase(), &place, &headers, body))
            };
            let mut expect = |what: &str, answer: Answer, statuses: &[u16]| {
                let json: Json = serde_json::from_slice(&answer.body).unwrap_or_default();
                let is_json = answer.header("content-type") == Some("application/json");
                if !is_json || !statuses.contains(&answer.status) || !has_form(&json, &form(path)) {
                    failed.push(format!("{path}, {what}: {} {}", answer.status, answer.text()));
                }
            };
            let is_form = FORMS.contains(&path.as_str());
            let good = if is_form { "multipart/form-data; boundary=b" } else { "application/json" };
            let needs_body = !NEED_NOTHING.contains(&path.as_str());
            if needs_body {
                for (what, body) in [
                    ("nothing", &b""[..]),
                    ("half of JSON", b"{\"model\": "),
                    ("no UTF-8", b"{\"model\": \"\xff\"}"),
                    ("a list", b"[]"),
                    ("a number", b"3"),
                    ("no fields", b"{}"),
                ] {
                    expect(what, ask(body, good), &[400, 403, 404]);
                }
                let unknown = json!({ "model": "no-such-model", "name": "no-such-model" }).to_string();
                expect("an unknown model alone", ask(unknown.as_bytes(), good), &[400, 403, 404]);
            }
            if !needs_body || REFUSED.contains(&path.as_str()) {
                continue;
            }
            let long = json!({ "model": "x".repeat(2 * BODY_LIMIT) }).to_string();
            expect("too long a body", ask(long.as_bytes(), good), &[413]);
            // Ollama's documented commands send no type.
            let other: &[u16] = if path.starts_with("/api/") { &[400, 403] } else { &[415] };
            expect("a body that is not said to be JSON", ask(b"{}", "text/plain"), other);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn wrong_methods_and_paths_are_refused_in_the_form_of_the_protocol() {
    let server = serve_with(|_| {});
    let description = server.get("/openapi.json").json();
    for path in description["paths"].as_object().unwrap().keys() {
        let place = path.replace("{id}", "0").replace("{name}", "m").replace("{digest}", "sha256:0");
        for (method, path, status) in [
            ("PATCH", place.clone(), 405),
            ("GET", format!("{}/no/such/path", place.trim_end_matches('/')), 404),
        ] {
            let answer = send(server.address(), &request(method, &path, &[], b""));
            let text = answer.text();
            // Names of models may have slashes.
            let is_name = status == 404
                && ["/v1/models/", "/api/v0/models/"].iter().any(|start| path.starts_with(start));
            let form = if status == 404 { form_of_unknown(&path) } else { form(&path) };
            assert!(
                answer.status == status && (is_name || has_form(&answer.json(), &form)),
                "{method} {path}: {text}"
            );
        }
    }
}

/// The form of errors at a path that is not there: that of the protocol whose paths begin so.
fn form_of_unknown(path: &str) -> Json {
    if path.starts_with("/v1/messages") {
        form("/v1/messages")
    } else {
        form(if path.starts_with("/api/") { path } else { "/v1" })
    }
}

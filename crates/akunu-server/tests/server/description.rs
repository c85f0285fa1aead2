//! Compares `/openapi.json` with the routes.

use std::collections::BTreeSet;

use akunu_server::PROTOCOLS;

use crate::http::{request, send};
use crate::serve::serve;

#[test]
fn the_description_has_every_path_and_no_other() {
    let server = serve();
    let description = server.get("/openapi.json").json();
    let described: BTreeSet<String> = description["paths"].as_object().unwrap().keys().cloned().collect();
    let routes = PROTOCOLS.iter().flat_map(|protocol| (protocol.routes)());
    let served: BTreeSet<String> = routes.map(|(path, _)| path.replace("{*", "{")).collect();
    assert_eq!(described, served);
}

#[test]
fn the_fuzz_target_of_requests_has_every_path() {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/fuzz_targets/http.rs");
    let target = std::fs::read_to_string(target).unwrap();
    let routes = PROTOCOLS.iter().flat_map(|protocol| (protocol.routes)());
    // Those that end in `?` take a query.
    let is_listed =
        |path: &str| ["", "?"].iter().any(|query| target.contains(&format!("\"{path}{query}\"),")));
    let missing: Vec<&str> = routes.map(|(path, _)| path).filter(|path| !is_listed(path)).collect();
    assert!(missing.is_empty(), "not in ROUTES: {missing:?}");
}

#[test]
fn a_path_answers_the_methods_that_are_described() {
    let server = serve();
    let description = server.get("/openapi.json").json();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let path = path.replace("{name}", "tales").replace("{id}", "0").replace("{digest}", "sha256:0");
        for method in ["GET", "POST", "DELETE"] {
            let is_described = methods.get(method.to_lowercase()).is_some();
            let answer = send(server.address(), &request(method, &path, &[], b"?"));
            assert_eq!(answer.status != 405, is_described, "{method} {path}: {}", answer.text());
        }
    }
}

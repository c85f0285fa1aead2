//! What routers before several servers ask for: what is served, how much there is to do, what a request would run.

use std::io::Write;

use akunu_server::{Keys, ModelSpec};
use serde_json::{Value as Json, json};

use crate::http::{self, connect, request};
use crate::serve::{ENDLESS, TALES, WATCHER, serve, serve_endless, serve_with};
use crate::thinker::{THINKER, thinker};

/// A prompt of several blocks.
fn long_prompt() -> String {
    "Once upon a time there was a little dog who lived by the sea. ".repeat(30)
}

#[test]
fn servers_and_models_are_described_without_being_loaded() {
    let (_folder, model) = thinker();
    let path = model.path.clone().unwrap().display().to_string();
    let server = serve_with(|options| options.models.models.push(model));
    for route in ["/get_model_info", "/model_info"] {
        let info = server.get(route).json();
        assert_eq!((&info["model_path"], &info["is_generation"]), (&json!(TALES), &json!(true)), "{info}");
        assert!(info["model_type"].is_string() && info["preferred_sampling_params"].is_null(), "{info}");
        let other = server.get(&format!("{route}?model={THINKER}")).json();
        assert_eq!(other["served_model_name"], THINKER);
        assert!(!other.to_string().contains(&path), "{other}");
        assert_eq!(server.get(&format!("{route}?model=none")).status, 404);
    }
    for route in ["/get_server_info", "/server_info"] {
        let info = server.get(route).json();
        assert_eq!((&info["served_model_name"], &info["max_running_requests"]), (&json!(TALES), &json!(4)));
        assert_eq!(
            (&info["max_total_num_tokens"], &info["status"]),
            (&Json::Null, &json!("ready")),
            "{info}"
        );
        assert_eq!(info["tp_size"], 1);
    }
    assert_eq!(server.metric("akunu_model_loaded"), 0.0);
    assert_eq!(server.get("/is_sleeping").json(), json!({ "is_sleeping": false }));
    server.ok("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }));
    let info = server.get("/get_server_info").json();
    let capacity = server.metric("akunu_kv_capacity_tokens");
    assert_eq!(info["max_total_num_tokens"].as_f64().unwrap(), capacity);
    let page = server.get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap();
    let label = |name: &str| -> f64 {
        let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    assert_eq!(label("block_size") * label("num_gpu_blocks"), capacity, "{line}");
    assert!(label("block_size") > 1.0 && line.ends_with(" 1"), "{line}");
}

#[test]
fn devices_that_share_out_a_model_are_counted() {
    let server = serve_with(|options| options.models.engine.backends.ranks = Some(2));
    assert_eq!(server.get("/get_server_info").json()["tp_size"], 2);
}

/// SGLang's router writes the defaults of settings into what it passes on.
#[test]
fn settings_that_routers_write_are_understood() {
    let server = serve();
    let body = json!({
        "input": "Hi", "model": TALES, "max_output_tokens": 16, "store": true, "stream": null, "temperature": 1.0,
        "top_p": 1.0, "priority": 0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
    });
    server.ok("/v1/responses", &body);
    let rendered = server.ok("/v1/completions/render", &json!({ "prompt": "Once", "top_k": -1 }));
    assert_eq!(rendered[0]["sampling_params"]["top_k"], 0);
    let refused = server.post("/v1/completions", &json!({ "prompt": "Once", "top_k": -2 }));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("top_k")));
}

#[test]
fn loads_count_requests() {
    let server = serve_endless(|options| options.models.scheduler.queue = 8);
    assert_eq!(server.get("/get_load").json()[0]["num_reqs"], 0);
    let body = json!({ "prompt": "Once", "max_tokens": ENDLESS, "ignore_eos": true, "stream": true, "n": 6 });
    let mut client = connect(server.address());
    client.write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes())).unwrap();
    server.until(&["akunu_running_requests"], 4.0);
    let load = server.get("/get_load").json()[0].clone();
    assert_eq!(
        (&load["num_reqs"], &load["num_waiting_reqs"], &load["dp_rank"]),
        (&json!(6), &json!(2), &json!(0))
    );
    assert!(load["num_tokens"].as_u64().unwrap() > 0, "{load}");
    for route in ["/get_loads", "/v1/loads"] {
        let loads = server.get(route).json();
        let first = &loads["loads"][0];
        assert_eq!((&first["num_running_reqs"], &first["num_waiting_reqs"]), (&json!(4), &json!(2)));
        assert_eq!(loads["aggregate"]["total_reqs"], 6);
        assert!(first["token_usage"].as_f64().is_some_and(|usage| usage > 0.0 && usage < 1.0), "{loads}");
    }
    drop(client);
    server.until_idle();
    assert_eq!(server.get("/get_load").json()[0]["num_reqs"], 0);
}

#[test]
fn a_flushed_cache_has_nothing_of_requests_that_ended() {
    let server = serve();
    assert_eq!(
        server.post("/flush_cache", &json!({})).json(),
        json!({ "success": true, "forgotten_tokens": 0 })
    );
    let ask = || {
        let answer = server.ok("/v1/completions", &json!({ "prompt": long_prompt(), "max_tokens": 1 }));
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(ask(), 0);
    assert!(ask() > 64);
    assert!(server.metric("akunu_kv_known_blocks") > 1.0);
    let flushed = server.post("/flush_cache", &json!({})).json();
    assert!(flushed["forgotten_tokens"].as_u64().unwrap() > 64, "{flushed}");
    server.until(&["akunu_kv_known_blocks", "akunu_kv_kept_tokens"], 0.0);
    assert_eq!(ask(), 0);
    // Routers send no body, and no type.
    let bare =
        b"POST /flush_cache HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(http::send(server.address(), bare).status, 200);
    assert_eq!(server.get("/flush_cache").status, 405);
}

#[test]
fn routes_of_fleets_need_the_key() {
    let server = serve_with(|options| options.keys = Keys::new(WATCHER));
    let paths =
        ["/get_model_info", "/get_server_info", "/get_load", "/get_loads", "/v1/loads", "/is_sleeping"];
    for (method, path) in paths.map(|path| ("GET", path)).into_iter().chain([("POST", "/flush_cache")]) {
        let with = |headers: &[(&str, &str)]| {
            http::send(server.address(), &request(method, path, headers, b"")).status
        };
        assert_eq!((with(&[]), with(&[("x-api-key", WATCHER)])), (401, 200), "{path}");
    }
}

#[test]
fn rendered_tokens_are_those_that_run() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    let chat = json!({
        "model": THINKER, "messages": [{ "role": "user", "content": "Why?" }], "max_tokens": 1,
        "temperature": 0.5, "stop": "x", "seed": 7, "cache_salt": "s",
    });
    let rendered = server.ok("/v1/chat/completions/render", &chat);
    let answered = server.ok("/v1/chat/completions", &chat);
    let ids = rendered["token_ids"].as_array().unwrap();
    assert_eq!(ids.len() as u64, answered["usage"]["prompt_tokens"].as_u64().unwrap());
    let sampling = &rendered["sampling_params"];
    assert_eq!((&sampling["temperature"], &sampling["seed"]), (&json!(0.5), &json!(7)));
    assert_eq!((&sampling["stop"], &sampling["max_tokens"]), (&json!(["x"]), &json!(1)));
    assert_eq!((&rendered["model"], &rendered["cache_salt"]), (&json!(THINKER), &json!("s")));
    let prompt = server.ok("/apply-template", &chat)["prompt"].clone();
    let tokenized = server.ok("/tokenize", &json!({ "model": THINKER, "content": prompt }));
    assert_eq!(&tokenized["tokens"], &rendered["token_ids"]);
    let completion = json!({ "prompt": ["Once", [1, 2, 3]], "n": 2 });
    let rendered = server.ok("/v1/completions/render", &completion);
    let rendered = rendered.as_array().unwrap();
    assert_eq!(rendered.len(), 2);
    assert_eq!(
        (&rendered[1]["token_ids"], &rendered[1]["sampling_params"]["n"]),
        (&json!([1, 2, 3]), &json!(2))
    );
    assert_eq!(
        (&rendered[0]["model"], &rendered[0]["sampling_params"]["seed"]),
        (&json!(TALES), &Json::Null)
    );
    let refused = server.post("/v1/completions/render", &json!({ "prompt": [1_000_000_000] }));
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[test]
fn a_server_that_loads_its_models_first_says_when_it_is_ready() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| {
        options.models.models.push(model);
        options.preload = true;
    });
    assert_eq!(server.get("/health").status, 200);
    while server.get("/ready").status != 200 {}
    assert_eq!(server.metric("akunu_model_loaded"), 2.0);
}

#[test]
fn a_model_that_cannot_be_loaded_first_ends_the_wait_for_signals() {
    for (memory, path) in [(Some(1), None), (None, Some("/missing/model.gguf".into()))] {
        let missing = ModelSpec { name: "missing".into(), path, aliases: Vec::new() };
        let server = serve_with(|options| {
            options.models.models = vec![missing];
            options.models.memory = memory;
            options.preload = true;
        });
        let error = server.0.wait_for(server.0.signals().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("--preload: "), "{error}");
        let ready = server.get("/ready");
        assert_eq!(ready.status, 503);
        assert!(!ready.text().contains("/missing"), "{}", ready.text());
    }
}

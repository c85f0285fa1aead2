//! What clients of llama.cpp's and LM Studio's servers ask for: `/props`, `/slots`, `/api/v0/models`.

use std::io::Write;

use akunu::chat::ChatTemplates;
use akunu_server::field_table::WARNINGS;
use serde_json::{Value as Json, json};

use crate::http::{connect, request};
use crate::serve::{ENDLESS, TALES, serve, serve_endless, serve_with};
use crate::thinker::{THINKER, thinker};

fn loaded(server: &crate::serve::Served) -> f64 {
    server.metric("akunu_model_loaded")
}

#[test]
fn props_describe_a_model_without_loading_it() {
    let (_folder, model) = thinker();
    let path = model.path.clone().unwrap().display().to_string();
    let server = serve_with(|options| options.models.models.push(model));
    let props = server.get("/props").json();
    assert_eq!((&props["model_alias"], &props["total_slots"]), (&json!(TALES), &json!(4)));
    let settings = &props["default_generation_settings"];
    assert_eq!(settings["n_ctx"], server.get("/v1/models/tales").json()["context_length"]);
    assert!(settings["params"]["temperature"].is_number(), "{settings}");
    assert_eq!((&props["is_sleeping"], loaded(&server)), (&json!(true), 0.0));
    let other = server.get("/props?model=thinker").json();
    assert!(other["chat_template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!((&other["model_path"], &other["modalities"]["vision"]), (&json!(THINKER), &json!(false)));
    assert!(!other.to_string().contains(&path), "{other}");
    server.ok("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }));
    let props = server.get("/props").json();
    assert_eq!(props["is_sleeping"], false);
    assert_eq!(server.get("/props?model=none").status, 404);
    assert_eq!(server.post("/props", &json!({})).status, 405);
}

#[test]
fn given_templates_are_those_of_all_models_and_with_tools_that_for_tools() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("templates.json");
    let messages = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let for_tools = format!("{{{{ tools | tojson }}}}{messages}{{# [TOOL_CALLS] [ARGS] #}}");
    let templates = json!({ "chat_template": [
        { "name": "default", "template": messages }, { "name": "tool_use", "template": for_tools },
    ] });
    std::fs::write(&path, templates.to_string()).unwrap();
    let server = serve_with(|options| {
        options.models.chat_templates = Some(ChatTemplates::from_file(&path).unwrap());
    });
    let props = server.get("/props").json();
    assert_eq!(
        (&props["chat_template"], &props["chat_template_tool_use"]),
        (&json!(messages), &json!(for_tools))
    );
    assert_eq!(props["chat_template_caps"]["supports_tools"], true);
    assert_eq!(server.ok("/api/show", &json!({ "model": TALES }))["template"], messages);
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2 });
    let rendered = |body: &Json| server.ok("/apply-template", body)["prompt"].as_str().unwrap().to_string();
    assert_eq!(rendered(&body), "<user>Hi");
    body["tools"] = json!([{ "type": "function", "function": { "name": "clock" } }]);
    assert!(rendered(&body).starts_with("[{\"type\": \"function\""), "{}", rendered(&body));
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!((answer.status, answer.header(WARNINGS)), (200, None));
}

#[test]
fn slots_are_busy_while_requests_have_them() {
    let server = serve_endless(|options| options.models.scheduler.queue = 8);
    let busy = |slots: &Json| {
        let slots = slots.as_array().unwrap();
        assert_eq!(slots.len(), 4);
        slots.iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!((busy(&server.get("/slots").json()), loaded(&server)), (0, 0.0));
    let body = json!({ "prompt": "Once", "max_tokens": ENDLESS, "ignore_eos": true, "stream": true, "n": 3 });
    let ask = |body: &Json| {
        let mut client = connect(server.address());
        client.write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes())).unwrap();
        client
    };
    let first = ask(&body);
    server.until(&["akunu_running_requests"], 3.0);
    let slots = server.get("/slots").json();
    assert_eq!(busy(&slots), 3);
    assert!(slots[0]["n_ctx"].as_u64().unwrap() > 0 && slots[3]["id"] == 3, "{slots}");
    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 200);
    let mut one = body.clone();
    one["n"] = 1.into();
    let second = ask(&one);
    server.until(&["akunu_running_requests"], 4.0);
    let full = server.get("/slots?fail_on_no_slot=1");
    assert_eq!((full.status, full.json()["error"]["code"].clone()), (503, json!("no_slot")));
    assert!(full.header("retry-after").is_some());
    assert_eq!(busy(&server.get("/slots").json()), 4);
    drop((first, second));
    server.until_idle();
    assert_eq!(busy(&server.get("/slots").json()), 0);
    assert_eq!(server.get("/slots?model=none").status, 404);
}

#[test]
fn lm_studios_list_has_contexts_and_states() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    server.ok("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }));
    let list = server.get("/api/v0/models").json();
    let ids: Vec<&Json> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, [TALES, "story-teller", THINKER]);
    let (tales, thinker) = (&list["data"][0], &list["data"][2]);
    assert_eq!((&tales["state"], &thinker["state"]), (&json!("loaded"), &json!("not-loaded")));
    assert_eq!((&tales["type"], &thinker["compatibility_type"]), (&json!("llm"), &json!("gguf")));
    assert!(
        tales["loaded_context_length"].as_u64().unwrap() > 0 && thinker["loaded_context_length"].is_null()
    );
    assert!(thinker["max_context_length"].as_u64().unwrap() > 0);
    assert_eq!(server.get("/api/v0/models/thinker").json(), *thinker);
    let missing = server.get("/api/v0/models/none");
    assert_eq!((missing.status, missing.json()["error"]["code"].clone()), (404, json!("model_not_found")));
    assert_eq!(serve().get("/api/v0/nothing").json()["error"]["code"], "unknown_url");
}

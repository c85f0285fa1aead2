//! The texts of slots, saved and restored.

use std::fs;
use std::path::Path;

use akunu::{DeviceChoice, EngineOptions, KvDisk};
use akunu_server::Keys;
use serde_json::{Value as Json, json};

use crate::http::{Answer, request, send};
use crate::serve::{Served, serve, serve_with};

const PROMPT: &str = "Once upon a time there was a little fox who lived near the river. One day the fox found a red \
                      ball in the grass, and a bird sat on it and sang a song about the moon and the sea.";

fn with_slots(folder: &Path) -> Served {
    with_slots_and(folder, |_| {})
}

fn with_slots_and(folder: &Path, change: impl FnOnce(&mut EngineOptions)) -> Served {
    serve_with(|options| {
        options.slots = Some(folder.into());
        options.models.scheduler.keep_texts = true;
        change(&mut options.models.engine);
    })
}

fn complete(server: &Served) -> Json {
    complete_text(server, PROMPT)
}

fn complete_text(server: &Served, prompt: &str) -> Json {
    server.ok("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 20, "temperature": 0 }))
}

fn refused(server: &Served, path: &str, body: &Json) -> (u16, String) {
    let answer = server.post(path, body);
    (answer.status, answer.text())
}

#[test]
fn a_saved_slot_is_restored_by_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let first = with_slots(folder.path());
    let expected = complete(&first);
    let saved = first.ok("/slots/0?action=save", &json!({ "filename": "fox.bin" }));
    assert_eq!((&saved["id_slot"], &saved["filename"]), (&json!(0), &json!("fox.bin")));
    let bytes = fs::metadata(folder.path().join("fox.bin")).unwrap().len();
    assert_eq!(saved["n_written"], json!(bytes));
    assert!(saved["n_saved"].as_u64().unwrap() > 40 && saved["timings"]["save_ms"].is_f64(), "{saved}");

    let second = with_slots(folder.path());
    let restored = second.ok("/slots/1?action=restore", &json!({ "filename": "fox.bin" }));
    assert_eq!((&restored["n_restored"], &restored["n_read"]), (&saved["n_saved"], &saved["n_written"]));
    let found = complete(&second);
    assert_eq!(found["choices"][0]["text"], expected["choices"][0]["text"]);
    assert!(second.metric("akunu_reused_tokens_total") > 40.0);
    assert_eq!(second.metric("vllm:prefix_cache_hits_total"), second.metric("akunu_reused_tokens_total"));
    let erased = second.ok("/slots/0?action=erase", &json!({}));
    assert!(erased["n_erased"].as_u64().unwrap() > 40, "{erased}");
    let (status, text) = refused(&second, "/slots/0?action=erase", &json!({}));
    assert!(status == 404 && text.contains("slot 0 has no text"), "{text}");
}

#[test]
fn slots_are_refused_with_reasons() {
    let (status, text) = refused(&serve(), "/slots/0?action=save", &json!({ "filename": "a" }));
    assert!(status == 403 && text.contains("--slot-save-path"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let server = with_slots(folder.path());
    fs::write(folder.path().join("text"), "something else").unwrap();
    let name = |name: &str| json!({ "filename": name });
    for (path, body, status, what) in [
        ("/slots/0?action=save", json!({}), 400, "'filename' is missing"),
        ("/slots/0?action=save", name("../a"), 400, "must be a name"),
        ("/slots/0?action=restore", name("/etc/passwd"), 400, "must be a name"),
        ("/slots/0?action=restore", name(".a"), 400, "must be a name"),
        ("/slots/0?action=restore", name(""), 400, "must be a name"),
        ("/slots/0?action=restore", name("none"), 404, "none: "),
        ("/slots/0?action=restore", name("text"), 400, "text: it is not a file of a cache"),
        ("/slots/0?action=save", name("a"), 404, "slot 0 has no text"),
        ("/slots/4?action=erase", json!({}), 404, "slots are 0 to 3"),
        ("/slots/x?action=erase", json!({}), 404, "there is no slot x"),
        ("/slots/0?action=sing", json!({}), 400, "save, restore or erase"),
        ("/slots/0", json!({}), 400, "save, restore or erase"),
    ] {
        let (found, text) = refused(&server, path, &body);
        assert!(found == status && text.contains(what), "{path} {body}: {found} {text}");
        assert!(!text.contains(&folder.path().display().to_string()), "{text}");
    }
}

/// As a model with windows, this one does not have the whole cache on one device.
#[test]
fn slots_of_a_divided_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_slots_and(folder.path(), |engine| {
        (engine.device, engine.gpu_layers) = (DeviceChoice::Reference, Some(1));
    });
    complete_text(&server, "Once");
    let (status, text) = refused(&server, "/slots/0?action=save", &json!({ "filename": "a" }));
    assert!(status == 400 && text.contains("--gpu-layers"), "{status} {text}");
}

#[test]
fn the_text_of_a_slot_belongs_to_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve_with(|options| {
        options.slots = Some(folder.path().into());
        options.models.scheduler.keep_texts = true;
        options.keys = Keys::new("one two watcher");
    });
    let post = |key: &str, path: &str, body: Json| -> Answer {
        let headers = [("x-api-key", key)];
        send(server.address(), &request("POST", path, &headers, body.to_string().as_bytes()))
    };
    assert_eq!(post("one", "/v1/completions", json!({ "prompt": PROMPT, "max_tokens": 5 })).status, 200);
    assert_eq!(post("two", "/slots/0?action=save", json!({ "filename": "a" })).status, 404);
    let named = json!({ "filename": "a" });
    assert_eq!(post("one", "/slots/0?action=save", named.clone()).status, 200);
    // So do its files.
    assert_eq!(post("two", "/slots/0?action=restore", named.clone()).status, 404);
    assert_eq!(post("two", "/v1/completions", json!({ "prompt": "Other", "max_tokens": 5 })).status, 200);
    assert_eq!(post("two", "/slots/0?action=save", named.clone()).status, 200);
    let restored =
        |key| post(key, "/slots/0?action=restore", named.clone()).json()["n_restored"].as_u64().unwrap();
    assert!(restored("one") > 40 && restored("two") < 10);
}

#[test]
fn the_cache_outside_of_the_device_is_in_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        serve_with(|options| {
            let engine = &mut options.models.engine;
            engine.kv_host = Some(1 << 20);
            engine.kv_disk = Some(KvDisk { folder: folder.path().into(), bytes: 1 << 24 });
        })
    };
    let server = open();
    complete_text(&server, &PROMPT.repeat(3));
    let capacity = server.metric("akunu_kv_host_capacity_bytes");
    assert!(capacity > 0.0 && capacity <= f64::from(1 << 20));
    assert!(server.metric("akunu_kv_host_bytes") <= capacity);
    drop(server);
    let server = open();
    complete_text(&server, &PROMPT.repeat(3));
    assert!(server.metric("akunu_kv_returned_tokens_total") > 0.0);
    assert!(server.metric("akunu_kv_disk_bytes") > 0.0);
}

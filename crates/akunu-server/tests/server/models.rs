//! Several models in one server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use akunu::{Device, DeviceChoice, EngineOptions, Error, Model, open_device};
use akunu_device_testing::FailingDevice;
use akunu_server::{Finder, ModelSpec};
use serde_json::{Value as Json, json};

use crate::http::{connect, request};
use crate::serve::{ENDLESS, Served, TALES, serve_endless, serve_with};

/// What the server logged.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A copy of the embedded model.
fn copy(folder: &Path) -> PathBuf {
    let path = folder.join("copy.gguf");
    let tales = Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu/embedded/akunu-tales.gguf");
    std::fs::copy(tales, &path).unwrap();
    path
}

fn spec(name: &str, path: &Path) -> ModelSpec {
    ModelSpec { name: name.into(), path: Some(path.into()), aliases: Vec::new() }
}

fn ask(server: &Served, model: &str) -> (u16, Json) {
    let body = json!({ "model": model, "prompt": "Once", "max_tokens": 4, "temperature": 0 });
    let answer = server.post("/v1/completions", &body);
    (answer.status, answer.json())
}

fn loaded(server: &Served, model: &str) -> bool {
    let page = server.get("/metrics").text();
    let line = format!("akunu_model_loaded{{model=\"{model}\"}} 1");
    page.lines().any(|written| written == line)
}

#[test]
fn models_have_aliases_and_are_loaded_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve_with(|options| options.models.models.push(spec("copy", &copy(folder.path()))));
    assert!(!loaded(&server, TALES) && !loaded(&server, "copy"));
    let (_, first) = ask(&server, "story-teller");
    assert_eq!(first["model"], "story-teller");
    assert!(loaded(&server, TALES) && !loaded(&server, "copy"));
    let (_, second) = ask(&server, "copy");
    assert_eq!(first["choices"], second["choices"]);
    assert!(loaded(&server, "copy"));
    let (status, missing) = ask(&server, "gpt-4o");
    let error = &missing["error"];
    assert_eq!((status, &error["code"], &error["param"]), (404, &json!("model_not_found"), &json!("model")));
    assert!(error["message"].as_str().unwrap().contains("tales, copy"), "{error}");
}

#[test]
fn a_missing_file_is_an_error_without_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path());
    let server = serve_with(|options| {
        options.models.models.push(spec("copy", &path));
        options.models.log = |message| LOGGED.lock().unwrap().push(message.to_string());
    });
    std::fs::remove_file(&path).unwrap();
    let (status, answer) = ask(&server, "copy");
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_not_loaded")));
    let folder_name = folder.path().file_name().unwrap().to_str().unwrap();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("copy") && !message.contains(folder_name), "{answer}");
    let shown = server.post("/api/show", &json!({ "model": "copy" }));
    assert!(shown.status >= 400 && !shown.text().contains(folder_name), "{}", shown.text());
    let logged = LOGGED.lock().unwrap().join("\n");
    assert!(logged.contains(path.to_str().unwrap()), "{logged}");
    assert_eq!(ask(&server, TALES).0, 200);
    // It can be loaded once the file is back; a loaded model does not need the file.
    copy(folder.path());
    assert_eq!(ask(&server, "copy").0, 200);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(ask(&server, "copy").0, 200);
}

#[test]
fn an_invalid_file_is_503() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    std::fs::write(&path, b"GGUF and nothing else").unwrap();
    let server = serve_with(|options| options.models.models.push(spec("broken", &path)));
    assert_eq!(ask(&server, "broken").0, 503);
    assert_eq!(ask(&server, TALES).0, 200);
}

#[test]
fn idle_models_are_unloaded_and_loaded_again() {
    let server = serve_with(|options| options.models.idle_unload = Some(Duration::ZERO));
    assert_eq!(ask(&server, TALES).0, 200);
    server.until(&["akunu_model_loaded"], 0.0);
    assert_eq!(ask(&server, TALES).0, 200);
}

#[test]
fn looking_at_models_does_not_keep_them_loaded() {
    let server = serve_with(|options| options.models.idle_unload = Some(Duration::from_millis(500)));
    assert_eq!(ask(&server, TALES).0, 200);
    let began = Instant::now();
    while loaded(&server, TALES) {
        assert_eq!(server.get("/v1/models").status, 200);
        assert!(began.elapsed() < Duration::from_secs(60), "it is still loaded");
    }
}

#[test]
fn the_embedded_model_has_its_name_of_the_command_line() {
    let server = serve_with(|_| {});
    assert_eq!(ask(&server, "embedded").0, 200);
    assert_eq!(server.get("/v1/models/embedded").json()["id"], "embedded");
    assert!(!server.get("/v1/models").text().contains("embedded"));
    // A file of that name comes first.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("embedded.gguf");
    let server = serve_with(|options| options.models.models.push(spec("embedded", &path)));
    assert_eq!(ask(&server, "embedded").0, 503);
}

#[test]
fn a_model_is_loaded_once_though_its_clients_hang_up() {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let server = serve_with(|options| {
        options.models.device = |engine| {
            OPENED.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(500));
            open_device(engine.device, engine.threads, &engine.backends)
        };
    });
    let body = json!({ "prompt": "Once", "max_tokens": 4 }).to_string();
    for opened in [1, 1, 1, 1] {
        let mut client = connect(server.address());
        client.write_all(&request("POST", "/v1/completions", &[], body.as_bytes())).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(OPENED.load(Ordering::Relaxed), opened);
    }
    assert_eq!(ask(&server, TALES).0, 200);
    assert_eq!(OPENED.load(Ordering::Relaxed), 1);
}

#[test]
fn a_model_is_unloaded_for_another_unless_it_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let one = {
        let server = serve_endless(|_| {});
        assert_eq!(ask(&server, TALES).0, 200);
        let lease = server.get("/metrics").text();
        let line = lease.lines().find_map(|line| line.strip_prefix("akunu_model_bytes{model=\"tales\"} "));
        line.unwrap().parse::<f64>().unwrap() as u64
    };
    let server = serve_endless(|options| {
        options.models.models.push(spec("copy", &copy(folder.path())));
        options.models.memory = Some(one + one / 2);
    });
    assert_eq!(ask(&server, TALES).0, 200);
    assert_eq!(ask(&server, "copy").0, 200);
    assert!(!loaded(&server, TALES) && loaded(&server, "copy"));
    let body = json!({ "model": "copy", "prompt": "Once", "max_tokens": ENDLESS, "ignore_eos": true, "stream": true });
    let mut at_work = connect(server.address());
    at_work.write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes())).unwrap();
    server.until(&["akunu_running_requests"], 1.0);
    let (status, answer) = ask(&server, TALES);
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_not_loaded")));
    drop(at_work);
    server.until_idle();
    assert_eq!(ask(&server, TALES).0, 200);
}

/// Slots for weights of the CPU are not worth another model, nor a refusal.
#[test]
fn prompts_stream_only_within_the_memory_for_all_models() {
    let divided = |memory: Option<u64>, stream_rows: usize| {
        serve_with(|options| {
            options.models.memory = memory;
            let engine = &mut options.models.engine;
            (engine.device, engine.gpu_layers) = (DeviceChoice::Reference, Some(1));
            (engine.context, engine.stream_rows) = (Some(64), Some(stream_rows));
        })
    };
    let bytes = |server: &Served| -> u64 {
        assert_eq!(ask(server, TALES).0, 200);
        let page = server.get("/metrics").text();
        let line = page.lines().find_map(|line| line.strip_prefix("akunu_model_bytes{model=\"tales\"} "));
        line.unwrap().parse::<f64>().unwrap() as u64
    };
    let [computed, streamed] = [0, 2].map(|rows| bytes(&divided(None, rows)));
    assert!(computed < streamed);
    assert_eq!(bytes(&divided(Some(streamed), 2)), streamed);
    assert_eq!(bytes(&divided(Some(streamed - 1), 2)), computed);
}

#[test]
fn a_model_without_a_chat_template_refers_to_completions() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path());
    // Renames the key.
    let mut bytes = std::fs::read(&path).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap();
    bytes[at..at + key.len()].copy_from_slice(b"tokenizer.chat_nothing!");
    std::fs::write(&path, bytes).unwrap();
    let server = serve_with(|options| options.models.models.push(spec("plain", &path)));
    let body = json!({ "model": "plain", "messages": [{ "role": "user", "content": "Hello" }] });
    let answer = server.post("/v1/chat/completions", &body);
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"]), (400, &json!("no_chat_template")));
    assert!(error["message"].as_str().unwrap().contains("/v1/completions"), "{error}");
    assert_eq!(ask(&server, "plain").0, 200);
}

/// The GGUF files of a folder.
fn find(folder: Option<&Path>) -> Vec<ModelSpec> {
    let files = folder.unwrap().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let is_model = |path: &PathBuf| path.extension().is_some_and(|end| end == "gguf");
    files.filter(is_model).map(|path| spec(path.file_stem().unwrap().to_str().unwrap(), &path)).collect()
}

#[test]
fn models_that_are_added_to_a_folder_are_found() {
    const SEARCHES: Duration = Duration::from_millis(500);
    let folder = tempfile::tempdir().unwrap();
    let server = serve_with(|options| {
        options.models.finder = Some(Finder { find, folder: Some(folder.path().into()), every: SEARCHES });
    });
    assert_eq!(ask(&server, "copy").0, 404);
    copy(folder.path());
    std::fs::write(folder.path().join("broken.gguf"), b"GGUF and nothing else").unwrap();
    let began = Instant::now();
    while ask(&server, "copy").0 != 200 {
        assert!(began.elapsed() < Duration::from_secs(60), "it is not found");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Once, and without what cannot be opened.
    std::thread::sleep(2 * SEARCHES);
    for path in ["/v1/models", "/api/v0/models"] {
        let list = server.get(path).json();
        let names: Vec<&Json> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
        assert_eq!(names, [TALES, "story-teller", "copy"], "{path}");
    }
}

/// Of the embedded model on a card, and how much of that the next ones have, in percent.
static CARDS: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn on_next_card(engine: &EngineOptions) -> Result<Box<dyn Device>, Error> {
    let cpu = || open_device(DeviceChoice::Cpu, Some(1), &engine.backends);
    let large = FailingDevice::new(cpu()?).with_memory(1 << 40);
    let whole = akunu::plan(&Model::embedded()?, large.capabilities(), engine)?.memory;
    let percent = CARDS.lock().unwrap().remove(0);
    let bytes = whole.loading + (whole.allocated() - whole.workspace) * percent / 100;
    Ok(Box::new(FailingDevice::new(cpu()?).with_memory(bytes)))
}

/// A model that does not fit is divided, which is said; but first another one that is idle is unloaded.
#[test]
fn models_that_do_not_fit_beside_others_are_divided_only_if_they_do_not_fit_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path());
    let server = serve_with(|options| {
        options.models.models.push(spec("copy", &path));
        // The part of a divided model's cache on the card has less than one context.
        (options.models.engine.context, options.models.engine.slots) = (Some(64), 1);
        options.models.device = on_next_card;
        options.models.log = |text| NOTED.lock().unwrap().push(text.into());
    });
    let ask = |name: &str, cards: &[u64]| {
        *CARDS.lock().unwrap() = cards.to_vec();
        let (status, body) = ask(&server, name);
        assert_eq!(status, 200, "{name}: {body}");
        assert!(CARDS.lock().unwrap().is_empty(), "{name}");
        std::mem::take(&mut *NOTED.lock().unwrap())
    };
    assert_eq!(ask(TALES, &[100]), [""; 0]);
    // The other model has the memory until it is unloaded.
    assert_eq!(ask("copy", &[60, 100]), [""; 0]);
    let noted = ask(TALES, &[60, 60]);
    assert!(matches!(&noted[..], [note] if note.contains("the CPU computes")), "{noted:?}");
}

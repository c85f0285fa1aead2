//! Transcription, with the speech model and audio of `testdata/speech`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use akunu::{Device, EngineOptions, Error};
use akunu_device_testing::FailingDevice;
use akunu_server::{Keys, ModelSpec};
use serde_json::{Value as Json, json};

use crate::http::{Answer, answer, connect, request, send};
use crate::schema::Description;
use crate::serve::{Served, TALES, WATCHER, serve_with};

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";
const BOUNDARY: &str = "----a-boundary";
const SPEECH: &str = "speech";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/speech").join(name)
}

pub fn audio(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

fn serve() -> Served {
    serve_audio(|_| {})
}

/// The model that transcribes.
pub fn speech() -> ModelSpec {
    let path = Some(path("akunu-speech-q8_0.gguf"));
    ModelSpec { name: SPEECH.into(), path, aliases: vec!["whisper-1".into()] }
}

fn serve_audio(change: impl FnOnce(&mut akunu_server::Options)) -> Served {
    serve_with(|options| {
        options.models.models.insert(0, speech());
        change(options);
    })
}

/// A form with a file, if it has a name, and texts.
fn form(files: &[(&str, &[u8])], texts: &[(&str, &str)]) -> Vec<u8> {
    let files = files.iter().map(|(name, content)| part("file", Some(*name), content));
    let texts = texts.iter().map(|(name, text)| part(name, None, text.as_bytes()));
    whole(files.chain(texts))
}

/// A form with files, and texts, by their fields.
pub fn parts(files: &[(String, Vec<u8>)], texts: &[(String, String)]) -> Vec<u8> {
    let files = files.iter().map(|(field, content)| part(field, Some("a.flac"), content));
    let texts = texts.iter().map(|(field, text)| part(field, None, text.as_bytes()));
    whole(files.chain(texts))
}

fn part(field: &str, file: Option<&str>, content: &[u8]) -> Vec<u8> {
    let file = file.map(|name| format!("; filename=\"{name}\"\r\nContent-Type: audio/mpeg"));
    let head = format!("form-data; name=\"{field}\"{}", file.unwrap_or_default());
    let head = format!("--{BOUNDARY}\r\nContent-Disposition: {head}\r\n\r\n");
    [head.as_bytes(), content, b"\r\n"].concat()
}

fn whole(parts: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    parts.chain([format!("--{BOUNDARY}--\r\n").into_bytes()]).flatten().collect()
}

fn bytes(path: &str, headers: &[(&str, &str)], form: &[u8]) -> Vec<u8> {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let headers = [headers, &[("content-type", kind.as_str())]].concat();
    request("POST", path, &headers, form)
}

pub fn post(server: &Served, path: &str, form: &[u8]) -> Answer {
    send(server.address(), &bytes(path, &[], form))
}

fn transcribed(server: &Served, name: &str, texts: &[(&str, &str)]) -> Answer {
    let answer = post(server, TRANSCRIPTIONS, &form(&[(name, &audio(name))], texts));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

fn text(server: &Served, name: &str) -> String {
    let answer = transcribed(server, name, &[]).json();
    assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
    answer["text"].as_str().unwrap().to_string()
}

/// The status, the code and the message of an error.
fn refused(answer: &Answer) -> (u16, String, String) {
    let error = &answer.json()["error"];
    let field = |name: &str| error[name].as_str().unwrap_or_default().to_string();
    (answer.status, field("code"), field("message"))
}

#[test]
fn each_format_has_the_text() {
    let server = serve();
    let text = text(&server, "short.flac");
    assert!(text.split(' ').count() > 5, "{text}");
    let with = |format| transcribed(&server, "short.flac", &[("response_format", format)]);
    let plain = with("text");
    assert_eq!(
        (plain.text().trim_end(), plain.header("content-type")),
        (&*text, Some("text/plain; charset=utf-8"))
    );
    let subtitles = with("srt").text();
    assert!(subtitles.starts_with("1\n00:00:0") && subtitles.contains(" --> "), "{subtitles}");
    let web = with("vtt");
    assert!(web.text().starts_with("WEBVTT\n\n00:0"), "{}", web.text());
    assert_eq!(web.header("content-type"), Some("text/vtt; charset=utf-8"));
    let verbose = with("verbose_json").json();
    assert_eq!((&verbose["text"], &verbose["task"]), (&json!(text), &json!("transcribe")));
    assert_eq!((&verbose["language"], verbose.get("words")), (&json!("en"), None));
    let segments: String =
        verbose["segments"].as_array().unwrap().iter().map(|s| s["text"].as_str().unwrap()).collect();
    assert_eq!(segments.trim(), text);
    let words = [
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "segment"),
        ("timestamp_granularities[]", "word"),
    ];
    let timed = transcribed(&server, "short.flac", &words).json();
    let joined: Vec<&str> =
        timed["words"].as_array().unwrap().iter().map(|word| word["word"].as_str().unwrap().trim()).collect();
    assert_eq!(joined.join(" "), text);
    if let Some(description) = Description::open() {
        description.assert("CreateTranscriptionResponseVerboseJson", &verbose);
        description.assert("CreateTranscriptionResponseVerboseJson", &timed);
        description.assert("CreateTranscriptionResponseJson", &json!({ "text": text }));
    }
}

#[test]
fn a_stream_has_the_same_text_in_pieces() {
    let server = serve();
    let text = text(&server, "short.flac");
    let answer = transcribed(&server, "short.flac", &[("stream", "true")]);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let events: Vec<Json> =
        answer.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (done, deltas) = events.split_last().unwrap();
    assert_eq!(done, &json!({ "type": "transcript.text.done", "text": text }));
    assert!(deltas.iter().all(|event| event["type"] == "transcript.text.delta"));
    assert_eq!(deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect::<String>(), text);
    if let Some(description) = Description::open() {
        events.iter().for_each(|event| description.assert("CreateTranscriptionResponseStreamEvent", event));
    }
}

#[test]
fn translations_and_languages_are_asked_for() {
    let server = serve();
    let german = transcribed(&server, "german.mp3", &[("response_format", "verbose_json")]).json();
    assert_eq!(german["language"], "de");
    let file: &[(&str, &[u8])] = &[("german.mp3", &audio("german.mp3"))];
    let fields = [("response_format", "verbose_json"), ("language", "german"), ("prompt", "A story.")];
    let english = post(&server, TRANSLATIONS, &form(file, &fields));
    assert_eq!(english.status, 200, "{}", english.text());
    let english = english.json();
    assert_eq!((&english["task"], &english["language"]), (&json!("translate"), &json!("de")));
    assert_ne!(english["text"], german["text"]);
}

#[test]
fn requests_at_once_share_passes_and_have_the_text_that_they_have_alone() {
    let server = serve();
    let names = ["short.flac", "german.mp3", "short.flac"];
    let alone = names.map(|name| text(&server, name));
    let together: Vec<String> = thread::scope(|scope| {
        let running = names.map(|name| scope.spawn(|| text(&server, name)));
        running.into_iter().map(|running| running.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    server.until(&["akunu_transcription_requests"], 0.0);
    let [steps, turns] =
        ["steps", "turns"].map(|name| server.metric(&format!("akunu_transcription_{name}_total")));
    assert!(turns >= steps && steps > 0.0, "{turns} in {steps}");
    let seconds = server.metric("akunu_transcribed_seconds_total");
    assert!((38.0..42.0).contains(&seconds), "{seconds}");
}

#[test]
fn damage_is_told() {
    let server = serve();
    let whole = audio("story.mp3");
    let mut damaged = whole[..60_000].to_vec();
    damaged[20_000..21_000].fill(0x55);
    let body = |texts| form(&[("story.mp3", &damaged)], texts);
    let answer = post(&server, TRANSCRIPTIONS, &body(&[]));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let told = answer.header("x-akunu-warnings").unwrap().to_string();
    assert!(told.contains("could not be decoded"), "{told}");
    let events = post(&server, TRANSCRIPTIONS, &body(&[("stream", "true")])).events();
    let done: Json = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(done["warnings"], json!([told]));
    assert_eq!(transcribed(&server, "short.flac", &[]).header("x-akunu-warnings"), None);
}

#[test]
fn silence_has_no_text() {
    let server = serve();
    let answer = transcribed(&server, "silence.flac", &[("response_format", "verbose_json")]).json();
    assert_eq!((&answer["text"], &answer["segments"]), (&json!(""), &json!([])));
    assert!((answer["duration"].as_f64().unwrap() - 4.0).abs() < 0.1);
}

#[test]
fn what_is_wrong_is_said() {
    let server = serve();
    let short = audio("short.flac");
    let short: (&str, &[u8]) = ("short.flac", &short);
    for (files, fields, code, part) in [
        (&[][..], &[][..], "missing_required_parameter", "'file' is missing"),
        (&[short, short], &[], "invalid_value", "'file' more than once"),
        (&[], &[("file", "text")], "invalid_value", "'file' must be a file"),
        (&[("a.mp3", b"")], &[], "invalid_audio", "it is empty"),
        (&[("a.mp3", b"This is a text.\n")], &[], "invalid_audio", "not an audio file"),
        (&[("a.flac", &short.1[..100])], &[], "invalid_audio", ""),
        (&[short], &[("language", "klingon")], "invalid_value", "does not know the language \"klingon\""),
        (
            &[short],
            &[("response_format", "docx")],
            "invalid_value",
            "one of text, json, verbose_json, srt, vtt",
        ),
        (&[short], &[("temperature", "2")], "invalid_value", "a number from 0 to 1"),
        (&[short], &[("temperature", "nan")], "invalid_value", "a number from 0 to 1"),
        (&[short], &[("stream", "yes")], "invalid_value", "true or false"),
        (&[short], &[("stream", "true"), ("response_format", "srt")], "invalid_value", "'stream' needs"),
        (&[short], &[("timestamp_granularities[]", "word")], "invalid_value", "needs the 'response_format'"),
        (&[short], &[("timestamp_granularities[]", "syllable")], "invalid_value", "segment, word"),
        (&[short], &[("include[]", "logprobs")], "unsupported_parameter", "'include' is not supported"),
        (&[short], &[("model", "tales"), ("model", "speech")], "invalid_value", "'model' more than once"),
        (&[short], &[("model", TALES)], "model_not_supported", "generates text"),
        (&[short], &[("prompt", &"a".repeat(70_000))], "invalid_value", "at most 65536 bytes"),
    ] {
        let (status, found, message) = refused(&post(&server, TRANSCRIPTIONS, &form(files, fields)));
        assert_eq!((status, found.as_str()), (400, code), "{fields:?}: {message}");
        assert!(message.contains(part), "{fields:?}: {message}");
    }
    let unknown = post(&server, TRANSCRIPTIONS, &form(&[short], &[("model", "none")]));
    assert_eq!((unknown.status, &*refused(&unknown).1), (404, "model_not_found"));
    assert_eq!(post(&server, TRANSCRIPTIONS, b"no form").status, 400);
    assert_eq!(server.post(TRANSCRIPTIONS, &json!({ "file": "a" })).status, 415);
    assert!(!text(&server, "short.flac").is_empty());
    server.until(&["akunu_request_memory_bytes"], 0.0);
}

#[test]
fn a_model_that_transcribes_does_nothing_else() {
    let server = serve();
    let message = json!([{ "role": "user", "content": "Hello" }]);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/v1/chat/completions", json!({ "messages": message })),
        ("/v1/embeddings", json!({ "input": "a" })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"] })),
        ("/v1/messages", json!({ "model": SPEECH, "messages": message, "max_tokens": 1 })),
        ("/api/generate", json!({ "model": SPEECH, "prompt": "a" })),
        ("/api/chat", json!({ "model": SPEECH, "messages": message })),
        ("/api/embed", json!({ "model": SPEECH, "input": "a" })),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.text().contains("transcribes audio (/v1/audio/transcriptions"), "{}", answer.text());
    }
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["capabilities"], json!(["transcription"]));
    assert_eq!(models["data"][1]["id"], "whisper-1");
    let shown = server.ok("/api/show", &json!({ "model": SPEECH }));
    assert_eq!(shown["capabilities"], json!(["transcription"]));
    assert_eq!((server.get("/health").status, server.get("/ready").status), (200, 200));
    assert!(server.metric("akunu_model_bytes") > 5e6);
}

#[test]
fn bodies_count_until_the_audio_is_transcribed() {
    let file: &[(&str, &[u8])] = &[("short.flac", &audio("short.flac"))];
    let small = serve_audio(|options| options.limits.audio = 1000);
    let answer = post(&small, TRANSCRIPTIONS, &form(file, &[]));
    assert_eq!((answer.status, &*refused(&answer).1), (413, "body_too_large"));
    // Other bodies have another limit.
    let server = serve_audio(|options| options.limits.body = 1000);
    assert!(!text(&server, "short.flac").is_empty());
    let busy = serve_audio(|options| options.limits.memory = 1 << 20);
    let answer = post(&busy, TRANSCRIPTIONS, &form(file, &[]));
    assert_eq!((answer.status, &*refused(&answer).1), (413, "request_too_large"));
    let counted = serve();
    let mut stream = connect(counted.address());
    let whole =
        bytes(TRANSCRIPTIONS, &[], &form(&[("story.mp3", &audio("story.mp3"))], &[("stream", "true")]));
    stream.write_all(&whole).unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    assert!(counted.metric("akunu_request_memory_bytes") > 190_000.0);
    // A client that hangs up cancels.
    drop(stream);
    counted.until(&["akunu_transcription_requests", "akunu_request_memory_bytes"], 0.0);
    assert!(counted.metric("akunu_transcribed_seconds_total") < 60.0);
}

#[test]
fn the_queue_the_time_and_the_keys_are_limited() {
    let story = form(&[("story.mp3", &audio("story.mp3"))], &[("stream", "true")]);
    let server = serve_audio(|options| {
        options.models.scheduler.queue = 1;
        options.keys = Keys::new(&format!("secret {WATCHER}"));
    });
    let keys = [("authorization", "Bearer secret")];
    assert_eq!(post(&server, TRANSCRIPTIONS, &story).status, 401);
    let mut first = connect(server.address());
    first.write_all(&bytes(TRANSCRIPTIONS, &keys, &story)).unwrap();
    server.until(&["akunu_transcription_requests"], 1.0);
    let second = send(server.address(), &bytes(TRANSCRIPTIONS, &keys, &story));
    assert_eq!((second.status, &*refused(&second).1), (429, "queue_full"));
    drop(first);
    let late = serve_audio(|options| options.limits.request = Some(Duration::from_millis(1)));
    let answer = post(&late, TRANSCRIPTIONS, &story);
    assert_eq!((answer.status, &*refused(&answer).1), (504, "timeout"));
}

#[test]
fn pages_of_other_sites_cannot_send_forms() {
    let server = serve();
    let short = form(&[("short.flac", &audio("short.flac"))], &[]);
    for (headers, status) in [
        (&[("origin", "https://evil.example")][..], 403),
        (&[("origin", "null")], 403),
        (&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], 403),
        (&[("referer", "https://evil.example/page")], 403),
        (&[("origin", "http://localhost:3000")], 200),
        (&[("referer", "http://localhost:3000/page")], 200),
    ] {
        let answer = send(server.address(), &bytes(TRANSCRIPTIONS, headers, &short));
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
    }
}

#[test]
fn running_requests_finish_at_shutdown() {
    let server = serve_audio(|options| options.drain = Duration::from_secs(600));
    let german = form(&[("german.mp3", &audio("german.mp3"))], &[("stream", "true")]);
    let mut running = connect(server.address());
    running.write_all(&bytes(TRANSCRIPTIONS, &[], &german)).unwrap();
    running.peek(&mut [0]).unwrap();
    server.0.stop();
    let events = answer(&mut running).events();
    let done: Json = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(done["type"], "transcript.text.done");
}

/// Makes the device that was opened last fail or panic. A static, because `OpenDevice` is a plain function.
static FAULTS: Mutex<Option<[Arc<AtomicBool>; 2]>> = Mutex::new(None);

fn open(engine: &EngineOptions) -> Result<Box<dyn Device>, Error> {
    let device = akunu::open_device(engine.device, engine.threads, &engine.backends)?;
    let device = FailingDevice::new(device);
    *FAULTS.lock().unwrap() = Some([device.failing(), device.panicking()]);
    Ok(Box::new(device))
}

#[test]
fn requests_of_a_failed_transcriber_get_errors_and_the_next_is_transcribed() {
    let server = serve_audio(|options| options.models.device = open);
    let file = form(&[("short.flac", &audio("short.flac"))], &[]);
    let expected = text(&server, "short.flac");
    for (fault, message) in [(0, "it failed on purpose"), (1, "restarted by the next request")] {
        FAULTS.lock().unwrap().as_ref().unwrap()[fault].store(true, Ordering::Relaxed);
        let failed = post(&server, TRANSCRIPTIONS, &file);
        assert_eq!(failed.status, 500, "{}", failed.text());
        assert!(failed.text().contains(message), "{}", failed.text());
        assert_eq!(text(&server, "short.flac"), expected);
    }
    server.until(&["akunu_transcription_requests"], 0.0);
}

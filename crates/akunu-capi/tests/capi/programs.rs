//! Programs in C, C++ and Python, whose output is compared with that of the engine in Rust.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::sync::Arc;

use akunu::audio::Audio;
use akunu::chat::{ChatTemplates, conversation};
use akunu::{
    DeviceChoice, EmbedOptions, Embedder, Engine, EngineOptions, GenerateOptions, Model, Sampling,
    Timestamps, TranscribeOptions, Transcriber, TranscriberOptions,
};
use akunu_fixtures::scripted;
use akunu_testing::{Cases, cases, left_to_ci};
use akunu_tokenizer::EncodeOptions;

use crate::tools::{Program, here, libraries, shared, succeed, tool};

const TOKENS: usize = 24;

fn program(name: &str, flags: &[&str]) -> Option<Program> {
    Program::new(&here("tests/programs").join(name), flags)
}

fn engine() -> Engine {
    let options = EngineOptions { device: DeviceChoice::Cpu, context: Some(256), ..EngineOptions::default() };
    Engine::new(Arc::new(Model::embedded().unwrap()), &options).unwrap()
}

fn text(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions) -> String {
    let mut session = engine.session().unwrap();
    let mut text = String::new();
    let append = &mut |piece: akunu::Piece<'_>| {
        text.push_str(piece.text);
        ControlFlow::Continue(())
    };
    engine.generate(&mut session, prompt, options, append).unwrap();
    text
}

fn story() -> String {
    let mut engine = engine();
    let options = EncodeOptions { add_special: true, parse_special: false };
    let prompt = engine.model().tokenizer().unwrap().encode("Once upon a time", options).unwrap();
    let text =
        text(&mut engine, &prompt, &GenerateOptions { max_tokens: Some(TOKENS), ..Default::default() });
    assert!(text.len() > TOKENS, "{text}");
    text
}

#[test]
fn the_example_generates_the_engines_text() {
    let Some(program) = Program::new(&here("examples/story.c"), &[]) else { return };
    let tokens = TOKENS.to_string();
    let output = succeed(Command::new(&program.path).args(["-", "Once upon a time", &tokens]));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), story());
    let missing = Command::new(&program.path).arg("/no/such/model.gguf").output().unwrap();
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/no/such/model.gguf"));
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn every_way_to_decode_gives_the_engines_text() {
    let Some(program) = program("decode.c", &[]) else { return };
    assert_eq!(program.run(), story());
}

#[test]
fn vectors_match_the_embedder() {
    let Some(program) = program("embed.c", &[]) else { return };
    let folder = here(ENCODER);
    let output = succeed(Command::new(&program.path).arg(&folder));
    let printed = String::from_utf8(output.stdout).unwrap();
    let found: Vec<f32> = printed.lines().map(|line| line.parse().unwrap()).collect();
    let options = EmbedOptions { device: DeviceChoice::Cpu, threads: Some(1), ..EmbedOptions::default() };
    let mut embedder = Embedder::new(Arc::new(Model::open(folder).unwrap()), &options).unwrap();
    let mut expected = embedder.encode(&[vec![1, 62, 5, 34, 2].into()]).unwrap();
    akunu::embed::normalise(&mut expected[0]);
    assert_eq!(found, expected[0]);
}

#[test]
fn misuse_gives_errors_with_messages() {
    let Some(program) = program("misuse.c", &[]) else { return };
    program.run();
}

const EMBEDDED: &str = "../akunu/embedded/akunu-tales.gguf";
const ENCODER: &str = "../../testdata/encoders/bert-mean";

#[test]
fn the_log_and_the_progress_of_loading_come_through_callbacks() {
    let Some(program) = program("callbacks.c", &[]) else { return };
    succeed(Command::new(&program.path).args([here(EMBEDDED), here(ENCODER)]));
}

#[test]
fn texts_keep_to_formats_and_have_log_probabilities() {
    let Some(program) = program("held.c", &[]) else { return };
    program.run();
}

#[test]
fn requests_that_share_passes_have_the_texts_of_single_ones() {
    let Some(program) = program("requests.c", &[]) else { return };
    let text = program.run();
    assert!(!text.is_empty() && story().starts_with(&text), "{text}");
}

#[test]
fn samplers_have_the_engines_texts() {
    let Some(program) = program("samplers.c", &[]) else { return };
    let mut engine = engine();
    let encode = EncodeOptions { add_special: true, parse_special: false };
    let prompt = engine.model().tokenizer().unwrap().encode("Once upon a time", encode).unwrap();
    let warm = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
    let dry_breakers = Some(engine.model().breakers(&[" the", " a"]));
    let samplings = [
        warm.clone(),
        Sampling { top_n_sigma: 0.5, ..warm.clone() },
        Sampling { typical_p: 0.3, ..warm.clone() },
        Sampling { xtc_probability: 1.0, ..warm.clone() },
        Sampling { dynatemp_range: 0.9, dynatemp_exponent: 3.0, ..warm.clone() },
        Sampling { dry_multiplier: 50.0, dry_allowed_length: 1, dry_breakers, ..Sampling::default() },
        Sampling { mirostat_tau: 0.5, mirostat_eta: 0.5, ..warm },
    ];
    let line = |sampling| {
        let options = GenerateOptions { max_tokens: Some(TOKENS), sampling, ..Default::default() };
        text(&mut engine, &prompt, &options) + "\n"
    };
    assert_eq!(program.run(), samplings.map(line).concat());
}

const SPEECH: &str = "../../testdata/speech/akunu-speech-q8_0.gguf";
const SHORT: &str = "../../testdata/speech/short.flac";

/// The segments that the engine hears.
fn segments(beams: usize, timestamps: Timestamps) -> Vec<akunu::Segment> {
    let engine = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
    let word_times = timestamps == Timestamps::Word;
    let load = TranscriberOptions { engine, beams, word_times, ..TranscriberOptions::default() };
    let mut transcriber = Transcriber::new(Arc::new(Model::open(here(SPEECH)).unwrap()), &load).unwrap();
    let options = TranscribeOptions { beams, best_of: beams, timestamps, ..TranscribeOptions::default() };
    let audio = Audio::open(&here(SHORT)).unwrap();
    let transcript = transcriber.transcribe(audio, &options, &mut |_| {}).unwrap();
    assert!(transcript.text.len() > 20, "{}", transcript.text);
    transcript.segments
}

#[test]
fn files_and_samples_are_transcribed() {
    let Some(program) = program("transcribe.c", &[]) else { return };
    let output = succeed(Command::new(&program.path).args([SPEECH, SHORT, EMBEDDED].map(here)));
    let segments = segments(1, Timestamps::Word);
    let words: String = segments.iter().flat_map(|segment| &segment.words).map(|word| &*word.text).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), words);
}

#[test]
fn the_transcription_example_prints_the_engines_segments() {
    let Some(program) = Program::new(&here("examples/transcribe.c"), &[]) else { return };
    let output = succeed(Command::new(&program.path).args([SPEECH, SHORT].map(here)));
    let line = |segment: &akunu::Segment| {
        let akunu::Segment { start, end, text, .. } = segment;
        format!("[{start:.2} --> {end:.2}]{text}\n")
    };
    let expected: String = segments(5, Timestamps::Segment).iter().map(line).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    let missing = Command::new(&program.path).arg("/no/such/model.gguf").output().unwrap();
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/no/such/model.gguf"));
    assert_eq!(missing.status.code(), Some(1));
}

#[cfg(unix)]
#[test]
fn an_exception_that_leaves_a_callback_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let Some(program) = program("throws.cpp", &[]) else { return };
    let output = Command::new(&program.path).output().unwrap();
    assert!(output.status.signal().is_some(), "{}", output.status);
    assert_eq!(output.stdout, b"");
}

#[cfg(unix)]
#[test]
fn a_forked_process_gets_errors_instead_of_waiting() {
    let Some(program) = program("fork.c", &[]) else { return };
    program.run();
}

#[test]
fn seeded_chat_in_cpp_matches_the_engine() {
    let Some(program) = program("chat.cpp", &[]) else { return };
    let mut engine = engine();
    let model = engine.model().clone();
    let tokenizer = model.tokenizer().unwrap();
    let templates = ChatTemplates::find(model.metadata(), None).unwrap();
    let template = templates.template(None, &**tokenizer).unwrap();
    let messages = [conversation::message("user", "tell me a story about a fox")];
    let prompt = template.render(&messages, None, true, &Default::default()).unwrap();
    let prompt = prompt.encode(&**tokenizer).unwrap();
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 20,
        repeat_penalty: 1.1,
        repeat_last_n: 32,
        seed: 7,
        ..Sampling::default()
    };
    let options = GenerateOptions { max_tokens: Some(40), sampling, ..Default::default() };
    let answer = text(&mut engine, &prompt, &options);
    assert_eq!(program.run(), format!("{answer}\n{answer}\n"));
}

/// A model that reasons, answers, and calls two tools, in the format of Qwen.
fn tool_caller() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("caller.gguf");
    let template = format!("{}{{# <think> </think> <tool_call> #}}", scripted::CHATML);
    let chain = [
        "\n",
        "<think>",
        "Hmm.",
        "</think>",
        "Let me see.",
        "\n\n<tool_",
        "call>\n{\"name\": \"clock\", \"arguments\": {\"zo",
        "ne\": \"UTC\"}}\n</tool_call>",
        "\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>",
    ];
    scripted::write(&path, Some(&template), &chain);
    (folder, path)
}

#[test]
fn answers_have_reasoning_text_and_tool_calls() {
    let (Some(program), (_folder, path)) = (program("answer.c", &[]), tool_caller()) else { return };
    succeed(Command::new(&program.path).arg(path));
}

#[test]
fn the_chat_example_continues_the_conversation() {
    let Some(program) = Program::new(&here("examples/chat.c"), &[]) else { return };
    let (_folder, path) = tool_caller();
    let mut command = Command::new(&program.path);
    command.arg(path).env("DEVICE", "cpu").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"What \"time\"?\nAnd now?\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("\x1b[2mHmm.\x1b[22mLet me see.").count(), 2, "{text}");
}

#[test]
fn address_sanitizer_finds_nothing() {
    if !has_sanitizer() || left_to_ci() {
        return;
    }
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for name in ["misuse.c", "decode.c", "held.c", "requests.c", "samplers.c"] {
        let Some(program) = program(name, &flags) else { return };
        program.run();
    }
    let Some(callbacks) = program("callbacks.c", &flags) else { return };
    succeed(Command::new(&callbacks.path).args([here(EMBEDDED), here(ENCODER)]));
    let Some(transcribe) = program("transcribe.c", &flags) else { return };
    succeed(Command::new(&transcribe.path).args([SPEECH, SHORT, EMBEDDED].map(here)));
    let (Some(program), (_folder, path)) = (program("answer.c", &flags), tool_caller()) else { return };
    succeed(Command::new(&program.path).arg(path));
}

/// Whether the compiler has the sanitizer's runtime library.
fn has_sanitizer() -> bool {
    let Some(compiler) = tool("CC", "cc") else { return false };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("probe.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut command = Command::new(compiler);
    command.arg("-fsanitize=address,undefined").arg(&source).arg("-o").arg(folder.path().join("probe"));
    let has = command.output().unwrap().status.success();
    if !has {
        eprintln!("SKIPPED: the compiler has no AddressSanitizer");
    }
    has
}

/// It takes as long as all other programs together, and the sanitizer of addresses finds most of the same.
#[test]
fn valgrind_finds_nothing() {
    if cases() <= Cases::Few {
        return;
    }
    let (Some(valgrind), Some(program)) = (tool("VALGRIND", "valgrind"), program("misuse.c", &[])) else {
        return;
    };
    let mut command = Command::new(valgrind);
    command.env("ONE_THREAD", "1");
    command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    succeed(command.arg(&program.path));
}

#[test]
fn python_generates_the_engines_text() {
    let Some(python) = tool("PYTHON", "python3") else { return };
    // The first has the structs of an older version.
    for program in ["story.py", "requests.py"] {
        let program = here("tests/programs").join(program);
        let output = succeed(Command::new(&python).arg(program).arg(shared()));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), story());
    }
}

#[test]
fn the_documentation_contains_the_examples() {
    let read = |path| std::fs::read_to_string(here(path)).unwrap();
    assert!(read("../../docs/capi.md").contains(&read("examples/story.c")));
    assert!(read("../../docs/capi-generation.md").contains("examples/chat.c"));
    assert!(read("../../docs/capi-generation.md").contains("examples/transcribe.c"));
}

#[test]
fn the_static_library_works() {
    if !cfg!(target_os = "linux") {
        return eprintln!("SKIPPED: the libraries required by the static library are known for Linux only");
    }
    let archives =
        std::fs::read_dir(libraries()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libakunu_capi") && name.ends_with(".a")
        });
    // Cargo keeps older ones.
    let archive = archives.max_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    let archive = archive.expect("the static library was not built").display().to_string();
    let link = [&archive, "-ldl", "-lm"].map(str::to_string);
    let Some(program) = Program::linked(&here("examples/story.c"), &[], &link) else { return };
    let tokens = TOKENS.to_string();
    let output = succeed(Command::new(&program.path).args(["-", "Once upon a time", &tokens]));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), story());
}

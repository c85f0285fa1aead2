//! Models with an encoder of audio, as far as they can be used without one: seen, planned, compared, converted.

use akunu_format::blocks::{dequantize_row, quantize_row};
use akunu_format::{DType, Ggml, Loading, TensorInfo};

use serde_json::Value;

use super::common::{file, json, ok, path, refuses, run};

const WHISPER_CPP: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/whisper/whisper-128-turbo.bin");

fn whisper(test: &str) -> Option<String> {
    akunu_testing::data(test, "golden/tiny_whisper.safetensors").map(|path| path.display().to_string())
}

#[test]
fn both_towers_are_planned_and_agree_with_the_reference() {
    let Some(model) = whisper("both_towers_are_planned_and_agree_with_the_reference") else { return };
    let report = json(&["verify", &model, "--device", "cpu", "--tokens", "8", "-c", "12", "--all", "--json"]);
    let outputs = report["differences"].as_array().expect("all outputs").iter();
    let of = |table: &str| outputs.clone().filter(|output| output["table"] == table).count();
    assert!(of("encode") > 30 && of("decode") > 30 && of("align") > of("decode"), "{report}");
    assert!(json(&["plan", &model, "--json"])["memory"]["kv"].as_u64() > Some(0));
}

#[test]
fn a_plan_has_the_windows_and_texts_that_are_asked_for() {
    let model = file("testdata/speech/akunu-speech-q8_0.gguf");
    let plan = |more: &[&str]| json(&[&["plan", path(&model), "--device", "cpu", "--json"], more].concat());
    let alone = plan(&["--beam", "1"]);
    let (usual, many) = (plan(&[]), plan(&["--batch", "2", "--beam", "3", "--word-times"]));
    let kv = |plan: &Value| plan["memory"]["kv"].as_u64().unwrap();
    for (plan, windows, beams) in [(&alone, 1, 1), (&usual, 1, 5), (&many, 2, 3)] {
        assert_eq!((plan["windows"].as_u64(), plan["beams"].as_u64()), (Some(windows), Some(beams)));
        // The keys of a window are there once for all its texts.
        let of_text = (kv(&usual) - kv(&alone)) / 4;
        assert_eq!(kv(plan), windows * (kv(&alone) - of_text) + windows * beams * of_text);
    }
    let shown = ok(&["plan", path(&model), "--batch", "2"]);
    assert!(shown.contains("2 windows at once, 5 texts of each"), "{shown}");
    refuses(&["plan", path(&model), "-c", "100"], 2, &["context of its windows", "leave out -c"]);
    refuses(&["plan", path(&model), "--beam", "65"], 1, &["number of beams", "from 1 to 64"]);
    refuses(&["plan", "--word-times"], 2, &["does not transcribe", "--word-times"]);
}

#[test]
fn a_converted_model_is_the_same() {
    let Some(model) = whisper("a_converted_model_is_the_same") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("whisper.gguf");
    ok(&["quantize", &model, path(&out), "--type", "F32", "--no-vocab"]);
    ok(&["verify", path(&out), "--device", "cpu", "--tokens", "8", "-c", "12"]);
    let [before, after] = [model.as_str(), path(&out)].map(|model| json(&["inspect", model, "--json"]));
    assert_eq!(before["parameters"], after["parameters"]);
}

/// With its vocabulary, which the new file has too.
#[test]
fn a_file_of_whisper_cpp_is_used_and_converted() {
    let model = WHISPER_CPP;
    let folder = tempfile::tempdir().expect("a folder");
    for kind in ["F32", "Q5_0"] {
        let out = folder.path().join(format!("{kind}.gguf"));
        ok(&["quantize", model, path(&out), "--type", kind]);
        ok(&["verify", path(&out), "--device", "cpu", "--tokens", "8", "-c", "12"]);
        let [before, after] = [model, path(&out)].map(|model| json(&["inspect", model, "--json"]));
        assert_eq!((before["format"].as_str(), after["format"].as_str()), (Some("GGML"), Some("GGUF")));
        assert_eq!(before["parameters"], after["parameters"]);
        let text = "A<|startoftranscript|>10";
        let [before, after] =
            [model, path(&out)].map(|model| json(&["tokenize", model, "-p", text, "--json"]));
        assert_eq!(before, after);
    }
    let report = json(&["verify", model, "--device", "cpu", "--tokens", "8", "-c", "12", "--all", "--json"]);
    assert!(report["differences"].as_array().is_some_and(|all| all.len() > 60), "{report}");
    assert!(json(&["plan", model, "--json"])["memory"]["kv"].as_u64() > Some(0));
}

/// The file with its matrices in another type, as whisper.cpp's own program quantises them.
fn quantised(dtype: DType) -> Vec<u8> {
    let ggml = Ggml::load(WHISPER_CPP.as_ref(), Loading::Map).expect("a file");
    let number = |value: usize| (value as u32).to_le_bytes();
    let header = |tensor: &TensorInfo| 12 + 4 * tensor.shape.len() + tensor.name.len();
    let start = ggml.tensors()[0].offset - header(&ggml.tensors()[0]);
    let mut out = ggml.region().bytes()[..start].to_vec();
    // The type of the file, with the version of its blocks.
    out[44..48].copy_from_slice(&number(2000));
    for tensor in ggml.tensors() {
        let bytes = ggml.tensor_bytes(tensor);
        let keep = tensor.shape.len() != 2 || tensor.dtype == DType::F32;
        let dtype = if keep { tensor.dtype } else { dtype };
        out.extend([tensor.shape.len(), tensor.name.len()].map(number).concat());
        out.extend(dtype.gguf_id().expect("a type of GGUF").to_le_bytes());
        tensor.shape.iter().rev().for_each(|n| out.extend(number(*n)));
        out.extend(tensor.name.as_bytes());
        if keep {
            out.extend(bytes);
            continue;
        }
        let mut row = vec![0.0; tensor.cols()];
        let mut blocks = vec![0; dtype.row_bytes(tensor.cols()).expect("whole blocks")];
        for stored in bytes.chunks(bytes.len() / tensor.rows()) {
            dequantize_row(tensor.dtype, stored, &mut row).expect("a row");
            quantize_row(dtype, &row, None, &mut blocks).expect("a row");
            out.extend(&blocks);
        }
    }
    out
}

/// Blocks are used where they are mapped, at addresses that are not aligned.
#[test]
fn quantised_files_of_whisper_cpp_agree_with_the_reference() {
    let folder = tempfile::tempdir().expect("a folder");
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0] {
        let file = folder.path().join(format!("{dtype}.bin"));
        std::fs::write(&file, quantised(dtype)).expect("a file");
        let dtypes = &json(&["inspect", path(&file), "--json"])["dtypes"];
        assert!(dtypes[dtype.name()]["tensors"].as_u64() > Some(20), "{dtypes}");
        ok(&["verify", path(&file), "--device", "cpu", "--tokens", "8", "-c", "12"]);
    }
}

#[test]
fn texts_are_refused() {
    let Some(model) = whisper("texts_are_refused") else { return };
    refuses(&["run", &model, "--prompt-ids", "1,2"], 1, &["transcribes audio"]);
    refuses(&["embed", &model, "--ids", "1,2", "--pooling", "mean"], 1, &["transcribes audio"]);
}

const SPEECH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/speech");

fn speech(file: &str) -> String {
    format!("{SPEECH}/{file}")
}

fn model() -> String {
    speech("akunu-speech-q8_0.gguf")
}

#[test]
fn speech_is_transcribed_in_each_format() {
    let (model, short) = (model(), speech("short.flac"));
    let transcribe = |options: &[&str]| ok(&[&["transcribe", &model, &short, "-l", "en"], options].concat());
    let plain = transcribe(&[]);
    assert_eq!(plain.lines().count(), 2, "{plain}");
    let timed = transcribe(&["--timestamps", "segment"]);
    assert!(timed.starts_with("[00:00.") && timed.contains(" --> 00:0"), "{timed}");
    let srt = transcribe(&["--format", "srt"]);
    assert!(srt.starts_with("1\n00:00:00,") && srt.contains("\n\n2\n00:00:0"), "{srt}");
    assert!(transcribe(&["--format", "vtt"]).starts_with("WEBVTT\n\n00:00."));
    let simple: serde_json::Value = serde_json::from_str(&transcribe(&["--format", "json"])).expect("JSON");
    let whole: serde_json::Value =
        serde_json::from_str(&transcribe(&["--json", "--timestamps", "word"])).expect("JSON");
    assert_eq!(simple["text"], whole["text"]);
    assert_eq!((&whole["language"], &whole["task"]), (&"en".into(), &"transcribe".into()));
    assert!(
        whole["segments"].as_array().expect("segments").len() == 2
            && whole["words"][12]["end"].as_f64() < Some(5.0)
    );
    let lines: Vec<&str> = plain.lines().collect();
    assert_eq!(whole["text"], lines.join(" "));
}

#[test]
fn several_files_go_to_a_folder_and_one_to_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = speech("missing.mp3");
    let (short, silence, model) = (speech("short.flac"), speech("silence.flac"), model());
    let out = path(folder.path());
    refuses(
        &[
            "transcribe",
            &model,
            &short,
            &missing,
            &silence,
            "-l",
            "en",
            "-o",
            out,
            "--format",
            "vtt",
            "--beam",
            "1",
        ],
        1,
        &["missing.mp3: "],
    );
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a transcript");
    assert_eq!(read("silence.vtt"), "WEBVTT\n\n");
    assert!(read("short.vtt").lines().count() > 5);
    assert!(!folder.path().join("missing.vtt").exists());
    let file = folder.path().join("one.txt");
    assert_eq!(ok(&["transcribe", &model, &short, "-l", "en", "-o", path(&file), "--beam", "1"]), "");
    assert_eq!(read("one.txt").lines().count(), 2);
    refuses(&["transcribe", &model, &short, &short, "-o", path(&file)], 2, &["is not a folder"]);
}

#[test]
fn no_file_is_replaced_without_being_meant() {
    let (model, folder) = (model(), tempfile::tempdir().expect("a folder"));
    let copy = |name: &str| {
        let file = folder.path().join(name);
        std::fs::copy(speech("short.flac"), &file).expect("copied");
        path(&file).to_string()
    };
    let (first, second) = (copy("v1.0.flac"), copy("v1.1.flac"));
    refuses(&["transcribe", &model, &first, "-o", &first], 2, &["is an input"]);
    std::fs::create_dir(folder.path().join("other")).expect("a folder");
    let same = copy("other/v1.0.flac");
    let out = folder.path().join("out");
    std::fs::create_dir(&out).expect("a folder");
    refuses(&["transcribe", &model, &first, &same, "-o", path(&out)], 2, &["the transcripts of two files"]);
    ok(&["transcribe", &model, &first, &second, "-l", "en", "--beam", "1", "-o", path(&out)]);
    assert!(out.join("v1.0.txt").is_file() && out.join("v1.1.txt").is_file());
    refuses(&["transcribe", &model, &first, &second, "--format", "vtt"], 2, &["need a folder"]);
}

/// As ffmpeg writes 32 channels, and a WAV file into a pipe.
#[test]
fn headers_of_wav_files_are_read_with_care() {
    let (model, folder) = (model(), tempfile::tempdir().expect("a folder"));
    let header = |channels: u16, size: u32| {
        let mut bytes = b"RIFF".to_vec();
        bytes.extend(size.to_le_bytes());
        bytes.extend(b"WAVEfmt ");
        bytes.extend(40u32.to_le_bytes());
        bytes.extend(0xfffeu16.to_le_bytes());
        bytes.extend(channels.to_le_bytes());
        bytes.extend(16_000u32.to_le_bytes());
        bytes.extend((32_000 * u32::from(channels)).to_le_bytes());
        bytes.extend((2 * channels).to_le_bytes());
        bytes.extend([16, 0, 22, 0, 16, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        bytes.extend([0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71]);
        bytes.extend(b"data");
        bytes.extend(size.to_le_bytes());
        bytes.extend(vec![0; 64_000]);
        bytes
    };
    let many = folder.path().join("many.wav");
    std::fs::write(&many, header(32, 64_000)).expect("written");
    refuses(&["transcribe", &model, path(&many)], 1, &["it has 32 channels"]);
    let piped = folder.path().join("piped.wav");
    std::fs::write(&piped, header(1, u32::MAX)).expect("written");
    let found = run(&["transcribe", &model, path(&piped)]);
    assert_eq!((found.code, found.stderr.contains("ends early")), (0, false), "{}", found.stderr);
}

#[test]
fn what_cannot_be_transcribed_is_one_clear_line() {
    let (model, short) = (model(), speech("short.flac"));
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).expect("writable");
        path(&file).to_string()
    };
    let (empty, text) = (write("empty.wav", b""), write("text.mp3", &b"This is not music. ".repeat(500)));
    refuses(&["transcribe", &model, &empty], 1, &["empty"]);
    refuses(&["transcribe", &model, &text], 1, &["error: "]);
    refuses(&["transcribe", &model], 2, &["no audio file"]);
    refuses(&["transcribe", &model, &short, "-l", "klingon"], 1, &["klingon", "en, de"]);
    refuses(&["transcribe", &model, &short, "--temperature", "11"], 2, &["from 0 to 10"]);
    refuses(&["transcribe", &model, &short, "--pcm", "16000:1:i9"], 2, &["RATE[:CHANNELS[:FORMAT]]"]);
    refuses(&["transcribe", &model, &short, "--pcm", "16000:0"], 1, &["channels"]);
    refuses(&["logits", &model, "--ids", "1025"], 2, &["--audio FILE"]);
    refuses(&["logits", &model, "--ids", "99999", "--audio", &short], 1, &["outside the vocabulary"]);
    let embedded = ok(&["logits", &model, "--ids", "1025,1026", "--audio", &short, "--json", "--all"]);
    let logits: serde_json::Value = serde_json::from_str(&embedded).expect("JSON");
    assert_eq!(logits["logits"].as_array().map(Vec::len), Some(2));
}

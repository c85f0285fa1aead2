//! Runs the binary, and creates test models.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use akunu_format::blocks::{Rng, random_row};
use akunu_format::{DType, GgufWriter, Metadata, TensorSpec, Value};

pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn akunu(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_akunu"));
    // Output to a pipe has no width limit, whatever terminal the tests run in.
    command.args(args).env_remove("COLUMNS").stdin(Stdio::null());
    command
}

/// A file of the repository.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

pub fn finish(mut command: Command) -> Done {
    let output = command.output().expect("the binary starts");
    let done = Done {
        code: output.status.code().expect("no signal ended it"),
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
    };
    assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
    done
}

pub fn run(args: &[&str]) -> Done {
    finish(akunu(args))
}

/// The stdout of a successful run.
pub fn ok(args: &[&str]) -> String {
    let done = run(args);
    assert_eq!(done.code, 0, "{args:?}: {}", done.stderr);
    done.stdout
}

pub fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(args)).expect("stdout is JSON")
}

pub fn with_stdin(args: &[&str], stdin: &[u8]) -> Done {
    let mut command = akunu(args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(stdin).expect("stdin is read");
    let output = child.wait_with_output().expect("it ends");
    Done {
        code: output.status.code().expect("no signal ended it"),
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
    }
}

/// Checks a failing run: the exit code, and words in stderr; the first line is the error.
pub fn refuses(args: &[&str], code: i32, words: &[&str]) -> Done {
    let done = run(args);
    assert_eq!(done.code, code, "{args:?}: {}", done.stderr);
    assert!(done.stderr.starts_with("error: ") || done.stderr.contains("\nerror: "), "{}", done.stderr);
    for word in words {
        assert!(done.stderr.contains(word), "{args:?} should say {word:?}: {}", done.stderr);
    }
    done
}

pub fn path(path: &Path) -> &str {
    path.to_str().expect("a temporary path is UTF-8")
}

/// A small model with 16 embeddings, without a vocabulary unless `change` adds one; the first weight of the tensor
/// named `broken` is NaN.
pub fn write_small_model(path: &Path, change: impl FnOnce(&mut Metadata), broken: Option<&str>) {
    const HIDDEN: usize = 32;
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String("llama".into()));
    for (key, value) in [
        ("context_length", 64),
        ("embedding_length", HIDDEN as u32),
        ("block_count", 1),
        ("feed_forward_length", HIDDEN as u32),
        ("attention.head_count", 1),
        ("attention.head_count_kv", 1),
    ] {
        metadata.insert(format!("llama.{key}"), Value::U32(value));
    }
    metadata.insert("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    change(&mut metadata);
    let square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let mut specs = vec![TensorSpec::new("token_embd.weight", DType::F32, [16, HIDDEN])];
    specs.extend(square.map(|n| TensorSpec::new(format!("blk.0.{n}.weight"), DType::F32, [HIDDEN, HIDDEN])));
    for norm in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        specs.push(TensorSpec::new(format!("{norm}.weight"), DType::F32, [HIDDEN]));
    }
    let file = std::fs::File::create(path).unwrap();
    let mut writer = GgufWriter::new(file, &metadata, specs.clone()).unwrap();
    for spec in &specs {
        let mut bytes = vec![0; spec.bytes().unwrap()];
        random_row(DType::F32, &mut Rng::new(1), 0.1, &mut bytes).unwrap();
        if Some(spec.name.as_str()) == broken {
            bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        writer.tensor(|out| out.write_all(&bytes)).unwrap();
    }
    writer.finish().unwrap();
}

//! Tests `akunu serve` with the official clients of its APIs.
//!
//! They are installed under the target folder; those that are unavailable are skipped with a message.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::{built_program, cargo, root, run, skipped, succeeds, target};

const SCRIPTS: &str = "xtask/clients";
/// Lists of packages that cannot be installed together, and the scripts that need them.
const PYTHON: [(&str, &[&str]); 3] = [
    (
        "requirements.txt",
        &[
            "openai_test.py",
            "anthropic_test.py",
            "ollama_test.py",
            "embeddings_test.py",
            "rerank_test.py",
            "audio_test.py",
            "families_test.py",
        ],
    ),
    ("frameworks.txt", &["frameworks_test.py"]),
    ("llamaindex.txt", &["llamaindex_test.py"]),
];
const NODE: &str = "openai.test.mjs";
const KEY: &str = "sesame";
/// The name of the embedded model.
const MODEL: &str = "akunu-tales";
const SPEECH_MODEL: &str = "testdata/speech/akunu-speech-q8_0.gguf";
/// Models that call a tool, and the families whose form of calls they have.
const FAMILIES: [(&str, &str); 4] =
    [("caller", "hermes"), ("harmony", "harmony"), ("mistral", "mistral"), ("llama", "llama")];
/// Embedding models and rerankers: their names in the scripts, and the source of their weights.
const TEXT_MODELS: [(&str, &str); 2] = [("words", "bert-mean"), ("judge", "bert-cross-encoder")];
/// The vocabulary of both, which the source lacks.
const VOCABULARY: &str = "words.json";

pub(crate) fn clients() -> Result<()> {
    let pythons = PYTHON.map(|(packages, scripts)| (python(packages), scripts));
    let node = node();
    if let (Err(python), Err(node)) = (&pythons[0].0, &node) {
        skipped("official clients", &format!("{python}; {node}"));
        return Ok(());
    }
    // Same arguments as for the tests, so that nothing is built again after these.
    run(&mut cargo(&["test", "--workspace", "--locked", "--no-run"]))?;
    let akunu = target().join("debug").join(format!("akunu{}", env::consts::EXE_SUFFIX));
    let open = Server::start(Command::new(&akunu).env_remove("AKUNU_API_KEY"), &[])?;
    let one_at_a_time = ["--parallel", "1", "--queue", "1"].map(PathBuf::from);
    let locked = Server::start(Command::new(&akunu).env("AKUNU_API_KEY", KEY), &one_at_a_time)?;
    let mut models = text_models()?;
    let words = models[0].clone();
    models.push(root().join(SPEECH_MODEL));
    let minilm = root().join("../shared/data/minilm");
    match minilm.is_dir() {
        true => models.push(minilm.clone()),
        false => skipped("embeddings of real text", "../shared/data/minilm is not there"),
    }
    let callers = FAMILIES.map(caller_of).into_iter().collect::<Result<Vec<_>>>()?;
    let caller = Server::start(Command::new(&akunu).env_remove("AKUNU_API_KEY"), &callers)?;
    let texts = Server::start(Command::new(&akunu).env_remove("AKUNU_API_KEY"), &models)?;
    let test = |command: &mut Command| {
        command.env("AKUNU_URL", &open.url).env("AKUNU_LOCKED_URL", &locked.url);
        command.env("AKUNU_CALLER_URL", &caller.url);
        command.env("AKUNU_TEXTS_URL", &texts.url).env("AKUNU", &akunu).env("AKUNU_WORDS", &words);
        command.env("AKUNU_KEY", KEY).env("AKUNU_MODEL", MODEL);
        if minilm.is_dir() {
            command.env("AKUNU_MINILM", minilm.join("minilm_embeddings_hf_f64.json"));
        }
        // Otherwise clients would send local requests to a proxy.
        command.env("NO_PROXY", "*").env("no_proxy", "*");
        let description = root().join("../shared/data/openai/openapi.json");
        match description.is_file() {
            true => drop(command.env("AKUNU_OPENAPI", description)),
            false => skipped("OpenAI's schema of responses", "../shared/data/openai is not there"),
        }
        run(command)
    };
    for (python, scripts) in pythons {
        match python {
            Ok(python) => {
                for script in scripts {
                    say!("clients: {script}");
                    let script = Path::new(SCRIPTS).join(script);
                    test(python_command(&python).args(["-W", "ignore"]).arg(script))?;
                }
            }
            Err(missing) => skipped(&scripts.join(", "), &missing),
        }
    }
    match node {
        Ok(folder) => {
            say!("clients: {NODE}");
            let script = folder.join(NODE);
            fs::copy(root().join(SCRIPTS).join(NODE), &script)?;
            test(Command::new("node").arg("--test").arg(script))?;
        }
        Err(missing) => skipped("Node's client", &missing),
    }
    Ok(())
}

/// The folders of the small embedding models and rerankers.
fn text_models() -> Result<Vec<PathBuf>> {
    let folder = |(name, weights): &(&str, &str)| {
        let (from, to) =
            (root().join("testdata/encoders").join(weights), target().join("clients").join(name));
        fs::create_dir_all(&to)?;
        for part in ["config.json", "model.safetensors"] {
            fs::copy(from.join(part), to.join(part))?;
        }
        fs::copy(root().join(SCRIPTS).join(VOCABULARY), to.join("tokenizer.json"))?;
        Ok(to)
    };
    TEXT_MODELS.iter().map(folder).collect()
}

/// The model that calls a tool.
pub(crate) fn caller_model() -> Result<PathBuf> {
    caller_of(FAMILIES[0])
}

/// A model of this name that calls a tool as a family writes it.
fn caller_of((name, family): (&str, &str)) -> Result<PathBuf> {
    let model = target().join("clients").join(name).with_extension("gguf");
    fs::create_dir_all(target().join("clients"))?;
    let program = format!("debug/examples/scripted_model{}", env::consts::EXE_SUFFIX);
    run(Command::new(target().join(program)).arg(&model).args(["clock", "{\"zone\": \"UTC\"}", family]))?;
    Ok(model)
}

/// An `akunu serve` process, which ends when this is dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Without models in its arguments, it serves the embedded model.
    fn start(akunu: &mut Command, args: &[PathBuf]) -> Result<Server> {
        let command = akunu.args(["serve", "--port", "0"]).args(args).stderr(Stdio::piped());
        let child = command.spawn().context("cannot start akunu")?;
        let mut server = Server { child, url: String::new() };
        let Some(stderr) = server.child.stderr.take() else { bail!("no pipe") };
        let mut lines = BufReader::new(stderr).lines();
        for line in lines.by_ref() {
            let line = line?;
            if let Some(at) = line.find("http://") {
                server.url = line[at..].split_whitespace().next().unwrap_or_default().to_string();
                break;
            }
        }
        if server.url.is_empty() {
            bail!("akunu serve does not print its address");
        }
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| say!("akunu serve: {line}")));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python with the packages of a list.
pub(crate) fn python(packages: &str) -> Result<PathBuf, String> {
    let folder = target().join("clients/python").join(packages.trim_end_matches(".txt"));
    python_with(&root().join(SCRIPTS).join(packages), &folder)
}

/// A Python in a folder of its own, with the packages of a list. `overrides.txt` beside it has other requirements in the
/// place of packages' own.
pub(crate) fn python_with(wanted: &Path, folder: &Path) -> Result<PathBuf, String> {
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    brought(folder, wanted, || {
        let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(folder).status();
        made.is_ok_and(|made| made.success())
            && installer(&python).is_ok_and(|mut install| {
                let overrides = wanted.with_file_name("overrides.txt");
                if overrides.is_file() {
                    install.arg("--overrides").arg(overrides);
                }
                install.arg("-r").arg(wanted).status().is_ok_and(|done| done.success())
            })
    })
    .map_err(|()| "`python3 -m venv`, uv or their registry is missing".to_string())?;
    Ok(python)
}

/// Installs into the folder of a Python with uv, which takes a tenth of pip's time and compiles nothing: most of what is
/// installed is never imported. What several lists have is downloaded once.
pub(crate) fn installer(python: &Path) -> Result<Command> {
    let mut uv = built_program("uv", true)?.context("uv is missing")?;
    uv.args(["pip", "install", "--quiet", "--cache-dir"]).arg(target().join("uv-cache"));
    uv.arg("--python").arg(python);
    Ok(uv)
}

/// Runs a Python that writes what it compiles into the target folder, for the next script.
pub(crate) fn python_command(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.env("PYTHONPYCACHEPREFIX", target().join("clients/pycache"));
    command
}

fn node() -> Result<PathBuf, String> {
    npm(&root().join(SCRIPTS).join("package.json"), target().join("clients/node"))
}

/// A folder with the packages in a `package.json`.
pub(crate) fn npm(wanted: &Path, folder: PathBuf) -> Result<PathBuf, String> {
    let prefix = folder.display().to_string();
    brought(&folder, wanted, || {
        succeeds(&["node", "--version"])
            && fs::copy(wanted, folder.join("package.json")).is_ok()
            && succeeds(&["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", &prefix])
    })
    .map_err(|()| "node or npm with its registry is missing".to_string())?;
    Ok(folder)
}

/// Installs the packages of a list into a folder, once per list.
fn brought(folder: &Path, wanted: &Path, bring: impl FnOnce() -> bool) -> Result<(), ()> {
    let wanted = fs::read_to_string(wanted).map_err(drop)?;
    let there = folder.join("brought");
    if fs::read_to_string(&there).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(drop)?;
    if !bring() {
        return Err(());
    }
    fs::write(there, wanted).map_err(drop)
}

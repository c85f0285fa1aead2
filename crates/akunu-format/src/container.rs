//! Detects the container format of a path, by content and not by file name.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{FormatError, ggml, gguf, hf};

/// The supported container formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A GGUF file, or any part of a split one.
    Gguf,
    /// A SafeTensors file, or a Hugging Face folder.
    SafeTensors,
    /// A file of whisper.cpp.
    Ggml,
}

impl Container {
    /// The format of the model at a path. Anything else is rejected with advice.
    pub fn of(path: &Path) -> Result<Container, FormatError> {
        let about = std::fs::metadata(path).map_err(|error| FormatError::io("open it", error, path))?;
        if about.is_dir() {
            return if path.join(hf::CONFIG).is_file() {
                Ok(Container::SafeTensors)
            } else {
                Err(no_config(path))
            };
        }
        if !about.is_file() {
            let advice = "Give a file or a folder.";
            return Err(not_a_model("neither a file nor a folder", advice).in_file(path));
        }
        recognise(&first_bytes(path)?, about.len()).map_err(|error| error.in_file(path))
    }
}

const PREFIX_LEN: usize = 64;

fn first_bytes(path: &Path) -> Result<Vec<u8>, FormatError> {
    let file = File::open(path).map_err(|error| FormatError::io("open it", error, path))?;
    let mut bytes = Vec::with_capacity(PREFIX_LEN);
    file.take(PREFIX_LEN as u64)
        .read_to_end(&mut bytes)
        .map_err(|error| FormatError::io("read it", error, path))?;
    Ok(bytes)
}

fn not_a_model(found: &str, advice: &str) -> FormatError {
    FormatError::NotAModel { found: found.to_string(), advice: advice.to_string() }
}

/// Files that users confuse with models: (first bytes, description, advice).
const OTHER_FILES: [(&[u8], &str, &str); 12] = [
    (b"PK\x03\x04", "a zip archive, as PyTorch writes weights", SAVE_AS_SAFETENSORS),
    (b"\x80\x02", "a Python pickle, as PyTorch writes weights", SAVE_AS_SAFETENSORS),
    (b"\x80\x03", "a Python pickle, as PyTorch writes weights", SAVE_AS_SAFETENSORS),
    (b"\x80\x04", "a Python pickle, as PyTorch writes weights", SAVE_AS_SAFETENSORS),
    (b"\x80\x05", "a Python pickle, as PyTorch writes weights", SAVE_AS_SAFETENSORS),
    (b"lmgg", "a GGML file, from before GGUF", TAKE_GGUF),
    (b"fmgg", "a GGMF file, from before GGUF", TAKE_GGUF),
    (b"tjgg", "a GGJT file, from before GGUF", TAKE_GGUF),
    (b"algg", "a GGLA adapter, from before GGUF", TAKE_GGUF),
    (b"version https://git-lfs", "a Git LFS pointer", "Run `git lfs pull` to get the file itself."),
    (b"{", "a JSON file", "Give its folder, or the file with the weights."),
    (b"<", "a web page", "The download went wrong: download the file again."),
];

const SAVE_AS_SAFETENSORS: &str =
    "Save the model as SafeTensors (transformers' save_pretrained does), or take a GGUF file of it.";
const TAKE_GGUF: &str = "Take a GGUF file of the model.";

fn recognise(first: &[u8], len: u64) -> Result<Container, FormatError> {
    if first.is_empty() {
        return Err(not_a_model("an empty file", "Download it again."));
    }
    if first.starts_with(&gguf::MAGIC) {
        return Ok(Container::Gguf);
    }
    // The length of a SafeTensors header, then its opening brace.
    if let Some((length, rest)) = first.split_first_chunk::<8>()
        && rest.first() == Some(&b'{')
        && u64::from_le_bytes(*length) <= len
    {
        return Ok(Container::SafeTensors);
    }
    if ggml::is_whisper(first) {
        return Ok(Container::Ggml);
    }
    for (beginning, found, advice) in OTHER_FILES {
        if first.starts_with(beginning) {
            return Err(not_a_model(found, advice));
        }
    }
    let what = if is_text(first) { "a text file" } else { "a file of an unknown kind" };
    let found = format!("{what} (it begins with “{}”)", first[..first.len().min(8)].escape_ascii());
    let advice = "Give a GGUF file, or a Hugging Face folder with config.json and SafeTensors.";
    Err(not_a_model(&found, advice))
}

/// Whether the bytes are the beginning of a text, which may be cut within a character.
fn is_text(first: &[u8]) -> bool {
    let text = match std::str::from_utf8(first) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&first[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'))
}

/// A folder that is not a checkpoint often contains the model file that was meant.
fn no_config(folder: &Path) -> FormatError {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return FormatError::io("list it", error, folder),
    };
    let mut files: Vec<_> = entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).collect();
    files.sort();
    let ends = |path: &Path, ending: &str| path.extension().is_some_and(|e| e == ending);
    let weights = |path: &&PathBuf| ends(path, "safetensors");
    let runs = |path: &&PathBuf| ends(path, "gguf") || weights(path) && hf::config_beside(path).is_ok();
    let found = if files.is_empty() { "an empty folder" } else { "a folder without config.json" };
    let advice = if let Some(file) = files.iter().find(runs) {
        format!("Give a file in it, such as {}.", file.display())
    } else if files.iter().any(|path| weights(&path)) {
        "Put the config.json and the tokenizer.json that were published with its weights into it.".to_string()
    } else if hf::holds_pytorch(folder) {
        hf::ONLY_PYTORCH.to_string()
    } else {
        "A Hugging Face folder has config.json and model.safetensors in it.".to_string()
    };
    not_a_model(found, &advice).in_file(folder)
}

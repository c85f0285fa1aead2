//! Errors in model files, with a remedy in each message.

use std::path::{Path, PathBuf};

const GIB: f64 = (1u64 << 30) as f64;

/// The displayed text is complete and includes the causes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Any other error, with the file in which it was found.
    #[error("{}: {error}", path.display())]
    InFile { path: PathBuf, error: Box<FormatError> },

    #[error("cannot {action}: {error}")]
    Io { action: &'static str, error: std::io::Error },

    /// A file that is to be read is larger than the available memory.
    #[error(
        "the file has {:.1} GiB, but only {:.1} GiB of memory are available; without --no-mmap it is mapped and read \
         as it is used", *bytes as f64 / GIB, *available as f64 / GIB
    )]
    NoMemory { bytes: u64, available: u64 },

    /// The path is not a model.
    #[error("this is {found}, not a model that can be run. {advice}")]
    NotAModel { found: String, advice: String },

    #[error(
        "the file ends inside {what}: {need} bytes needed, {have} left. It is cut short or damaged: download it again"
    )]
    Truncated { what: String, need: u64, have: u64 },

    #[error("big-endian GGUF is not supported: convert the file with gguf-py's gguf_convert_endian")]
    BigEndian,

    #[error("GGUF version {version} is not supported (2 and 3 are): convert the original model again")]
    Version { version: u32 },

    /// The container itself is malformed, before any key or tensor.
    #[error("damaged header: {problem}")]
    Header { problem: String },

    #[error("metadata key `{key}`: {problem}")]
    Key { key: String, problem: String },

    #[error("key `{key}` should be {wanted}, but is {found}")]
    WrongType { key: String, wanted: &'static str, found: String },

    #[error("`{key}` is missing from the {place}: {}", remedy(place))]
    MissingKey { key: String, place: &'static str },

    #[error("tensor {name}: {problem}")]
    Tensor { name: String, problem: String },

    /// An element type, known or unknown, that has no kernels here.
    #[error("tensor {name} is {type_name}, which is not supported: take a file in {supported}")]
    TensorType { name: String, type_name: String, supported: &'static str },

    #[error(
        "tensor {name} is not part of the {architecture} architecture: this variant is not supported yet"
    )]
    UnknownTensor { name: String, architecture: String },

    #[error("tensor {name} is missing: this file cannot be run, convert the original model again")]
    MissingTensor { name: String },

    /// A part of a split model is missing or belongs to another model.
    #[error("split model: {problem}")]
    Split { problem: String },

    /// A value of the configuration is invalid.
    #[error("{key} in the {place}: {problem}")]
    Config { key: String, place: &'static str, problem: String },

    /// The file is valid but requires something that the engine does not support.
    #[error("`{key}` {asks}, which is not supported")]
    Unsupported { key: String, asks: String },

    #[error("this is no usable importance matrix: {problem}")]
    Imatrix { problem: String },

    #[error("{0}")]
    Row(#[from] crate::blocks::RowError),
}

impl FormatError {
    pub fn in_file(self, path: &Path) -> FormatError {
        match self {
            FormatError::InFile { .. } => self,
            other => FormatError::InFile { path: path.to_path_buf(), error: Box::new(other) },
        }
    }

    pub fn io(action: &'static str, error: std::io::Error, path: &Path) -> FormatError {
        FormatError::Io { action, error }.in_file(path)
    }

    pub fn header(problem: impl Into<String>) -> FormatError {
        FormatError::Header { problem: problem.into() }
    }

    pub fn key(key: &str, problem: impl Into<String>) -> FormatError {
        FormatError::Key { key: printable(key), problem: problem.into() }
    }

    pub fn tensor(name: &str, problem: impl Into<String>) -> FormatError {
        FormatError::Tensor { name: printable(name), problem: problem.into() }
    }

    pub fn unsupported(key: &str, asks: impl Into<String>) -> FormatError {
        FormatError::Unsupported { key: printable(key), asks: asks.into() }
    }

    /// The error itself, without the path of the file.
    pub fn kind(&self) -> &FormatError {
        match self {
            FormatError::InFile { error, .. } => error.kind(),
            other => other,
        }
    }
}

/// The remedy for a file that lacks something.
fn remedy(place: &str) -> String {
    match place.ends_with(".json") {
        true => format!("take the {place} that was published with the weights"),
        false => "this file cannot be run, convert the original model again".to_string(),
    }
}

/// Untrusted text for display on a terminal: control characters, line breaks, and characters that change the text direction
/// are escaped, except those in `kept`.
pub fn escaped(text: &str, kept: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let is_safe = kept.contains(&c) || !(c.is_control() || turns);
        if is_safe { shown.push(c) } else { shown.extend(c.escape_default()) }
    }
    shown
}

/// A name from an untrusted file, truncated and escaped for display on a terminal.
pub fn printable(name: &str) -> String {
    const MAX: usize = 120;
    let mut out: String = name.chars().take(MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(MAX).is_some() {
        out.push('…');
    }
    out
}

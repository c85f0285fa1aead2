//! What can be read of a file or folder that is not a model that can be run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use akunu_format::gguf::{ListedTensor, Listing};
use akunu_format::{FormatError, Imatrix, ImatrixEntry, Metadata};
use akunu_tokenizer::{
    HfTokenizer, Model, TokenKind, Tokenizer, TokenizerError, Vocabulary, from_model_file,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{InspectArgs, Share, metadata_value};
use crate::failure::Failure;
use crate::grid::{Grid, facts, grouped};
use crate::output::{self, Output};

/// Vocabularies have at most some 100 MB; as values they take several times their size.
const MAX_JSON: u64 = 256 << 20;
/// The limit of the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;
/// Elements of an array that are shown.
const SHOWN: usize = 8;
/// The content of a file that `akunu imatrix` or llama-imatrix wrote.
const IMPORTANCE: &str = "importance matrix";

/// The output of `inspect --json` for what cannot be run.
#[derive(Debug, Default, Serialize)]
pub struct Contents {
    file: String,
    format: &'static str,
    /// What it is, in words: `vocabulary`, `importance matrix`, `tokenizer`.
    content: String,
    /// Always false: what can be run has the fields of a model.
    supported: bool,
    /// Why it cannot be run.
    reason: String,
    name: Option<String>,
    architecture: Option<String>,
    /// Names and values of what was found, such as the scalars of a GGUF file's metadata or of a configuration.
    facts: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Weights>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<ListedJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Map<String, Value>>,
}

#[derive(Debug, Default, Serialize)]
struct Weights {
    tensors: usize,
    /// As far as the sizes of their types are known.
    parameters: u64,
    bytes: u64,
    dtypes: BTreeMap<String, Share>,
}

#[derive(Debug, Serialize)]
struct ListedJson {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    bytes: Option<u64>,
}

impl From<ListedTensor> for ListedJson {
    fn from(tensor: ListedTensor) -> ListedJson {
        let ListedTensor { name, type_name, shape, bytes } = tensor;
        ListedJson { name, dtype: type_name, shape, bytes }
    }
}

/// Shows what can be read. What is of no known kind, or damaged, keeps the failure of opening it as a model.
pub fn run(args: &InspectArgs, path: &Path, failure: Failure, out: &mut Output) -> Result<(), Failure> {
    let Failure::Failed(message) = &failure else { return Err(failure) };
    let Some((contents, tensors, metadata)) = read(path) else { return Err(failure) };
    let mut contents = Contents {
        file: path.display().to_string(),
        reason: match contents.content.as_str() {
            // As a model it lacks an architecture, and the advice for that would mislead.
            IMPORTANCE => "it is for akunu quantize --imatrix".to_string(),
            _ => message.error.lines().next().unwrap_or_default().to_string(),
        },
        weights: (!tensors.is_empty()).then(|| weights(&tensors)),
        ..contents
    };
    contents.tensors = args.tensors.then_some(tensors);
    contents.metadata = args.metadata.then_some(metadata);
    if args.json {
        return out.json(&contents);
    }
    print(&contents, out)
}

type Found = (Contents, Vec<ListedJson>, Map<String, Value>);

fn read(path: &Path) -> Option<Found> {
    if path.is_dir() {
        return safetensors_folder(path);
    }
    let about = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let mut first = Vec::new();
    File::open(path).ok()?.take(9).read_to_end(&mut first).ok()?;
    match first.split_first_chunk() {
        _ if first.starts_with(b"GGUF") => gguf(path),
        // The length of a header, then its opening brace.
        Some((length, b"{")) if u64::from_le_bytes(*length) <= about.len() => safetensors_file(path),
        _ => json(path).or_else(|| sentencepiece(path)).or_else(|| dat(path)),
    }
}

fn gguf(path: &Path) -> Option<Found> {
    let Listing { metadata, tensors } = Listing::open(path).ok()?;
    let text = |key: &str| metadata.str(key).ok().flatten().map(str::to_string);
    let architecture = text("general.architecture");
    let part = |key: &str| metadata.u32(key).ok().flatten();
    let kind = text("general.type");
    let content = match (kind.as_deref(), part("split.count")) {
        (_, Some(count)) if count > 1 => {
            format!("part {} of {count} of a split model", part("split.no").map_or(0, |no| u64::from(no) + 1))
        }
        (Some("imatrix"), _) => IMPORTANCE.to_string(),
        (Some("adapter"), _) => "adapter".to_string(),
        (Some("mmproj"), _) => "projector of images or audio".to_string(),
        _ if tensors.is_empty() && metadata.get("tokenizer.ggml.model").is_some() => "vocabulary".to_string(),
        _ if tensors.is_empty() => "metadata".to_string(),
        _ => "model".to_string(),
    };
    let mut found = Map::new();
    if metadata.get("tokenizer.ggml.model").is_some() {
        found.insert("vocabulary".to_string(), Value::String(vocabulary(&metadata)));
    }
    if kind.as_deref() == Some("imatrix") {
        found.extend(importance(&Imatrix::open(path)));
    }
    let is_told = |key: &str| {
        !key.starts_with("tokenizer.")
            && !["general.name", "general.architecture", "general.type"].contains(&key)
    };
    let scalars = metadata.iter().filter(|(key, _)| is_told(key));
    found.extend(scalars.map(|(key, value)| (key.to_string(), metadata_value(value))));
    let all = metadata.iter().map(|(key, value)| (key.to_string(), metadata_value(value))).collect();
    let contents = Contents {
        format: "GGUF",
        content,
        name: text("general.name"),
        architecture,
        facts: found,
        ..Contents::default()
    };
    Some((contents, tensors.into_iter().map(ListedJson::from).collect(), all))
}

/// An importance matrix of the older format.
fn dat(path: &Path) -> Option<Found> {
    let imatrix = Imatrix::open(path).ok()?;
    let listed = |(name, entry): (&String, &ImatrixEntry)| {
        let bytes = entry.sums.len() as u64 * 4;
        ListedJson { name: name.clone(), dtype: "F32".into(), shape: vec![bytes / 4], bytes: Some(bytes) }
    };
    let tensors = imatrix.entries.iter().map(listed).collect();
    let mut found = Map::from_iter([("chunks".to_string(), imatrix.chunks.into())]);
    found.extend(imatrix.datasets.first().map(|dataset| ("dataset".to_string(), dataset.clone().into())));
    found.extend(importance(&Ok(imatrix)));
    let contents = Contents {
        format: "imatrix.dat",
        content: IMPORTANCE.to_string(),
        facts: found,
        ..Contents::default()
    };
    Some((contents, tensors, Map::new()))
}

/// A `tokenizer.model`: what is of SentencePiece and cannot be used is named.
fn sentencepiece(path: &Path) -> Option<Found> {
    let bytes = akunu_file::read_regular(path, MAX_JSON).ok()?;
    let mut found = Map::new();
    match Vocabulary::from_sentencepiece(&bytes) {
        Ok(vocabulary) => {
            let kind = if vocabulary.model == Model::Unigram { "Unigram" } else { "BPE" };
            found.insert("type".to_string(), kind.into());
            found.insert("pieces".to_string(), vocabulary.tokens.len().into());
            let kinds = [
                ("control pieces", TokenKind::Control),
                ("user-defined pieces", TokenKind::UserDefined),
                ("bytes", TokenKind::Byte),
            ];
            for (name, kind) in kinds {
                let count = vocabulary.kinds.iter().filter(|found| **found == kind).count();
                found.insert(name.to_string(), count.into());
            }
            let special = &vocabulary.special;
            let ids = [
                ("unknown id", special.unknown),
                ("bos id", special.bos),
                ("eos id", special.eos),
                ("padding id", special.padding),
            ];
            found.extend(ids.into_iter().filter_map(|(name, id)| Some((name.to_string(), id?.into()))));
            let read = match from_model_file(path) {
                Ok(_) => kind.to_string(),
                Err(error) => format!("not supported: {error}"),
            };
            found.insert("read as".to_string(), read.into());
        }
        Err(error @ TokenizerError::Unsupported { .. }) => {
            found.insert("read as".to_string(), format!("not supported: {error}").into());
        }
        Err(_) => return None,
    }
    let contents = Contents {
        format: "SentencePiece",
        content: "tokenizer".to_string(),
        facts: found,
        ..Contents::default()
    };
    Some((contents, Vec::new(), Map::new()))
}

/// Facts of an importance matrix: the number of weight matrices, and of tokens, if it is stated.
fn importance(imatrix: &Result<Imatrix, FormatError>) -> Vec<(String, Value)> {
    let imatrix = match imatrix {
        Ok(imatrix) => imatrix,
        Err(error) => return vec![("problem".to_string(), error.kind().to_string().into())],
    };
    let rows = imatrix.entries.values().flat_map(|entry| &entry.counts).copied().fold(0.0, f32::max);
    let tokens = imatrix.chunk_size.map(|_| ("tokens".to_string(), (rows as u64).into()));
    [("entries".to_string(), imatrix.entries.len().into())].into_iter().chain(tokens).collect()
}

/// `gpt2, 50257 tokens`, and why it cannot be used, if so.
fn vocabulary(metadata: &Metadata) -> String {
    let kind = metadata.str("tokenizer.ggml.model").ok().flatten().unwrap_or("of an unknown type");
    let tokens = metadata.strings("tokenizer.ggml.tokens").ok().flatten().map_or(0, |tokens| tokens.len());
    let problem = akunu_tokenizer::from_gguf(metadata).err().map(|error| format!("; not supported: {error}"));
    format!("{kind}, {} tokens{}", grouped(tokens as u64), problem.unwrap_or_default())
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header of a SafeTensors file that has all of its data: tensors, and the entries of `__metadata__`.
fn safetensors_header(path: &Path) -> Option<(Vec<ListedJson>, Map<String, Value>)> {
    let mut file = File::open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    let data = bytes.checked_sub(length.checked_add(8)?).filter(|_| length <= MAX_HEADER)?;
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).ok()?;
    let Value::Object(mut entries) = serde_json::from_slice(&header).ok()? else { return None };
    let metadata = match entries.remove("__metadata__") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    let mut tensors = Vec::new();
    for (name, entry) in entries {
        let Entry { dtype, shape, data_offsets: [start, end] } = serde_json::from_value(entry).ok()?;
        if start > end || end > data {
            return None;
        }
        tensors.push((start, ListedJson { name, dtype, shape, bytes: Some(end - start) }));
    }
    tensors.sort_by_key(|(start, _)| *start);
    Some((tensors.into_iter().map(|(_, tensor)| tensor).collect(), metadata))
}

fn safetensors_file(path: &Path) -> Option<Found> {
    let (tensors, metadata) = safetensors_header(path)?;
    let contents = Contents {
        format: "SafeTensors",
        content: "weights".to_string(),
        facts: metadata.clone(),
        ..Contents::default()
    };
    Some((contents, tensors, metadata))
}

/// All SafeTensors files of a folder, and its configuration if it has one.
fn safetensors_folder(folder: &Path) -> Option<Found> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "safetensors")).collect();
    files.sort();
    let mut tensors = Vec::new();
    for file in &files {
        tensors.extend(safetensors_header(file)?.0);
    }
    if files.is_empty() {
        return None;
    }
    let config = read_json(&folder.join("config.json"));
    let config = match &config {
        Some(Value::Object(config)) => configuration(config),
        _ => Contents { content: "weights without a configuration".to_string(), ..Contents::default() },
    };
    let mut found = Map::from_iter([("files".to_string(), files.len().into())]);
    found.extend(config.facts);
    Some((Contents { format: "SafeTensors", facts: found, ..config }, tensors, Map::new()))
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&akunu_file::read_regular(path, MAX_JSON).ok()?).ok()
}

fn json(path: &Path) -> Option<Found> {
    let contents = match read_json(path)? {
        Value::Object(object) => match object.get("model").and_then(Value::as_object) {
            Some(model) if model.contains_key("vocab") || model.contains_key("type") => {
                tokenizer(path, &object, model)
            }
            _ if object.contains_key("model_type") || object.contains_key("architectures") => {
                configuration(&object)
            }
            _ => Contents { content: "an object".to_string(), facts: shown(&object), ..Contents::default() },
        },
        Value::Array(array) => Contents {
            content: format!("an array of {} values", grouped(array.len() as u64)),
            ..Contents::default()
        },
        _ => return None,
    };
    Some((Contents { format: "JSON", ..contents }, Vec::new(), Map::new()))
}

/// Of a `config.json`.
fn configuration(config: &Map<String, Value>) -> Contents {
    let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_string);
    Contents {
        content: "configuration".to_string(),
        name: text("_name_or_path").filter(|name| !name.is_empty()),
        architecture: text("model_type"),
        facts: shown(config),
        ..Contents::default()
    }
}

/// Of a `tokenizer.json`.
fn tokenizer(path: &Path, file: &Map<String, Value>, model: &Map<String, Value>) -> Contents {
    let count = |value: Option<&Value>| match value {
        Some(Value::Object(map)) => Value::from(map.len()),
        Some(Value::Array(array)) => Value::from(array.len()),
        _ => Value::Null,
    };
    let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_string);
    // The parts of a sequence are in a field with the plural of its name.
    let part = |name: &str, plural: &str| match file.get(name) {
        Some(part @ Value::Object(map)) => match map.get(plural).and_then(Value::as_array) {
            Some(parts) => parts.iter().filter_map(kind).collect::<Vec<_>>().join(", ").into(),
            None => kind(part).map_or(Value::Null, Value::from),
        },
        _ => Value::Null,
    };
    let read = match HfTokenizer::open(path) {
        Ok(tokenizer) => tokenizer.describe(),
        Err(error) => format!("not supported: {error}"),
    };
    let all = [
        ("type", model.get("type").cloned().unwrap_or(Value::Null)),
        ("vocabulary", count(model.get("vocab"))),
        ("merges", count(model.get("merges"))),
        ("added tokens", count(file.get("added_tokens"))),
        ("normalizer", part("normalizer", "normalizers")),
        ("pre-tokenizer", part("pre_tokenizer", "pretokenizers")),
        ("post-processor", part("post_processor", "processors")),
        ("decoder", part("decoder", "decoders")),
        ("read as", read.into()),
    ];
    let found = all.into_iter().filter(|(_, value)| !value.is_null());
    Contents {
        content: "tokenizer".to_string(),
        facts: found.map(|(name, value)| (name.to_string(), value)).collect(),
        ..Contents::default()
    }
}

/// Scalars and short lists as they are, and the sizes of others.
fn shown(object: &Map<String, Value>) -> Map<String, Value> {
    let is_scalar = |value: &Value| !value.is_object() && !value.is_array();
    let short = |value: &Value| match value {
        Value::Array(array) if array.len() > SHOWN || !array.iter().all(is_scalar) => {
            format!("{} values", grouped(array.len() as u64)).into()
        }
        Value::Object(map) => format!("{} keys", grouped(map.len() as u64)).into(),
        value => value.clone(),
    };
    object.iter().map(|(key, value)| (key.clone(), short(value))).collect()
}

fn weights(tensors: &[ListedJson]) -> Weights {
    let mut weights = Weights { tensors: tensors.len(), ..Weights::default() };
    for tensor in tensors {
        let elements = tensor.shape.iter().try_fold(1u64, |all, &n| all.checked_mul(n)).unwrap_or(0);
        weights.parameters = weights.parameters.saturating_add(elements);
        weights.bytes = weights.bytes.saturating_add(tensor.bytes.unwrap_or(0));
        let share = weights.dtypes.entry(tensor.dtype.clone()).or_default();
        share.tensors += 1;
        share.bytes = share.bytes.saturating_add(tensor.bytes.unwrap_or(0));
    }
    weights
}

fn print(found: &Contents, out: &mut Output) -> Result<(), Failure> {
    let width = output::width();
    let mut lines: Vec<(&str, String)> = vec![
        ("file", found.file.clone()),
        ("content", format!("{} ({})", found.content, found.format)),
        ("cannot be run", found.reason.clone()),
    ];
    lines.extend(found.name.as_ref().map(|name| ("name", name.clone())));
    lines.extend(found.architecture.as_ref().map(|name| ("architecture", name.clone())));
    if let Some(weights) = &found.weights {
        let types = weights.dtypes.iter().map(|(name, share)| {
            let bytes =
                if share.bytes > 0 { format!(" {}", akunu::human(share.bytes)) } else { String::new() };
            format!("{name}{bytes} ({} tensors)", share.tensors)
        });
        lines.push(("tensors", grouped(weights.tensors as u64)));
        lines.push(("parameters", grouped(weights.parameters)));
        lines.push(("types", types.collect::<Vec<_>>().join(", ")));
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let names: Vec<String> = found.facts.keys().map(|key| output::printable(key)).collect();
    lines.extend(names.iter().zip(found.facts.values()).map(|(name, value)| (name.as_str(), text(value))));
    out.listing(&facts(&lines, width))?;
    if let Some(tensors) = &found.tensors {
        let mut grid = Grid::new().text("tensor").word("type").word("shape").number("bytes");
        for tensor in tensors {
            let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let bytes = tensor.bytes.map_or_else(|| "unknown".to_string(), grouped);
            grid.row([tensor.name.clone(), tensor.dtype.clone(), shape.join(" × "), bytes]);
        }
        out.text("\n")?;
        out.listing(&grid.render(width))?;
    }
    match &found.metadata {
        Some(metadata) if !metadata.is_empty() => super::print_metadata(metadata, out),
        _ => Ok(()),
    }
}

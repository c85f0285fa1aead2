//! Finds the chat templates of a model.

use std::io;
use std::path::{Path, PathBuf};

use akunu_format::{Array, Metadata, Strings, Value};
use serde_json::Value as Json;

use super::{ChatError, ChatTemplate, MAX_TEMPLATE};
use crate::Tokenizer;

/// The name of the template that is used by default.
const DEFAULT: &str = "default";

/// The name of the template that is used for conversations with tools, as in transformers.
const TOOL_USE: &str = "tool_use";

/// The chat templates of a model by name, and the special tokens from its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTemplates {
    templates: Vec<(String, String)>,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplates {
    /// The templates of a GGUF file, or else of the files beside the model: in its folder, or in the folder that
    /// contains it.
    pub fn find(metadata: Option<&Metadata>, model: Option<&Path>) -> Result<ChatTemplates, ChatError> {
        let found = metadata.map(ChatTemplates::from_gguf).unwrap_or_default();
        match model {
            Some(path) if found.is_empty() && metadata.is_none() => {
                let folder = if path.is_dir() { Some(path) } else { path.parent() };
                ChatTemplates::from_folder(folder.unwrap_or(Path::new(".")))
            }
            _ => Ok(found),
        }
    }

    /// `tokenizer.chat_template`, and the named templates listed in `tokenizer.chat_templates`.
    pub fn from_gguf(metadata: &Metadata) -> ChatTemplates {
        const KEY: &str = "tokenizer.chat_template";
        let mut found = ChatTemplates::default();
        if let Ok(Some(template)) = metadata.str(KEY) {
            found.add(DEFAULT, template);
        }
        for (key, _) in metadata.iter() {
            let name = key.strip_prefix(KEY).and_then(|rest| rest.strip_prefix('.'));
            if let (Some(name), Ok(Some(template))) = (name, metadata.str(key)) {
                found.add(name, template);
            }
        }
        found
    }

    /// From a Hugging Face folder: `chat_template.jinja` and `additional_chat_templates/`, `chat_template.json`,
    /// `tokenizer_config.json`, in this order.
    pub fn from_folder(folder: &Path) -> Result<ChatTemplates, ChatError> {
        let mut found = ChatTemplates::default();
        let read = |path: &Path| read(path, akunu_file::read_regular);
        if let Some(template) = read(&folder.join("chat_template.jinja"))? {
            found.add(DEFAULT, &template);
        }
        for path in listed(&folder.join("additional_chat_templates")) {
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
            if let (Some(name), Some(template)) = (name, read(&path)?) {
                found.add(&name, &template);
            }
        }
        for file in ["chat_template.json", "tokenizer_config.json"] {
            let path = folder.join(file);
            if let Some(text) = read(&path)? {
                let json: Json = serde_json::from_str(&text).map_err(|error| failure(&path, &error))?;
                found.add_json(&json);
            }
        }
        Ok(found)
    }

    /// Adds the keys that [`ChatTemplates::from_gguf`] reads.
    pub(crate) fn write_gguf(&self, metadata: &mut Metadata) {
        const KEY: &str = "tokenizer.chat_template";
        let mut names = Strings::new();
        for (name, template) in &self.templates {
            let key = if name == DEFAULT { KEY.to_string() } else { format!("{KEY}.{name}") };
            metadata.insert(key, Value::String(template.clone()));
            if name != DEFAULT {
                names.push(&[name]);
            }
        }
        if !names.is_empty() {
            metadata.insert("tokenizer.chat_templates", Value::Array(Array::Strings(names)));
        }
    }

    /// From a file given by the user: a template, or JSON with a `chat_template` field. All of its templates have to be valid.
    pub fn from_file(path: &Path) -> Result<ChatTemplates, ChatError> {
        let not_there = || failure(path, &std::io::Error::from(std::io::ErrorKind::NotFound));
        let text = read(path, akunu_file::read)?.ok_or_else(not_there)?;
        let mut found = ChatTemplates::default();
        if path.extension().is_some_and(|ending| ending == "json") {
            let json: Json = serde_json::from_str(&text).map_err(|error| failure(path, &error))?;
            found.add_json(&json);
        } else {
            found.add(DEFAULT, &text);
        }
        if found.is_empty() {
            return Err(failure(path, &"it has no field \"chat_template\""));
        }
        for (_, template) in &found.templates {
            let named = |error| ChatError::In { path: path.display().to_string(), error: Box::new(error) };
            ChatTemplate::new(template, None, None).map_err(named)?;
        }
        Ok(found)
    }

    fn add(&mut self, name: &str, template: &str) {
        if !self.templates.iter().any(|(known, _)| known == name) {
            self.templates.push((name.to_string(), template.to_string()));
        }
    }

    /// `chat_template` is a string, or a list of names and templates; a special token is a string, or an object that
    /// contains one.
    fn add_json(&mut self, json: &Json) {
        match &json["chat_template"] {
            Json::String(template) => self.add(DEFAULT, template),
            Json::Array(list) => {
                for entry in list {
                    if let (Some(name), Some(template)) = (entry["name"].as_str(), entry["template"].as_str())
                    {
                        self.add(name, template);
                    }
                }
            }
            _ => {}
        }
        let token = |name: &str| {
            let token = &json[name];
            token.as_str().or_else(|| token["content"].as_str()).map(str::to_string)
        };
        self.bos = self.bos.take().or_else(|| token("bos_token"));
        self.eos = self.eos.take().or_else(|| token("eos_token"));
    }

    pub fn is_empty(&self) -> bool {
        self.templates.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.iter().map(|(name, _)| name.as_str())
    }

    /// The source of a template; `None` means the default one.
    pub fn source(&self, name: Option<&str>) -> Result<&str, ChatError> {
        let wanted = name.unwrap_or(DEFAULT);
        let found = self.templates.iter().find(|(known, _)| known == wanted);
        match (found, self.templates.first(), name) {
            (Some((_, template)), ..) => Ok(template),
            (None, None, _) => Err(ChatError::Missing),
            // No name was requested and there is no default: use the first template.
            (None, Some((_, template)), None) => Ok(template),
            (None, Some(_), Some(name)) => {
                let known: Vec<&str> = self.names().collect();
                Err(ChatError::UnknownName { name: name.to_string(), known: known.join(", ") })
            }
        }
    }

    /// A template, with the special tokens from the model's files, or else from its vocabulary. The default one has that for
    /// tools beside it, if there is one and it is valid.
    pub fn template(&self, name: Option<&str>, tokenizer: &dyn Tokenizer) -> Result<ChatTemplate, ChatError> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(str::to_string);
        let bos = self.bos.clone().or_else(|| text(tokenizer.bos()));
        let eos = self.eos.clone().or_else(|| text(tokenizer.eos()));
        let template = |source| ChatTemplate::new(source, bos.as_deref(), eos.as_deref());
        let for_tools = self.source(Some(TOOL_USE)).and_then(template).ok();
        let chosen = template(self.source(name)?)?;
        Ok(if name.is_none() { chosen.with_one_for_tools(for_tools) } else { chosen })
    }
}

fn failure(path: &Path, error: &dyn std::fmt::Display) -> ChatError {
    ChatError::File { path: path.display().to_string(), message: error.to_string() }
}

/// The text of a file, or `None` if it does not exist.
fn read(path: &Path, read: fn(&Path, u64) -> io::Result<Vec<u8>>) -> Result<Option<String>, ChatError> {
    // Configurations also list added tokens, and may be larger than a template.
    match read(path, 16 * MAX_TEMPLATE as u64) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| failure(path, &"it is not UTF-8 text")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failure(path, &error)),
    }
}

/// The `.jinja` files of a folder, sorted by name.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_template = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "jinja");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_template).collect();
    paths.sort();
    paths
}

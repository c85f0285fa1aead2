//! JSON configuration with typed access and errors that give the full path of a key. `null` counts as absent, as in
//! transformers, except where a caller asks for the difference.

use std::path::Path;

use serde_json::{Map, Value};

use super::CONFIG;
use super::quantisation::QUANTIZATION_CONFIG;
use crate::FormatError;
use crate::error::printable;

/// Configurations have kilobytes and indexes a few megabytes; larger files are something else.
const MAX_BYTES: u64 = 64 << 20;

/// A value takes up to a hundred times the bytes of its text. The index of a model with 100,000 tensors has 200,000.
const MAX_VALUES: usize = 1 << 20;

/// A JSON file whose root is an object.
#[derive(Debug)]
pub struct Document(Map<String, Value>);

impl Document {
    pub fn read(path: &Path) -> Result<Document, FormatError> {
        Document::parse(&text(path)?).map_err(|error| error.in_file(path))
    }

    /// Reads a JSON file whose root is a list of objects.
    pub fn read_list(path: &Path) -> Result<Vec<Document>, FormatError> {
        let text = text(path)?;
        check_values(text.as_bytes()).map_err(|error| error.in_file(path))?;
        match serde_json::from_str::<Vec<Map<String, Value>>>(&text) {
            Ok(all) => Ok(all.into_iter().map(Document).collect()),
            Err(error) => {
                let problem = format!("it is not a list of JSON objects: {error}");
                Err(wrong("the text", problem).in_file(path))
            }
        }
    }

    pub fn parse(text: &str) -> Result<Document, FormatError> {
        check_values(text.as_bytes())?;
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Document(map)),
            Ok(_) => Err(wrong("the text", "it is not a JSON object".to_string())),
            Err(error) => Err(wrong("the text", format!("it is not JSON: {error}"))),
        }
    }

    /// Adds the settings of GPTQ from a file of their own.
    pub(super) fn add_gptq(&mut self, settings: Document) {
        let Document(mut settings) = settings;
        settings.entry("quant_method").or_insert_with(|| "gptq".into());
        self.0.insert(QUANTIZATION_CONFIG.to_string(), Value::Object(settings));
    }

    pub fn root(&self) -> Json<'_> {
        Json { map: &self.0, path: String::new() }
    }
}

fn text(path: &Path) -> Result<String, FormatError> {
    let about = std::fs::metadata(path).map_err(|error| FormatError::io("open it", error, path))?;
    if !about.is_file() || about.len() > MAX_BYTES {
        let problem = format!("a configuration file has at most {} MiB", MAX_BYTES >> 20);
        return Err(wrong("the text", problem).in_file(path));
    }
    let bytes = std::fs::read(path).map_err(|error| FormatError::io("read it", error, path))?;
    String::from_utf8(bytes).map_err(|_| wrong("the text", "the text is not UTF-8".to_string()).in_file(path))
}

/// Refuses a JSON text that would take much more memory than its file, because it has very many values.
pub fn check_values(text: &[u8]) -> Result<(), FormatError> {
    let values = most_values(text);
    if values > MAX_VALUES {
        let problem =
            format!("it has about {values} values, and a configuration file has at most {MAX_VALUES}");
        return Err(wrong("the text", problem));
    }
    Ok(())
}

/// An upper bound of the number of values of a JSON text, keys included.
pub fn most_values(text: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b':' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

/// An invalid field of the configuration.
pub fn wrong(key: &str, problem: String) -> FormatError {
    FormatError::Config { key: printable(key), place: CONFIG, problem }
}

/// An object and its path in the document.
#[derive(Clone, Debug)]
pub struct Json<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Json<'a> {
    /// The full path of a key: `text_config.rope_scaling.factor`.
    pub fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// Whether the key is present, even as `null`.
    pub fn mentions(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong_type(&self, key: &str, wanted: &'static str, found: &Value) -> FormatError {
        let found = match found {
            Value::Null => "null".to_string(),
            Value::Bool(value) => value.to_string(),
            Value::Number(number) => number.to_string(),
            Value::String(_) => "a string".to_string(),
            Value::Array(_) => "an array".to_string(),
            Value::Object(_) => "an object".to_string(),
        };
        FormatError::WrongType { key: printable(&self.full(key)), wanted, found }
    }

    pub fn usize(&self, key: &str) -> Result<Option<usize>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let whole = value.as_u64().or_else(|| {
            // Python writes some counts as 2048.0.
            let float = value.as_f64()?;
            (float >= 0.0 && float.fract() == 0.0 && float < 9e15).then_some(float as u64)
        });
        let fits = whole.and_then(|whole| usize::try_from(whole).ok());
        fits.map(Some).ok_or_else(|| self.wrong_type(key, "a whole number", value))
    }

    pub fn f64(&self, key: &str) -> Result<Option<f64>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong_type(key, "a number", value))
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong_type(key, "true or false", value))
    }

    pub fn str(&self, key: &str) -> Result<Option<&'a str>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong_type(key, "a string", value))
    }

    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let all = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
        all.map(Some).ok_or_else(|| self.wrong_type(key, "an array of strings", value))
    }

    pub fn f64s(&self, key: &str) -> Result<Option<Vec<f64>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let all = value.as_array().and_then(|all| all.iter().map(Value::as_f64).collect());
        all.map(Some).ok_or_else(|| self.wrong_type(key, "an array of numbers", value))
    }

    /// A number, or a list of numbers.
    pub fn ids(&self, key: &str) -> Result<Vec<u32>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let all = match value {
            Value::Array(all) => all.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        all.ok_or_else(|| self.wrong_type(key, "a token id or an array of them", value))
    }

    pub fn object(&self, key: &str) -> Result<Option<Json<'a>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong_type(key, "an object", value))?;
        Ok(Some(Json { map, path: self.full(key) }))
    }

    pub fn unsupported(&self, key: &str, asks: impl Into<String>) -> FormatError {
        FormatError::unsupported(&self.full(key), asks)
    }
}

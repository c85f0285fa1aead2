//! GGUF metadata: typed values under string keys, in file order.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::{FormatError, Region};

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array of one element type. Strings remain in the mapped file, see [`Strings`].
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Strings(Strings),
    Arrays(Vec<Array>),
}

impl Array {
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Strings(v) => v.len(),
            Array::Arrays(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the element type in errors: `u32`, `string`, `array`.
    pub fn element_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::Strings(_) => "string",
            Array::Arrays(_) => "array",
        }
    }

    /// The elements as integers, if the array contains integers.
    pub fn to_i128s(&self) -> Option<Vec<i128>> {
        fn wide<T: Copy + Into<i128>>(values: &[T]) -> Option<Vec<i128>> {
            Some(values.iter().map(|&v| v.into()).collect())
        }
        match self {
            Array::U8(v) => wide(v),
            Array::I8(v) => wide(v),
            Array::U16(v) => wide(v),
            Array::I16(v) => wide(v),
            Array::U32(v) => wide(v),
            Array::I32(v) => wide(v),
            Array::U64(v) => wide(v),
            Array::I64(v) => wide(v),
            _ if self.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }
}

impl Value {
    /// The value as an integer, if it is one.
    pub fn to_i128(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The name of the type in errors: `u32`, `array of string`.
    pub fn type_name(&self) -> String {
        let scalar = match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(array) => return format!("array of {}", array.element_name()),
        };
        scalar.to_string()
    }
}

/// An array of strings. When read from a file, it stores 8 bytes per string and leaves the text in the mapping, so that
/// large vocabularies open in milliseconds.
#[derive(Clone)]
pub struct Strings(Repr);

#[derive(Clone)]
enum Repr {
    /// The concatenated text, and the end offset of each string.
    Owned { text: String, ends: Vec<usize> },
    /// Offset in the region of each string's 8-byte length; the text follows it.
    Mapped { region: Region, starts: Arc<[usize]> },
}

impl Strings {
    pub const fn new() -> Strings {
        Strings(Repr::Owned { text: String::new(), ends: Vec::new() })
    }

    /// Appends the concatenation of `parts`. Strings in a mapped file are copied first.
    pub fn push(&mut self, parts: &[&str]) {
        if let Repr::Mapped { .. } = &self.0 {
            *self = self.iter().collect();
        }
        self.extend_owned(parts.iter().copied());
    }

    fn extend_owned<'a>(&mut self, parts: impl IntoIterator<Item = &'a str>) {
        if let Repr::Owned { text, ends } = &mut self.0 {
            parts.into_iter().for_each(|part| text.push_str(part));
            ends.push(text.len());
        }
    }

    pub(crate) fn mapped(region: Region, starts: Vec<usize>) -> Strings {
        Strings(Repr::Mapped { region, starts: starts.into() })
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Owned { ends, .. } => ends.len(),
            Repr::Mapped { starts, .. } => starts.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> Option<&str> {
        match &self.0 {
            Repr::Owned { text, ends } => {
                let start = if index == 0 { 0 } else { *ends.get(index - 1)? };
                text.get(start..*ends.get(index)?)
            }
            // Checked when the file was opened, and again here, because another process may have changed the file
            // since.
            Repr::Mapped { region, starts } => {
                let tail = region.bytes().get(*starts.get(index)?..)?;
                let (len, tail) = tail.split_first_chunk::<8>()?;
                let text = tail.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
                std::str::from_utf8(text).ok()
            }
        }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

impl Default for Strings {
    fn default() -> Strings {
        Strings::new()
    }
}

impl FromIterator<String> for Strings {
    fn from_iter<I: IntoIterator<Item = String>>(strings: I) -> Strings {
        let mut all = Strings::new();
        strings.into_iter().for_each(|text| all.extend_owned([text.as_str()]));
        all
    }
}

impl<'a> FromIterator<&'a str> for Strings {
    fn from_iter<I: IntoIterator<Item = &'a str>>(strings: I) -> Strings {
        let mut all = Strings::new();
        strings.into_iter().for_each(|text| all.extend_owned([text]));
        all
    }
}

impl PartialEq for Strings {
    fn eq(&self, other: &Strings) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let mut list = f.debug_list();
        list.entries(self.iter().take(SHOWN));
        if self.len() > SHOWN { list.finish_non_exhaustive() } else { list.finish() }
    }
}

static NO_STRINGS: Strings = Strings::new();

/// The key-value part of a GGUF file, or one built in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// In file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Sets a key and returns its previous value.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        let key = key.into();
        match self.index.get(&key) {
            Some(&i) => Some(std::mem::replace(&mut self.entries[i].1, value)),
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
                None
            }
        }
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(key, "a string", other)),
        }
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong_type(key, "a bool", other)),
        }
    }

    /// Accepts any integer type if the value fits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, FormatError> {
        self.integer(key)
    }

    /// Accepts any integer type if the value fits.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, FormatError> {
        self.integer(key)
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wide = value.to_i128().ok_or_else(|| wrong_type(key, "an integer", value))?;
        match T::try_from(wide) {
            Ok(fits) => Ok(Some(fits)),
            Err(_) => Err(FormatError::key(key, format!("{wide} is out of range"))),
        }
    }

    /// Also accepts f64, rounded.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(value)) => Ok(Some(*value)),
            Some(Value::F64(value)) => Ok(Some(*value as f32)),
            Some(other) => Err(wrong_type(key, "a float", other)),
        }
    }

    /// An empty array of any type counts as an empty array of strings: some writers give empty arrays another type.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Strings(strings))) => Ok(Some(strings)),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(&NO_STRINGS)),
            Some(other) => Err(wrong_type(key, "an array of strings", other)),
        }
    }

    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(values))) => Ok(Some(values.clone())),
            Some(Value::Array(Array::F64(values))) => Ok(Some(values.iter().map(|&v| v as f32).collect())),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(Vec::new())),
            Some(other) => Err(wrong_type(key, "an array of floats", other)),
        }
    }

    /// Accepts any integer array if the values fit.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, FormatError> {
        let array = match self.get(key) {
            None => return Ok(None),
            Some(Value::Array(array)) => array,
            Some(other) => return Err(wrong_type(key, "an array of integers", other)),
        };
        // The common case, without a conversion to wide integers.
        if let Array::I32(values) = array {
            return Ok(Some(values.clone()));
        }
        let wide = array.to_i128s().ok_or_else(|| FormatError::WrongType {
            key: key.to_string(),
            wanted: "an array of integers",
            found: format!("array of {}", array.element_name()),
        })?;
        let narrow = wide.into_iter().map(|v| {
            i32::try_from(v).map_err(|_| FormatError::key(key, format!("{v} in the array is out of range")))
        });
        narrow.collect::<Result<Vec<i32>, _>>().map(Some)
    }
}

fn wrong_type(key: &str, wanted: &'static str, found: &Value) -> FormatError {
    FormatError::WrongType { key: key.to_string(), wanted, found: found.type_name() }
}

//! Writes GGUF version 3. Tensor data is streamed: a file may be larger than memory.

use std::collections::HashSet;
use std::io::{self, Write};

use super::header::{MAGIC, MAX_DEPTH, MAX_DIMS, alignment, measure};
use super::metadata::{Array, Metadata, Value};
use crate::{DType, FormatError};

const VERSION: u32 = 3;

/// A tensor to be written; its data follows later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub dtype: DType,
    /// Outermost dimension first, as everywhere except in the file itself.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, shape: shape.into() }
    }

    /// Size of the data in bytes; an error for shapes that no file can hold.
    pub fn bytes(&self) -> Result<usize, FormatError> {
        let wrong = |problem: String| FormatError::tensor(&self.name, problem);
        if self.shape.is_empty() || self.shape.len() > MAX_DIMS {
            let dims = self.shape.len();
            return Err(wrong(format!("it has {dims} dimensions, but 1 to {MAX_DIMS} are allowed")));
        }
        let shape: Vec<u64> = self.shape.iter().map(|&n| n as u64).collect();
        measure(self.dtype, &shape).map(|(_, bytes)| bytes).map_err(wrong)
    }
}

/// Writes the header at once and tensors one by one, in the order in which they were announced.
/// After an error, what has been written is not a model: throw it away.
///
/// ```
/// use akunu_format::{DType, Gguf, GgufWriter, Metadata, Region, TensorSpec, Value};
/// # fn main() -> Result<(), akunu_format::FormatError> {
/// let mut metadata = Metadata::default();
/// metadata.insert("general.architecture", Value::String("llama".into()));
/// let specs = vec![TensorSpec::new("output_norm.weight", DType::F32, [2])];
/// let mut writer = GgufWriter::new(Vec::new(), &metadata, specs)?;
/// writer.tensor(|out| out.write_all(&[0; 8]))?;
/// let gguf = Gguf::from_region(Region::from_vec(writer.finish()?))?;
/// assert_eq!(gguf.tensors()[0].shape, [2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GgufWriter<W: Write> {
    out: W,
    specs: Vec<TensorSpec>,
    next: usize,
    alignment: usize,
}

impl<W: Write> GgufWriter<W> {
    /// Data is aligned as the metadata's `general.alignment` says, or to 32 bytes.
    pub fn new(out: W, metadata: &Metadata, specs: Vec<TensorSpec>) -> Result<GgufWriter<W>, FormatError> {
        let alignment = alignment(metadata)?;
        let header = header(metadata, &specs, alignment)?;
        let mut writer = GgufWriter { out, specs, next: 0, alignment };
        writer.out.write_all(&header).map_err(failed)?;
        writer.pad(header.len())?;
        Ok(writer)
    }

    /// The tensor whose data [`GgufWriter::tensor`] writes next.
    pub fn next_spec(&self) -> Option<&TensorSpec> {
        self.specs.get(self.next)
    }

    /// Writes the next tensor's data: `data` must write exactly the number of bytes given by type and shape.
    pub fn tensor(&mut self, data: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), FormatError> {
        let Some(spec) = self.specs.get(self.next) else {
            return Err(FormatError::header("more tensors were written than declared"));
        };
        let bytes = spec.bytes()?;
        let mut exact = ExactWriter { out: &mut self.out, left: bytes };
        data(&mut exact).map_err(failed)?;
        if exact.left > 0 {
            let problem = format!("{} of its {bytes} bytes were not written", exact.left);
            return Err(FormatError::tensor(&spec.name, problem));
        }
        self.next += 1;
        self.pad(bytes)
    }

    /// Flushes, and returns the output. An error if declared tensors were not written.
    pub fn finish(mut self) -> Result<W, FormatError> {
        if let Some(spec) = self.next_spec() {
            return Err(FormatError::tensor(&spec.name, "it was declared but not written"));
        }
        self.out.flush().map_err(failed)?;
        Ok(self.out)
    }

    /// Writes zeros up to the alignment, after `written` bytes that began aligned.
    fn pad(&mut self, written: usize) -> Result<(), FormatError> {
        let zeros = written.next_multiple_of(self.alignment) - written;
        io::copy(&mut io::Read::take(io::repeat(0), zeros as u64), &mut self.out).map_err(failed)?;
        Ok(())
    }
}

fn failed(error: io::Error) -> FormatError {
    FormatError::Io { action: "write the file", error }
}

/// Forwards at most the declared number of bytes.
struct ExactWriter<'a, W: Write> {
    out: &'a mut W,
    left: usize,
}

impl<W: Write> Write for ExactWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::Error::other("a tensor has more data than its type and shape take"));
        }
        let written = self.out.write(bytes)?;
        self.left -= written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn header(metadata: &Metadata, specs: &[TensorSpec], alignment: usize) -> Result<Vec<u8>, FormatError> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((specs.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        if key.is_empty() {
            return Err(FormatError::key(key, "a key cannot be empty"));
        }
        put_str(&mut out, key);
        put_value(&mut out, value).map_err(|problem| FormatError::key(key, problem))?;
    }
    let mut names = HashSet::new();
    let mut offset = 0usize;
    for spec in specs {
        if !names.insert(spec.name.as_str()) {
            return Err(FormatError::tensor(&spec.name, "it occurs twice"));
        }
        let bytes = spec.bytes()?;
        put_str(&mut out, &spec.name);
        out.extend((spec.shape.len() as u32).to_le_bytes());
        for &n in spec.shape.iter().rev() {
            out.extend((n as u64).to_le_bytes());
        }
        let id = spec
            .dtype
            .gguf_id()
            .ok_or_else(|| FormatError::tensor(&spec.name, format!("GGUF has no type for {}", spec.dtype)))?;
        out.extend(id.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset = offset
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(alignment))
            .ok_or_else(|| FormatError::tensor(&spec.name, "the file would be too large"))?;
    }
    Ok(out)
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The id of a value's type, then the value.
fn put_value(out: &mut Vec<u8>, value: &Value) -> Result<(), String> {
    let mut put = |id: u32, bytes: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::String(v) => {
            put(8, &[]);
            put_str(out, v);
        }
        Value::Array(v) => {
            put(9, &[]);
            put_array(out, v, 1)?;
        }
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
    }
    Ok(())
}

/// The id of the element type, the count, the elements.
fn put_array(out: &mut Vec<u8>, array: &Array, depth: usize) -> Result<(), String> {
    fn put<T: Copy, const N: usize>(out: &mut Vec<u8>, id: u32, values: &[T], bytes: fn(T) -> [u8; N]) {
        out.extend(id.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|&v| out.extend(bytes(v)));
    }
    if depth > MAX_DEPTH {
        return Err(format!("arrays are nested more than {MAX_DEPTH} deep"));
    }
    match array {
        Array::U8(v) => put(out, 0, v, u8::to_le_bytes),
        Array::I8(v) => put(out, 1, v, i8::to_le_bytes),
        Array::U16(v) => put(out, 2, v, u16::to_le_bytes),
        Array::I16(v) => put(out, 3, v, i16::to_le_bytes),
        Array::U32(v) => put(out, 4, v, u32::to_le_bytes),
        Array::I32(v) => put(out, 5, v, i32::to_le_bytes),
        Array::F32(v) => put(out, 6, v, f32::to_le_bytes),
        Array::Bool(v) => put(out, 7, v, |v| [u8::from(v)]),
        Array::Strings(v) => {
            out.extend(8u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|text| put_str(out, text));
        }
        Array::Arrays(v) => {
            out.extend(9u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            for array in v {
                put_array(out, array, depth + 1)?;
            }
        }
        Array::U64(v) => put(out, 10, v, u64::to_le_bytes),
        Array::I64(v) => put(out, 11, v, i64::to_le_bytes),
        Array::F64(v) => put(out, 12, v, f64::to_le_bytes),
    }
    Ok(())
}

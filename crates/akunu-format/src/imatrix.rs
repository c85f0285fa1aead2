//! Importance matrices: for each weight matrix of a model, the sums of squares of its inputs over a text, by column.
//!
//! Files are those of llama.cpp. The current format is GGUF with `general.type` "imatrix" and, for each matrix, two F32
//! tensors: `NAME.in_sum2`, the sums (`[columns]`, or `[matrices, columns]` for a stack of experts), and `NAME.counts`,
//! the number of rows that were added up. The older one, usually named `.dat`, has for each matrix, little-endian:
//!
//! ```text
//! entries i32
//! each:   name (length i32, bytes), chunks i32, columns i32, f32 × columns: chunks · the mean square
//! then:   chunks i32, name of the dataset (length i32, bytes); absent in the oldest files
//! ```

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use crate::blocks::dequantize_row;
use crate::error::printable;
use crate::gguf::MAGIC;
use crate::map::load_file;
use crate::{Array, DType, FormatError, Gguf, GgufWriter, Loading, Metadata, Region, TensorSpec, Value};

const TYPE: &str = "general.type";
const KIND: &str = "imatrix";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// What is known of one weight matrix, or of the experts' matrices that are stored as one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImatrixEntry {
    /// Sums of squares: finite and not negative. `[matrices][columns]`
    pub sums: Vec<f32>,
    /// Rows that were added up, for each matrix; in files of the older format, chunks.
    pub counts: Vec<f32>,
}

impl ImatrixEntry {
    pub fn columns(&self) -> usize {
        self.sums.len() / self.counts.len().max(1)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// By the canonical name of the weight: `blk.0.attn_q.weight`.
    pub entries: BTreeMap<String, ImatrixEntry>,
    /// The texts, as their names were given.
    pub datasets: Vec<String>,
    /// Number of windows of the text.
    pub chunks: u32,
    /// Tokens of a window; `None` in files of the older format, whose counts are chunks.
    pub chunk_size: Option<u32>,
}

impl Imatrix {
    /// Reads a file of either format.
    pub fn open(path: &Path) -> Result<Imatrix, FormatError> {
        let region = load_file(path, Loading::Map)?;
        Imatrix::from_region(region).map_err(|error| error.in_file(path))
    }

    pub fn from_region(region: Region) -> Result<Imatrix, FormatError> {
        let imatrix = match region.bytes().starts_with(&MAGIC) {
            true => from_gguf(&Gguf::from_region(region)?)?,
            false => Dat { bytes: region.bytes(), at: 0 }.read()?,
        };
        if imatrix.entries.is_empty() {
            return Err(wrong("it has no entries"));
        }
        imatrix.entries.iter().try_for_each(|(name, entry)| check(name, entry))?;
        Ok(imatrix)
    }

    /// Writes the current format.
    pub fn write<W: Write>(&self, out: W) -> Result<W, FormatError> {
        let mut metadata = Metadata::default();
        metadata.insert(TYPE, Value::String(KIND.into()));
        let datasets = self.datasets.iter().map(String::as_str).collect();
        metadata.insert(DATASETS, Value::Array(Array::Strings(datasets)));
        metadata.insert(CHUNK_COUNT, Value::U32(self.chunks));
        metadata.insert(CHUNK_SIZE, Value::U32(self.chunk_size.unwrap_or(0)));
        let tensors = |(name, entry): (&String, &ImatrixEntry)| {
            let shape = |columns| match entry.counts.len() {
                1 => vec![columns],
                matrices => vec![matrices, columns],
            };
            [(SUMS, shape(entry.columns())), (COUNTS, shape(1))]
                .map(|(suffix, shape)| TensorSpec::new(format!("{name}{suffix}"), DType::F32, shape))
        };
        let specs = self.entries.iter().flat_map(tensors).collect();
        let mut writer = GgufWriter::new(out, &metadata, specs)?;
        for values in self.entries.values().flat_map(|entry| [&entry.sums, &entry.counts]) {
            writer.tensor(|out| values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes())))?;
        }
        writer.finish()
    }

    /// Adds the sums of another text. Files of the older format do not state how many tokens their sums stand for.
    pub fn merge(&mut self, other: &Imatrix) -> Result<(), FormatError> {
        if other.chunk_size.is_none() {
            return Err(wrong(
                "the older format does not state the number of tokens, so it cannot be merged",
            ));
        }
        for (name, entry) in &other.entries {
            let Some(own) = self.entries.get_mut(name) else {
                self.entries.insert(name.clone(), entry.clone());
                continue;
            };
            if own.sums.len() != entry.sums.len() || own.counts.len() != entry.counts.len() {
                let problem =
                    format!("it has {} columns in one file and {}", own.sums.len(), entry.sums.len());
                return Err(FormatError::tensor(name, format!("{problem} in the other")));
            }
            let add = |own: &mut Vec<f32>, other: &[f32]| {
                own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
            };
            add(&mut own.sums, &entry.sums);
            add(&mut own.counts, &entry.counts);
        }
        self.datasets.extend(other.datasets.iter().cloned());
        self.chunks = self.chunks.saturating_add(other.chunks);
        Ok(())
    }

    /// The mean square of each column of a tensor's input, divided by the mean over all columns: the weights for
    /// [`crate::blocks::quantize_row`]. Of a stack of matrices, those of each; of matrices without rows, 1. `None` if
    /// nothing is known of it. An error if the tensor has other columns.
    pub fn importance(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, FormatError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let columns = shape.last().copied().unwrap_or(1);
        let matrices = if shape.len() > 2 { shape[0] } else { 1 };
        // Files of the older format have one count for all matrices.
        let counted = entry.counts.len() == matrices || entry.counts.len() == 1;
        if !counted || entry.sums.len() != matrices * columns {
            let matrices = match entry.counts.len() {
                1 => String::new(),
                count => format!(" in {count} matrices"),
            };
            let problem = format!(
                "it has {columns} columns, but {}{matrices} in the importance matrix, which belongs to another model",
                entry.columns()
            );
            return Err(FormatError::tensor(name, problem));
        }
        let of_matrix = |(sums, &count): (&[f32], &f32)| {
            let mean = sums.iter().map(|&sum| f64::from(sum)).sum::<f64>() / columns as f64;
            match count == 0.0 || mean == 0.0 {
                true => None,
                false => Some(sums.iter().map(|&sum| (f64::from(sum) / mean) as f32).collect()),
            }
        };
        let counts = entry.counts.iter().cycle();
        let all: Vec<Option<Vec<f32>>> =
            entry.sums.chunks_exact(columns.max(1)).zip(counts).map(of_matrix).collect();
        if all.iter().all(Option::is_none) {
            return Ok(None);
        }
        Ok(Some(all.into_iter().flat_map(|one| one.unwrap_or_else(|| vec![1.0; columns])).collect()))
    }
}

fn wrong(problem: impl Into<String>) -> FormatError {
    FormatError::Imatrix { problem: problem.into() }
}

fn check(name: &str, entry: &ImatrixEntry) -> Result<(), FormatError> {
    for (what, values) in [("sum", &entry.sums), ("count", &entry.counts)] {
        if let Some(at) = values.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
            let problem = format!("its {what} {at} is {}, and not a number from 0 on", values[at]);
            return Err(FormatError::tensor(name, problem));
        }
    }
    Ok(())
}

fn from_gguf(gguf: &Gguf) -> Result<Imatrix, FormatError> {
    let metadata = gguf.metadata();
    match metadata.str(TYPE)? {
        Some(KIND) => {}
        Some(other) => return Err(wrong(format!("its {TYPE} is “{}”, and not {KIND}", printable(other)))),
        None => return Err(wrong(format!("it is a GGUF file without a {TYPE}, such as a model"))),
    }
    let mut entries = BTreeMap::new();
    let sums = gguf.tensors().iter().filter_map(|t| Some((t, t.name.strip_suffix(SUMS)?)));
    for (tensor, name) in sums {
        let counts = gguf
            .tensor(&format!("{name}{COUNTS}"))
            .ok_or_else(|| FormatError::MissingTensor { name: printable(&format!("{name}{COUNTS}")) })?;
        let values = |tensor: &crate::TensorInfo| -> Result<Vec<f32>, FormatError> {
            if tensor.dtype != DType::F32 {
                return Err(FormatError::tensor(
                    &tensor.name,
                    format!("it is {}, and not F32", tensor.dtype),
                ));
            }
            let mut values = vec![0.0; tensor.bytes / 4];
            dequantize_row(DType::F32, gguf.tensor_bytes(tensor), &mut values)?;
            Ok(values)
        };
        let entry = ImatrixEntry { sums: values(tensor)?, counts: values(counts)? };
        if tensor.rows() != entry.counts.len() {
            let problem = format!("it has {} rows and {} counts", tensor.rows(), entry.counts.len());
            return Err(FormatError::tensor(&tensor.name, problem));
        }
        entries.insert(name.to_string(), entry);
    }
    let datasets = metadata.strings(DATASETS)?.map(|all| all.iter().map(str::to_string).collect());
    Ok(Imatrix {
        entries,
        datasets: datasets.unwrap_or_default(),
        chunks: metadata.u32(CHUNK_COUNT)?.unwrap_or(0),
        chunk_size: Some(metadata.u32(CHUNK_SIZE)?.unwrap_or(0)),
    })
}

/// A file of the older format.
struct Dat<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Dat<'a> {
    fn read(mut self) -> Result<Imatrix, FormatError> {
        let count = self.number("the number of entries")?;
        if count == 0 {
            return Err(wrong("it has no entries"));
        }
        let mut imatrix = Imatrix::default();
        for index in 0..count {
            let what = format!("entry {} of {count}", index + 1);
            let name = self.text(&what)?;
            let chunks = self.number(&what)?;
            let columns = self.number(&what)?;
            let values = self.take(columns.saturating_mul(4), &what)?;
            let sums = values.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
            let entry = ImatrixEntry { sums, counts: vec![chunks as f32] };
            if columns == 0 || imatrix.entries.insert(name.clone(), entry).is_some() {
                let problem = if columns == 0 { "it has no columns" } else { "it occurs twice" };
                return Err(FormatError::tensor(&name, problem));
            }
        }
        if self.at < self.bytes.len() {
            imatrix.chunks = self.number("the number of chunks")? as u32;
            imatrix.datasets = vec![self.text("the name of the dataset")?];
        }
        Ok(imatrix)
    }

    fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], FormatError> {
        let left = &self.bytes[self.at..];
        let taken = left.get(..count).ok_or_else(|| FormatError::Truncated {
            what: what.to_string(),
            need: count as u64,
            have: left.len() as u64,
        })?;
        self.at += count;
        Ok(taken)
    }

    fn number(&mut self, what: &str) -> Result<usize, FormatError> {
        let bytes = self.take(4, what)?;
        let number = bytes.first_chunk().map_or(-1, |bytes| i32::from_le_bytes(*bytes));
        usize::try_from(number).map_err(|_| wrong(format!("in {what} there is a length of {number}")))
    }

    fn text(&mut self, what: &str) -> Result<String, FormatError> {
        let length = self.number(what)?;
        let bytes = self.take(length, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_string()),
            Err(_) => Err(wrong(format!("the name in {what} is not UTF-8"))),
        }
    }
}

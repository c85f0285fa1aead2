//! One GGUF file's header: from untrusted bytes to metadata and checked tensor places.
//!
//! ```text
//! "GGUF"  version u32  tensor count u64  key count u64
//! keys:    name string, type u32, value
//! tensors: name string, dims u32, dim u64 × dims (innermost first), type u32, offset u64
//! padding to general.alignment, then the data that offsets count from
//! ```

use std::collections::HashSet;

use super::metadata::{Array, Metadata, Strings, Value};
use super::types::tensor_type_name;
use crate::cursor::{Cursor, Fault};
use crate::error::printable;
use crate::{DType, FormatError, Region, TensorInfo};

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const MAX_DIMS: usize = 4;
/// Maximum nesting of arrays. Known files use one level; a hostile one must not exhaust the stack.
pub(crate) const MAX_DEPTH: usize = 8;

/// Far above any model; a header with more would take many times its own size in memory.
const MAX_PAIRS: usize = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;

/// Headers have at most some 20 MiB. The apparent size of a sparse file costs nothing, so it is no limit for what is
/// allocated.
const MAX_BYTES: usize = 128 << 20;
/// Vocabularies have at most some 300,000 tokens and twice as many merges.
const MAX_ELEMENTS: usize = 1 << 22;

/// Minimum size in bytes of a key-value pair, a tensor entry, a string and an array.
const MIN_PAIR: usize = 8 + 4 + 1;
const MIN_TENSOR: usize = 8 + 4 + 4 + 8;
const MIN_STRING: usize = 8;
const MIN_ARRAY: usize = 4 + 8;

/// The contents of one file; a split model has several.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// Reads the header. The `region` of the tensors is set to `region_index`.
pub(crate) fn read_part(region: &Region, region_index: usize) -> Result<Part, FormatError> {
    let header = read_header(region)?;
    let alignment = alignment(&header.metadata)?;
    let entries = header.tensors.into_iter().map(Entry::of).collect::<Result<Vec<_>, _>>()?;
    let tensors = place_tensors(entries, header.end, alignment, region.bytes().len(), region_index)?;
    Ok(Part { metadata: header.metadata, tensors })
}

/// What the bytes of a header say, with tensors of any type.
pub(super) struct Header<'a> {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<RawEntry<'a>>,
    end: usize,
}

pub(super) fn read_header(region: &Region) -> Result<Header<'_>, FormatError> {
    let mut cursor = Cursor::new(region.bytes(), MAX_BYTES);
    let in_header = |fault| from_fault(fault, "the header", FormatError::header);
    let magic: [u8; 4] = cursor.array().map_err(in_header)?;
    if magic != MAGIC {
        return Err(FormatError::header("it does not begin with the letters GGUF"));
    }
    match cursor.u32().map_err(in_header)? {
        2 | 3 => {}
        // The low half of a version is never zero, unless the byte order is reversed.
        version if version & 0xffff == 0 && version != 0 => return Err(FormatError::BigEndian),
        version => return Err(FormatError::Version { version }),
    }
    let tensor_count = cursor.u64().map_err(in_header)?;
    let pair_count = cursor.count(MIN_PAIR).map_err(in_header)?;

    if pair_count > MAX_PAIRS || tensor_count > MAX_TENSORS {
        let problem =
            format!("{pair_count} metadata keys and {tensor_count} tensors are more than any model has");
        return Err(FormatError::header(problem));
    }

    let metadata = read_metadata(&mut cursor, pair_count, region)?;
    let tensors = read_tensor_entries(&mut cursor, tensor_count)?;
    Ok(Header { metadata, tensors, end: cursor.position() })
}

fn from_fault(fault: Fault, what: &str, wrong: impl Fn(String) -> FormatError) -> FormatError {
    match fault {
        Fault::Short { need, have } => FormatError::Truncated { what: what.to_string(), need, have },
        Fault::Count { count, have } => wrong(format!("it claims {count} entries with {have} bytes left")),
        Fault::TooLarge => {
            FormatError::header(format!("it has more than {} MiB, which no model has", MAX_BYTES >> 20))
        }
        Fault::Elements(count) => {
            wrong(format!("it has {count} elements, but at most {MAX_ELEMENTS} are allowed"))
        }
        Fault::Utf8 => wrong("the text is not UTF-8".to_string()),
        Fault::Bool(byte) => wrong(format!("{byte} is not a bool")),
        Fault::Type(id) => wrong(format!("unknown value type {id}")),
        Fault::Depth => wrong(format!("arrays are nested more than {MAX_DEPTH} deep")),
    }
}

pub(super) fn alignment(metadata: &Metadata) -> Result<usize, FormatError> {
    let alignment = metadata.u32(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return Err(FormatError::key(ALIGNMENT_KEY, format!("{alignment} is not a power of two")));
    }
    Ok(alignment as usize)
}

fn read_metadata(cursor: &mut Cursor<'_>, count: usize, region: &Region) -> Result<Metadata, FormatError> {
    let mut metadata = Metadata::default();
    let mut previous = None;
    for number in 0..count {
        let key = cursor.str().map_err(|fault| {
            let after = previous.map(|key| format!(" (after `{}`)", printable(key))).unwrap_or_default();
            let what = format!("the name of metadata key {} of {count}{after}", number + 1);
            from_fault(fault, &what, |problem| FormatError::header(format!("{what}: {problem}")))
        })?;
        let in_key = |fault| {
            let what = format!("metadata key `{}`", printable(key));
            from_fault(fault, &what, |problem| FormatError::key(key, problem))
        };
        let kind = cursor.u32().map_err(in_key)?;
        let value = read_value(cursor, kind, region).map_err(in_key)?;
        if metadata.insert(key, value).is_some() {
            return Err(FormatError::key(key, "it occurs twice"));
        }
        previous = Some(key);
    }
    Ok(metadata)
}

fn read_value(cursor: &mut Cursor<'_>, kind: u32, region: &Region) -> Result<Value, Fault> {
    Ok(match kind {
        0 => Value::U8(u8::from_le_bytes(cursor.array()?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array()?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array()?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array()?)),
        4 => Value::U32(cursor.u32()?),
        5 => Value::I32(i32::from_le_bytes(cursor.array()?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array()?)),
        7 => Value::Bool(to_bool(cursor.array::<1>()?[0])?),
        8 => Value::String(cursor.str()?.to_string()),
        9 => Value::Array(read_array(cursor, region, 1)?),
        10 => Value::U64(cursor.u64()?),
        11 => Value::I64(i64::from_le_bytes(cursor.array()?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array()?)),
        other => return Err(Fault::Type(other)),
    })
}

fn to_bool(byte: u8) -> Result<bool, Fault> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::Bool(other)),
    }
}

fn read_array(cursor: &mut Cursor<'_>, region: &Region, depth: usize) -> Result<Array, Fault> {
    if depth > MAX_DEPTH {
        return Err(Fault::Depth);
    }
    Ok(match cursor.u32()? {
        0 => Array::U8(numbers(cursor, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, f32::from_le_bytes)?),
        7 => {
            let bytes = numbers(cursor, u8::from_le_bytes)?;
            Array::Bool(bytes.into_iter().map(to_bool).collect::<Result<_, _>>()?)
        }
        8 => {
            let starts = string_starts(cursor)?;
            Array::Strings(Strings::mapped(region.clone(), starts))
        }
        9 => {
            // Not reserved up front: an `Array` takes more memory than the 12 bytes of an empty one in the file.
            let count = elements(cursor, MIN_ARRAY)?;
            let mut arrays = Vec::new();
            for _ in 0..count {
                arrays.push(read_array(cursor, region, depth + 1)?);
            }
            Array::Arrays(arrays)
        }
        10 => Array::U64(numbers(cursor, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, f64::from_le_bytes)?),
        other => return Err(Fault::Type(other)),
    })
}

/// The number of elements of an array, which take at least `least` bytes each.
fn elements(cursor: &mut Cursor<'_>, least: usize) -> Result<usize, Fault> {
    match cursor.count(least)? {
        count if count > MAX_ELEMENTS => Err(Fault::Elements(count)),
        count => Ok(count),
    }
}

/// The start offsets of an array's strings, which are checked to be UTF-8.
///
/// Vocabularies have hundreds of thousands of short strings, and checking them one by one would take most of the time
/// of opening. So runs of strings are checked as one text, including their lengths: a length below 128 is eight ASCII
/// characters when read as text, so the run is valid UTF-8 exactly if every string in it is.
fn string_starts(cursor: &mut Cursor<'_>) -> Result<Vec<usize>, Fault> {
    let count = elements(cursor, MIN_STRING)?;
    let mut starts = Vec::with_capacity(count);
    let mut run = cursor.clone();
    for _ in 0..count {
        let start = cursor.position();
        starts.push(start);
        let len = cursor.u64()?;
        if len >= 128 {
            utf8(run.take((start - run.position()) as u64)?)?;
            utf8(cursor.take(len)?)?;
            run = cursor.clone();
        } else {
            cursor.take(len)?;
        }
    }
    utf8(run.take((cursor.position() - run.position()) as u64)?)?;
    Ok(starts)
}

fn utf8(bytes: &[u8]) -> Result<(), Fault> {
    if one_or_two_byte_chars(bytes) {
        return Ok(());
    }
    std::str::from_utf8(bytes).map(drop).map_err(|_| Fault::Utf8)
}

/// Whether this is UTF-8 with only characters below U+0800, as in byte-level vocabularies. The loop has no branches, so
/// it is vectorised: several times faster than the standard library on text that is nearly ASCII.
fn one_or_two_byte_chars(bytes: &[u8]) -> bool {
    let starts_two = |byte: u8| byte & 0xe0 == 0xc0;
    let wrong = |previous: u8, byte: u8| {
        let continues = byte & 0xc0 == 0x80;
        let overlong = byte & 0xfe == 0xc0;
        (starts_two(previous) != continues) | overlong | (byte >= 0xe0)
    };
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return true };
    let pairs = bytes.iter().zip(&bytes[1..]);
    !pairs.fold(wrong(0, first) | starts_two(last), |any, (&previous, &byte)| any | wrong(previous, byte))
}

fn numbers<T, const N: usize>(cursor: &mut Cursor<'_>, from: fn([u8; N]) -> T) -> Result<Vec<T>, Fault> {
    let count = elements(cursor, N)?;
    let bytes = cursor.take((count * N) as u64)?;
    Ok(bytes.as_chunks::<N>().0.iter().map(|chunk| from(*chunk)).collect())
}

/// A tensor as stated in the header, of any type.
pub(super) struct RawEntry<'a> {
    pub(super) name: &'a str,
    /// Outermost first.
    pub(super) shape: Vec<u64>,
    pub(super) type_id: u32,
    offset: u64,
}

/// The same of a supported type: its sizes are checked, its position is not yet.
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    offset: u64,
    bytes: usize,
}

impl Entry {
    fn of(raw: RawEntry<'_>) -> Result<Entry, FormatError> {
        let RawEntry { name, shape, type_id, offset } = raw;
        let dtype = DType::from_gguf_id(type_id).ok_or_else(|| unsupported_type(name, type_id))?;
        let (shape, bytes) = measure(dtype, &shape).map_err(|problem| FormatError::tensor(name, problem))?;
        Ok(Entry { name: name.to_string(), dtype, shape, offset, bytes })
    }
}

fn read_tensor_entries<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<RawEntry<'a>>, FormatError> {
    let have = cursor.left() as u64;
    if count > have / MIN_TENSOR as u64 {
        return Err(FormatError::header(format!("it claims {count} tensors with {have} bytes left")));
    }
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for number in 0..count {
        let name = cursor.str().map_err(|fault| {
            let what = format!("the name of tensor {} of {count}", number + 1);
            from_fault(fault, &what, |problem| FormatError::header(format!("{what}: {problem}")))
        })?;
        if !names.insert(name) {
            return Err(FormatError::tensor(name, "it occurs twice"));
        }
        entries.push(read_tensor_entry(cursor, name)?);
    }
    Ok(entries)
}

fn read_tensor_entry<'a>(cursor: &mut Cursor<'a>, name: &'a str) -> Result<RawEntry<'a>, FormatError> {
    let in_tensor = |fault| {
        let what = format!("the header entry of tensor {}", printable(name));
        from_fault(fault, &what, |problem| FormatError::tensor(name, problem))
    };
    let dims = cursor.u32().map_err(in_tensor)?;
    if dims == 0 || dims as usize > MAX_DIMS {
        return Err(FormatError::tensor(
            name,
            format!("it has {dims} dimensions, but 1 to {MAX_DIMS} are allowed"),
        ));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        shape.push(cursor.u64().map_err(in_tensor)?);
    }
    shape.reverse();
    let type_id = cursor.u32().map_err(in_tensor)?;
    let offset = cursor.u64().map_err(in_tensor)?;
    Ok(RawEntry { name, shape, type_id, offset })
}

fn unsupported_type(name: &str, type_id: u32) -> FormatError {
    let type_name = match tensor_type_name(type_id) {
        Some(known) => known.to_string(),
        None => format!("of unknown type {type_id}"),
    };
    FormatError::TensorType { name: printable(name), type_name, supported: super::SUPPORTED }
}

/// The shape in `usize` and the size in bytes, or the reason why they are invalid.
pub(crate) fn measure(dtype: DType, shape: &[u64]) -> Result<(Vec<usize>, usize), String> {
    if shape.contains(&0) {
        return Err(format!("a dimension of {shape:?} is zero"));
    }
    let too_large = || format!("{shape:?} is too large: its size overflows");
    let sizes: Vec<usize> =
        shape.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>().map_err(|_| too_large())?;
    let (cols, rows) = sizes.split_last().ok_or("it has no dimensions")?;
    if !cols.is_multiple_of(dtype.block_len()) {
        return Err(format!(
            "rows of {cols} elements are not a multiple of the {dtype} block size {}",
            dtype.block_len()
        ));
    }
    // The number of elements must fit too, not only the bytes: later code multiplies sizes without checks.
    let rows = rows.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).ok_or_else(too_large)?;
    rows.checked_mul(*cols).and_then(|n| n.checked_mul(4)).ok_or_else(too_large)?;
    let bytes = dtype.row_bytes(*cols).and_then(|row| row.checked_mul(rows)).ok_or_else(too_large)?;
    Ok((sizes, bytes))
}

fn place_tensors(
    entries: Vec<Entry>,
    header_end: usize,
    alignment: usize,
    file_len: usize,
    region: usize,
) -> Result<Vec<TensorInfo>, FormatError> {
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let data_start = header_end.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        if !entry.offset.is_multiple_of(alignment as u64) {
            let problem =
                format!("its offset {} is not a multiple of the alignment {alignment}", entry.offset);
            return Err(FormatError::tensor(&entry.name, problem));
        }
        let have = (file_len as u64).saturating_sub(data_start as u64).saturating_sub(entry.offset);
        if entry.bytes as u64 > have {
            let what = format!("the data of tensor {}", printable(&entry.name));
            return Err(FormatError::Truncated { what, need: entry.bytes as u64, have });
        }
        tensors.push(TensorInfo {
            name: entry.name,
            dtype: entry.dtype,
            shape: entry.shape,
            region,
            // Cannot overflow: the end of the tensor lies within the file.
            offset: data_start + entry.offset as usize,
            bytes: entry.bytes,
            scales_offsets: [None; 2],
            order: None,
        });
    }
    crate::tensor::refuse_overlaps(tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.place())))?;
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::utf8;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn utf8_matches_the_standard_library(
            text in ".{0,40}",
            change in proptest::option::of((any::<proptest::sample::Index>(), any::<u8>())),
            cut in 0usize..4,
        ) {
            let mut bytes = text.into_bytes();
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Some((at, value)) = change && !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            prop_assert_eq!(utf8(&bytes).is_ok(), std::str::from_utf8(&bytes).is_ok());
        }
    }

    #[test]
    fn utf8_matches_on_every_first_byte() {
        for first in 0x80..=0xffu8 {
            for second in (0..=0xffu8).step_by(if cfg!(miri) { 85 } else { 1 }) {
                for tail in
                    [&[][..], &[0x80], &[0x80, 0x80], &[0x80, 0x80, b'a', b'b', b'c', b'd', b'e', b'f']]
                {
                    let bytes = [&[b'x', first, second][..], tail].concat();
                    assert_eq!(utf8(&bytes).is_ok(), std::str::from_utf8(&bytes).is_ok(), "{bytes:x?}");
                }
            }
        }
    }
}

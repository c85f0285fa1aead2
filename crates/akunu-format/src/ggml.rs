//! The container of whisper.cpp, which older versions of ggml used for other models too:
//!
//! ```text
//! "lmgg"        11 × u32: the shape of the model, and the file's type
//! mel filters:  bands u32, frequencies u32, f32 × bands × frequencies
//! vocabulary:   count u32; each token: length u32, bytes
//! tensors, up to the end of the file:
//!               dims u32, length of the name u32, type u32, dim u32 × dims (innermost first), name, data
//! ```
//!
//! Nothing is aligned.

use std::path::Path;

use crate::cursor::{Cursor, Fault};
use crate::error::printable;
use crate::gguf::{SUPPORTED, measure, tensor_type_name};
use crate::map::load_file;
use crate::{DType, FormatError, Loading, Region, TensorInfo};

pub(crate) const MAGIC: [u8; 4] = *b"lmgg";

const MAX_DIMS: u32 = 4;
/// Far above any model.
const MAX_BANDS: u32 = 1 << 10;
const MAX_FREQUENCIES: u32 = 1 << 16;
const MAX_TOKENS: u32 = 1 << 20;
const MAX_TOKEN: u32 = 1 << 14;
const MAX_NAME: u32 = 1 << 10;
const MAX_TENSORS: usize = 1 << 16;

/// The type of a file whose quantised blocks have their present layout, in multiples of this.
const VERSION_FACTOR: u32 = 1000;
const VERSION: u32 = 2;

/// The shape that a file states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlShape {
    pub vocab: u32,
    pub encoder: GgmlTower,
    pub decoder: GgmlTower,
    pub bands: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlTower {
    pub context: u32,
    pub width: u32,
    pub heads: u32,
    pub layers: u32,
}

/// A parsed container. Names of tensors are those of the file.
#[derive(Debug)]
pub struct Ggml {
    shape: GgmlShape,
    /// Position and length of each token.
    tokens: Vec<(usize, usize)>,
    tensors: Vec<TensorInfo>,
    region: Region,
}

impl Ggml {
    /// Maps or reads a file.
    pub fn load(path: &Path, loading: Loading) -> Result<Ggml, FormatError> {
        Ggml::from_region(load_file(path, loading)?).map_err(|error| error.in_file(path))
    }

    pub fn from_region(region: Region) -> Result<Ggml, FormatError> {
        let mut cursor = Cursor::new(region.bytes(), usize::MAX);
        let (shape, version) = read_shape(&mut cursor)?;
        skip_filters(&mut cursor, shape.bands)?;
        let tokens = read_tokens(&mut cursor)?;
        let mut tensors = Vec::new();
        while cursor.left() > 0 {
            if tensors.len() == MAX_TENSORS {
                return Err(FormatError::header(format!("it has more than {MAX_TENSORS} tensors")));
            }
            tensors.push(read_tensor(&mut cursor, version)?);
        }
        Ok(Ggml { shape, tokens, tensors, region })
    }

    pub fn shape(&self) -> GgmlShape {
        self.shape
    }

    /// The tokens of the vocabulary as bytes, by id.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.tokens.iter().map(|&(at, len)| &self.region.bytes()[at..at + len])
    }

    /// In file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.region.bytes()[tensor.offset..tensor.offset + tensor.bytes]
    }
}

/// Whether a file of this container may be of this shape, by its first bytes: other models had the same magic. Both
/// towers are equally wide, and the filters repeat the number of bands.
pub(crate) fn is_whisper(first: &[u8]) -> bool {
    let field = |i: usize| Some(u32::from_le_bytes(*first.get(4 * i..)?.first_chunk()?));
    first.starts_with(&MAGIC)
        && field(3) == field(7)
        && field(10) == field(12)
        && field(12).is_some_and(|bands| (1..=MAX_BANDS).contains(&bands))
}

/// An error in a part of the file.
fn wrong(what: &str) -> impl Fn(Fault) -> FormatError {
    move |fault| match fault {
        Fault::Short { need, have } => FormatError::Truncated { what: what.to_string(), need, have },
        _ => FormatError::header(format!("{what} cannot be read")),
    }
}

fn limited(what: &str, value: u32, most: u32) -> Result<(), FormatError> {
    match value <= most {
        true => Ok(()),
        false => Err(FormatError::header(format!("{what} is {value}, and at most {most} are allowed"))),
    }
}

/// The shape, and the version of the layout of quantised blocks.
fn read_shape(cursor: &mut Cursor<'_>) -> Result<(GgmlShape, u32), FormatError> {
    let in_header = wrong("the header");
    if cursor.array().map_err(&in_header)? != MAGIC {
        return Err(FormatError::header("it does not begin with the letters lmgg"));
    }
    let mut number = || cursor.u32().map_err(&in_header);
    let vocab = number()?;
    let mut tower = || {
        let [context, width, heads, layers] = [number()?, number()?, number()?, number()?];
        Ok::<_, FormatError>(GgmlTower { context, width, heads, layers })
    };
    let (encoder, decoder) = (tower()?, tower()?);
    let (bands, file_type) = (number()?, number()?);
    limited("the number of mel bands", bands, MAX_BANDS)?;
    Ok((GgmlShape { vocab, encoder, decoder, bands }, file_type / VERSION_FACTOR))
}

/// The filters are those that all models of as many bands have.
fn skip_filters(cursor: &mut Cursor<'_>, bands: u32) -> Result<(), FormatError> {
    let what = "the mel filters";
    let [own, frequencies] = [cursor.u32().map_err(wrong(what))?, cursor.u32().map_err(wrong(what))?];
    if own != bands {
        return Err(FormatError::header(format!("filters of {own} mel bands in a model of {bands}")));
    }
    limited("the number of a filter's frequencies", frequencies, MAX_FREQUENCIES)?;
    cursor.take(4 * u64::from(bands) * u64::from(frequencies)).map_err(wrong(what))?;
    Ok(())
}

fn read_tokens(cursor: &mut Cursor<'_>) -> Result<Vec<(usize, usize)>, FormatError> {
    let count = cursor.u32().map_err(wrong("the vocabulary"))?;
    limited("the number of tokens", count, MAX_TOKENS)?;
    let have = cursor.left() as u64;
    if u64::from(count) * 4 > have {
        return Err(FormatError::header(format!("it claims {count} tokens with {have} bytes left")));
    }
    let mut tokens = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let len = cursor.u32().map_err(wrong("the vocabulary"))?;
        limited("the length of a token", len, MAX_TOKEN)?;
        tokens.push((cursor.position(), len as usize));
        cursor.take(len.into()).map_err(wrong("the vocabulary"))?;
    }
    Ok(tokens)
}

fn read_tensor(cursor: &mut Cursor<'_>, version: u32) -> Result<TensorInfo, FormatError> {
    let in_header = wrong("the header of a tensor");
    let mut number = || cursor.u32().map_err(&in_header);
    let [dims, name_len, type_id] = [number()?, number()?, number()?];
    if dims == 0 || dims > MAX_DIMS {
        let problem = format!("a tensor has {dims} dimensions, but 1 to {MAX_DIMS} are allowed");
        return Err(FormatError::header(problem));
    }
    limited("the length of a tensor's name", name_len, MAX_NAME)?;
    let mut shape = (0..dims).map(|_| Ok(u64::from(number()?))).collect::<Result<Vec<u64>, FormatError>>()?;
    shape.reverse();
    let name = cursor.take(name_len.into()).map_err(&in_header)?;
    let name = std::str::from_utf8(name)
        .map_err(|_| FormatError::header("a tensor's name is not UTF-8"))?
        .to_string();
    let dtype = DType::from_gguf_id(type_id).ok_or_else(|| FormatError::TensorType {
        name: printable(&name),
        type_name: tensor_type_name(type_id)
            .map_or_else(|| format!("of unknown type {type_id}"), str::to_string),
        supported: SUPPORTED,
    })?;
    if dtype.is_quantised() && version != VERSION {
        let problem =
            format!("its blocks have the layout {version}, and {VERSION} is supported: quantise it again");
        return Err(FormatError::tensor(&name, problem));
    }
    let (shape, bytes) = measure(dtype, &shape).map_err(|problem| FormatError::tensor(&name, problem))?;
    let offset = cursor.position();
    cursor.take(bytes as u64).map_err(wrong(&format!("the data of tensor {}", printable(&name))))?;
    Ok(TensorInfo { name, dtype, shape, region: 0, offset, bytes, scales_offsets: [None; 2], order: None })
}

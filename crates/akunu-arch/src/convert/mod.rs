//! Converts a model to a GGUF file, possibly with other tensor types: first planned as a whole, then written tensor by
//! tensor.

mod embedding;
mod metadata;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use akunu_format::blocks::{dequantize_nth, nth_row, quantize_row};
use akunu_format::quantise::{Mix, Proportions, convert_exactly};
use akunu_format::{
    DType, FormatError, GgufWriter, Imatrix, Metadata, Place, Region, TensorInfo, TensorSpec, Value,
};
use metadata::{added, card, llama3_factors, metadata, permutes_rows};

use crate::WeightProvider;
use crate::gguf::ROPE_FACTORS as LONG_ROPE_FACTORS;
use crate::mamba::in_gguf;

/// Approximate number of elements that a thread converts at a time.
const PART: usize = 1 << 20;

/// Options of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct ConvertOptions<'a> {
    pub mix: Mix,
    /// Use the base type for every matrix whose row size allows it.
    pub pure: bool,
    /// Where the vocabulary comes from; `None`: from the model itself, if it has one.
    pub vocabulary: Option<&'a Metadata>,
    /// Weights of the quantisation error.
    pub imatrix: Option<ImatrixFile<'a>>,
}

/// An importance matrix, and the name of its file.
#[derive(Clone, Copy, Debug)]
pub struct ImatrixFile<'a> {
    pub imatrix: &'a Imatrix,
    pub name: &'a str,
}

/// A planned conversion. No weights have been read yet.
#[derive(Debug)]
pub struct Conversion<'a> {
    weights: &'a dyn WeightProvider,
    /// The tensors to convert: the model's own, or fused ones if GGUF files of the family have them.
    sources: &'a [TensorInfo],
    metadata: Metadata,
    tensors: Vec<Planned>,
}

/// A tensor of the new file.
#[derive(Debug)]
pub struct Planned {
    pub spec: TensorSpec,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Values(Vec<f32>),
    Tensor {
        /// Index into `sources`.
        index: usize,
        /// Row permutation of Q and K, if the RoPE layouts differ.
        permutation: Option<Permutation>,
        add: f32,
        /// The weight of each column in the error, for each matrix of a stack.
        importance: Option<Vec<f32>>,
    },
}

#[derive(Clone, Copy, Debug)]
struct Permutation {
    dims: usize,
    head_dim: usize,
}

impl Permutation {
    /// The source row of row `row` of the new tensor.
    fn source(self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim, row % self.head_dim);
        let from = if at < self.dims { at % 2 * (self.dims / 2) + at / 2 } else { at };
        head * self.head_dim + from
    }
}

/// The tensors that a GGUF file of the model has: its own, or fused ones if files of the family have them.
fn written(weights: &dyn WeightProvider) -> &[TensorInfo] {
    if card(weights.config()).fused_in_gguf { weights.stored() } else { weights.tensors() }
}

/// The name that one of the model's own tensors has in a GGUF file: that of the fused tensor that contains it, if it is
/// part of one there.
pub fn gguf_name<'a>(weights: &'a dyn WeightProvider, tensor: &'a TensorInfo) -> &'a str {
    let contains = |whole: &&TensorInfo| {
        let place = whole.place();
        place.region == tensor.region
            && place.offset <= tensor.offset
            && tensor.offset + tensor.bytes <= place.offset + place.bytes
    };
    written(weights).iter().find(contains).map_or(&tensor.name, |whole| &whole.name)
}

/// The keys that llama.cpp writes.
fn describe_imatrix(file: ImatrixFile<'_>, metadata: &mut Metadata) {
    let ImatrixFile { imatrix, name } = file;
    metadata.insert("quantize.imatrix.file", Value::String(name.to_string()));
    if let Some(dataset) = imatrix.datasets.first() {
        metadata.insert("quantize.imatrix.dataset", Value::String(dataset.clone()));
    }
    metadata.insert("quantize.imatrix.entries_count", Value::U32(imatrix.entries.len() as u32));
    metadata.insert("quantize.imatrix.chunks_count", Value::U32(imatrix.chunks));
}

impl<'a> Conversion<'a> {
    pub fn new(
        weights: &'a dyn WeightProvider,
        recipe: &ConvertOptions<'_>,
    ) -> Result<Conversion<'a>, FormatError> {
        let config = weights.config();
        let model = Proportions {
            layers: config.layer_count,
            heads: config.head_count,
            kv_heads: config.kv_head_count,
            tied: weights.tensor("output.weight").is_none(),
        };
        let mut metadata = metadata(weights, recipe.mix.file_type, recipe.vocabulary)?;
        if let Some(file) = recipe.imatrix {
            describe_imatrix(file, &mut metadata);
        }
        let mut tensors = Vec::new();
        if weights.tensor(ROPE_FACTORS).is_none()
            && let Some(factors) = llama3_factors(config)
        {
            let spec = TensorSpec::new(ROPE_FACTORS, DType::F32, [factors.len()]);
            tensors.push(Planned { spec, data: Data::Values(factors) });
        }
        let sources = written(weights);
        let has = |name: &str| sources.iter().any(|tensor| tensor.name == name);
        if let Some(factors) = &config.rope.factors {
            for (name, factors) in LONG_ROPE_FACTORS.into_iter().zip([&factors.short, &factors.long]) {
                if !has(name) {
                    let spec = TensorSpec::new(name, DType::F32, [factors.len()]);
                    let values = factors.iter().map(|&f| f as f32).collect();
                    tensors.push(Planned { spec, data: Data::Values(values) });
                }
            }
        }
        for (index, tensor) in sources.iter().enumerate() {
            let dtype = recipe.mix.dtype(&tensor.name, &tensor.shape, &model, recipe.pure);
            let permutation = permutes_rows(config, &tensor.name)
                .then_some(Permutation { dims: config.rope.dims, head_dim: config.head_dim });
            let rows = tensor.shape.first().copied().unwrap_or(1);
            if permutation.is_some() && !rows.is_multiple_of(config.head_dim) {
                let problem = format!("{rows} rows are not a multiple of the head size {}", config.head_dim);
                return Err(FormatError::tensor(&tensor.name, problem));
            }
            let (name, shape) = in_gguf(&tensor.name, &tensor.shape, config.mamba);
            let spec = TensorSpec::new(name, dtype, shape);
            let add = added(config, &tensor.name);
            let importance = match recipe.imatrix.filter(|_| dtype.is_searched()) {
                Some(file) => file.imatrix.importance(&tensor.name, &tensor.shape)?,
                None => None,
            };
            tensors.push(Planned { spec, data: Data::Tensor { index, permutation, add, importance } });
        }
        Ok(Conversion { weights, sources, metadata, tensors })
    }

    /// In file order.
    pub fn tensors(&self) -> &[Planned] {
        &self.tensors
    }

    /// The source of a tensor; `None` if the tensor is new.
    pub fn source(&self, planned: &Planned) -> Option<&'a TensorInfo> {
        match planned.data {
            Data::Values(_) => None,
            Data::Tensor { index, .. } => Some(&self.sources[index]),
        }
    }

    /// Of the tensors for which an importance matrix matters, those for which it has an entry and those for which it
    /// has none.
    pub fn importance(&self) -> (Vec<&Planned>, Vec<&Planned>) {
        // Without an output matrix the embedding is one; otherwise its rows are only looked up.
        let has_output = self.tensors.iter().any(|planned| planned.spec.name == "output.weight");
        let searched = self.tensors.iter().filter(|planned| {
            let TensorSpec { name, dtype, .. } = &planned.spec;
            dtype.is_searched() && !(has_output && name == "token_embd.weight")
        });
        searched.partition(|planned| matches!(planned.data, Data::Tensor { importance: Some(_), .. }))
    }

    /// Size of all tensors in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|planned| planned.spec.bytes().unwrap_or(0) as u64).sum()
    }

    /// Writes the file. `progress` receives the number of bytes done, out of [`Conversion::bytes`]; after `cancel` is
    /// set, an error follows soon. Memory use is a few megabytes per thread.
    pub fn write<W: Write>(
        &self,
        out: W,
        threads: usize,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<W, FormatError> {
        let specs: Vec<TensorSpec> = self.tensors.iter().map(|planned| planned.spec.clone()).collect();
        let mut writer = GgufWriter::new(out, &self.metadata, specs)?;
        let mut done = 0;
        for planned in &self.tensors {
            // Kept here, because `io::Error` would lose the type of a conversion error.
            let mut failure = None;
            let written = writer.tensor(|out| {
                let mut put = |bytes: &[u8]| {
                    out.write_all(bytes)?;
                    done += bytes.len() as u64;
                    progress(done);
                    if cancel.load(Ordering::Relaxed) {
                        Err(io::ErrorKind::Interrupted.into())
                    } else {
                        Ok(())
                    }
                };
                self.tensor(planned, threads, &mut put).map_err(|problem| {
                    let (error, carried) = problem.split();
                    failure = carried;
                    error
                })
            });
            if let Some(failure) = failure {
                return Err(failure);
            }
            written?;
        }
        writer.finish()
    }

    fn tensor(
        &self,
        planned: &Planned,
        threads: usize,
        put: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Problem> {
        let (index, permutation, add, importance) = match &planned.data {
            Data::Values(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                return Ok(put(&bytes)?);
            }
            Data::Tensor { index, permutation, add, importance } => {
                (*index, *permutation, *add, importance.as_deref())
            }
        };
        let source = &self.sources[index];
        let dtype = planned.spec.dtype;
        if source.dtype == dtype && permutation.is_none() && add == 0.0 {
            let (region, place) = (self.weights.regions()[source.region].for_once(), source.place());
            let bytes = &region.bytes()[place.offset..][..place.bytes];
            return Ok(bytes.chunks(4 * PART).try_for_each(put)?);
        }
        // A vector whose elements are permuted is treated as a column.
        let (rows, cols) = match permutation {
            Some(_) if source.shape.len() == 1 => (source.cols(), 1),
            _ => (source.rows(), source.cols()),
        };
        // Not kept, so that memory for one tensor at a time is enough.
        let regions: Vec<(Region, Place)> =
            source.places().map(|place| (self.weights.regions()[place.region].for_once(), place)).collect();
        let mut planes: [&[u8]; 3] = [&[]; 3];
        for (plane, (region, place)) in planes.iter_mut().zip(&regions) {
            *plane = &region.bytes()[place.offset..][..place.bytes];
        }
        let job = Job { source, planes, dtype, cols, permutation, add, importance };
        let part_rows = (PART / cols).min(rows.div_ceil(threads)).max(1);
        let parts: Vec<_> =
            (0..rows).step_by(part_rows).map(|first| first..rows.min(first + part_rows)).collect();
        for batch in parts.chunks(threads) {
            let converted: Vec<Result<Vec<u8>, FormatError>> = std::thread::scope(|scope| {
                let jobs: Vec<_> = batch.iter().map(|rows| scope.spawn(|| job.rows(rows.clone()))).collect();
                let ended_early = || Err(FormatError::tensor(&source.name, "a thread ended early"));
                jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| ended_early())).collect()
            });
            for part in converted {
                put(&part?)?;
            }
        }
        Ok(())
    }
}

const ROPE_FACTORS: &str = "rope_freqs.weight";

/// An error while writing a tensor: from the conversion, or from the writer.
enum Problem {
    Io(io::Error),
    Format(FormatError),
}

impl Problem {
    fn split(self) -> (io::Error, Option<FormatError>) {
        match self {
            Problem::Io(error) => (error, None),
            Problem::Format(error) => (io::ErrorKind::InvalidData.into(), Some(error)),
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Io(error)
    }
}

impl From<FormatError> for Problem {
    fn from(error: FormatError) -> Problem {
        Problem::Format(error)
    }
}

/// The conversion of one tensor, shared by threads.
struct Job<'a> {
    source: &'a TensorInfo,
    planes: [&'a [u8]; 3],
    dtype: DType,
    cols: usize,
    permutation: Option<Permutation>,
    add: f32,
    importance: Option<&'a [f32]>,
}

impl Job<'_> {
    fn rows(&self, rows: std::ops::Range<usize>) -> Result<Vec<u8>, FormatError> {
        let to_bytes = self.dtype.row_bytes(self.cols).ok_or_else(|| {
            let problem = format!("rows of {} are not whole blocks of {}", self.cols, self.dtype);
            FormatError::tensor(&self.source.name, problem)
        })?;
        let mut out = vec![0; rows.len() * to_bytes];
        let mut values = vec![0.0; self.cols];
        for (row, out) in rows.zip(out.chunks_exact_mut(to_bytes)) {
            let from = self.permutation.map_or(row, |permutation| permutation.source(row));
            if self.exactly(from, out)? {
                continue;
            }
            dequantize_nth(self.source.dtype, self.planes, from, &mut values)?;
            self.source.restore_order(&mut values);
            if self.add != 0.0 {
                values.iter_mut().for_each(|v| *v += self.add);
            }
            self.check(&values, from)?;
            quantize_row(self.dtype, &values, self.importance(from), out)?;
        }
        Ok(out)
    }

    /// The importance of the columns of the matrix that a row belongs to.
    fn importance(&self, row: usize) -> Option<&[f32]> {
        let all = self.importance?;
        let matrices = (all.len() / self.cols).max(1);
        let matrix = row / (self.source.rows() / matrices).max(1);
        all.get(matrix * self.cols..)?.get(..self.cols)
    }

    /// Writes a row with the scales that it has, if the type can hold it exactly.
    fn exactly(&self, row: usize, out: &mut [u8]) -> Result<bool, FormatError> {
        match self.source.dtype {
            // With another order, the columns of a block are those of several groups.
            DType::Affine(affine) if self.add == 0.0 && self.source.order.is_none() => {
                let planes = nth_row(self.source.dtype, self.planes, row, self.cols)?;
                Ok(convert_exactly(affine, planes, self.dtype, out))
            }
            _ => Ok(false),
        }
    }

    /// A single value that is not finite would corrupt its whole block silently.
    fn check(&self, values: &[f32], row: usize) -> Result<(), FormatError> {
        let most = match self.dtype {
            DType::F32 | DType::BF16 => f32::MAX,
            _ => f32::from(half::f16::MAX),
        };
        let Some(at) = values.iter().position(|v| v.is_nan() || v.abs() > most) else { return Ok(()) };
        let problem = if values[at].is_finite() {
            format!(
                "element {at} of row {row} is {}, too large for {}: BF16 can hold it",
                values[at], self.dtype
            )
        } else {
            format!(
                "element {at} of row {row} is {}: the file is damaged, or its training failed",
                values[at]
            )
        };
        Err(FormatError::tensor(&self.source.name, problem))
    }
}

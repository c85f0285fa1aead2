//! Finds a model's tensors by their canonical names, checks their shapes, and assigns buffers.

use akunu_arch::{ModelConfig, NormKind, QueryScaling, RopeScaling, ScaledBy, WeightProvider};
use akunu_format::TensorInfo;

use super::Buffers;
use super::graph::{InputOrder, Part, PositionBias, QueryFactors, out_of_order};
use crate::plan::PlanError;
use crate::rope::{Frequencies, frequencies};
use crate::shard::{Sharded, TensorCut};
use crate::{BufferId, BufferKind, Card, DType};

#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub buffer: BufferId,
    /// Scales and offsets, as far as the type has planes of them.
    pub scales_offsets: [Option<BufferId>; 2],
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}

/// A norm with its weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub kind: NormKind,
    pub weight: BufferId,
    pub bias: Option<BufferId>,
    pub epsilon: f32,
}

/// A set of RoPE frequencies, and the buffer that contains it.
#[derive(Debug)]
pub(super) struct RopeTable {
    pub buffer: BufferId,
    pub frequencies: Frequencies,
}

/// The model's RoPE frequencies, then those of its sliding-window layers if they have a separate base.
pub(super) fn rope_tables(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    context: usize,
) -> Result<Vec<RopeTable>, PlanError> {
    let rope = &config.rope;
    let factors = match tensors.has("rope_freqs.weight") {
        false => long_rope_factors(config, context),
        true => {
            let values = tensors.values("rope_freqs.weight", &[rope.dims / 2])?;
            Some(values.into_iter().map(f64::from).collect())
        }
    };
    let mut sets =
        vec![("rope.frequencies", frequencies(rope.dims, rope.base, rope.scaling, factors.as_deref()))];
    if let Some(base) = rope.local_base {
        let local = frequencies(rope.dims, base, RopeScaling::None, None);
        sets.push(("rope.local_frequencies", local));
    }
    Ok(sets
        .into_iter()
        .map(|(name, frequencies)| {
            let buffer = tensors.buffers.constant(name, &frequencies.values);
            RopeTable { buffer, frequencies }
        })
        .collect())
}

/// 1 + rate · ln(1 + n) for the n-th `step` positions of the context, if queries are scaled.
pub(super) fn query_factors(
    (config, by): (&ModelConfig, ScaledBy),
    context: usize,
    buffers: &mut Buffers,
) -> Option<QueryFactors> {
    let QueryScaling { rate, step } = config.rope.query_scaling?;
    let count = match by {
        ScaledBy::Position => context.div_ceil(step),
        ScaledBy::Length => context / step + 1,
    };
    let factors: Vec<f32> = (0..count).map(|n| (1.0 + rate * (1.0 + n as f64).ln()) as f32).collect();
    Some(QueryFactors { buffer: buffers.constant("attention.query_factors", &factors), by, step, count })
}

/// Number of positions after which the bucket of a distance no longer changes. In T5, 32 buckets and 128 positions are
/// a convention that no file states.
const REACH: usize = 128;

/// The bucket of a key `distance` positions after its query.
fn distance_bucket(distance: i64, buckets: usize) -> usize {
    let (side, far) = (buckets / 2, distance.unsigned_abs() as usize);
    let before = if distance > 0 { side } else { 0 };
    let exact = side / 2;
    if far < exact {
        return before + far;
    }
    // As Hugging Face computes it: in f32.
    let log = (far as f32 / exact as f32).ln() / (REACH as f32 / exact as f32).ln();
    before + (exact + (log * (side - exact) as f32) as usize).min(side - 1)
}

/// A model's position bias, expanded from buckets to distances.
pub(super) fn position_bias(
    tensors: &mut Tensors<'_>,
    heads: usize,
) -> Result<Option<PositionBias>, PlanError> {
    let name = "attn_rel_b.weight";
    let Some(buckets) = tensors.rows(name)? else { return Ok(None) };
    let by_bucket = tensors.values(name, &[buckets, heads])?;
    let reach = REACH as i64;
    let bias: Vec<f32> = (0..heads)
        .flat_map(|head| (1 - reach..reach).map(move |distance| (head, distance)))
        .map(|(head, distance)| by_bucket[distance_bucket(distance, buckets) * heads + head])
        .collect();
    let buffer = tensors.buffers.constant("attention.position_bias", &bias);
    Ok(Some(PositionBias { buffer, reach: REACH }))
}

/// Chosen once for the whole plan, since cached keys cannot be rotated again.
fn long_rope_factors(config: &ModelConfig, context: usize) -> Option<Vec<f64>> {
    let RopeScaling::LongRope { original_context, .. } = config.rope.scaling else { return None };
    let factors = config.rope.factors.as_ref()?;
    Some(if context > original_context { factors.long.clone() } else { factors.short.clone() })
}

/// Finds tensors for the lowering, and records which ones are used.
pub(super) struct Tensors<'a> {
    provider: &'a dyn WeightProvider,
    used: Vec<bool>,
    pub buffers: &'a mut Buffers,
    norm_kind: NormKind,
    norm_offset: f32,
    epsilon: f32,
    /// Constants of zeros, by their number.
    zeros: Vec<(usize, BufferId)>,
    /// How tensors are cut, if several ranks share the model.
    shards: Option<&'a Sharded<'a>>,
}

impl<'a> Tensors<'a> {
    pub fn new(
        provider: &'a dyn WeightProvider,
        card: &'static Card,
        buffers: &'a mut Buffers,
    ) -> Tensors<'a> {
        let config = provider.config();
        Tensors {
            provider,
            used: vec![false; provider.tensors().len()],
            buffers,
            norm_kind: card.norm,
            norm_offset: card.norm_offset(config),
            epsilon: config.norm_epsilon,
            zeros: Vec::new(),
            shards: None,
        }
    }

    /// The tensors as each rank has them.
    pub fn cut_by(self, shards: Option<&'a Sharded<'a>>) -> Tensors<'a> {
        Tensors { shards, ..self }
    }

    /// Whether several ranks share the model, so that products cut by inputs have to be added up.
    pub fn is_shared(&self) -> bool {
        self.shards.is_some()
    }

    /// Ranks that share the model.
    pub fn ranks(&self) -> usize {
        self.shards.map_or(1, Sharded::ranks)
    }

    /// The tokens of a vocabulary of `all` that a rank has.
    pub fn tokens(&self, all: usize) -> usize {
        self.shards.map_or(all, Sharded::tokens)
    }

    fn cut(&self, tensor: &TensorInfo) -> Result<Option<TensorCut>, PlanError> {
        self.shards.map_or(Ok(None), |shards| shards.cut(tensor))
    }

    /// Rejects unused tensors, which would otherwise be omitted from the computation silently.
    pub fn refuse_unused(&self) -> Result<(), PlanError> {
        match self.used.iter().position(|used| !used) {
            None => Ok(()),
            Some(unused) => Err(PlanError::UnusedTensor {
                name: self.provider.tensors()[unused].name.clone(),
                architecture: self.provider.config().architecture.clone(),
            }),
        }
    }

    /// Marks a tensor, if present, as intentionally unused.
    pub fn ignore(&mut self, name: &str) {
        self.find(name);
    }

    pub fn has(&self, name: &str) -> bool {
        self.provider.tensor(name).is_some()
    }

    fn find(&mut self, name: &str) -> Option<usize> {
        let tensor = self.provider.tensor(name)?;
        let index = self.provider.tensors().iter().position(|t| std::ptr::eq(t, tensor))?;
        self.used[index] = true;
        Some(index)
    }

    /// A tensor and its cut, of which a rank has `shape`.
    fn checked(
        &mut self,
        index: usize,
        shape: &[usize],
    ) -> Result<(&'a TensorInfo, Option<TensorCut>), PlanError> {
        let tensor = &self.provider.tensors()[index];
        let cut = self.cut(tensor)?;
        let found = cut.as_ref().map_or(&tensor.shape, |cut| &cut.shape);
        if found != shape {
            let (name, found) = (tensor.name.clone(), found.clone());
            return Err(PlanError::Shape { name, found, expected: shape.to_vec() });
        }
        Ok((tensor, cut))
    }

    /// A matrix that stores its inputs in the order of the model.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, PlanError> {
        match self.ordered(name, rows, cols)? {
            (matrix, None) => Ok(matrix),
            (_, Some(_)) => Err(out_of_order(name)),
        }
    }

    /// A matrix, and the order in which it stores its inputs.
    fn ordered(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<(Matrix, Option<InputOrder>), PlanError> {
        let index = self.find(name).ok_or_else(|| PlanError::MissingTensor(name.into()))?;
        let tensor = self.checked(index, &[rows, cols])?;
        let order = tensor.0.order.clone();
        Ok((self.stored(name, index, tensor, [rows, cols])?, order))
    }

    /// The matrix of a tensor as it is stored.
    fn stored(
        &mut self,
        name: &str,
        index: usize,
        (tensor, cut): (&TensorInfo, Option<TensorCut>),
        [rows, cols]: [usize; 2],
    ) -> Result<Matrix, PlanError> {
        let mut add = |suffix: &str, plane: usize, bytes: usize| {
            let cut = match &cut {
                None => None,
                Some(cut) => cut.of_plane(tensor, plane)?,
            };
            let bytes = cut.map_or(bytes, |cut| cut.share_bytes());
            let kind = BufferKind::Weight { tensor: index, plane, cut };
            Ok::<_, PlanError>(self.buffers.add(format!("{name}{suffix}"), bytes as u64, kind))
        };
        let buffer = add("", 0, tensor.bytes)?;
        let [scales, offsets] = tensor.scales_offsets;
        let scales = scales.map(|scales| add(".scales", 1, scales.bytes)).transpose()?;
        let offsets = offsets.map(|offsets| add(".offsets", 2, offsets.bytes)).transpose()?;
        Ok(Matrix { buffer, scales_offsets: [scales, offsets], dtype: tensor.dtype, rows, cols })
    }

    /// Matrices of `[outputs, inputs]` that are stored one after the other, as one of all their rows, and their biases, if
    /// the file has any.
    pub fn stacked(
        &mut self,
        name: &str,
        label: String,
        [count, outputs, inputs]: [usize; 3],
    ) -> Result<Part, PlanError> {
        let weight = format!("{name}.weight");
        let index = self.find(&weight).ok_or_else(|| PlanError::MissingTensor(weight.clone()))?;
        let tensor = self.checked(index, &[count, outputs, inputs])?;
        if tensor.0.order.is_some() {
            return Err(out_of_order(&weight));
        }
        let matrix = self.stored(&weight, index, tensor, [count * outputs, inputs])?;
        let bias = format!("{name}.bias");
        let bias = match self.has(&bias) {
            true => Some(self.vector(&bias, &[count, outputs], 0.0, 1.0)?),
            false => None,
        };
        Ok(Part { label, matrix, bias, order: None })
    }

    /// A vector as a matrix of one row.
    pub fn row(&mut self, name: &str, cols: usize) -> Result<Matrix, PlanError> {
        let buffer = self.vector(name, &[cols], 0.0, 1.0)?;
        Ok(Matrix { buffer, scales_offsets: [None; 2], dtype: DType::F32, rows: 1, cols })
    }

    /// A matrix of `[outputs, inputs]` with its bias, if the file has one.
    pub fn part(
        &mut self,
        name: &str,
        label: String,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Part, PlanError> {
        let (matrix, order) = self.ordered(&format!("{name}.weight"), outputs, inputs)?;
        Ok(Part { label, matrix, bias: self.bias(&format!("{name}.bias"), outputs)?, order })
    }

    /// As [`Tensors::part`], with a bias of zeros if the file has none for it but one for the matrix `beside`: only
    /// products that agree in this are joined.
    pub fn part_beside(
        &mut self,
        beside: &str,
        name: &str,
        label: String,
        shape: [usize; 2],
    ) -> Result<Part, PlanError> {
        let mut part = self.part(name, label, shape)?;
        if part.bias.is_none() && self.has(&format!("{beside}.bias")) {
            part.bias = Some(self.zeros(shape[0]));
        }
        Ok(part)
    }

    fn zeros(&mut self, count: usize) -> BufferId {
        if let Some((_, zeros)) = self.zeros.iter().find(|(other, _)| *other == count) {
            return *zeros;
        }
        let zeros = self.buffers.constant("zeros", &vec![0.0; count]);
        self.zeros.push((count, zeros));
        zeros
    }

    /// The norm whose weights have this name and shape.
    pub fn norm(&mut self, name: &str, shape: &[usize]) -> Result<Norm, PlanError> {
        self.scaled_norm(name, shape, 1.0)
    }

    /// The same, with its output multiplied by `scale`.
    pub fn scaled_norm(&mut self, name: &str, shape: &[usize], scale: f32) -> Result<Norm, PlanError> {
        let bias_name = format!("{}.bias", name.trim_end_matches(".weight"));
        let bias = match self.norm_kind == NormKind::Layer && self.has(&bias_name) {
            true => Some(self.vector(&bias_name, shape, 0.0, scale)?),
            false => None,
        };
        let weight = self.vector(name, shape, self.norm_offset, scale)?;
        Ok(Norm { kind: self.norm_kind, weight, bias, epsilon: self.epsilon })
    }

    /// The number of dimensions of a tensor; 0 if it is absent.
    pub fn dimensions(&self, name: &str) -> usize {
        self.provider.tensor(name).map_or(0, |tensor| tensor.shape.len())
    }

    /// The number of rows that a rank has of a tensor, if present.
    pub fn rows(&self, name: &str) -> Result<Option<usize>, PlanError> {
        let Some(tensor) = self.provider.tensor(name) else { return Ok(None) };
        let cut = self.cut(tensor)?;
        Ok(cut.as_ref().map_or(&tensor.shape, |cut| &cut.shape).first().copied())
    }

    /// A bias of `n` elements, if the file has it.
    pub fn bias(&mut self, name: &str, n: usize) -> Result<Option<BufferId>, PlanError> {
        match self.has(name) {
            true => self.vector(name, &[n], 0.0, 1.0).map(Some),
            false => Ok(None),
        }
    }

    /// So many numbers, in whatever shape the file has them.
    pub fn numbers(&mut self, name: &str, count: usize) -> Result<BufferId, PlanError> {
        let shape = self.provider.tensor(name).map(|tensor| &tensor.shape);
        let same = shape.filter(|shape| shape.iter().product::<usize>() == count);
        self.vector(name, same.map_or(&[count], |shape| &shape[..]), 0.0, 1.0)
    }

    /// Values that the plan itself uses in computations.
    fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, PlanError> {
        let (_, tensor, _) = self.plain(name, shape)?;
        Ok(vector_values(tensor.dtype, self.provider.tensor_bytes(tensor), 0.0, 1.0))
    }

    /// An unquantised tensor, its index, and its cut.
    fn plain(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Result<(usize, &'a TensorInfo, Option<TensorCut>), PlanError> {
        let index = self.find(name).ok_or_else(|| PlanError::MissingTensor(name.into()))?;
        let (tensor, cut) = self.checked(index, shape)?;
        match tensor.dtype.is_quantised() || tensor.dtype.planes() > 1 {
            true => {
                Err(PlanError::TensorType { name: name.into(), found: tensor.dtype.name(), role: "a vector" })
            }
            false => Ok((index, tensor, cut)),
        }
    }

    /// Values that are f32 on the device: `(v + add) · scale`.
    pub fn vector(
        &mut self,
        name: &str,
        shape: &[usize],
        add: f32,
        scale: f32,
    ) -> Result<BufferId, PlanError> {
        let (tensor, info, cut) = self.plain(name, shape)?;
        let cut = cut.map(|cut| cut.of_f32s(info));
        let bytes = shape.iter().product::<usize>() as u64 * 4;
        Ok(self.buffers.add(name, bytes, BufferKind::Vector { tensor, add, scale, cut }))
    }
}

/// The values of a vector: `(v + add) · scale`. The plan has checked that it is not quantised.
pub(crate) fn vector_values(dtype: DType, bytes: &[u8], add: f32, scale: f32) -> Vec<f32> {
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    let mut values: Vec<f32> = match dtype {
        DType::F16 => pairs().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
        DType::BF16 => pairs().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    };
    if add != 0.0 || scale != 1.0 {
        values.iter_mut().for_each(|v| *v = (*v + add) * scale);
    }
    values
}

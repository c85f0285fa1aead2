//! Finds a model's tensors by their canonical names, checks their shapes, and gives each a buffer.

use akunu_arch::{ModelConfig, RopeScaling, WeightProvider};
use akunu_format::TensorInfo;

use super::Buffers;
use crate::plan::PlanError;
use crate::rope::{Frequencies, frequencies};
use crate::{BufferId, BufferKind, Card, DType};

#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub buffer: BufferId,
    /// Of an affine type.
    pub scales_offsets: Option<[BufferId; 2]>,
    pub dtype: DType,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub attn_norm: BufferId,
    pub q: Matrix,
    pub k: Matrix,
    pub v: Matrix,
    /// Q, K and V: all of them or none.
    pub qkv_bias: Option<[BufferId; 3]>,
    /// Q and K.
    pub qk_norm: Option<[BufferId; 2]>,
    pub output: Matrix,
    pub output_bias: Option<BufferId>,
    pub post_attn_norm: Option<BufferId>,
    pub ffn_norm: BufferId,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    pub post_ffn_norm: Option<BufferId>,
    pub window: Option<usize>,
    /// Index into [`ModelWeights::ropes`].
    pub rope: usize,
}

/// One set of rotation frequencies and the buffer that holds it.
#[derive(Debug)]
pub(super) struct RopeTable {
    pub buffer: BufferId,
    pub frequencies: Frequencies,
}

#[derive(Debug)]
pub(super) struct ModelWeights {
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub output_norm: BufferId,
    /// The embedding again where the file has no output of its own.
    pub output: Matrix,
    /// The model's own, and that of sliding layers where it differs.
    pub ropes: Vec<RopeTable>,
}

pub(super) fn resolve(
    provider: &dyn WeightProvider,
    arch: &'static Card,
    context: usize,
    buffers: &mut Buffers,
) -> Result<ModelWeights, PlanError> {
    let config = provider.config();
    let used = vec![false; provider.tensors().len()];
    let mut tensors = Tensors { provider, used, buffers, norm_offset: arch.norm_offset(config) };

    let embedding = tensors.matrix("token_embd.weight", config.vocab_size, config.hidden_size)?;
    let output = match tensors.find("output.weight") {
        Some(_) => tensors.matrix("output.weight", config.vocab_size, config.hidden_size)?,
        None => embedding,
    };
    let output_norm = tensors.norm("output_norm.weight", config.hidden_size)?;
    let ropes = rope_tables(&mut tensors, config, context)?;
    let layers = (0..config.layer_count)
        .map(|layer| resolve_layer(&mut tensors, config, arch, layer, ropes.len() - 1))
        .collect::<Result<Vec<_>, _>>()?;

    if let Some(unused) = tensors.used.iter().position(|used| !used) {
        return Err(PlanError::UnusedTensor {
            name: provider.tensors()[unused].name.clone(),
            architecture: config.architecture.clone(),
        });
    }
    Ok(ModelWeights { embedding, layers, output_norm, output, ropes })
}

fn resolve_layer(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    arch: &'static Card,
    layer: usize,
    local_rope: usize,
) -> Result<Layer, PlanError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (hidden, ffn, head_dim) = (config.hidden_size, config.ffn_size, config.head_dim);
    let (q_size, kv_size) = (config.head_count * head_dim, config.kv_head_count * head_dim);
    let window = arch.layer_window(config, layer);

    let qkv_bias = match tensors.find(&name("attn_q.bias")) {
        None => None,
        Some(_) => Some([
            tensors.vector(&name("attn_q.bias"), q_size, 0.0)?,
            tensors.vector(&name("attn_k.bias"), kv_size, 0.0)?,
            tensors.vector(&name("attn_v.bias"), kv_size, 0.0)?,
        ]),
    };
    let output_bias = match tensors.find(&name("attn_output.bias")) {
        None => None,
        Some(_) => Some(tensors.vector(&name("attn_output.bias"), hidden, 0.0)?),
    };
    let qk_norm = match arch.qk_norm {
        false => None,
        true => Some([
            tensors.norm(&name("attn_q_norm.weight"), head_dim)?,
            tensors.norm(&name("attn_k_norm.weight"), head_dim)?,
        ]),
    };
    let mut post_norm = |part: &str| match arch.post_norms {
        false => Ok(None),
        true => tensors.norm(&name(part), hidden).map(Some),
    };
    Ok(Layer {
        post_attn_norm: post_norm("post_attention_norm.weight")?,
        post_ffn_norm: post_norm("post_ffw_norm.weight")?,
        attn_norm: tensors.norm(&name("attn_norm.weight"), hidden)?,
        q: tensors.matrix(&name("attn_q.weight"), q_size, hidden)?,
        k: tensors.matrix(&name("attn_k.weight"), kv_size, hidden)?,
        v: tensors.matrix(&name("attn_v.weight"), kv_size, hidden)?,
        qkv_bias,
        qk_norm,
        output: tensors.matrix(&name("attn_output.weight"), hidden, q_size)?,
        output_bias,
        ffn_norm: tensors.norm(&name("ffn_norm.weight"), hidden)?,
        gate: tensors.matrix(&name("ffn_gate.weight"), ffn, hidden)?,
        up: tensors.matrix(&name("ffn_up.weight"), ffn, hidden)?,
        down: tensors.matrix(&name("ffn_down.weight"), hidden, ffn)?,
        window,
        rope: if window.is_some() { local_rope } else { 0 },
    })
}

/// The model's frequencies, then those of its sliding layers where they have a base of their own.
fn rope_tables(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    context: usize,
) -> Result<Vec<RopeTable>, PlanError> {
    let rope = &config.rope;
    let factors = match tensors.find("rope_freqs.weight") {
        None => long_rope_factors(config, context),
        Some(index) => {
            let tensor = tensors.checked(index, &[rope.dims / 2])?;
            if tensor.dtype.is_quantised() {
                return Err(PlanError::TensorType {
                    name: tensor.name.clone(),
                    found: tensor.dtype.name(),
                    role: "RoPE frequency factors",
                });
            }
            let values = vector_values(tensor.dtype, tensors.provider.tensor_bytes(tensor), 0.0);
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
            let data = bytemuck::cast_slice(&frequencies.values).to_vec();
            let buffer = tensors.buffers.add(name, data.len() as u64, BufferKind::Constant { data });
            RopeTable { buffer, frequencies }
        })
        .collect())
}

/// The choice holds for as long as the plan does: a key that has been rotated in the cache stays as it is.
fn long_rope_factors(config: &ModelConfig, context: usize) -> Option<Vec<f64>> {
    let RopeScaling::LongRope { original_context, .. } = config.rope.scaling else { return None };
    let factors = config.rope.factors.as_ref()?;
    Some(if context > original_context { factors.long.clone() } else { factors.short.clone() })
}

struct Tensors<'a> {
    provider: &'a dyn WeightProvider,
    used: Vec<bool>,
    buffers: &'a mut Buffers,
    norm_offset: f32,
}

impl<'a> Tensors<'a> {
    fn find(&mut self, name: &str) -> Option<usize> {
        let tensor = self.provider.tensor(name)?;
        let index = self.provider.tensors().iter().position(|t| std::ptr::eq(t, tensor))?;
        self.used[index] = true;
        Some(index)
    }

    fn checked(&mut self, index: usize, shape: &[usize]) -> Result<&'a TensorInfo, PlanError> {
        let tensor = &self.provider.tensors()[index];
        if tensor.shape != shape {
            return Err(PlanError::Shape {
                name: tensor.name.clone(),
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        Ok(tensor)
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, PlanError> {
        let index = self.find(name).ok_or_else(|| PlanError::MissingTensor(name.into()))?;
        let tensor = self.checked(index, &[rows, cols])?;
        let mut add = |suffix: &str, plane: usize, bytes: usize| {
            let kind = BufferKind::Weight { tensor: index, plane };
            self.buffers.add(format!("{name}{suffix}"), bytes as u64, kind)
        };
        let buffer = add("", 0, tensor.bytes);
        let scales_offsets = tensor
            .scales_offsets
            .map(|[scales, offsets]| [add(".scales", 1, scales.bytes), add(".offsets", 2, offsets.bytes)]);
        Ok(Matrix { buffer, scales_offsets, dtype: tensor.dtype })
    }

    fn norm(&mut self, name: &str, n: usize) -> Result<BufferId, PlanError> {
        self.vector(name, n, self.norm_offset)
    }

    fn vector(&mut self, name: &str, n: usize, add: f32) -> Result<BufferId, PlanError> {
        let index = self.find(name).ok_or_else(|| PlanError::MissingTensor(name.into()))?;
        let tensor = self.checked(index, &[n])?;
        if tensor.dtype.is_quantised() {
            return Err(PlanError::TensorType {
                name: name.into(),
                found: tensor.dtype.name(),
                role: "a norm weight or bias",
            });
        }
        Ok(self.buffers.add(name, n as u64 * 4, BufferKind::Vector { tensor: index, add }))
    }
}

/// A 1-D tensor as f32, `add` added. The plan has checked that it is not quantised.
pub(crate) fn vector_values(dtype: DType, bytes: &[u8], add: f32) -> Vec<f32> {
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        DType::F16 => pairs().map(|b| half::f16::from_le_bytes(b).to_f32() + add).collect(),
        DType::BF16 => pairs().map(|b| half::bf16::from_le_bytes(b).to_f32() + add).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) + add).collect(),
    }
}

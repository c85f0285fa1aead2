//! Models without files: a configuration, and tensors of deterministic noise.
#![allow(dead_code, clippy::unwrap_used)]

use akunu_arch::{
    EmbeddingFacts, ExpertFacts, ModelConfig, Rope, RopeScaling, Router, Source, SuggestedSampling,
    WeightProvider, Window, WindowPattern,
};
use akunu_format::{Affine, DType, Place, Region, ScaleType, TensorInfo};
use akunu_plan::{Capabilities, InPlace, KeyOrder, KvType, PlanOptions};

#[derive(Debug)]
pub struct FakeModel {
    pub config: ModelConfig,
    pub tensors: Vec<TensorInfo>,
    pub regions: Vec<Region>,
}

impl WeightProvider for FakeModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }
}

pub fn config(architecture: &str) -> ModelConfig {
    ModelConfig {
        architecture: architecture.into(),
        source: Source::Gguf,
        name: None,
        vocab_size: 40,
        context_length: 64,
        hidden_size: 256,
        layer_count: 2,
        ffn_size: 512,
        head_count: 4,
        kv_head_count: 2,
        head_dim: 64,
        norm_epsilon: 1e-5,
        rope: Rope {
            dims: 64,
            base: 10_000.0,
            local_base: None,
            scaling: RopeScaling::None,
            query_scaling: None,
            factors: None,
        },
        window: None,
        unrotated: vec![],
        normed_heads: false,
        embedding_scale: None,
        residual_scale: None,
        logit_scale: None,
        parallel: false,
        attention_scale: None,
        attention_soft_cap: None,
        logit_soft_cap: None,
        activation: None,
        bidirectional: false,
        embedding: EmbeddingFacts::default(),
        experts: None,
        latent: None,
        mamba: None,
        recurrent: Vec::new(),
        encoder: None,
        alignment_heads: Vec::new(),
        left_out: None,
        packed_as: None,
        fp8_activations: false,
        sampling: SuggestedSampling::default(),
        eos_ids: vec![],
        bos_id: None,
    }
}

/// A configuration with the special properties of each family.
pub fn family(architecture: &str) -> ModelConfig {
    let mut c = config(architecture);
    match architecture {
        "gemma2" => {
            c.window = Some(Window { size: 8, pattern: WindowPattern::Unstated });
            c.attention_soft_cap = Some(50.0);
            c.logit_soft_cap = Some(30.0);
            c.attention_scale = Some(0.0625);
        }
        "gemma3" => {
            c.layer_count = 3;
            c.window = Some(Window { size: 8, pattern: WindowPattern::FullEvery(3) });
            c.rope.local_base = Some(10_000.0);
            c.rope.base = 1e6;
        }
        // The first layer is dense.
        "qwen2moe" => {
            c.experts = Some(ExpertFacts {
                count: 5,
                used: 2,
                ffn_size: 96,
                shared_ffn_size: Some(160),
                normalised: false,
                scale: 1.0,
                groups: [1, 1],
                router: Router::SOFTMAX,
            });
        }
        "gpt-oss" => {
            c.window = Some(Window { size: 8, pattern: WindowPattern::Unstated });
            c.experts = Some(ExpertFacts {
                count: 5,
                used: 2,
                ffn_size: 96,
                shared_ffn_size: None,
                normalised: true,
                scale: 1.0,
                groups: [1, 1],
                router: Router::SOFTMAX,
            });
        }
        _ => {}
    }
    c
}

/// The tensors for a configuration; `dtype` chooses each matrix's type by its name.
pub fn model(config: ModelConfig, dtype: impl Fn(&str) -> DType) -> FakeModel {
    let mut builder = Builder { tensors: Vec::new(), bytes: Vec::new(), dtype: &dtype, seed: 1 };
    let (hidden, ffn, dim) = (config.hidden_size, config.ffn_size, config.head_dim);
    let (q, kv) = (config.head_count * dim, config.kv_head_count * dim);
    let family = config.architecture.as_str();
    builder.add("token_embd.weight", &[config.vocab_size, hidden]);
    builder.add("output_norm.weight", &[hidden]);
    for layer in 0..config.layer_count {
        let mut add = |part: &str, shape: &[usize]| builder.add(&format!("blk.{layer}.{part}"), shape);
        add("attn_norm.weight", &[hidden]);
        add("attn_q.weight", &[q, hidden]);
        add("attn_k.weight", &[kv, hidden]);
        add("attn_v.weight", &[kv, hidden]);
        if ["qwen2", "gpt-oss"].contains(&family) {
            add("attn_q.bias", &[q]);
            add("attn_k.bias", &[kv]);
            add("attn_v.bias", &[kv]);
        }
        if ["qwen3", "gemma3"].contains(&family) {
            add("attn_q_norm.weight", &[dim]);
            add("attn_k_norm.weight", &[dim]);
        }
        add("attn_output.weight", &[hidden, q]);
        if ["gemma2", "gemma3"].contains(&family) {
            add("post_attention_norm.weight", &[hidden]);
            add("post_ffw_norm.weight", &[hidden]);
        }
        if let Some(experts) = config.experts.filter(|_| family == "gpt-oss") {
            let (count, ffn) = (experts.count, experts.ffn_size);
            add("attn_sinks.weight", &[config.head_count]);
            add("attn_output.bias", &[hidden]);
            add("post_attention_norm.weight", &[hidden]);
            add("ffn_gate_inp.weight", &[count, hidden]);
            add("ffn_gate_inp.bias", &[count]);
            for (part, outputs, inputs) in [("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)]
            {
                add(&format!("ffn_{part}_exps.weight"), &[count, outputs, inputs]);
                add(&format!("ffn_{part}_exps.bias"), &[count, outputs]);
            }
            continue;
        }
        add("ffn_norm.weight", &[hidden]);
        if let Some(experts) = config.experts.filter(|_| layer > 0) {
            let (count, ffn, shared) = (experts.count, experts.ffn_size, experts.shared_ffn_size.unwrap());
            add("ffn_gate_inp.weight", &[count, hidden]);
            add("ffn_gate_exps.weight", &[count, ffn, hidden]);
            add("ffn_up_exps.weight", &[count, ffn, hidden]);
            add("ffn_down_exps.weight", &[count, hidden, ffn]);
            add("ffn_gate_inp_shexp.weight", &[hidden]);
            add("ffn_gate_shexp.weight", &[shared, hidden]);
            add("ffn_up_shexp.weight", &[shared, hidden]);
            add("ffn_down_shexp.weight", &[hidden, shared]);
            continue;
        }
        add("ffn_gate.weight", &[ffn, hidden]);
        add("ffn_up.weight", &[ffn, hidden]);
        add("ffn_down.weight", &[hidden, ffn]);
    }
    let Builder { tensors, bytes, .. } = builder;
    FakeModel { config, tensors, regions: vec![Region::from_vec(bytes)] }
}

struct Builder<'a> {
    tensors: Vec<TensorInfo>,
    bytes: Vec<u8>,
    dtype: &'a dyn Fn(&str) -> DType,
    seed: u64,
}

impl Builder<'_> {
    fn noise(&mut self) -> f32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.2
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        let dtype = if shape.len() == 1 { DType::F32 } else { (self.dtype)(name) };
        let cols = *shape.last().unwrap();
        let rows: usize = shape.iter().rev().skip(1).product();
        let sizes = dtype.plane_bytes(cols).unwrap();
        let mut planes: [Vec<u8>; 3] = Default::default();
        for _ in 0..rows {
            let base = if shape.len() == 1 { 1.0 } else { 0.0 };
            let values: Vec<f32> = (0..cols).map(|_| base + self.noise()).collect();
            let row = encode(dtype, &values);
            let mut rest = row.as_slice();
            for (plane, size) in planes.iter_mut().zip(sizes) {
                let (part, more) = rest.split_at(size);
                plane.extend(part);
                rest = more;
            }
            assert!(rest.is_empty());
        }
        let places = planes.map(|plane| {
            let offset = self.bytes.len().next_multiple_of(32);
            self.bytes.resize(offset, 0);
            self.bytes.extend(&plane);
            Place { region: 0, offset, bytes: plane.len() }
        });
        self.tensors.push(TensorInfo {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            region: 0,
            offset: places[0].offset,
            bytes: places[0].bytes,
            scales_offsets: [1, 2].map(|plane| (dtype.planes() > plane).then(|| places[plane])),
            order: None,
        });
    }
}

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        DType::Affine(_) => {
            let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
            akunu_format::blocks::quantize_row(dtype, values, None, &mut bytes).unwrap();
            bytes
        }
        // Q8_0 by hand; models with other types are only planned here, never run.
        DType::Q8_0 => values
            .chunks(32)
            .flat_map(|block| {
                let mut quants = [0i8; 32];
                let (scale, _) = akunu_plan::q8::quantise_block(block, &mut quants);
                let mut bytes = half::f16::from_f32(scale).to_le_bytes().to_vec();
                bytes.extend(quants.map(|q| q as u8));
                bytes
            })
            .collect(),
        _ => vec![0; dtype.row_bytes(values.len()).unwrap()],
    }
}

/// An affine type.
pub fn affine(bits: usize, group: usize) -> DType {
    DType::Affine(Affine::new(bits, group, ScaleType::F16).unwrap())
}

pub fn capabilities() -> Capabilities {
    Capabilities {
        name: "test",
        detail: String::new(),
        folds: false,
        half_products: None,
        packed_products: None,
        eight_products: None,
        keys: KeyOrder::PositionMajor,
        block: 16,
        in_place: InPlace::All,
        samples: false,
        chain: 8,
        prefill_rows: 16,
        workspace_bytes: 0,
        workspace_row_bytes: 0,
        streaming_bytes: 0,
        ranks: 1,
        host: None,
        stages: Vec::new(),
        available_bytes: None,
    }
}

pub fn options() -> PlanOptions {
    PlanOptions {
        context: 32,
        slots: 2,
        kv: KvType::F16,
        kv_bytes: None,
        prefill_rows: 16,
        prefill_logit_rows: 1,
        chain: 8,
        windows: 1,
        beams: 1,
        word_times: false,
        fuse: true,
        keep_inputs: false,
        host: akunu_plan::OnHost::default(),
        stages: Vec::new(),
        stream_rows: None,
    }
}

//! The shapes of real models, as their own configurations state them.

use akunu_format::quantise::Proportions;
use akunu_format::{Array, DType, Metadata, TensorSpec, Value};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Family {
    Llama,
    /// LLaMA 3.1 and later: long wavelengths stretched by this much, through a `rope_freqs` tensor.
    Llama3 {
        factor: f64,
    },
    Qwen3,
    Gemma3 {
        window: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) family: Family,
    pub(super) vocab: usize,
    pub(super) context: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) ffn: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rope_base: f32,
    pub(super) epsilon: f32,
    pub(super) tied: bool,
}

const LLAMA_8B: Preset = Preset {
    name: "llama-8b",
    title: "Llama 3.1 8B",
    family: Family::Llama3 { factor: 8.0 },
    vocab: 128_256,
    context: 131_072,
    hidden: 4096,
    layers: 32,
    ffn: 14_336,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    rope_base: 500_000.0,
    epsilon: 1e-5,
    tied: false,
};

const QWEN3_8B: Preset = Preset {
    name: "qwen3-8b",
    title: "Qwen3 8B",
    family: Family::Qwen3,
    vocab: 151_936,
    context: 40_960,
    layers: 36,
    ffn: 12_288,
    rope_base: 1_000_000.0,
    epsilon: 1e-6,
    ..LLAMA_8B
};

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "smollm2-135m",
        title: "SmolLM2 135M",
        family: Family::Llama,
        vocab: 49_152,
        context: 8192,
        hidden: 576,
        layers: 30,
        ffn: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        rope_base: 100_000.0,
        epsilon: 1e-5,
        tied: true,
    },
    Preset {
        name: "tinyllama-1.1b",
        title: "TinyLlama 1.1B",
        family: Family::Llama,
        vocab: 32_000,
        context: 2048,
        hidden: 2048,
        layers: 22,
        ffn: 5632,
        heads: 32,
        kv_heads: 4,
        head_dim: 64,
        rope_base: 10_000.0,
        epsilon: 1e-5,
        tied: false,
    },
    Preset {
        name: "llama-1b",
        title: "Llama 3.2 1B",
        family: Family::Llama3 { factor: 32.0 },
        hidden: 2048,
        layers: 16,
        ffn: 8192,
        head_dim: 64,
        tied: true,
        ..LLAMA_8B
    },
    LLAMA_8B,
    Preset {
        name: "llama-70b",
        title: "Llama 3.1 70B",
        hidden: 8192,
        layers: 80,
        ffn: 28_672,
        heads: 64,
        ..LLAMA_8B
    },
    Preset {
        name: "qwen3-0.6b",
        title: "Qwen3 0.6B",
        hidden: 1024,
        layers: 28,
        ffn: 3072,
        heads: 16,
        tied: true,
        ..QWEN3_8B
    },
    Preset { name: "qwen3-4b", title: "Qwen3 4B", hidden: 2560, ffn: 9728, tied: true, ..QWEN3_8B },
    QWEN3_8B,
    Preset {
        name: "gemma3-1b",
        title: "Gemma 3 1B",
        family: Family::Gemma3 { window: 512 },
        vocab: 262_144,
        context: 32_768,
        hidden: 1152,
        layers: 26,
        ffn: 6912,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        rope_base: 1_000_000.0,
        epsilon: 1e-6,
        tied: true,
    },
    // Nobody's model: for tests, and to try a command in no time.
    Preset {
        name: "tiny",
        title: "Tiny",
        family: Family::Llama,
        vocab: 1000,
        context: 1024,
        hidden: 256,
        layers: 4,
        ffn: 768,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rope_base: 10_000.0,
        epsilon: 1e-5,
        tied: true,
    },
];

/// What a tensor is for: it decides its type and its spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Embedding,
    Output,
    /// Values near 1.
    Norm,
    RopeFactors,
    AttnQ,
    AttnK,
    AttnV {
        layer: usize,
    },
    AttnOutput,
    FfnUp,
    FfnGate,
    FfnDown {
        layer: usize,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) shape: Vec<usize>,
}

impl Tensor {
    fn new(name: impl Into<String>, role: Role, shape: impl Into<Vec<usize>>) -> Tensor {
        Tensor { name: name.into(), role, shape: shape.into() }
    }

    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }

    pub(super) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(super) fn spec(&self, dtype: DType) -> TensorSpec {
        TensorSpec::new(self.name.clone(), dtype, self.shape.clone())
    }
}

impl Preset {
    pub(super) fn find(name: &str) -> Option<Preset> {
        PRESETS.iter().find(|p| p.name == name).copied()
    }

    pub(super) fn architecture(&self) -> &'static str {
        match self.family {
            Family::Llama | Family::Llama3 { .. } => "llama",
            Family::Qwen3 => "qwen3",
            Family::Gemma3 { .. } => "gemma3",
        }
    }

    /// In the order of converted files.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let (hidden, ffn) = (self.hidden, self.ffn);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = Vec::new();
        if let Family::Llama3 { .. } = self.family {
            tensors.push(Tensor::new("rope_freqs.weight", Role::RopeFactors, [self.head_dim / 2]));
        }
        tensors.push(Tensor::new("token_embd.weight", Role::Embedding, [self.vocab, hidden]));
        for layer in 0..self.layers {
            let mut add = |name: &str, role, shape: &[usize]| {
                tensors.push(Tensor::new(format!("blk.{layer}.{name}.weight"), role, shape));
            };
            add("attn_norm", Role::Norm, &[hidden]);
            add("attn_q", Role::AttnQ, &[q, hidden]);
            add("attn_k", Role::AttnK, &[kv, hidden]);
            add("attn_v", Role::AttnV { layer }, &[kv, hidden]);
            if matches!(self.family, Family::Qwen3 | Family::Gemma3 { .. }) {
                add("attn_q_norm", Role::Norm, &[self.head_dim]);
                add("attn_k_norm", Role::Norm, &[self.head_dim]);
            }
            add("attn_output", Role::AttnOutput, &[hidden, q]);
            if let Family::Gemma3 { .. } = self.family {
                add("post_attention_norm", Role::Norm, &[hidden]);
                add("post_ffw_norm", Role::Norm, &[hidden]);
            }
            add("ffn_norm", Role::Norm, &[hidden]);
            add("ffn_gate", Role::FfnGate, &[ffn, hidden]);
            add("ffn_up", Role::FfnUp, &[ffn, hidden]);
            add("ffn_down", Role::FfnDown { layer }, &[hidden, ffn]);
        }
        tensors.push(Tensor::new("output_norm.weight", Role::Norm, [hidden]));
        if !self.tied {
            tensors.push(Tensor::new("output.weight", Role::Output, [self.vocab, hidden]));
        }
        tensors
    }

    /// All that a loader asks for but the tokens: these models are for speed, and speak in ids.
    pub(super) fn metadata(&self, file_type: u32) -> Metadata {
        let architecture = self.architecture();
        let mut metadata = Metadata::default();
        let text = |text: &str| Value::String(text.to_string());
        metadata.insert("general.architecture", text(architecture));
        metadata.insert("general.name", text(&format!("{} with random weights", self.title)));
        metadata.insert("general.file_type", Value::U32(file_type));
        // Other engines want to be told that there is no vocabulary.
        metadata.insert("tokenizer.ggml.model", text("none"));
        let tags: akunu_format::Strings = ["random-weights"].into_iter().collect();
        metadata.insert("general.tags", Value::Array(Array::Strings(tags)));
        let mut number = |key: &str, value: usize| {
            metadata.insert(format!("{architecture}.{key}"), Value::U32(value as u32));
        };
        number("context_length", self.context);
        number("embedding_length", self.hidden);
        number("block_count", self.layers);
        number("feed_forward_length", self.ffn);
        number("attention.head_count", self.heads);
        number("attention.head_count_kv", self.kv_heads);
        number("attention.key_length", self.head_dim);
        number("attention.value_length", self.head_dim);
        number("rope.dimension_count", self.head_dim);
        number("vocab_size", self.vocab);
        if let Family::Gemma3 { window } = self.family {
            number("attention.sliding_window", window);
        }
        let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
        metadata.insert(epsilon, Value::F32(self.epsilon));
        metadata.insert(format!("{architecture}.rope.freq_base"), Value::F32(self.rope_base));
        metadata
    }

    pub(super) fn proportions(&self) -> Proportions {
        Proportions { layers: self.layers, heads: self.heads, kv_heads: self.kv_heads, tied: self.tied }
    }

    /// What each pair's frequency is divided by: 1 for short wavelengths, the factor for long ones, a ramp between.
    pub(super) fn rope_factors(&self) -> Vec<f32> {
        const ORIGINAL_CONTEXT: f64 = 8192.0;
        const LOW: f64 = 1.0;
        const HIGH: f64 = 4.0;
        let Family::Llama3 { factor } = self.family else { return Vec::new() };
        let pairs = self.head_dim / 2;
        let one = |pair: usize| {
            let turn = f64::from(self.rope_base).powf(pair as f64 / pairs as f64);
            let wavelength = std::f64::consts::TAU * turn;
            let turns = ORIGINAL_CONTEXT / wavelength;
            if turns > HIGH {
                1.0
            } else if turns < LOW {
                factor
            } else {
                let smooth = (turns - LOW) / (HIGH - LOW);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        (0..pairs).map(|pair| one(pair) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_as_many_parameters_as_the_real_models() {
        for (name, parameters) in [
            ("smollm2-135m", 134_515_008),
            ("tinyllama-1.1b", 1_100_048_384),
            ("llama-1b", 1_235_814_400),
            ("llama-8b", 8_030_261_248),
            ("llama-70b", 70_553_706_496),
            ("qwen3-0.6b", 596_049_920),
            ("qwen3-4b", 4_022_468_096),
            ("qwen3-8b", 8_190_735_360),
            ("gemma3-1b", 999_885_952),
        ] {
            let tensors = Preset::find(name).unwrap().tensors();
            let weights = tensors.iter().filter(|t| t.role != Role::RopeFactors);
            assert_eq!(weights.map(Tensor::elements).sum::<u64>(), parameters, "{name}");
        }
    }

    #[test]
    fn rope_factors_go_from_one_to_the_models_factor() {
        let factors = LLAMA_8B.rope_factors();
        assert_eq!((factors.len(), factors[0], factors[63]), (64, 1.0, 8.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}

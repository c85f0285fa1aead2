//! Shapes of published models, from the cards of their families, and the tensors of a file with such a shape.

use akunu_arch::facts::{Fact, SIGMOID};
use akunu_arch::tensors::{Kind, Part, Sizes, TensorRule};
use akunu_arch::{Biases, CARDS, Card, MambaShape, RopeScaling, Scores, Shape, in_gguf, llama3_kept};
use akunu_format::quantise::Proportions;
use akunu_format::{Array, DType, Metadata, TensorSpec, Value};

/// A shape and its family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Preset {
    pub(super) card: &'static Card,
    pub(super) shape: Shape,
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
}

impl Tensor {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }

    pub(super) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(super) fn spec(&self, dtype: DType) -> TensorSpec {
        let (name, shape) = in_gguf(&self.name, &self.shape, None);
        TensorSpec::new(name, dtype, shape)
    }
}

/// All presets; published models come first.
pub(super) fn presets() -> Vec<Preset> {
    let all = CARDS.iter().flat_map(|card| card.shapes.iter().map(|shape| Preset { card, shape: *shape }));
    let mut all: Vec<Preset> = all.collect();
    all.sort_by_key(|preset| preset.shape.toy);
    all
}

impl Preset {
    pub(super) fn find(name: &str) -> Option<Preset> {
        presets().into_iter().find(|preset| preset.shape.name == name)
    }

    /// In the order of converted files.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let sizes = Sizes::from(&self.shape);
        let rules: Vec<&TensorRule> = self.card.tensor_rules().filter(|rule| self.has(rule)).collect();
        let mut tensors = Vec::new();
        let mut add = |prefix: &str, rule: &TensorRule| {
            let shape: Vec<usize> = rule.shape.iter().map(|dim| dim.of(&sizes)).collect();
            let bias = (self.has_bias(rule)).then(|| Tensor {
                name: format!("{prefix}{}.bias", rule.name),
                kind: rule.kind,
                shape: shape[..(shape.len() - 1).max(1)].to_vec(),
            });
            if rule.kind != Kind::Bias {
                tensors.push(Tensor {
                    name: format!("{prefix}{}.weight", rule.name),
                    kind: rule.kind,
                    shape,
                });
            }
            tensors.extend(bias);
        };
        for run in rules.chunk_by(|a, b| a.part == b.part) {
            let (prefix, layers) = match run[0].part {
                Part::Model => {
                    run.iter().for_each(|rule| add("", rule));
                    continue;
                }
                Part::Layer => ("", self.shape.layers),
                Part::EncoderLayer => ("enc.", self.shape.encoder.map_or(0, |encoder| encoder.layers)),
            };
            for layer in 0..layers {
                let prefix = format!("{prefix}blk.{layer}.");
                run.iter().filter(|rule| self.has_in(rule, layer)).for_each(|rule| add(&prefix, rule));
            }
        }
        tensors
    }

    fn has_bias(&self, rule: &TensorRule) -> bool {
        let of_layer = rule.part != Part::Model;
        let in_layer = of_layer || matches!(rule.kind, Kind::Norm | Kind::Convolution);
        let is_matrix = !matches!(rule.kind, Kind::Norm | Kind::Convolution | Kind::Parameter | Kind::Bias);
        let of_biases = match self.shape.biases {
            Biases::None => false,
            Biases::All => in_layer,
            Biases::AllButKeys => in_layer && !rule.name.ends_with("attn_k"),
            Biases::Matrices => of_layer && is_matrix,
            Biases::Qkv => matches!(rule.name, "attn_q" | "attn_k" | "attn_v"),
        };
        of_biases || rule.kind == Kind::Bias || (rule.is_of_state() && rule.kind == Kind::Convolution)
    }

    /// Whether a layer has such a tensor, if the shape has.
    fn has_in(&self, rule: &TensorRule, layer: usize) -> bool {
        let mixes = self.shape.mamba.is_some_and(|mamba| !mamba.attention.contains(&layer));
        if if mixes { rule.is_of_attention() } else { rule.is_of_state() } {
            return false;
        }
        let Some(experts) = self.shape.experts else { return true };
        let dense = layer < experts.dense_layers;
        match rule.is_of_experts() || rule.is_of_shared_expert() {
            true => !dense,
            false => dense || !rule.is_of_dense_feed(),
        }
    }

    /// Whether this shape has such a tensor.
    fn has(&self, rule: &TensorRule) -> bool {
        match rule.kind {
            _ if rule.is_classifier() => false,
            _ if rule.is_of_state() => self.shape.mamba.is_some(),
            // Of the families with shapes, those that choose by sigmoids have it.
            Kind::Bias if self.card.router.scores != Scores::Sigmoid => false,
            _ if rule.is_of_experts() => self.shape.experts.is_some(),
            _ if rule.is_of_shared_expert() => {
                self.shape.experts.is_some_and(|experts| experts.shared_ffn.is_some())
            }
            _ if rule.is_of_dense_feed() => self.shape.experts.is_none_or(|experts| experts.dense_layers > 0),
            // Opening a file takes it apart.
            Kind::KeysValues => false,
            _ if rule.is_of_query_rank() => self.query_rank().is_some(),
            _ if rule.name == "attn_q" && self.shape.latent.is_some() => self.query_rank().is_none(),
            // Those of models without.
            _ if rule.is_of_qk_norm() => !self.card.optional_qk_norm,
            Kind::RopeFactors => matches!(self.shape.rope_scaling, RopeScaling::Llama3 { .. }),
            Kind::Output => !self.shape.tied,
            _ => true,
        }
    }

    /// The metadata that a loader needs except the tokens: these models are for speed measurements, with token ids.
    pub(super) fn metadata(&self, file_type: u32) -> Metadata {
        let (card, shape) = (self.card, &self.shape);
        let architecture = card.gguf_name();
        let mut metadata = Metadata::default();
        let text = |text: &str| Value::String(text.to_string());
        metadata.insert("general.architecture", text(architecture));
        metadata.insert("general.name", text(&format!("{} with random weights", shape.title)));
        metadata.insert("general.file_type", Value::U32(file_type));
        // Other engines require a statement that there is no vocabulary.
        metadata.insert("tokenizer.ggml.model", text("none"));
        let tags: akunu_format::Strings = ["random-weights"].into_iter().collect();
        metadata.insert("general.tags", Value::Array(Array::Strings(tags)));
        let mut put = |key: &str, value: Value| {
            metadata.insert(format!("{architecture}.{key}"), value);
        };
        let key = |fact: Fact| card.gguf_key(fact);
        let number = |value: usize| Value::U32(value as u32);
        for (fact, value) in [
            (Fact::ContextLength, shape.context),
            (Fact::HiddenSize, shape.hidden),
            (Fact::LayerCount, shape.layers),
            (Fact::FfnSize, shape.ffn),
            (Fact::HeadCount, shape.heads),
            (Fact::HeadDim, shape.head_dim),
            (Fact::ValueHeadDim, shape.latent.map_or(shape.head_dim, |latent| latent.size)),
            (Fact::RopeDims, self.rope_dims()),
        ] {
            put(key(fact), number(value));
        }
        match shape.mamba {
            None => put(key(Fact::KvHeadCount), number(shape.kv_heads)),
            Some(MambaShape { facts, attention }) => {
                let count = |layer| if attention.contains(&layer) { shape.kv_heads as i32 } else { 0 };
                let counts = (0..shape.layers).map(count).collect();
                put(key(Fact::KvHeadCount), Value::Array(Array::I32(counts)));
                put(key(Fact::Rotates), Value::Bool(false));
                for (fact, value) in [
                    (Fact::StateTaps, facts.taps),
                    (Fact::StateSize, facts.state_size),
                    (Fact::StateGroups, facts.groups),
                    (Fact::StateHeads, facts.heads),
                    (Fact::StateInner, facts.inner()),
                ] {
                    put(key(fact), number(value));
                }
            }
        }
        if let Some(latent) = shape.latent {
            for (fact, value) in [
                (Fact::QueryRank, latent.query_rank),
                (Fact::LatentSize, Some(latent.size)),
                (Fact::KeySize, Some(latent.plain + self.rope_dims())),
                (Fact::ValueSize, Some(latent.values)),
            ] {
                if let Some(value) = value {
                    put(key(fact), number(value));
                }
            }
            if let Some(rule) = card.rule(Fact::YarnLogMultiplier).filter(|_| latent.growth != 0.0) {
                let multiplier = rule.gguf_form.field(latent.growth);
                put(key(Fact::YarnLogMultiplier), Value::F32(multiplier as f32));
            }
        }
        if let Some(experts) = shape.experts {
            for (fact, value) in [
                (Fact::ExpertCount, Some(experts.count)),
                (Fact::ExpertsUsed, Some(experts.used)),
                (Fact::ExpertFfnSize, Some(experts.ffn)),
                (Fact::SharedFfnSize, experts.shared_ffn),
                (Fact::SharedExperts, experts.shared_ffn.map(|shared| shared / experts.ffn)),
                (Fact::DenseLayers, Some(experts.dense_layers)),
                (Fact::ExpertsEvery, Some(1)),
                (Fact::Scores, (card.router.scores == Scores::Sigmoid).then_some(SIGMOID)),
            ] {
                if let (Some(value), Some(_)) = (value, card.rule(fact)) {
                    put(key(fact), number(value));
                }
            }
            // Readers of families with sigmoids want it stated.
            if card.router.scores == Scores::Sigmoid {
                put(key(Fact::ShareScale), Value::F32(1.0));
            }
            let normalised = card.hf.first().and_then(|kind| kind.default(Fact::NormalisedShares));
            if normalised != card.gguf_default(Fact::NormalisedShares) {
                put(key(Fact::NormalisedShares), Value::Bool(normalised == Some(1.0)));
            }
        }
        if let Some(encoder) = shape.encoder {
            for (fact, value) in [
                (Fact::EncoderPositions, encoder.positions),
                (Fact::EncoderLayerCount, encoder.layers),
                (Fact::EncoderFfnSize, shape.ffn),
                (Fact::EncoderHeadCount, shape.heads),
                (Fact::MelBands, encoder.bands),
            ] {
                put(key(fact), number(value));
            }
        }
        if let Some(pooling) = shape.pooling {
            put("pooling_type", Value::U32(pooling.number()));
            put("attention.causal", Value::Bool(!card.bidirectional));
        }
        put("vocab_size", number(shape.vocab));
        if let Some(window) = shape.window {
            put(key(Fact::WindowSize), number(window));
        }
        if card.rule(Fact::ResidualScale).is_some() {
            // Other engines require them.
            for (fact, value) in [
                (Fact::EmbeddingScale, 1.0),
                (Fact::ResidualScale, 1.0),
                (Fact::LogitScale, 1.0),
                (Fact::AttentionScale, 1.0 / (shape.head_dim as f32).sqrt()),
            ] {
                put(key(fact), Value::F32(value));
            }
        }
        put(key(Fact::NormEpsilon), Value::F32(shape.epsilon));
        put(key(Fact::RopeBase), Value::F32(shape.rope_base));
        if let RopeScaling::Yarn { factor, original_context, .. } = shape.rope_scaling {
            put("rope.scaling.type", text("yarn"));
            put("rope.scaling.factor", Value::F32(factor as f32));
            put("rope.scaling.original_context_length", number(original_context));
        }
        metadata
    }

    fn query_rank(&self) -> Option<usize> {
        self.shape.latent.and_then(|latent| latent.query_rank)
    }

    /// The dimensions of each head that RoPE rotates: of some families a part, as their configurations say.
    fn rope_dims(&self) -> usize {
        if let Some(latent) = self.shape.latent {
            return self.shape.head_dim - latent.size;
        }
        let part = self.card.hf.first().and_then(|kind| kind.default(Fact::PartialRotaryFactor));
        (self.shape.head_dim as f64 * part.unwrap_or(1.0)) as usize
    }

    pub(super) fn proportions(&self) -> Proportions {
        let Shape { layers, heads, kv_heads, tied, .. } = self.shape;
        Proportions { layers, heads, kv_heads, tied }
    }

    /// Divisors of the RoPE frequencies: 1 for short wavelengths, the factor for long ones, a ramp between.
    pub(super) fn rope_factors(&self) -> Vec<f32> {
        let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
            self.shape.rope_scaling
        else {
            return Vec::new();
        };
        let pairs = self.shape.head_dim / 2;
        let one = |pair: usize| {
            let turn = f64::from(self.shape.rope_base).powf(pair as f64 / pairs as f64);
            let wavelength = std::f64::consts::TAU * turn;
            let turns = original_context as f64 / wavelength;
            let keep = llama3_kept(turns, [low_freq_factor, high_freq_factor]);
            1.0 / ((1.0 - keep) / factor + keep)
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
            ("qwen3-14b", 14_768_307_200),
            ("qwen3-32b", 32_762_123_264),
            ("gemma3-1b", 999_885_952),
            ("gpt-oss-20b", 20_914_757_184),
            ("gpt-oss-120b", 116_829_156_672),
            ("deepseek-v2-lite", 15_706_484_224),
            // Without the vision model.
            ("llama-4-scout", 107_769_861_120),
            // With the biases for choosing experts, which transformers does not count as parameters (5,760).
            ("glm-4.5-air", 106_852_251_264),
            // Without the pooler, which is not used for embeddings.
            ("minilm-l6", 22_565_376),
            ("bge-large", 334_092_288),
            ("whisper-tiny", 37_760_640),
            ("whisper-base", 72_593_920),
            ("whisper-small", 241_734_912),
            ("whisper-medium", 763_857_920),
            ("whisper-large-v3", 1_543_490_560),
            ("whisper-turbo", 808_878_080),
        ] {
            let tensors = Preset::find(name).unwrap().tensors();
            let weights = tensors.iter().filter(|t| t.kind != Kind::RopeFactors);
            assert_eq!(weights.map(Tensor::elements).sum::<u64>(), parameters, "{name}");
        }
    }

    #[test]
    fn rope_factors_go_from_one_to_the_models_factor() {
        let factors = Preset::find("llama-8b").unwrap().rope_factors();
        assert_eq!((factors.len(), factors[0], factors[63]), (64, 1.0, 8.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}

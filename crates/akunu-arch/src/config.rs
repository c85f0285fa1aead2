//! The facts that a model file states about its shape. How they affect the forward pass is up to the card of the
//! family.

use akunu_format::{FormatError, TensorInfo};

/// Where the weights come from; the conventions differ (see [`crate::Card`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Gguf,
    /// Hugging Face names and layouts: Q and K rows not permuted, Gemma norm weights stored minus one.
    HuggingFace,
    /// The container of whisper.cpp, with the layouts of GGUF.
    Ggml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// Exact GELU, with the error function.
    GeluErf,
    Tanh,
    Relu,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// As in the file: GGUF's `general.architecture` or Hugging Face's `model_type`.
    pub architecture: String,
    pub source: Source,
    pub name: Option<String>,
    pub vocab_size: usize,
    /// Context length that the model was trained for.
    pub context_length: usize,
    pub hidden_size: usize,
    pub layer_count: usize,
    pub ffn_size: usize,
    pub head_count: usize,
    pub kv_head_count: usize,
    pub head_dim: usize,
    pub norm_epsilon: f32,
    pub rope: Rope,
    /// Sliding-window attention, if the file asks for it.
    pub window: Option<Window>,
    /// One entry per layer: true if RoPE is not applied. Empty if RoPE is applied in all layers.
    pub unrotated: Vec<bool>,
    /// Heads of Q and K are normalized in layers with RoPE, for families whose norms have no weights.
    pub normed_heads: bool,
    /// Embeddings are multiplied by this; `None`: the card decides.
    pub embedding_scale: Option<f32>,
    /// The outputs of attention and feed-forward parts are multiplied by this before the residual addition.
    pub residual_scale: Option<f32>,
    /// Logits are multiplied by this, before soft capping.
    pub logit_scale: Option<f32>,
    /// Attention and feed-forward part both read the layer's input (parallel residual), for families that have models
    /// of either kind.
    pub parallel: bool,
    /// Attention scores are multiplied by this; `None` means 1/√head_dim.
    pub attention_scale: Option<f32>,
    pub attention_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    /// `None` if the file does not state it: the card's activation is used.
    pub activation: Option<Activation>,
    /// Attention is bidirectional. Such a model produces embeddings, not tokens.
    pub bidirectional: bool,
    pub embedding: EmbeddingFacts,
    /// The experts of layers that route their tokens, if there are such layers.
    pub experts: Option<ExpertFacts>,
    /// Of models whose keys and values are made from one vector of each position. Their cache has one head, of that
    /// vector and a rotated key that all heads share: `head_dim` and `kv_head_count` are those of the cache.
    pub latent: Option<LatentFacts>,
    /// The sizes of layers that mix positions through a state, if there are such layers.
    pub mamba: Option<MambaFacts>,
    /// One entry per layer: true if it mixes positions through a state instead of attention. Empty without such layers.
    pub recurrent: Vec<bool>,
    /// The encoder of audio whose states the decoder attends to, in models that transcribe.
    pub encoder: Option<EncoderFacts>,
    /// The heads (layer, head) of the decoder whose attention to the audio follows what is said, if the files state them.
    pub alignment_heads: Vec<[usize; 2]>,
    /// Parts of the file that are not run, such as a vision encoder.
    pub left_out: Option<String>,
    /// The format in which a folder's weights are packed: MLX, GPTQ, AWQ.
    pub packed_as: Option<&'static str>,
    /// The file asks for rows in FP8 where they meet FP8 weights. Devices that do not multiply FP8 may use rows in any form.
    pub fp8_activations: bool,
    pub sampling: SuggestedSampling,
    /// End-of-text token ids from the configuration (a vocabulary may add more).
    pub eos_ids: Vec<u32>,
    pub bos_id: Option<u32>,
}

/// The most experts of a layer.
pub const MAX_EXPERTS: usize = 1024;

/// A mixture of experts, of which each token is routed to some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertFacts {
    pub count: usize,
    /// Experts that each token is routed to.
    pub used: usize,
    pub ffn_size: usize,
    /// Feed-forward size of the expert that all tokens share, if the file states one.
    pub shared_ffn_size: Option<usize>,
    /// The shares of a token's experts are divided by their sum.
    pub normalised: bool,
    /// Shares are multiplied by this, after that.
    pub scale: f32,
    /// Groups of equally many experts, and how many of them a token's experts are chosen from.
    pub groups: [usize; 2],
    pub router: Router,
}

/// How a router chooses experts and finds their shares, as far as it is the same in all models of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    pub scores: Scores,
    pub rank: GroupRank,
    /// Added to the sum by which shares are divided.
    pub epsilon: f32,
    /// Of [`Scores::SparseMixer`].
    pub tolerance: f32,
    /// Shares multiply what experts read, instead of what they give.
    pub weighs_inputs: bool,
}

/// How an expert's score follows from the logits of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// Phi 3.5's: for each choice, a softmax over the experts that are not chosen yet and whose logit is near the largest.
    SparseMixer,
}

/// By what groups of experts are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupRank {
    /// The best expert.
    Best,
    /// The sum of the two best ones.
    TwoBest,
}

/// The sizes of latent attention (multi-head latent attention).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentFacts {
    /// Values of the vector that keys and values are made from.
    pub size: usize,
    /// Elements of a head's queries and keys before those that RoPE rotates.
    pub plain: usize,
    /// Elements of a head's values.
    pub values: usize,
    /// Values of the vector that queries are made from, if there is one.
    pub query_rank: Option<usize>,
    /// With YaRN, scores are multiplied by (1 + 0.1 · growth · ln factor)².
    pub growth: f64,
}

/// The sizes of layers that mix positions through a state instead of attention (Mamba 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MambaFacts {
    /// Positions that the convolution reads, the token's own included.
    pub taps: usize,
    /// Elements of a state for each element of a head.
    pub state_size: usize,
    /// Groups of heads that share what is written to and read from their states (B and C).
    pub groups: usize,
    pub heads: usize,
    pub head_dim: usize,
}

impl ExpertFacts {
    /// Of the expert that all tokens share: its stated size, or that of several experts. 0 is none.
    pub(crate) fn shared_size(stated: Option<usize>, experts: Option<usize>, each: usize) -> Option<usize> {
        let together = || experts.map(|experts| experts.saturating_mul(each));
        stated.or_else(together).filter(|&size| size > 0)
    }

    /// The problem of numbers that contradict each other.
    fn contradiction(&self) -> Option<String> {
        let ExpertFacts { count, used, groups: [groups, groups_used], .. } = *self;
        if used == 0 || used > count || count > MAX_EXPERTS {
            return Some(format!(
                "each token is routed to {used} of {count}; at most {MAX_EXPERTS} experts are supported"
            ));
        }
        if groups_used == 0 || groups_used > groups || !count.is_multiple_of(groups) {
            return Some(format!("{count} experts in {groups} groups, of which {groups_used} are used"));
        }
        let each = count / groups;
        if used > groups_used * each {
            return Some(format!(
                "each token is routed to {used} experts of {groups_used} groups, which have {each} each"
            ));
        }
        let tolerance = self.router.tolerance;
        if !(tolerance.is_finite() && tolerance >= 0.0) {
            return Some(format!("the router's tolerance {tolerance} is out of range"));
        }
        if self.router.scores == Scores::SparseMixer && (self.normalised || groups > 1) {
            return Some("a sparse mixer has neither normalised shares nor groups".into());
        }
        if self.router.weighs_inputs && used > 1 {
            return Some(format!(
                "each token is routed to {used} experts, whose inputs are multiplied by shares; only 1 is supported"
            ));
        }
        let by_two = groups > 1 && self.router.rank == GroupRank::TwoBest && each < 2;
        by_two.then(|| format!("groups of {each} expert cannot be ranked by their two best ones"))
    }
}

impl Router {
    pub const SOFTMAX: Router = Router {
        scores: Scores::Softmax,
        rank: GroupRank::Best,
        epsilon: 0.0,
        tolerance: 0.0,
        weighs_inputs: false,
    };
}

/// The shape of an encoder of audio, as far as it is not the decoder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderFacts {
    pub layer_count: usize,
    pub head_count: usize,
    pub ffn_size: usize,
    /// States of a window, of which each is made of two frames.
    pub positions: usize,
    /// Mel bands of a frame.
    pub bands: usize,
    /// Whether prompts name a language and a task, if the files state it; see [`ModelConfig::multilingual`].
    pub multilingual: Option<bool>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Dimensions of each head that RoPE rotates; the rest are unchanged.
    pub dims: usize,
    pub base: f64,
    /// RoPE base of sliding-window layers, if different (Gemma 3). Scaling never applies to these layers.
    pub local_base: Option<f64>,
    pub scaling: RopeScaling,
    /// Queries are scaled up with their position.
    pub query_scaling: Option<QueryScaling>,
    /// Present exactly if the scaling is [`RopeScaling::LongRope`].
    pub factors: Option<RopeFactors>,
}

/// A query at position p is multiplied by 1 + rate · ln(1 + ⌊p / step⌋), or by that of p + 1, as the card says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScaling {
    pub rate: f64,
    pub step: usize,
}

/// Divisors of the RoPE frequencies, `dims / 2` in each list.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFactors {
    /// For contexts up to the original context length.
    pub short: Vec<f64>,
    pub long: Vec<f64>,
}

/// How the model is meant to produce embeddings, as far as its files state it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbeddingFacts {
    pub pooling: Option<Pooling>,
    /// Named prompts that are prepended to texts for a purpose.
    pub prompts: Vec<(String, String)>,
    /// Name of the prompt that is used by default.
    pub default_prompt: Option<String>,
    /// Which hidden state a classifier reads, if the files state it.
    pub classifier_pooling: Option<Pooling>,
    /// Names of the classifier's scores, one per score, if the files state them.
    pub labels: Vec<String>,
    /// Maximum number of tokens of a text.
    pub max_text_tokens: Option<usize>,
    /// Texts are converted to lower case before tokenization.
    pub lower_case: bool,
}

/// Maximum number of sentence-transformers modules. The canonical name of a dense matrix contains the number of its
/// module.
pub const MAX_MODULES: usize = 9;

/// How the hidden states of a text are reduced to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// No pooling: one vector per token.
    None,
    Mean,
    /// The hidden state of the first token.
    First,
    /// The hidden state of the last token.
    Last,
}

impl Pooling {
    const ALL: [Pooling; 4] = [Pooling::None, Pooling::Mean, Pooling::First, Pooling::Last];

    pub fn name(self) -> &'static str {
        match self {
            Pooling::None => "none",
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
        }
    }

    pub fn from_name(name: &str) -> Option<Pooling> {
        Pooling::ALL.into_iter().find(|pooling| pooling.name() == name)
    }

    /// The number in GGUF files.
    pub fn number(self) -> u32 {
        match self {
            Pooling::None => 0,
            Pooling::Mean => 1,
            Pooling::First => 2,
            Pooling::Last => 3,
        }
    }

    pub fn from_number(number: u32) -> Option<Pooling> {
        Pooling::ALL.into_iter().find(|pooling| pooling.number() == number)
    }
}

/// Sampling settings that the model's authors suggest; `None` if not stated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SuggestedSampling {
    /// 0 means greedy decoding.
    pub temperature: Option<f32>,
    /// 0 means all tokens.
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    /// 1 means no penalty.
    pub repeat_penalty: Option<f32>,
    /// Number of recent tokens that the penalty applies to.
    pub repeat_last_n: Option<usize>,
}

impl SuggestedSampling {
    /// Returns the settings unchanged, or an error if one is out of range.
    pub(crate) fn checked(self, place: &'static str) -> Result<SuggestedSampling, FormatError> {
        for (key, value, range) in [
            ("temperature", self.temperature, 0.0..=f32::MAX),
            ("top_p", self.top_p, 0.0..=1.0),
            ("min_p", self.min_p, 0.0..=1.0),
            ("repetition penalty", self.repeat_penalty, f32::MIN_POSITIVE..=f32::MAX),
        ] {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let problem = format!("the suggested value {value} is out of range");
                return Err(FormatError::Config { key: key.to_string(), place, problem });
            }
        }
        Ok(self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    /// Llama 3.1: frequencies of long wavelengths are divided by `factor`, those of short ones kept, with a linear ramp
    /// between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: usize,
    },
    Yarn {
        factor: f64,
        original_context: usize,
        beta_fast: f64,
        beta_slow: f64,
        /// Multiplies cos and sin; `None` means 0.1·ln(factor) + 1.
        attention_factor: Option<f64>,
        /// The ramp between kept and divided frequencies may begin and end between two pairs of dimensions; otherwise
        /// its ends are rounded outwards to whole pairs.
        exact_ramp: bool,
    },
    /// Phi 3: each frequency is divided by its own factor; there are separate factors for contexts beyond the original
    /// length.
    LongRope {
        original_context: usize,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
}

/// How much of a frequency Llama 3's scaling keeps: `turns` is the number of turns over the original context. If both
/// factors are equal, there is a step instead of a ramp.
pub fn llama3_kept(turns: f64, [low, high]: [f64; 2]) -> f64 {
    if turns >= high { 1.0 } else { ((turns - low) / (high - low)).max(0.0) }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// A token at position p attends to positions p − size + 1 ..= p, or to those of its own chunk of `size` positions, as
    /// the card says.
    pub size: usize,
    pub pattern: WindowPattern,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WindowPattern {
    /// The file states a size only: the card knows which layers use the window.
    Unstated,
    /// Every n-th layer (n, 2n, … counted from 1) uses full attention, the others a window.
    FullEvery(usize),
    /// One entry per layer: whether it uses the window.
    Layers(Vec<bool>),
}

/// The vocabulary size is the number of rows of the embedding, whatever the metadata states.
pub(crate) fn vocab_size(tensors: &[TensorInfo]) -> Result<usize, FormatError> {
    Ok(embedding(tensors)?.rows())
}

fn embedding(tensors: &[TensorInfo]) -> Result<&TensorInfo, FormatError> {
    const NAME: &str = "token_embd.weight";
    let tensor = tensors
        .iter()
        .find(|tensor| tensor.name == NAME)
        .ok_or_else(|| FormatError::MissingTensor { name: NAME.to_string() })?;
    if tensor.shape.len() != 2 {
        let problem = format!("it should be a matrix, and its shape is {:?}", tensor.shape);
        return Err(FormatError::tensor(NAME, problem));
    }
    Ok(tensor)
}

/// Rejects more layers than the file can contain, so that lists of them take no more memory than it justifies.
pub(crate) fn check_layer_count(
    layers: usize,
    place: &'static str,
    tensors: &[TensorInfo],
) -> Result<(), FormatError> {
    if layers <= tensors.len() {
        return Ok(());
    }
    let problem = format!("{layers} layers, but the file has only {} tensors", tensors.len());
    Err(FormatError::Config { key: "layer count".to_string(), place, problem })
}

impl ModelConfig {
    /// What attention scores are multiplied by.
    pub fn score_scale(&self) -> f32 {
        let Some(latent) = self.latent.filter(|_| self.attention_scale.is_none()) else {
            return self.attention_scale.unwrap_or(1.0 / (self.head_dim as f32).sqrt());
        };
        let grown = match self.rope.scaling {
            RopeScaling::Yarn { factor, .. } if factor > 1.0 => 0.1 * latent.growth * factor.ln() + 1.0,
            _ => 1.0,
        };
        (grown * grown / ((latent.plain + self.rope.dims) as f64).sqrt()) as f32
    }

    /// Whether a layer mixes positions through a state instead of attention.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.recurrent.get(layer).copied().unwrap_or(false)
    }

    /// Whether RoPE is applied in a layer.
    pub fn rotates(&self, layer: usize) -> bool {
        self.rope.dims > 0 && !self.unrotated.get(layer).copied().unwrap_or(false)
    }

    /// Whether prompts name a language and a task. If the files do not state it, the size of the vocabulary decides, as
    /// in OpenAI's implementation: that of English alone has 51,864 tokens.
    pub fn multilingual(&self) -> bool {
        const LEAST: usize = 51_865;
        let stated = self.encoder.and_then(|encoder| encoder.multilingual);
        stated.unwrap_or(self.vocab_size >= LEAST)
    }

    /// Forgets heads for alignment that are not the decoder's: distilled models are published with those of the model that
    /// they were made from.
    pub(crate) fn forget_other_heads(&mut self) {
        let is_own = |[layer, head]: &[usize; 2]| *layer < self.layer_count && *head < self.head_count;
        if !self.alignment_heads.iter().all(is_own) {
            self.alignment_heads.clear();
        }
    }

    /// The configuration of the encoder alone, as that of a bidirectional model.
    pub fn of_encoder(&self) -> Option<ModelConfig> {
        let encoder = self.encoder?;
        Some(ModelConfig {
            context_length: encoder.positions,
            layer_count: encoder.layer_count,
            ffn_size: encoder.ffn_size,
            head_count: encoder.head_count,
            kv_head_count: encoder.head_count,
            head_dim: self.hidden_size / encoder.head_count.max(1),
            bidirectional: true,
            ..self.clone()
        })
    }

    /// Rejects implausible values, so that later code cannot divide by zero or overflow. Shapes of single tensors are
    /// checked when the plan is made.
    pub(crate) fn check(&self, place: &'static str, tensors: &[TensorInfo]) -> Result<(), FormatError> {
        /// Far above any real model, and far below where the product of two overflows.
        const MAX: usize = 1 << 28;
        let wrong =
            |key: &str, problem: String| Err(FormatError::Config { key: key.to_string(), place, problem });
        for (key, value) in [
            ("context length", self.context_length),
            ("hidden size", self.hidden_size),
            ("layer count", self.layer_count),
            ("feed-forward size", self.ffn_size),
            ("head count", self.head_count),
            ("key-value head count", self.kv_head_count),
            ("head size", self.head_dim),
        ] {
            if value == 0 || value > MAX {
                return wrong(key, format!("{value} is out of range"));
            }
        }
        if !self.head_count.is_multiple_of(self.kv_head_count) {
            let (heads, kv_heads) = (self.head_count, self.kv_head_count);
            return wrong(
                "head count",
                format!("{heads} query heads are not a multiple of {kv_heads} key-value heads"),
            );
        }
        if let Some(latent) = self.latent {
            let rank = latent.query_rank.unwrap_or(1);
            for (key, value) in [
                ("latent size", latent.size),
                ("size of keys without RoPE", latent.plain),
                ("size of values", latent.values),
                ("rank of queries", rank),
                ("RoPE dimensions", self.rope.dims),
            ] {
                if value == 0 || value > MAX {
                    return wrong(key, format!("{value} is out of range"));
                }
            }
            if !(latent.growth.is_finite() && (0.0..=100.0).contains(&latent.growth)) {
                return wrong("scale of scores with YaRN", format!("{} is out of range", latent.growth));
            }
        }
        if let Some(problem) = self.mamba.and_then(MambaFacts::contradiction) {
            return wrong("sizes of layers with a state", problem);
        }
        if let Some(experts) = self.experts {
            if let Some(problem) = experts.contradiction() {
                return wrong("expert count", problem);
            }
            for size in [Some(experts.ffn_size), experts.shared_ffn_size].into_iter().flatten() {
                if size == 0 || size > MAX {
                    return wrong("feed-forward size of an expert", format!("{size} is out of range"));
                }
            }
        }
        if let Some(encoder) = self.encoder {
            for (key, value) in [
                ("encoder layer count", encoder.layer_count),
                ("encoder head count", encoder.head_count),
                ("encoder feed-forward size", encoder.ffn_size),
                ("encoder positions", encoder.positions),
                ("mel bands", encoder.bands),
            ] {
                if value == 0 || value > MAX {
                    return wrong(key, format!("{value} is out of range"));
                }
            }
            if !self.hidden_size.is_multiple_of(encoder.head_count) {
                let problem =
                    format!("{} do not divide a hidden size of {}", encoder.head_count, self.hidden_size);
                return wrong("encoder head count", problem);
            }
            if encoder.layer_count > tensors.len() {
                let problem = format!("{} layers of {} tensors", encoder.layer_count, tensors.len());
                return wrong("encoder layer count", problem);
            }
        }
        check_layer_count(self.layer_count, place, tensors)?;
        let width = embedding(tensors)?.cols();
        if width != self.hidden_size {
            let problem = format!("it is {}, but token_embd.weight has {width} columns", self.hidden_size);
            return wrong("hidden size", problem);
        }
        let dims = self.rope.dims;
        if dims > self.head_dim || !dims.is_multiple_of(2) {
            let problem = format!("{dims} is not an even number up to the head size {}", self.head_dim);
            return wrong("RoPE dimensions", problem);
        }
        if let Some(factors) = &self.rope.factors {
            for (which, factors) in [("short", &factors.short), ("long", &factors.long)] {
                if factors.len() != dims / 2 {
                    let problem =
                        format!("{} {which} factors for {} pairs of dimensions", factors.len(), dims / 2);
                    return wrong("RoPE factors", problem);
                }
                if let Some(factor) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
                    return wrong("RoPE factors", format!("{factor} is out of range"));
                }
            }
        }
        if let Some(growth) = self.rope.query_scaling
            && (growth.step == 0 || !(growth.rate.is_finite() && growth.rate > 0.0))
        {
            return wrong("query growth", format!("{} every {} positions", growth.rate, growth.step));
        }
        self.check_floats().or_else(|(key, value)| wrong(key, format!("{value} is out of range")))
    }

    /// Numbers that must be positive and finite; returns the first that is not.
    fn check_floats(&self) -> Result<(), (&'static str, f64)> {
        let mut all = vec![
            ("norm epsilon", Some(f64::from(self.norm_epsilon))),
            ("RoPE base", Some(self.rope.base)),
            ("local RoPE base", self.rope.local_base),
            ("attention scale", self.attention_scale.map(f64::from)),
            ("embedding scale", self.embedding_scale.map(f64::from)),
            ("residual scale", self.residual_scale.map(f64::from)),
            ("logit scale", self.logit_scale.map(f64::from)),
            ("scale of experts' shares", self.experts.map(|experts| f64::from(experts.scale))),
            ("attention soft cap", self.attention_soft_cap.map(f64::from)),
            ("logit soft cap", self.logit_soft_cap.map(f64::from)),
        ];
        match self.rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => all.push(("RoPE factor", Some(factor))),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                all.push(("RoPE factor", Some(factor)));
                all.push(("RoPE low frequency factor", Some(low_freq_factor)));
                if high_freq_factor < low_freq_factor {
                    return Err(("RoPE high frequency factor", high_freq_factor));
                }
                all.push(("RoPE high frequency factor", Some(high_freq_factor)));
                all.push(("RoPE original context", Some(original_context as f64)));
            }
            RopeScaling::Yarn {
                factor, original_context, beta_fast, beta_slow, attention_factor, ..
            } => {
                all.push(("RoPE factor", Some(factor)));
                all.push(("RoPE original context", Some(original_context as f64)));
                all.push(("RoPE fast beta", Some(beta_fast)));
                all.push(("RoPE slow beta", Some(beta_slow)));
                all.push(("RoPE attention factor", attention_factor));
            }
            RopeScaling::LongRope { original_context, attention_factor } => {
                all.push(("RoPE original context", Some(original_context as f64)));
                all.push(("RoPE attention factor", Some(attention_factor)));
            }
        }
        for (key, value) in all {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
                return Err((key, value));
            }
        }
        Ok(())
    }
}

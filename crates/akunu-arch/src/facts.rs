//! Facts of a model, and the keys and fields that state them.

/// A fact that files state as a single number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// Context length that the model was trained for.
    ContextLength,
    HiddenSize,
    LayerCount,
    FfnSize,
    HeadCount,
    KvHeadCount,
    /// Size of the heads of keys and queries.
    HeadDim,
    ValueHeadDim,
    NormEpsilon,
    /// Dimensions of each head that RoPE rotates.
    RopeDims,
    /// The same as a fraction of the head size.
    PartialRotaryFactor,
    RopeBase,
    /// RoPE base of sliding-window layers. If a family has a default for it, all its models have such a base.
    LocalRopeBase,
    /// Attention scores are multiplied by this.
    AttentionScale,
    AttentionSoftCap,
    LogitSoftCap,
    WindowSize,
    /// Embeddings are multiplied by this.
    EmbeddingScale,
    /// The output of each part of a layer is multiplied by this before the residual addition.
    ResidualScale,
    /// Logits are multiplied by this.
    LogitScale,
    /// 1: attention and feed-forward part both read the layer's input (parallel residual).
    Parallel,
    /// RoPE is not applied in layers n, 2n, … (counted from 1).
    UnrotatedEvery,
    /// 0: RoPE is not applied in any layer.
    Rotates,
    /// The rate by which queries are scaled: a query is multiplied by 1 + rate · ln(1 + ⌊position / original context
    /// length⌋).
    QueryScaling,
    /// What stands for the original context length in that, where files state it by itself.
    QueryScalingStep,
    /// 1: Q and K are normalized by heads, without weights, in layers with RoPE.
    NormedHeads,
    /// Divides the attention factor of YaRN, as an argument of YaRN's own formula.
    YarnLogMultiplier,
    /// 1: the ramp of YaRN may begin and end between two pairs of dimensions.
    YarnExactRamp,
    /// Which hidden state a classifier reads, as GGUF's pooling number. `config.json` has its name.
    ClassifierPooling,
    ExpertCount,
    /// Experts that each token is routed to.
    ExpertsUsed,
    /// Feed-forward size of an expert; `None`: that of the model.
    ExpertFfnSize,
    /// Feed-forward size of the expert that all tokens share.
    SharedFfnSize,
    /// Experts that all tokens share, of the size of the others: they are one expert of the sum of their sizes.
    SharedExperts,
    /// 1: the shares of a token's experts are divided by their sum.
    NormalisedShares,
    /// Shares are multiplied by this.
    ShareScale,
    /// Groups of equally many experts.
    ExpertGroups,
    /// Groups that the experts of a token are chosen from.
    ExpertGroupsUsed,
    /// How scores follow from the router's logits: [`SOFTMAX`] or [`SIGMOID`].
    Scores,
    /// Of a sparse mixer: half its tolerance.
    RouterJitter,
    /// Layers before the first with experts. Only written: layers with experts are those that have a router.
    DenseLayers,
    /// Of the layers after those, every n-th has experts. Only written, and checked.
    ExpertsEvery,
    /// Layers after the last that predict further tokens. They are not run.
    FurtherLayers,
    /// Of latent attention: values of the vector that all heads' keys and values are made from.
    LatentSize,
    /// Values of the vector that queries are made from, if there is one.
    QueryRank,
    /// Elements of a head's queries and keys, rotated ones included.
    KeySize,
    /// The same without those that RoPE rotates.
    PlainKeySize,
    /// Elements of a head's values.
    ValueSize,
    /// Of layers with a state: positions that the convolution reads, elements of a state for each element of a head, groups of
    /// heads, heads, elements of all heads, of each, and of all as a multiple of the hidden size.
    StateTaps,
    StateSize,
    StateGroups,
    StateHeads,
    StateInner,
    StateHeadDim,
    StateExpansion,
    /// Of the encoder of audio.
    EncoderLayerCount,
    EncoderHeadCount,
    EncoderFfnSize,
    EncoderPositions,
    MelBands,
}

/// GGUF's numbers of [`Fact::Scores`].
pub const SOFTMAX: usize = 1;
pub const SIGMOID: usize = 2;

/// How the number in a file is converted to the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// The fact is 1/√n for the number n in the file.
    InverseRoot,
    /// The fact is 1/n for the number n in the file.
    Inverse,
    /// The fact is 10 · n for the number n in the file.
    Tenth,
}

impl Form {
    /// Converts the number in a file to the fact.
    pub fn fact(self, number: f64) -> f64 {
        match self {
            Form::Plain => number,
            Form::InverseRoot => number.powf(-0.5),
            Form::Inverse => 1.0 / number,
            Form::Tenth => 10.0 * number,
        }
    }

    /// Converts the fact to the number in a file.
    pub fn field(self, fact: f64) -> f64 {
        match self {
            Form::Plain => fact,
            Form::InverseRoot => fact.powi(-2),
            Form::Inverse => 1.0 / fact,
            Form::Tenth => 0.1 * fact,
        }
    }
}

/// The keys of a fact. Reading uses the first key or field that is present; writing uses the first of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactRule {
    pub fact: Fact,
    /// Keys of GGUF metadata, without the `ARCHITECTURE.` prefix.
    pub gguf: &'static [&'static str],
    /// Fields of `config.json`.
    pub hf: &'static [&'static str],
    /// Form of the GGUF key's number.
    pub gguf_form: Form,
    /// Form of the `config.json` field's number.
    pub hf_form: Form,
}

pub const fn fact(fact: Fact, gguf: &'static [&'static str], hf: &'static [&'static str]) -> FactRule {
    FactRule { fact, gguf, hf, gguf_form: Form::Plain, hf_form: Form::Plain }
}

/// LLaMA's rules, which most families share.
pub const LLAMA_FACTS: &[FactRule] = &[
    fact(Fact::ContextLength, &["context_length"], &["max_position_embeddings"]),
    fact(Fact::HiddenSize, &["embedding_length"], &["hidden_size"]),
    fact(Fact::LayerCount, &["block_count"], &["num_hidden_layers"]),
    fact(Fact::FfnSize, &["feed_forward_length"], &["intermediate_size"]),
    fact(Fact::HeadCount, &["attention.head_count"], &["num_attention_heads"]),
    fact(Fact::KvHeadCount, &["attention.head_count_kv"], &["num_key_value_heads"]),
    fact(Fact::HeadDim, &["attention.key_length"], &["head_dim"]),
    fact(Fact::ValueHeadDim, &["attention.value_length"], &[]),
    fact(Fact::NormEpsilon, &["attention.layer_norm_rms_epsilon"], &["rms_norm_eps"]),
    fact(Fact::RopeDims, &["rope.dimension_count"], &[]),
    fact(Fact::PartialRotaryFactor, &[], &["partial_rotary_factor"]),
    fact(Fact::RopeBase, &["rope.freq_base"], &["rope_theta"]),
    fact(Fact::LocalRopeBase, &["rope.freq_base_swa"], &["rope_local_base_freq"]),
    fact(Fact::YarnExactRamp, &["rope.scaling.yarn_exact_ramp"], &[]),
    fact(Fact::AttentionScale, &["attention.scale"], &[]),
    fact(Fact::AttentionSoftCap, &["attn_logit_softcapping"], &["attn_logit_softcapping"]),
    fact(Fact::LogitSoftCap, &["final_logit_softcapping"], &["final_logit_softcapping"]),
    fact(Fact::WindowSize, &["attention.sliding_window"], &["sliding_window"]),
];

/// Attention scores are divided by the root of a number in the configuration.
pub const SCALED_BY_SCALAR: &[FactRule] = &[FactRule {
    fact: Fact::AttentionScale,
    gguf: &["attention.scale"],
    hf: &["query_pre_attn_scalar"],
    gguf_form: Form::Plain,
    hf_form: Form::InverseRoot,
}];

/// The epsilon of LayerNorm.
pub const LAYER_NORM: &[FactRule] = &[fact(
    Fact::NormEpsilon,
    &["attention.layer_norm_epsilon"],
    &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"],
)];

/// The numbers of experts, which are as large as a dense feed-forward part would be.
pub const EXPERTS: &[FactRule] = &[
    fact(Fact::ExpertCount, &["expert_count"], &["num_experts", "num_local_experts"]),
    fact(Fact::ExpertsUsed, &["expert_used_count"], &["num_experts_per_tok"]),
    fact(Fact::NormalisedShares, &["expert_weights_norm"], &["norm_topk_prob"]),
    fact(Fact::ShareScale, &["expert_weights_scale"], &["routed_scaling_factor"]),
    fact(Fact::ExpertGroups, &["expert_group_count"], &["n_group"]),
    fact(Fact::ExpertGroupsUsed, &["expert_group_used_count"], &["topk_group"]),
    fact(Fact::Scores, &["expert_gating_func"], &[]),
];

/// The sizes of experts beside that of dense layers.
pub const EXPERT_SIZES: &[FactRule] = &[
    fact(Fact::ExpertFfnSize, &["expert_feed_forward_length"], &["moe_intermediate_size"]),
    fact(Fact::SharedFfnSize, &["expert_shared_feed_forward_length"], &["shared_expert_intermediate_size"]),
];

/// Whether attention and feed-forward part run in parallel.
pub const PARALLEL: &[FactRule] =
    &[fact(Fact::Parallel, &["use_parallel_residual"], &["use_parallel_residual"])];

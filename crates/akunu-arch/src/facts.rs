//! Facts of a model and where files state them.

/// A fact that files state as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// Positions that the model was trained for.
    ContextLength,
    HiddenSize,
    LayerCount,
    FfnSize,
    HeadCount,
    KvHeadCount,
    /// Of keys and queries.
    HeadDim,
    ValueHeadDim,
    NormEpsilon,
    /// Dimensions of each head that rotate.
    RopeDims,
    /// The same as a part of the head's size.
    RopePart,
    RopeBase,
    /// In sliding layers. A family with a default for it has a base of its own there in every model.
    LocalRopeBase,
    /// Scores are multiplied by this.
    AttentionScale,
    AttentionSoftCap,
    LogitSoftCap,
    WindowSize,
    /// Embeddings are multiplied by this.
    EmbeddingScale,
    /// What the parts of a layer add to its residual is multiplied by this.
    ResidualScale,
    /// Logits are multiplied by this.
    LogitScale,
    /// 1: attention and the feed-forward part of a layer both read its input.
    Parallel,
    /// Q and K of layers n, 2n, … (from 1) do not rotate.
    UnrotatedEvery,
    /// How much queries grow: they are multiplied by 1 + this · ln(1 + their position's whole multiple of the context
    /// that rotation was trained for).
    QueryGrowth,
    /// Divides what YaRN multiplies cos and sin by, in the form of its own formula.
    YarnLogMultiplier,
    /// Which state a classifier reads, by GGUF's number of the pooling. `config.json` has its name.
    ClassifierPooling,
}

/// How a field's number becomes the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// The fact is 1/√n of what the field says.
    InverseRoot,
    /// The fact is 1/n.
    Inverse,
}

impl Form {
    /// The fact that a field's number stands for.
    pub fn fact(self, number: f64) -> f64 {
        match self {
            Form::Plain => number,
            Form::InverseRoot => number.powf(-0.5),
            Form::Inverse => 1.0 / number,
        }
    }

    /// The number that a field says a fact by.
    pub fn field(self, fact: f64) -> f64 {
        match self {
            Form::Plain => fact,
            Form::InverseRoot => fact.powi(-2),
            Form::Inverse => 1.0 / fact,
        }
    }
}

/// Where a fact stands. Reading takes the first key or field that is there; writing uses the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactRule {
    pub fact: Fact,
    /// Keys of GGUF metadata, less the architecture's name and a dot.
    pub gguf: &'static [&'static str],
    /// Fields of `config.json`.
    pub hf: &'static [&'static str],
    /// What the key's number is.
    pub gguf_form: Form,
    /// What the field's number is.
    pub hf_form: Form,
}

pub const fn fact(fact: Fact, gguf: &'static [&'static str], hf: &'static [&'static str]) -> FactRule {
    FactRule { fact, gguf, hf, gguf_form: Form::Plain, hf_form: Form::Plain }
}

/// Rules of LLaMA, which most families share.
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
    fact(Fact::RopePart, &[], &["partial_rotary_factor"]),
    fact(Fact::RopeBase, &["rope.freq_base"], &["rope_theta"]),
    fact(Fact::LocalRopeBase, &["rope.freq_base_swa"], &["rope_local_base_freq"]),
    fact(Fact::AttentionScale, &["attention.scale"], &[]),
    fact(Fact::AttentionSoftCap, &["attn_logit_softcapping"], &["attn_logit_softcapping"]),
    fact(Fact::LogitSoftCap, &["final_logit_softcapping"], &["final_logit_softcapping"]),
    fact(Fact::WindowSize, &["attention.sliding_window"], &["sliding_window"]),
];

/// Scores are divided by the root of a number that the configuration states.
pub const SCALED_BY_SCALAR: &[FactRule] = &[FactRule {
    fact: Fact::AttentionScale,
    gguf: &["attention.scale"],
    hf: &["query_pre_attn_scalar"],
    gguf_form: Form::Plain,
    hf_form: Form::InverseRoot,
}];

/// The epsilon of families whose norms subtract the mean.
pub const LAYER_NORM: &[FactRule] = &[fact(
    Fact::NormEpsilon,
    &["attention.layer_norm_epsilon"],
    &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"],
)];

/// Whether the parts of a layer stand side by side.
pub const PARALLEL: &[FactRule] =
    &[fact(Fact::Parallel, &["use_parallel_residual"], &["use_parallel_residual"])];

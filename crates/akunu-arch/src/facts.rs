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
}

/// How a field's number becomes the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// The fact is 1/√n of what the field says.
    InverseRoot,
}

/// Where a fact stands. Reading takes the first key or field that is there; writing uses the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactRule {
    pub fact: Fact,
    /// Keys of GGUF metadata, less the architecture's name and a dot.
    pub gguf: &'static [&'static str],
    /// Fields of `config.json`.
    pub hf: &'static [&'static str],
    /// What a field's number is; GGUF's are always plain.
    pub hf_form: Form,
}

pub const fn fact(fact: Fact, gguf: &'static [&'static str], hf: &'static [&'static str]) -> FactRule {
    FactRule { fact, gguf, hf, hf_form: Form::Plain }
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
    hf_form: Form::InverseRoot,
}];

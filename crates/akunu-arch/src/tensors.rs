//! Rules of tensors: what each is called in both kinds of files, its shape, and what a conversion has to do to it.

use crate::{ModelConfig, Shape};

/// How many rows or columns a tensor has, by what they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    Vocab,
    Hidden,
    Ffn,
    /// All heads' queries.
    Query,
    /// All heads' keys, or their values.
    KeyValue,
    /// One head.
    Head,
    /// How many heads queries have.
    Heads,
    KvHeads,
    /// Positions that have a learned embedding.
    Positions,
    /// Kinds of token types.
    TokenTypes,
    /// Scores that a classifier gives.
    Labels,
    /// Ranges of distances that share a bias.
    DistanceBuckets,
    /// Half of the dimensions that rotate.
    RopePairs,
}

/// The numbers that dimensions stand for in one model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope_dims: usize,
    pub positions: usize,
}

impl Dim {
    pub fn of(self, sizes: &Sizes) -> usize {
        match self {
            Dim::Vocab => sizes.vocab,
            Dim::Hidden => sizes.hidden,
            Dim::Ffn => sizes.ffn,
            Dim::Query => sizes.heads * sizes.head_dim,
            Dim::KeyValue => sizes.kv_heads * sizes.head_dim,
            Dim::Head => sizes.head_dim,
            Dim::Heads => sizes.heads,
            Dim::KvHeads => sizes.kv_heads,
            Dim::Positions => sizes.positions,
            Dim::TokenTypes => 2,
            Dim::Labels => 1,
            Dim::DistanceBuckets => 32,
            Dim::RopePairs => sizes.rope_dims / 2,
        }
    }
}

impl From<&ModelConfig> for Sizes {
    fn from(config: &ModelConfig) -> Sizes {
        Sizes {
            vocab: config.vocab_size,
            hidden: config.hidden_size,
            ffn: config.ffn_size,
            heads: config.head_count,
            kv_heads: config.kv_head_count,
            head_dim: config.head_dim,
            rope_dims: config.rope.dims,
            positions: config.context_length,
        }
    }
}

impl From<&Shape> for Sizes {
    fn from(shape: &Shape) -> Sizes {
        Sizes {
            vocab: shape.vocab,
            hidden: shape.hidden,
            ffn: shape.ffn,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            rope_dims: shape.head_dim,
            positions: shape.context,
        }
    }
}

/// Where a tensor is: once in a model, or once in each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its Hugging Face name is whole.
    Model,
    /// Its Hugging Face name is what follows the layer's number.
    Layer,
}

/// What a tensor is to a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Matrix,
    /// A matrix that writes into the residual stream: random ones spread less, so that depth does not matter.
    Residual,
    /// Its rows are heads that rotate: they change places where the two kinds of files rotate differently.
    Rotated,
    /// The card's `norm_weight_offset` is added.
    Norm,
    /// What each pair's frequency is divided by. GGUF files alone have it, and only where they say so.
    RopeFactors,
    /// The embedding stands for it where it is absent.
    Output,
}

/// One tensor, or one in each layer. `name` and `hf` are without `.weight`; in layers `.bias` may be there too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRule {
    /// Canonical: GGUF's, less `blk.N.`.
    pub name: &'static str,
    /// Hugging Face's; `None` where its files have no such thing.
    pub hf: Option<&'static str>,
    pub part: Part,
    pub kind: Kind,
    /// Outermost first.
    pub shape: &'static [Dim],
}

impl TensorRule {
    /// Whether it makes scores of a text's vector, as only some of a family's models do.
    pub fn is_of_classifier(&self) -> bool {
        self.name == "cls" || self.name.starts_with("cls.")
    }
}

/// Tensors that a file may have as one, rows on rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRule {
    /// Canonical. If it is also the name of one of its parts, it is a stack where the first part is not beside it.
    pub name: &'static str,
    pub hf: &'static str,
    /// Canonical names of what lies there, in order.
    pub parts: &'static [&'static str],
    /// How Hugging Face's files have them; GGUF files have one part after the other.
    pub layout: StackLayout,
}

/// How the rows of a stack's parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackLayout {
    /// All rows of a part, then all of the next one.
    Parts,
    /// The query heads that share a KV head, that head's keys, and its values; then the next KV head's.
    KvHeads,
}

/// How Hugging Face's names begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// Of the model's own names; some files leave it out.
    pub root: &'static str,
    /// Of a layer's, with the root: a number and a dot follow.
    pub layers: &'static str,
    /// What larger models put before all of it; the first that fits is taken off.
    pub prefixes: &'static [&'static str],
}

pub const fn layer(name: &'static str, hf: &'static str, kind: Kind, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, hf: Some(hf), part: Part::Layer, kind, shape }
}

pub const fn model(name: &'static str, hf: &'static str, kind: Kind, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, hf: Some(hf), part: Part::Model, kind, shape }
}

/// In layers of GGUF files, and in stacks of Hugging Face's.
pub const fn gguf_layer(name: &'static str, kind: Kind, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, hf: None, part: Part::Layer, kind, shape }
}

pub const LLAMA_NAMING: Naming = Naming { root: "model.", layers: "model.layers.", prefixes: PREFIXES };

/// What checkpoints of larger models put before a language model's names.
pub const PREFIXES: &[&str] = &["model.language_model.", "language_model.", ""];

/// The token embedding, and Llama 3's frequency divisors before it.
pub const EMBEDDING: &[TensorRule] = &[
    TensorRule {
        name: "rope_freqs",
        hf: None,
        part: Part::Model,
        kind: Kind::RopeFactors,
        shape: &[Dim::RopePairs],
    },
    model("token_embd", "model.embed_tokens", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
];

/// The classifier of a decoder's last state, in files of rerankers.
pub const SCORE: &[TensorRule] = &[model("cls.output", "score", Kind::Matrix, &[Dim::Labels, Dim::Hidden])];

/// Q, K and V.
pub const QKV_MATRICES: &[TensorRule] = &[
    layer("attn_q", "self_attn.q_proj", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "self_attn.k_proj", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "self_attn.v_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
];

/// The norm before attention, Q, K and V.
pub const QKV: &[TensorRule] = &[
    layer("attn_norm", "input_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("attn_q", "self_attn.q_proj", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "self_attn.k_proj", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "self_attn.v_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
];

/// A norm over all heads of Q together, and one over those of K.
pub const QK_ROW_NORMS: &[TensorRule] = &[
    layer("attn_q_norm", "self_attn.q_norm", Kind::Norm, &[Dim::Query]),
    layer("attn_k_norm", "self_attn.k_norm", Kind::Norm, &[Dim::KeyValue]),
];

/// Norms over the heads of Q and K, each with weights of its own.
pub const QK_EACH_HEAD_NORMS: &[TensorRule] = &[
    layer("attn_q_norm", "self_attn.q_norm", Kind::Norm, &[Dim::Heads, Dim::Head]),
    layer("attn_k_norm", "self_attn.k_norm", Kind::Norm, &[Dim::KvHeads, Dim::Head]),
];

/// Norms over the heads of Q and K.
pub const QK_NORMS: &[TensorRule] = &[
    layer("attn_q_norm", "self_attn.q_norm", Kind::Norm, &[Dim::Head]),
    layer("attn_k_norm", "self_attn.k_norm", Kind::Norm, &[Dim::Head]),
];

pub const ATTN_OUTPUT: &[TensorRule] =
    &[layer("attn_output", "self_attn.o_proj", Kind::Residual, &[Dim::Hidden, Dim::Query])];

/// The norm before the feed-forward part, as LLaMA calls it.
pub const FFN_NORM: &[TensorRule] =
    &[layer("ffn_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden])];

/// Norms on both sides of attention and of the feed-forward part. `post_attention_layernorm` follows the attention
/// here, where LLaMA's (of the same name) precedes the feed-forward part.
pub const SANDWICH_NORMS: &[TensorRule] = &[
    layer("post_attention_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("post_ffw_norm", "post_feedforward_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_norm", "pre_feedforward_layernorm", Kind::Norm, &[Dim::Hidden]),
];

/// A gated feed-forward part.
pub const GATED_FFN: &[TensorRule] = &[
    layer("ffn_gate", "mlp.gate_proj", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_up", "mlp.up_proj", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.down_proj", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
];

pub const OUTPUT: &[TensorRule] = &[
    model("output_norm", "model.norm", Kind::Norm, &[Dim::Hidden]),
    model("output", "lm_head", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

pub const LLAMA_TENSORS: &[&[TensorRule]] = &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, GATED_FFN, OUTPUT];

/// Q, K and V in one matrix.
pub const QKV_STACK: StackRule = StackRule {
    name: "attn_qkv",
    hf: "self_attn.qkv_proj",
    parts: &["attn_q", "attn_k", "attn_v"],
    layout: StackLayout::Parts,
};

/// Gate and up in one matrix. GGUF has no name of its own for it: without an `ffn_gate` beside it, this is both.
pub const GATE_UP_STACK: StackRule = StackRule {
    name: "ffn_up",
    hf: "mlp.gate_up_proj",
    parts: &["ffn_gate", "ffn_up"],
    layout: StackLayout::Parts,
};

/// Phi 3's stacks. Checkpoints of other families that were saved so open as well.
pub const LLAMA_STACKS: &[StackRule] = &[QKV_STACK, GATE_UP_STACK];

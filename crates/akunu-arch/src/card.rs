//! The card of a model family: its properties as data. Other code asks the card for a property and never compares
//! family names.

use crate::facts::{Fact, FactRule, LLAMA_FACTS};
use crate::shape::Shape;
use crate::tensors::{FusedRule, LLAMA_FUSED, LLAMA_NAMING, LLAMA_TENSORS, Naming, Part, TensorRule};
use crate::tower::{FeedForwardKind, LayerFn, NormKind, QkNorm, ScaledBy, pre_norm};
use crate::{Activation, ModelConfig, RopeScaling, Router, Source, WindowPattern, families, names};

/// Everything that the engine knows about a family of models.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// All names of the family: GGUF's `general.architecture` and Hugging Face's `model_type`. GGUF files are written
    /// with the first one.
    pub names: &'static [&'static str],

    /// The metadata key and the `config.json` field of each fact. A later list overrides rules of an earlier one.
    pub facts: &'static [&'static [FactRule]],
    /// Default values for facts that a GGUF file of this family does not state, as in llama.cpp.
    pub gguf_defaults: &'static [(Fact, f64)],
    /// The variants of `config.json`.
    pub hf: &'static [HfKind],
    /// Models with one of these layer counts scale attention scores by `hidden_size / head_count` instead of the head
    /// size. Their GGUF files do not state this.
    pub hidden_scale_depths: &'static [usize],

    /// Tensor rules, in the order in which converted files have the tensors.
    pub tensors: &'static [&'static [TensorRule]],
    /// Matrices that a file may store fused into one.
    pub fused: &'static [FusedRule],
    /// GGUF files of this family keep matrices fused.
    pub fused_in_gguf: bool,
    /// Prefixes of Hugging Face tensor names.
    pub naming: Naming,
    /// Other names that modules of layers have in some Hugging Face files, each with the name of a rule.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Names of tensors in files of whisper.cpp, with the canonical ones: without `.weight` and `.bias`, those of layers
    /// without what comes before them.
    pub ggml_names: &'static [(Part, &'static str, &'static str)],
    /// Matrices of all experts that Hugging Face files have in one tensor, with the inputs of each expert outermost, and
    /// their biases in a tensor whose name ends with `_bias`.
    pub stacked_experts: &'static [StackedExperts],
    /// In models without experts, the expert that all tokens share is the feed-forward part.
    pub shared_alone: bool,
    /// Lists of per-head vectors in Hugging Face files, each with the name of the tensor that combines the list.
    pub head_lists: &'static [(&'static str, &'static str)],
    /// Prefixes of Hugging Face tensors that this engine does not need.
    pub ignored: &'static [&'static str],
    /// Added to the norm weights of Hugging Face files, which store `weight - offset`; GGUF files store the sum.
    pub norm_weight_offset: f32,
    /// RoPE layout of GGUF files.
    pub gguf_rope: RopeStyle,
    /// RoPE layout of Hugging Face files. If the two differ, a conversion permutes the rows of Q and K.
    pub hf_rope: RopeStyle,

    /// Used if neither the file nor its configuration states an activation.
    pub activation: Activation,
    /// GGUF files of this family state their activation in a key that other engines read too.
    pub states_activation: bool,
    /// Connects the blocks of a layer.
    pub layer: LayerFn,
    pub norm: NormKind,
    pub qk_norm: Option<QkNorm>,
    /// Whether some models of the family have no Q/K norms.
    pub optional_qk_norm: bool,
    /// Each head has a sink in its softmax.
    pub sinks: bool,
    pub feed: FeedForwardKind,
    /// Of layers that are mixtures of experts.
    pub router: Router,
    /// Embeddings are multiplied by √hidden_size.
    pub scaled_embeddings: bool,
    pub default_window: DefaultWindow,
    /// If only some layers have a sliding window, the first layer has none.
    pub full_first: bool,
    /// Windows are chunks: a token attends to the positions of its own chunk only. The first one begins at position 0.
    pub chunked: bool,
    /// By what queries are scaled, in models that scale them.
    pub scaled_by: ScaledBy,
    /// Only queries of layers without RoPE are scaled.
    pub scales_unrotated: bool,
    /// GGUF files of models with so many experts have no [`ModelConfig::normed_heads`], and do not state it.
    pub unnormed_expert_counts: &'static [usize],
    /// Attention is bidirectional.
    pub bidirectional: bool,
    /// `general.architecture` values of GGUF models with bidirectional attention, in a family that is causal otherwise.
    pub bidirectional_names: &'static [&'static str],
    /// RoPE is applied to Q and K.
    pub rotary: bool,
    /// RoPE is applied only in sliding-window layers.
    pub rotates_in_windows: bool,
    /// There is a norm after the last layer.
    pub final_norm: bool,
    /// Before the tokens' tower there is one for audio: two convolutions over log-mel frames, and layers with a norm
    /// before each part. The tokens' layers attend to its states.
    pub hears: bool,

    /// Activation between the two matrices of a classifier.
    pub classifier: Activation,
    /// Prompt with which a generative model is asked whether a document answers a query.
    pub rerank: Option<RerankPrompt>,
    /// Shapes of real models, for `akunu synth`.
    pub shapes: &'static [Shape],
}

/// The texts around the instruction, query and document, and the two tokens whose logits give the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerankPrompt {
    /// May contain special tokens; ends with one.
    pub head: &'static str,
    pub before_instruction: &'static str,
    /// Used if the caller gives no instruction.
    pub instruction: &'static str,
    pub before_query: &'static str,
    pub before_document: &'static str,
    /// May contain special tokens; begins with one.
    pub tail: &'static str,
    pub yes: &'static str,
    pub no: &'static str,
}

/// A variant of `config.json`. A family may have several, which differ in the defaults of absent fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HfKind {
    pub model_type: &'static str,
    /// `model_type` of multimodal configurations that contain this variant as `text_config`.
    pub nested_in: Option<&'static str>,
    /// Set if another card has a variant with the same `model_type`: whether this one is of models with experts. Such
    /// models go by the name of the card's GGUF files.
    pub with_experts: Option<bool>,
    /// The only types of layers that are supported, if there are others: the file has to list them.
    pub layer_types: &'static [&'static str],
    /// Those that have a state. A variant with such types is of models with such layers.
    pub recurrent_types: &'static [&'static str],
    /// A field and the only value of it with which RoPE is applied.
    pub rotates_if: Option<(&'static str, &'static str)>,
    /// Defaults of transformers for absent fields, in the units of the field. Published files do omit fields: some
    /// `text_config` has no head count, for example.
    pub defaults: &'static [(Fact, f64)],
    pub sliding: Sliding,
    /// Fields that name the activation; the first one present is used.
    pub activation_fields: &'static [&'static str],
    /// Names of activations; the first matching entry is used.
    pub activation_names: &'static [&'static [(&'static str, Activation)]],
    /// If the feed-forward size is absent, it is the hidden size times this.
    pub ffn_ratio: Option<usize>,
    /// If the first field is true and the second is not, there is one KV head, regardless of other fields.
    pub one_kv_head: Option<[&'static str; 2]>,
    /// Fields that are not supported if they have this value.
    pub refused: &'static [(&'static str, bool)],
    /// Fields that are not supported if they have any other value.
    pub expected: &'static [(&'static str, &'static str)],
    /// The same for numbers.
    pub expected_numbers: &'static [(&'static str, f64)],
    /// How its models choose experts, if not as the card says.
    pub router: Option<Router>,
    /// A field, and its values with which experts are not chosen by groups, whatever other fields say.
    pub ungrouped: Option<(&'static str, &'static [&'static str])>,
    /// Scaling of RoPE if the file has no settings of it.
    pub rope_scaling: RopeScaling,
    /// The table of learned positions begins with `pad_token_id + 1` rows for padding.
    pub padded_positions: bool,
}

/// A tensor with matrices of all experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackedExperts {
    pub name: &'static str,
    /// The names of the matrices.
    pub parts: &'static [&'static str],
    /// Their outputs alternate, instead of following those of the matrix before.
    pub alternate: bool,
}

/// How a `config.json` states which layers use sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sliding {
    Never,
    /// All layers, if a window size is given.
    All,
    /// The layers that `layer_types` lists, or all layers if that is absent.
    Listed,
    /// The layers from `max_window_layers` on, if `use_sliding_window` is true.
    OnRequest,
    /// The layers from `max_window_layers` on, or from the n-th if that is absent, if a window size is given.
    From(usize),
    /// All layers except every n-th.
    Pattern(usize),
    /// The layers that `layer_types` lists, or those with RoPE if that is absent.
    Rotated,
}

/// Which layers use sliding-window attention if a file gives the window size but no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultWindow {
    Everywhere,
    /// Layers n, 2n, … (counted from 1) use full attention, the others a window.
    FullEvery(usize),
}

/// Which elements of a head RoPE rotates as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// (0, 1), (2, 3), …
    Interleaved,
    /// (0, n/2), (1, n/2 + 1), …
    HalfSplit,
}

impl RopeStyle {
    pub fn name(self) -> &'static str {
        match self {
            RopeStyle::Interleaved => "interleaved",
            RopeStyle::HalfSplit => "half_split",
        }
    }
}

/// Hugging Face names of activations.
pub const ACTIVATIONS: &[(&str, Activation)] = &[
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu", Activation::GeluErf),
    ("tanh", Activation::Tanh),
    ("relu", Activation::Relu),
];

impl PartialEq for Card {
    /// Cards are equal if their names are: no two families share a name.
    fn eq(&self, other: &Card) -> bool {
        self.names == other.names
    }
}

impl Card {
    /// A dense decoder with pre-norms, RoPE and a gated feed-forward part. Cards start from it, and files of unknown
    /// families are read with it as far as possible.
    pub const PLAIN: Card = Card {
        names: &[],
        facts: &[LLAMA_FACTS],
        gguf_defaults: &[],
        hf: &[],
        hidden_scale_depths: &[],
        tensors: LLAMA_TENSORS,
        fused: LLAMA_FUSED,
        fused_in_gguf: false,
        naming: LLAMA_NAMING,
        aliases: &[],
        ggml_names: &[],
        stacked_experts: &[],
        shared_alone: false,
        head_lists: &[],
        ignored: &[],
        norm_weight_offset: 0.0,
        gguf_rope: RopeStyle::HalfSplit,
        hf_rope: RopeStyle::HalfSplit,
        activation: Activation::Silu,
        states_activation: false,
        layer: pre_norm,
        norm: NormKind::Rms,
        qk_norm: None,
        optional_qk_norm: false,
        sinks: false,
        feed: FeedForwardKind::Gated,
        router: Router::SOFTMAX,
        scaled_embeddings: false,
        default_window: DefaultWindow::Everywhere,
        full_first: false,
        chunked: false,
        scaled_by: ScaledBy::Position,
        scales_unrotated: false,
        unnormed_expert_counts: &[],
        bidirectional: false,
        bidirectional_names: &[],
        rotary: true,
        rotates_in_windows: false,
        final_norm: true,
        hears: false,
        classifier: Activation::Tanh,
        rerank: None,
        shapes: &[],
    };

    /// The card of an architecture, by any of its names.
    pub fn find(name: &str) -> Option<&'static Card> {
        families::CARDS.iter().copied().find(|card| card.names.contains(&name))
    }

    /// All names of all cards.
    pub fn all_names() -> impl Iterator<Item = &'static str> {
        families::CARDS.iter().flat_map(|card| card.names).copied()
    }

    /// The name that GGUF files are written under.
    pub fn gguf_name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// The `config.json` variant with this `model_type`, for models with or without experts and with layers of these types, and
    /// its card.
    pub fn find_kind(
        model_type: &str,
        with_experts: bool,
        layer_types: &[&str],
    ) -> Option<(&'static Card, &'static HfKind)> {
        let fits = |kind: &HfKind| {
            let recurrent = kind.recurrent_types;
            kind.model_type == model_type
                && kind.with_experts.is_none_or(|with| with == with_experts)
                && (recurrent.is_empty() || layer_types.iter().any(|name| recurrent.contains(name)))
        };
        Card::kinds().find(|(_, kind)| fits(kind))
    }

    /// All `config.json` variants.
    pub fn kinds() -> impl Iterator<Item = (&'static Card, &'static HfKind)> {
        families::CARDS.iter().flat_map(|card| card.hf.iter().map(|kind| (*card, kind)))
    }

    /// Default of a fact that a GGUF file does not state.
    pub fn gguf_default(&self, fact: Fact) -> Option<f64> {
        lookup(self.gguf_defaults, fact)
    }

    pub fn rule(&self, fact: Fact) -> Option<&'static FactRule> {
        self.facts.iter().rev().flat_map(|list| list.iter()).find(|rule| rule.fact == fact)
    }

    /// The GGUF key of a fact, without the `ARCHITECTURE.` prefix.
    pub fn gguf_key(&self, fact: Fact) -> &'static str {
        self.rule(fact).and_then(|rule| rule.gguf.first()).copied().unwrap_or_default()
    }

    /// The `config.json` field of a fact.
    pub fn hf_key(&self, fact: Fact) -> &'static str {
        self.rule(fact).and_then(|rule| rule.hf.first()).copied().unwrap_or_default()
    }

    /// The Hugging Face name of a tensor with this canonical name, if there is one.
    pub fn hf_name(&self, canonical: &str) -> Option<String> {
        names::hugging_face(canonical, self)
    }

    pub fn tensor_rules(&self) -> impl Iterator<Item = &'static TensorRule> {
        self.tensors.iter().flat_map(|list| list.iter())
    }

    /// Whether keys in the cache can be moved to other positions by rotating them: not if norms with weights follow RoPE.
    pub fn moves_keys(&self) -> bool {
        self.qk_norm != Some(QkNorm::HeadAfterRope)
    }

    pub fn rope_style(&self, config: &ModelConfig) -> RopeStyle {
        match config.source {
            Source::Gguf | Source::Ggml => self.gguf_rope,
            Source::HuggingFace => self.hf_rope,
        }
    }

    /// The offset to add to norm weights of this file.
    pub fn norm_offset(&self, config: &ModelConfig) -> f32 {
        match config.source {
            Source::Gguf | Source::Ggml => 0.0,
            Source::HuggingFace => self.norm_weight_offset,
        }
    }

    /// The window of a layer, or `None` for full attention.
    pub fn layer_window(&self, config: &ModelConfig, layer: usize) -> Option<usize> {
        let window = config.window.as_ref()?;
        let number = if self.full_first { layer } else { layer + 1 };
        let full_every = |n: usize| n > 0 && number.is_multiple_of(n);
        let slides = match &window.pattern {
            WindowPattern::Layers(layers) => layers.get(layer).copied().unwrap_or(false),
            WindowPattern::FullEvery(n) => !full_every(*n),
            WindowPattern::Unstated => match self.default_window {
                DefaultWindow::Everywhere => true,
                DefaultWindow::FullEvery(n) => !full_every(n),
            },
        };
        slides.then_some(window.size)
    }
}

impl HfKind {
    pub const PLAIN: HfKind = HfKind {
        model_type: "",
        nested_in: None,
        with_experts: None,
        layer_types: &[],
        recurrent_types: &[],
        rotates_if: None,
        defaults: &[],
        sliding: Sliding::Never,
        activation_fields: &["hidden_act"],
        activation_names: &[ACTIVATIONS],
        ffn_ratio: None,
        one_kv_head: None,
        refused: &[],
        expected: &[],
        expected_numbers: &[],
        router: None,
        ungrouped: None,
        rope_scaling: RopeScaling::None,
        padded_positions: false,
    };

    /// Default of transformers for a fact that a file does not state.
    pub fn default(&self, fact: Fact) -> Option<f64> {
        lookup(self.defaults, fact)
    }
}

fn lookup(defaults: &[(Fact, f64)], fact: Fact) -> Option<f64> {
    defaults.iter().find(|(of, _)| *of == fact).map(|(_, value)| *value)
}

//! What a card can state. Cards are data: code elsewhere asks a card for a fact, and never for a family's name.

use crate::facts::{Fact, FactRule, LLAMA_FACTS};
use crate::shape::Shape;
use crate::tensors::{LLAMA_NAMING, LLAMA_STACKS, LLAMA_TENSORS, Naming, StackRule, TensorRule};
use crate::tower::{FeedKind, LayerFn, NormKind, QkNorm, pre_norm};
use crate::{Activation, ModelConfig, Source, WindowPattern, families, names};

/// All that the engine knows about a family of models.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// GGUF's `general.architecture` and Hugging Face's `model_type`, all that the family goes by. GGUF files are
    /// written under the first.
    pub names: &'static [&'static str],

    /// Which metadata key and which field of `config.json` gives which fact. A later list replaces rules of an earlier one.
    pub facts: &'static [&'static [FactRule]],
    /// What GGUF files of this family mean where they say nothing, as llama.cpp has it.
    pub gguf_defaults: &'static [(Fact, f64)],
    /// The kinds of `config.json`.
    pub hf: &'static [HfKind],
    /// Models of so many layers scale their scores by the hidden size's even share of a head and not by the head's own
    /// size, which their GGUF files do not say.
    pub hidden_scale_depths: &'static [usize],

    /// Tensors, in the order of converted files.
    pub tensors: &'static [&'static [TensorRule]],
    /// Matrices that a file may have one upon the other.
    pub stacks: &'static [StackRule],
    /// GGUF files of this family keep those stacks.
    pub stacked_in_gguf: bool,
    /// How Hugging Face's names begin.
    pub naming: Naming,
    /// Lists of vectors, one a head, in Hugging Face's files, and what all of a list is called as one tensor.
    pub head_lists: &'static [(&'static str, &'static str)],
    /// How names begin that Hugging Face's files may have and this engine has no use for.
    pub ignored: &'static [&'static str],
    /// Added to norm weights of Hugging Face files, which store them less this; GGUF files store the sum.
    pub norm_weight_offset: f32,
    /// Which elements of a head rotate together in GGUF files.
    pub gguf_rope: RopeStyle,
    /// The same in Hugging Face files. Where the two differ, rows of Q and K change places in a conversion.
    pub hf_rope: RopeStyle,

    /// Where neither the file nor its configuration says it.
    pub activation: Activation,
    /// GGUF files of this family state their activation, and other engines read it.
    pub states_activation: bool,
    /// Connects the blocks of a layer.
    pub layer: LayerFn,
    pub norm: NormKind,
    pub qk_norm: Option<QkNorm>,
    /// Whether there are models of the family without it.
    pub optional_qk_norm: bool,
    pub feed: FeedKind,
    /// Embeddings are multiplied by √hidden_size.
    pub scaled_embeddings: bool,
    pub default_window: DefaultWindow,
    /// Of layers with a window and layers without, the first one has none.
    pub full_first: bool,
    /// Rows see the whole text, also what stands after them.
    pub bidirectional: bool,
    /// Names of GGUF files whose models see the whole text, where others of the family do not.
    pub bidirectional_names: &'static [&'static str],
    /// Q and K rotate.
    pub rotary: bool,
    /// Only in layers with a window.
    pub rotates_in_windows: bool,
    /// A norm follows the last layer.
    pub final_norm: bool,

    /// What a classifier does between its two matrices.
    pub classifier: Activation,
    /// How a model that generates is asked whether a document answers a query.
    pub rerank: Option<RerankPrompt>,
    /// Shapes of real models, for `akunu synth`.
    pub shapes: &'static [Shape],
}

/// The texts around an instruction, a query and a document, and the two tokens that a model may go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerankPrompt {
    /// With tokens that are written out; it ends with one.
    pub head: &'static str,
    pub before_instruction: &'static str,
    /// The instruction where none is given.
    pub instruction: &'static str,
    pub before_query: &'static str,
    pub before_document: &'static str,
    /// With tokens that are written out; it begins with one.
    pub tail: &'static str,
    pub yes: &'static str,
    pub no: &'static str,
}

/// A kind of `config.json`. A family may have several: they differ in what is assumed where they say nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HfKind {
    pub model_type: &'static str,
    /// `model_type` of multimodal files that have this kind as their `text_config`.
    pub nested_in: Option<&'static str>,
    /// What transformers assumes where a file says nothing, in the fields' own terms. Files from the hub do leave things out: some `text_config`
    /// has no head count, for one.
    pub defaults: &'static [(Fact, f64)],
    pub sliding: Sliding,
    /// Fields that name the activation: the first that is there.
    pub activation_fields: &'static [&'static str],
    /// What activations are called: the first entry of a name.
    pub activation_names: &'static [&'static [(&'static str, Activation)]],
    /// Where no width of the feed-forward part is stated, it is as many times that of the states.
    pub ffn_ratio: Option<usize>,
    /// Where the first field is true and the second is not, there is one KV head, whatever else is stated.
    pub one_kv_head: Option<[&'static str; 2]>,
    /// Fields that ask for another computation where they have this value.
    pub refused: &'static [(&'static str, bool)],
    /// Fields that ask for another computation where they have another value.
    pub expected: &'static [(&'static str, &'static str)],
    /// The table of positions begins with rows for padding, as many as the padding token's id and one.
    pub padded_positions: bool,
}

/// How a kind of `config.json` says which layers slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sliding {
    Never,
    /// All layers, if a size is given.
    All,
    /// Those that `layer_types` lists, or all.
    Listed,
    /// If `use_sliding_window` says so, the layers from `max_window_layers` on.
    OnRequest,
    /// All but every n-th.
    Pattern(usize),
}

/// Which layers slide when a file gives a window's size and not its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultWindow {
    Everywhere,
    /// Layers n, 2n, … (from 1) see everything, the rest slide.
    FullEvery(usize),
}

/// Which elements of a head rotate together.
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

/// What Hugging Face calls activations.
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
    /// No two families share a name.
    fn eq(&self, other: &Card) -> bool {
        self.names == other.names
    }
}

impl Card {
    /// A dense decoder with norms before each part, rotary positions and a gated feed-forward part: what cards start
    /// from, and how a file of an unknown family is read as far as that goes.
    pub const PLAIN: Card = Card {
        names: &[],
        facts: &[LLAMA_FACTS],
        gguf_defaults: &[],
        hf: &[],
        hidden_scale_depths: &[],
        tensors: LLAMA_TENSORS,
        stacks: LLAMA_STACKS,
        stacked_in_gguf: false,
        naming: LLAMA_NAMING,
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
        feed: FeedKind::Gated,
        scaled_embeddings: false,
        default_window: DefaultWindow::Everywhere,
        full_first: false,
        bidirectional: false,
        bidirectional_names: &[],
        rotary: true,
        rotates_in_windows: false,
        final_norm: true,
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

    /// The kind of `config.json` that says so of itself, with its card.
    pub fn find_kind(model_type: &str) -> Option<(&'static Card, &'static HfKind)> {
        Card::kinds().find(|(_, kind)| kind.model_type == model_type)
    }

    /// All kinds of `config.json`.
    pub fn kinds() -> impl Iterator<Item = (&'static Card, &'static HfKind)> {
        families::CARDS.iter().flat_map(|card| card.hf.iter().map(|kind| (*card, kind)))
    }

    /// What a GGUF file means where it does not state the fact.
    pub fn gguf_default(&self, fact: Fact) -> Option<f64> {
        lookup(self.gguf_defaults, fact)
    }

    pub fn rule(&self, fact: Fact) -> Option<&'static FactRule> {
        self.facts.iter().rev().flat_map(|list| list.iter()).find(|rule| rule.fact == fact)
    }

    /// The GGUF key that a fact is written under, less the architecture's name and a dot.
    pub fn gguf_key(&self, fact: Fact) -> &'static str {
        self.rule(fact).and_then(|rule| rule.gguf.first()).copied().unwrap_or_default()
    }

    /// The field of `config.json` that a fact is written under.
    pub fn hf_key(&self, fact: Fact) -> &'static str {
        self.rule(fact).and_then(|rule| rule.hf.first()).copied().unwrap_or_default()
    }

    /// Hugging Face's name of a tensor by its canonical one, where its files have such a thing.
    pub fn hf_name(&self, canonical: &str) -> Option<String> {
        names::hugging_face(canonical, self)
    }

    pub fn tensor_rules(&self) -> impl Iterator<Item = &'static TensorRule> {
        self.tensors.iter().flat_map(|list| list.iter())
    }

    pub fn rope_style(&self, config: &ModelConfig) -> RopeStyle {
        match config.source {
            Source::Gguf => self.gguf_rope,
            Source::HuggingFace => self.hf_rope,
        }
    }

    /// Added to the norm weights of a file.
    pub fn norm_offset(&self, config: &ModelConfig) -> f32 {
        match config.source {
            Source::Gguf => 0.0,
            Source::HuggingFace => self.norm_weight_offset,
        }
    }

    /// The window of a layer, or `None` where it sees everything.
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
        defaults: &[],
        sliding: Sliding::Never,
        activation_fields: &["hidden_act"],
        activation_names: &[ACTIVATIONS],
        ffn_ratio: None,
        one_kv_head: None,
        refused: &[],
        expected: &[],
        padded_positions: false,
    };

    /// What transformers assumes where a file does not state the fact.
    pub fn default(&self, fact: Fact) -> Option<f64> {
        lookup(self.defaults, fact)
    }
}

fn lookup(defaults: &[(Fact, f64)], fact: Fact) -> Option<f64> {
    defaults.iter().find(|(of, _)| *of == fact).map(|(_, value)| *value)
}

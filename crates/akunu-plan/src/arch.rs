//! Architectures as data. A new LLaMA-like model is a new row here, not new code.

use akunu_arch::{Activation, ModelConfig, Source, WindowPattern};

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// (0, 1), (2, 3), …: what GGUF's permuted LLaMA rows want.
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

/// Which layers slide when the file gives a window's size and not its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultWindow {
    Everywhere,
    /// Layers n, 2n, … (from 1) see everything, the rest slide.
    FullEvery(usize),
}

/// What the forward pass of a family is made of. Facts of one file (tied embeddings, biases, head size, window
/// pattern) are not here: they come from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArchDescriptor {
    /// `general.architecture` (GGUF) and `model_type` (Hugging Face) that this row serves.
    pub names: &'static [&'static str],
    pub activation: Activation,
    /// RoPE style of GGUF files; Hugging Face ones are always half-split.
    pub gguf_rope: RopeStyle,
    /// RMS norm over each head of Q and K before they rotate.
    pub qk_norm: bool,
    /// Norms after attention and after the feed-forward part, before the residual is added.
    pub post_norms: bool,
    /// Embeddings are multiplied by √hidden_size.
    pub scaled_embeddings: bool,
    /// Added to norm weights that come in Hugging Face form (GGUF stores the sum).
    pub norm_weight_offset: f32,
    pub default_window: DefaultWindow,
}

const LLAMA: ArchDescriptor = ArchDescriptor {
    names: &["llama", "mistral"],
    activation: Activation::Silu,
    gguf_rope: RopeStyle::Interleaved,
    qk_norm: false,
    post_norms: false,
    scaled_embeddings: false,
    norm_weight_offset: 0.0,
    default_window: DefaultWindow::Everywhere,
};

const QWEN2: ArchDescriptor = ArchDescriptor { names: &["qwen2"], gguf_rope: RopeStyle::HalfSplit, ..LLAMA };

const QWEN3: ArchDescriptor = ArchDescriptor { names: &["qwen3"], qk_norm: true, ..QWEN2 };

const GEMMA: ArchDescriptor = ArchDescriptor {
    names: &["gemma"],
    activation: Activation::GeluTanh,
    gguf_rope: RopeStyle::HalfSplit,
    scaled_embeddings: true,
    norm_weight_offset: 1.0,
    ..LLAMA
};

const GEMMA2: ArchDescriptor = ArchDescriptor {
    names: &["gemma2"],
    post_norms: true,
    default_window: DefaultWindow::FullEvery(2),
    ..GEMMA
};

const GEMMA3: ArchDescriptor = ArchDescriptor {
    names: &["gemma3", "gemma3_text"],
    qk_norm: true,
    default_window: DefaultWindow::FullEvery(6),
    ..GEMMA2
};

const PHI3: ArchDescriptor = ArchDescriptor { names: &["phi3"], gguf_rope: RopeStyle::HalfSplit, ..LLAMA };

pub const ARCHITECTURES: &[ArchDescriptor] = &[LLAMA, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, PHI3];

impl ArchDescriptor {
    pub fn find(name: &str) -> Option<&'static ArchDescriptor> {
        ARCHITECTURES.iter().find(|a| a.names.contains(&name))
    }

    pub fn rope_style(&self, config: &ModelConfig) -> RopeStyle {
        match config.source {
            Source::Gguf => self.gguf_rope,
            Source::HuggingFace => RopeStyle::HalfSplit,
        }
    }

    pub fn norm_offset(&self, config: &ModelConfig) -> f32 {
        match config.source {
            Source::Gguf => 0.0,
            Source::HuggingFace => self.norm_weight_offset,
        }
    }

    /// The window of a layer, or `None` where it sees everything.
    pub fn layer_window(&self, config: &ModelConfig, layer: usize) -> Option<usize> {
        let window = config.window.as_ref()?;
        let full_every = |n: usize| n > 0 && (layer + 1).is_multiple_of(n);
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

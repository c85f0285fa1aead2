//! What a model file says about its shape. Facts only: what they mean for the forward pass is decided by
//! the architecture's descriptor in `akunu-plan`.

/// Where the weights come from; conventions differ (see the field notes in `akunu_plan::arch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Gguf,
    /// Hugging Face names and layouts: Q and K rows unpermuted, Gemma norm weights stored less one.
    HuggingFace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// GELU through the error function.
    GeluErf,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// As the file names it: GGUF's `general.architecture` or Hugging Face's `model_type`.
    pub architecture: String,
    pub source: Source,
    pub name: Option<String>,
    pub vocab_size: usize,
    /// Positions that the model was trained for.
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
    /// Scores are multiplied by this; `None` means 1/√head_dim.
    pub attention_scale: Option<f32>,
    pub attention_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    /// `None` where the file does not say: the descriptor's own is used.
    pub activation: Option<Activation>,
    /// End-of-text ids that the configuration names (a vocabulary may name more).
    pub eos_ids: Vec<u32>,
    pub bos_id: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Dimensions of each head that rotate; the rest pass through.
    pub dims: usize,
    pub base: f64,
    /// Base in sliding-window layers where it differs (Gemma 3). Scaling never applies to those.
    pub local_base: Option<f64>,
    pub scaling: RopeScaling,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    /// Llama 3.1's: long wavelengths are stretched by `factor`, short ones kept, a ramp between.
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
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// A row at position p sees positions p − size + 1 ..= p.
    pub size: usize,
    pub pattern: WindowPattern,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WindowPattern {
    /// The file gives a size and nothing else: the descriptor knows which layers slide.
    Unstated,
    /// Every n-th layer (n, 2n, … counted from 1) sees everything, the others slide.
    FullEvery(usize),
    /// One entry a layer: does it slide?
    Layers(Vec<bool>),
}

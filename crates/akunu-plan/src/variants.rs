//! The options of ops: the form of a product, the cache type, RoPE, and the output forms.

use crate::{Activation, DType, NormKind, RopeStyle};

/// The storage type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    F32,
    F16,
    /// Blocks of 32: an f16 scale and 32 int8, as in GGUF. `scale = amax / 127`, rounded to f16 after `quant =
    /// round_ties_even(x · (127 / amax))`.
    Q8_0,
}

impl KvType {
    pub fn dtype(self) -> DType {
        match self {
            KvType::F32 => DType::F32,
            KvType::F16 => DType::F16,
            KvType::Q8_0 => DType::Q8_0,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
        }
    }

    pub fn from_name(name: &str) -> Option<KvType> {
        [KvType::F32, KvType::F16, KvType::Q8_0].into_iter().find(|t| t.name() == name)
    }

    /// Bytes of one head's key or value at one position; `None` if `head_dim` is not whole blocks.
    pub fn row_bytes(self, head_dim: usize) -> Option<usize> {
        self.dtype().row_bytes(head_dim)
    }
}

/// The kind of a matrix product, chosen by the number of rows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatmulForm {
    /// One row.
    Gemv,
    /// 2 to 16 rows.
    Small,
    Gemm,
}

impl MatmulForm {
    pub fn for_rows(rows: usize) -> MatmulForm {
        match rows {
            0..=1 => MatmulForm::Gemv,
            2..=16 => MatmulForm::Small,
            _ => MatmulForm::Gemm,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            MatmulForm::Gemv => "gemv",
            MatmulForm::Small => "gemm_small",
            MatmulForm::Gemm => "gemm",
        }
    }
}

/// The set of forms in which an op writes its output: those that its consumers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputForms {
    F32,
    Q8,
    Both,
    /// f16 rows as in [`crate::halves`], with the scales in a separate binding.
    F16,
    F32AndF16,
    /// f16 rows in the order of lanes ([`crate::halves::lane_place`]).
    F16Lanes,
    F32AndF16Lanes,
    /// Rows of E4M3 as in [`crate::eights`], in place of f16 rows.
    F8,
    F32AndF8,
}

impl OutputForms {
    pub fn f32(self) -> bool {
        matches!(
            self,
            OutputForms::F32
                | OutputForms::Both
                | OutputForms::F32AndF16
                | OutputForms::F32AndF16Lanes
                | OutputForms::F32AndF8
        )
    }

    pub fn q8(self) -> bool {
        matches!(self, OutputForms::Q8 | OutputForms::Both)
    }

    /// Rows of f16 in any order, or of E4M3.
    pub fn f16(self) -> bool {
        matches!(self, OutputForms::F16 | OutputForms::F32AndF16) || self.lanes() || self.eights()
    }

    /// Whether these rows are E4M3.
    pub fn eights(self) -> bool {
        matches!(self, OutputForms::F8 | OutputForms::F32AndF8)
    }

    /// Whether f16 rows are in the order of lanes.
    pub fn lanes(self) -> bool {
        matches!(self, OutputForms::F16Lanes | OutputForms::F32AndF16Lanes)
    }

    /// Number of bindings of the outputs.
    pub fn bindings(self) -> usize {
        usize::from(self.f32()) + usize::from(self.q8()) + 2 * usize::from(self.f16())
    }

    pub(crate) fn suffix(self) -> &'static str {
        match self {
            OutputForms::F32 => "",
            OutputForms::Q8 => "_q8",
            OutputForms::Both => "_f32_q8",
            OutputForms::F16 => "_f16",
            OutputForms::F32AndF16 => "_f32_f16",
            OutputForms::F16Lanes => "_f16_lanes",
            OutputForms::F32AndF16Lanes => "_f32_f16_lanes",
            OutputForms::F8 => "_f8",
            OutputForms::F32AndF8 => "_f32_f8",
        }
    }
}

/// How the heads of Q and K are prepared for attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rope {
    /// `None` without RoPE.
    pub style: Option<RopeStyle>,
    /// Each head is normalized first.
    pub qk_norm: bool,
}

impl Rope {
    pub(crate) fn name(self) -> String {
        let norm = if self.qk_norm { "qk_norm_" } else { "" };
        let style = self.style.map_or("no_rope".into(), |style| format!("rope_{}", style.name()));
        norm.to_owned() + &style
    }
}

pub(crate) fn norm_name(kind: NormKind) -> &'static str {
    match kind {
        NormKind::Rms => "rms_norm",
        NormKind::Layer => "layer_norm",
    }
}

/// A dtype in the names of kernels.
pub(crate) fn lower_name(dtype: DType) -> String {
    dtype.name().to_ascii_lowercase()
}

pub(crate) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::GeluErf => "gelu_erf",
        Activation::Tanh => "tanh",
        Activation::Relu => "relu",
    }
}

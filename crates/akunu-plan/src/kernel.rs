//! Every operation that a table may hold, with what it binds.
//!
//! No kernel writes a buffer that it reads (`kv_shift`, `argmax` and `sample` excepted, which move state on), so a command
//! can be run again.

use crate::params::{
    AnglesParams, ArgmaxParams, AttentionParams, Describe, ElementParams, EmbedParams, GluMatmulParams,
    KvMoveParams, MatmulParams, NormParams, QkvParams, RopeKvParams, SampleParams, UnpackParams,
};
use crate::table::MAX_BINDINGS;
use crate::{Activation, DType, RopeStyle};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    F32,
    F16,
    /// Blocks of 32: an f16 scale and 32 int8, as in GGUF. `scale = amax / 127` rounded to f16 after
    /// `quant = round_ties_even(x · (127 / amax))`.
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

    /// Bytes of one head's key or value at one position; `None` where `head_dim` is not whole blocks.
    pub fn row_bytes(self, head_dim: usize) -> Option<usize> {
        self.dtype().row_bytes(head_dim)
    }
}

/// Which way a matrix product goes, chosen from the table's rows when it is built.
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

    fn name(self) -> &'static str {
        match self {
            MatmulForm::Gemv => "gemv",
            MatmulForm::Small => "gemm_small",
            MatmulForm::Gemm => "gemm",
        }
    }
}

/// The forms in which a kernel writes its activations: what its consumers' weights want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormOut {
    F32,
    Q8,
    Both,
    /// [`crate::halves`], and the scales in a binding of their own.
    F16,
    F32AndF16,
}

impl NormOut {
    pub fn f32(self) -> bool {
        matches!(self, NormOut::F32 | NormOut::Both | NormOut::F32AndF16)
    }

    pub fn q8(self) -> bool {
        matches!(self, NormOut::Q8 | NormOut::Both)
    }

    pub fn f16(self) -> bool {
        matches!(self, NormOut::F16 | NormOut::F32AndF16)
    }

    /// How many bindings the outputs take.
    pub fn bindings(self) -> usize {
        usize::from(self.f32()) + usize::from(self.q8()) + 2 * usize::from(self.f16())
    }

    fn suffix(self) -> &'static str {
        match self {
            NormOut::F32 => "",
            NormOut::Q8 => "_q8",
            NormOut::Both => "_f32_q8",
            NormOut::F16 => "_f16",
            NormOut::F32AndF16 => "_f32_f16",
        }
    }
}

/// How Q and K turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rope {
    pub style: RopeStyle,
    /// Each head is normed before.
    pub qk_norm: bool,
}

impl Rope {
    fn name(self) -> String {
        let norm = if self.qk_norm { "qk_norm_" } else { "" };
        format!("{norm}rope_{}", self.style.name())
    }
}

/// Which of a pass's rows a kernel works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    All,
    /// Only rows that ask for logits, packed together in the order of the `logit_rows` buffer.
    Logits,
}

/// Bindings are numbered as in [`Kernel::bindings`]; the names there are the documentation. A weight takes
/// [`DType::planes`] of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// A token's embedding, scaled. Params: [`EmbedParams`].
    Embed { weight: DType },
    /// cos and sin of every pair's angle, for each row's position: `[row][pair][cos, sin]`. [`AnglesParams`].
    RopeAngles,
    /// `x / rms(x) · weight`. With [`RowSet::Logits`] it also packs the rows that ask. [`NormParams`].
    RmsNorm { out: NormOut, rows: RowSet },
    /// `residual + x / rms(x) · weight`. [`NormParams`].
    NormAdd,
    /// `x · Wᵀ (+ bias) (+ residual)`. Input is q8 where `q8`, else f32. [`MatmulParams`].
    ///
    /// With `norm` it also begins the norm of its output `y`: `normed` is `y · norm_weight`, not yet divided by rms(y), and
    /// `out_squares` is the sum of `y² + epsilon` over each block of 32 outputs, `[row][outputs / 32]`. A product whose input is such
    /// a row is `scaled`: it binds these sums as `squares`, and `x · Wᵀ` is multiplied by `1 / √(mean of squares)`, in Q, K and V, gate
    /// and up alike. What is rounded to q8 is the row as it stands, not yet divided.
    Matmul {
        weight: DType,
        form: MatmulForm,
        q8: bool,
        bias: bool,
        residual: bool,
        rows: RowSet,
        scaled: bool,
        norm: Option<NormOut>,
    },
    /// Q, K and V of one dtype in one command, outputs side by side. [`QkvParams`].
    Qkv { weight: DType, form: MatmulForm, q8: bool, bias: bool, scaled: bool },
    /// `activation(x · Gᵀ) · (x · Uᵀ)`. [`GluMatmulParams`].
    GluMatmul {
        weight: DType,
        form: MatmulForm,
        q8: bool,
        activation: Activation,
        out: NormOut,
        scaled: bool,
    },
    /// `activation(gate) · up`, elementwise. [`ElementParams`].
    Glu { activation: Activation, out: NormOut },
    /// Rounds rows to int8 blocks ([`crate::q8`]). [`ElementParams`].
    Quantise,
    /// Rounds rows to f16 ([`crate::halves`]). [`ElementParams`].
    Halve,
    /// A matrix's weights, rounded to f16: what [`Kernel::HalfMatmul`] reads. [`UnpackParams`].
    Unpack { weight: DType },
    /// `scale · (x · Wᵀ) (+ bias) (+ residual)` of f16 rows and f16 weights; exact products, f32 sums. [`MatmulParams`], without a cap.
    HalfMatmul { bias: bool, residual: bool },
    /// (QK norm,) rotates Q and K, writes K and V to the cache. [`RopeKvParams`].
    RopeKv { style: RopeStyle, qk_norm: bool, kv: KvType },
    /// Causal grouped-query attention over a slot's cache. With `rope` it does what [`Kernel::RopeKv`] does before, which
    /// it can for one row only: of several, one might see another's key before it is there. [`AttentionParams`].
    Attention { kv: KvType, out: NormOut, rope: Option<Rope> },
    /// The best token of each row that asked; the lowest id wins a tie, `u32::MAX` reports a NaN. [`ArgmaxParams`].
    Argmax,
    /// A token for each row that asked, picked as its settings say ([`crate::sample`]); `u32::MAX` reports logits that are not
    /// numbers, and that all are ruled out. [`SampleParams`].
    Sample,
    /// Drops `row.token` positions from `row.position` on, and moves the rest of `row.kv_len` down, turning the keys
    /// back by as many positions. [`KvMoveParams`].
    KvShift { style: RopeStyle, kv: KvType },
    /// Copies the first `row.kv_len` positions of slot `row.token` to `row.slot`. [`KvMoveParams`].
    KvCopy { kv: KvType },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Read and written.
    Update,
}

/// What a binding's bytes are, for checking sizes and comparing devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    F32,
    /// [`crate::q8`] rows of this many elements are told by the params.
    Q8,
    F16,
    U32,
    Rows,
    /// In the device's [`crate::KeyOrder`].
    Keys(KvType),
    Values(KvType),
    /// Records of [`crate::sample`].
    Sampling,
    /// Of an affine type: the quants.
    Weight(DType),
    /// Scales or offsets of an affine type.
    Scales(DType),
}

/// One binding of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub name: &'static str,
    pub access: Access,
    pub content: Content,
}

const fn read(name: &'static str, content: Content) -> Slot {
    Slot { name, access: Access::Read, content }
}

const fn write(name: &'static str, content: Content) -> Slot {
    Slot { name, access: Access::Write, content }
}

const fn update(name: &'static str, content: Content) -> Slot {
    Slot { name, access: Access::Update, content }
}

/// Names of a weight's planes.
type PlaneNames = [&'static str; 3];

const EMBEDDING: PlaneNames = ["embedding", "embedding_scales", "embedding_offsets"];
const WEIGHT: PlaneNames = ["weight", "weight_scales", "weight_offsets"];
const QKV_WEIGHTS: [PlaneNames; 3] = [
    ["q_weight", "q_scales", "q_offsets"],
    ["k_weight", "k_scales", "k_offsets"],
    ["v_weight", "v_scales", "v_offsets"],
];
const GLU_WEIGHTS: [PlaneNames; 2] =
    [["gate_weight", "gate_scales", "gate_offsets"], ["up_weight", "up_scales", "up_offsets"]];

fn push_weight(slots: &mut Vec<Slot>, names: PlaneNames, dtype: DType) {
    slots.push(read(names[0], Content::Weight(dtype)));
    slots.extend(names[1..dtype.planes()].iter().map(|name| read(name, Content::Scales(dtype))));
}

impl Kernel {
    /// What each binding is, in order. A binding that a variant does not use is left out, and the next ones move up.
    pub fn bindings(self) -> Vec<Slot> {
        use Content::{F16, F32, Keys, Q8, Rows, U32, Values};
        let input = |q8: bool| read("x", if q8 { Q8 } else { F32 });
        let mut slots = Vec::with_capacity(MAX_BINDINGS);
        match self {
            Kernel::Embed { weight } => {
                push_weight(&mut slots, EMBEDDING, weight);
                slots.extend([read("rows", Rows), write("out", F32)]);
            }
            Kernel::RopeAngles => {
                slots.extend([read("frequencies", F32), read("rows", Rows), write("angles", F32)]);
            }
            Kernel::RmsNorm { out, rows } => {
                slots.extend([read("x", F32), read("weight", F32)]);
                push_outputs(&mut slots, out);
                if rows == RowSet::Logits {
                    slots.push(read("logit_rows", U32));
                }
            }
            Kernel::NormAdd => {
                slots.extend([read("x", F32), read("weight", F32), read("residual", F32), write("out", F32)]);
            }
            Kernel::Matmul { weight, q8, bias, residual, scaled, norm, .. } => {
                slots.push(input(q8));
                push_weight(&mut slots, WEIGHT, weight);
                slots.push(write("out", F32));
                if bias {
                    slots.push(read("bias", F32));
                }
                if residual {
                    slots.push(read("residual", F32));
                }
                push_squares(&mut slots, scaled);
                if let Some(out) = norm {
                    slots.push(read("norm_weight", F32));
                    push_forms(&mut slots, out, ["normed", "normed_q8"]);
                    slots.push(write("out_squares", F32));
                }
            }
            Kernel::Qkv { weight, q8, bias, scaled, .. } => {
                slots.push(input(q8));
                for names in QKV_WEIGHTS {
                    push_weight(&mut slots, names, weight);
                }
                slots.push(write("out", F32));
                if bias {
                    slots.extend([read("q_bias", F32), read("k_bias", F32), read("v_bias", F32)]);
                }
                push_squares(&mut slots, scaled);
            }
            Kernel::GluMatmul { weight, q8, out, scaled, .. } => {
                slots.push(input(q8));
                for names in GLU_WEIGHTS {
                    push_weight(&mut slots, names, weight);
                }
                push_outputs(&mut slots, out);
                push_squares(&mut slots, scaled);
            }
            Kernel::Glu { out, .. } => {
                slots.extend([read("gate", F32), read("up", F32)]);
                push_outputs(&mut slots, out);
            }
            Kernel::Quantise => slots.extend([read("x", F32), write("out_q8", Q8)]),
            Kernel::Halve => {
                slots.push(read("x", F32));
                push_outputs(&mut slots, NormOut::F16);
            }
            Kernel::Unpack { weight } => {
                push_weight(&mut slots, WEIGHT, weight);
                slots.push(write("out_f16", F16));
            }
            Kernel::HalfMatmul { bias, residual } => {
                slots.extend([read("x", F16), read("x_scales", F32), read("weight", F16), write("out", F32)]);
                if bias {
                    slots.push(read("bias", F32));
                }
                if residual {
                    slots.push(read("residual", F32));
                }
            }
            Kernel::RopeKv { qk_norm, kv, .. } => {
                slots.extend([read("qkv", F32), read("angles", F32), read("rows", Rows), write("q", F32)]);
                slots.extend([update("k_cache", Keys(kv)), update("v_cache", Values(kv))]);
                if qk_norm {
                    slots.extend([read("q_norm", F32), read("k_norm", F32)]);
                }
            }
            Kernel::Attention { kv, out, rope: None } => {
                slots.extend([read("q", F32), read("k_cache", Keys(kv)), read("v_cache", Values(kv))]);
                slots.push(read("rows", Rows));
                push_outputs(&mut slots, out);
            }
            Kernel::Attention { kv, out, rope: Some(rope) } => {
                slots.extend([read("qkv", F32), update("k_cache", Keys(kv)), update("v_cache", Values(kv))]);
                slots.push(read("rows", Rows));
                push_outputs(&mut slots, out);
                slots.push(read("angles", F32));
                if rope.qk_norm {
                    slots.extend([read("q_norm", F32), read("k_norm", F32)]);
                }
            }
            Kernel::Argmax => {
                slots.extend([read("logits", F32), write("tokens", U32), update("rows", Rows)]);
                slots.push(read("logit_rows", U32));
            }
            Kernel::Sample => {
                slots.extend([read("logits", F32), write("tokens", U32), update("rows", Rows)]);
                slots.extend([read("logit_rows", U32), update("sampling", Content::Sampling)]);
            }
            Kernel::KvShift { kv, .. } => {
                slots.extend([update("k_cache", Keys(kv)), update("v_cache", Values(kv))]);
                slots.extend([read("frequencies", F32), read("rows", Rows)]);
            }
            Kernel::KvCopy { kv } => {
                slots.extend([
                    update("k_cache", Keys(kv)),
                    update("v_cache", Values(kv)),
                    read("rows", Rows),
                ]);
            }
        }
        slots
    }

    /// Names carry their parameters: a device that looks kernels up by name finds a distinct one for each variant.
    pub fn name(self) -> String {
        let lower = |t: DType| t.name().to_ascii_lowercase();
        let input = |weight: DType, q8: bool| if weight.is_quantised() && !q8 { "_f32in" } else { "" };
        match self {
            Kernel::Embed { weight } => format!("embed_{}", lower(weight)),
            Kernel::RopeAngles => "rope_angles".into(),
            Kernel::RmsNorm { out, rows } => {
                let pick = if rows == RowSet::Logits { "_pick" } else { "" };
                format!("rms_norm{pick}{}", out.suffix())
            }
            Kernel::NormAdd => "norm_add".into(),
            Kernel::Matmul { weight, form, q8, bias, residual, rows: _, scaled, norm } => {
                let bias = if bias { "_bias" } else { "" };
                let residual = if residual { "_add" } else { "" };
                let norm = norm.map_or(String::new(), |out| format!("_norm{}", out.suffix()));
                let (weight, input) = (lower(weight), input(weight, q8));
                format!("{}_{weight}{input}{}{bias}{residual}{norm}", form.name(), scaled_name(scaled))
            }
            Kernel::Qkv { weight, form, q8, bias, scaled } => {
                let bias = if bias { "_bias" } else { "" };
                let (weight, input) = (lower(weight), input(weight, q8));
                format!("{}_qkv_{weight}{input}{}{bias}", form.name(), scaled_name(scaled))
            }
            Kernel::GluMatmul { weight, form, q8, activation, out, scaled } => {
                let (activation, weight, input) =
                    (activation_name(activation), lower(weight), input(weight, q8));
                let scaled = scaled_name(scaled);
                format!("{}_{activation}_glu_{weight}{input}{scaled}{}", form.name(), out.suffix())
            }
            Kernel::Glu { activation, out } => format!("{}_glu{}", activation_name(activation), out.suffix()),
            Kernel::Quantise => "quantise_q8".into(),
            Kernel::Halve => "halve".into(),
            Kernel::Unpack { weight } => format!("unpack_{}", lower(weight)),
            Kernel::HalfMatmul { bias, residual } => {
                let bias = if bias { "_bias" } else { "" };
                format!("half_gemm{bias}{}", if residual { "_add" } else { "" })
            }
            Kernel::RopeKv { style, qk_norm, kv } => {
                format!("{}_kv_write_{}", Rope { style, qk_norm }.name(), kv.name())
            }
            Kernel::Attention { kv, out, rope } => {
                let rope = rope.map_or(String::new(), |rope| rope.name() + "_");
                format!("{rope}attention_{}{}", kv.name(), out.suffix())
            }
            Kernel::Argmax => "argmax".into(),
            Kernel::Sample => "sample".into(),
            Kernel::KvShift { style, kv } => format!("kv_shift_{}_{}", style.name(), kv.name()),
            Kernel::KvCopy { kv } => format!("kv_copy_{}", kv.name()),
        }
    }

    /// The inline parameters of a command of this kernel, as names and values.
    pub fn describe_params(self, params: &[u8]) -> Vec<(&'static str, String)> {
        fn of<P: Describe + bytemuck::AnyBitPattern>(params: &[u8]) -> Vec<(&'static str, String)> {
            bytemuck::pod_read_unaligned::<P>(&params[..size_of::<P>()]).fields()
        }
        match self {
            Kernel::Embed { .. } => of::<EmbedParams>(params),
            Kernel::RopeAngles => of::<AnglesParams>(params),
            Kernel::RmsNorm { .. } | Kernel::NormAdd => of::<NormParams>(params),
            Kernel::Matmul { .. } | Kernel::HalfMatmul { .. } => of::<MatmulParams>(params),
            Kernel::Unpack { .. } => of::<UnpackParams>(params),
            Kernel::Qkv { .. } => of::<QkvParams>(params),
            Kernel::GluMatmul { .. } => of::<GluMatmulParams>(params),
            Kernel::Glu { .. } | Kernel::Quantise | Kernel::Halve => of::<ElementParams>(params),
            Kernel::RopeKv { .. } => of::<RopeKvParams>(params),
            Kernel::Attention { .. } => of::<AttentionParams>(params),
            Kernel::Argmax => of::<ArgmaxParams>(params),
            Kernel::Sample => of::<SampleParams>(params),
            Kernel::KvShift { .. } | Kernel::KvCopy { .. } => of::<KvMoveParams>(params),
        }
    }
}

fn push_outputs(slots: &mut Vec<Slot>, out: NormOut) {
    push_forms(slots, out, ["out", "out_q8"]);
}

fn push_forms(slots: &mut Vec<Slot>, out: NormOut, [f32, q8]: [&'static str; 2]) {
    if out.f32() {
        slots.push(write(f32, Content::F32));
    }
    if out.q8() {
        slots.push(write(q8, Content::Q8));
    }
    if out.f16() {
        slots.extend([write("out_f16", Content::F16), write("out_scales", Content::F32)]);
    }
}

fn push_squares(slots: &mut Vec<Slot>, scaled: bool) {
    if scaled {
        slots.push(read("squares", Content::F32));
    }
}

fn scaled_name(scaled: bool) -> &'static str {
    if scaled { "_scaled" } else { "" }
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::GeluErf => "gelu_erf",
    }
}

//! The type of each tensor: the mixes of llama-quantize, with which published files are made.
//!
//! - Norms, biases and RoPE factors are always F32, and so are tables that are added and the output rows of a
//!   classifier.
//! - F32, F16, BF16: every matrix.
//! - Quantised: tensors listed in [`MORE_BITS`] or [`LATTICES`] get the type given there. Of the others, the output
//!   matrix (or the embedding, if it is also the output) is Q6_K, or Q8_0 if that is the base type, and all others have
//!   the base type.
//! - `MXFP4_MOE`: MXFP4 for the matrices of experts, as gpt-oss is published, and Q8_0 for all others.
//! - Rows that are not a multiple of 256 get a type with blocks of 32 of about the same size or the next larger one;
//!   rows that are not a multiple of 32 either get F16.
//! - `pure` uses the base type wherever the row size allows it.

use crate::DType;

/// A mix: the name that users give, and its `general.file_type`. `S`, `M` and `L` say how many tensors get more bits
/// than the base type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    pub name: &'static str,
    pub base: DType,
    pub file_type: u32,
    size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    One,
    S,
    M,
    L,
}

const fn mix(name: &'static str, base: DType, size: Size, file_type: u32) -> Mix {
    Mix { name, base, file_type, size }
}

/// `Q2_K`, `Q3_K`, `Q4_K` and `Q5_K` are aliases of the M mixes, as in llama-quantize.
pub const MIXES: &[Mix] = &[
    mix("F32", DType::F32, Size::One, 0),
    mix("F16", DType::F16, Size::One, 1),
    mix("BF16", DType::BF16, Size::One, 32),
    mix("Q8_0", DType::Q8_0, Size::One, 7),
    mix("Q4_0", DType::Q4_0, Size::One, 2),
    mix("Q4_1", DType::Q4_1, Size::One, 3),
    mix("Q5_0", DType::Q5_0, Size::One, 8),
    mix("Q5_1", DType::Q5_1, Size::One, 9),
    mix("Q2_K", DType::Q2K, Size::M, 10),
    mix("Q2_K_S", DType::Q2K, Size::S, 21),
    mix("Q3_K", DType::Q3K, Size::M, 12),
    mix("Q3_K_S", DType::Q3K, Size::S, 11),
    mix("Q3_K_M", DType::Q3K, Size::M, 12),
    mix("Q3_K_L", DType::Q3K, Size::L, 13),
    mix("Q4_K", DType::Q4K, Size::M, 15),
    mix("Q4_K_S", DType::Q4K, Size::S, 14),
    mix("Q4_K_M", DType::Q4K, Size::M, 15),
    mix("Q5_K", DType::Q5K, Size::M, 17),
    mix("Q5_K_S", DType::Q5K, Size::S, 16),
    mix("Q5_K_M", DType::Q5K, Size::M, 17),
    mix("Q6_K", DType::Q6K, Size::One, 18),
    mix("IQ1_S", DType::IQ1S, Size::One, 24),
    mix("IQ1_M", DType::IQ1M, Size::One, 31),
    mix("IQ2_XXS", DType::IQ2XXS, Size::One, 19),
    mix("IQ2_XS", DType::IQ2XS, Size::One, 20),
    mix("IQ2_S", DType::IQ2XS, Size::One, 28),
    mix("IQ2_M", DType::IQ2S, Size::One, 29),
    mix("IQ3_XXS", DType::IQ3XXS, Size::One, 23),
    mix("IQ3_XS", DType::IQ3S, Size::One, 22),
    mix("IQ3_S", DType::IQ3S, Size::One, 26),
    mix("IQ3_M", DType::IQ3S, Size::One, 27),
    mix("IQ4_NL", DType::IQ4NL, Size::One, 25),
    mix("IQ4_XS", DType::IQ4XS, Size::One, 30),
    mix("MXFP4", DType::MXFP4, Size::One, 38),
    mix("MXFP4_MOE", DType::MXFP4, Size::One, 38),
];

/// The mix whose type is that of experts alone: all other matrices are Q8_0.
const EXPERTS_ALONE: &str = "MXFP4_MOE";

/// Matrices that stay F32: those that are added to hidden states or scores, and those that produce only a few scores.
const ALWAYS_F32: &[&str] =
    &["position_embd", "enc.position_embd", "token_types", "attn_rel_b", "cls.output"];

/// The layers or models to which a rule of [`MORE_BITS`] applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// The first n layers.
    First(usize),
    /// The first n-th part of the layers.
    FirstPart(usize),
    /// The first and last eighth of the layers, and every third layer between.
    EighthsAndThirds,
    /// All but the first and last eighth of the layers.
    Middle,
    /// Models with four or more query heads per key-value head.
    Grouped,
}

impl When {
    fn holds(self, layer: usize, model: &Proportions) -> bool {
        let layers = model.layers;
        match self {
            When::Always => true,
            When::First(count) => layer < count,
            When::FirstPart(parts) => layer < layers / parts,
            When::EighthsAndThirds => {
                let eighth = layers / 8;
                layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
            }
            When::Middle => (layers / 8..7 * layers / 8).contains(&layer),
            When::Grouped => model.group() >= 4,
        }
    }
}

/// (base, size, tensor, condition, type): the first row that applies decides.
type Rule = (DType, Size, &'static str, When, DType);

#[rustfmt::skip]
const MORE_BITS: &[Rule] = &[
    (DType::Q2K, Size::S, "attn_v",      When::Grouped,          DType::Q4K),
    (DType::Q2K, Size::S, "ffn_down",    When::FirstPart(8),     DType::Q4K),
    (DType::Q2K, Size::M, "attn_v",      When::Grouped,          DType::Q4K),
    (DType::Q2K, Size::M, "attn_v",      When::Always,           DType::Q3K),
    (DType::Q2K, Size::M, "ffn_down",    When::Always,           DType::Q3K),
    (DType::Q2K, Size::M, "attn_output", When::Always,           DType::Q3K),
    (DType::Q3K, Size::M, "attn_v",      When::First(2),         DType::Q5K),
    (DType::Q3K, Size::M, "attn_v",      When::Always,           DType::Q4K),
    (DType::Q3K, Size::M, "ffn_down",    When::FirstPart(16),    DType::Q5K),
    (DType::Q3K, Size::M, "ffn_down",    When::Always,           DType::Q4K),
    (DType::Q3K, Size::M, "attn_output", When::Always,           DType::Q4K),
    (DType::Q3K, Size::L, "attn_v",      When::Always,           DType::Q5K),
    (DType::Q3K, Size::L, "ffn_down",    When::Always,           DType::Q5K),
    (DType::Q3K, Size::L, "attn_output", When::Always,           DType::Q5K),
    (DType::Q4K, Size::S, "attn_v",      When::First(4),         DType::Q5K),
    (DType::Q4K, Size::S, "ffn_down",    When::FirstPart(8),     DType::Q5K),
    (DType::Q4K, Size::M, "attn_v",      When::EighthsAndThirds, DType::Q6K),
    (DType::Q4K, Size::M, "ffn_down",    When::EighthsAndThirds, DType::Q6K),
    (DType::Q5K, Size::M, "attn_v",      When::EighthsAndThirds, DType::Q6K),
    (DType::Q5K, Size::M, "ffn_down",    When::EighthsAndThirds, DType::Q6K),
    // Fused Q, K and V.
    (DType::Q3K, Size::M, "attn_qkv",    When::Always,           DType::Q4K),
    (DType::Q3K, Size::L, "attn_qkv",    When::Always,           DType::Q4K),
    (DType::Q4K, Size::M, "attn_qkv",    When::Always,           DType::Q5K),
    (DType::Q5K, Size::M, "attn_qkv",    When::Always,           DType::Q6K),
    (DType::IQ4NL, Size::One, "attn_v",   When::Grouped,         DType::Q5K),
    (DType::IQ4NL, Size::One, "ffn_down", When::FirstPart(8),    DType::Q5K),
    (DType::IQ4XS, Size::One, "attn_v",   When::Grouped,         DType::Q5K),
    (DType::IQ4XS, Size::One, "ffn_down", When::FirstPart(8),    DType::Q5K),
];

/// Mixes of about two bits a weight and less.
const TWO_BITS: &[&str] = &["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"];

/// Mixes of about two and a half bits a weight.
const TWO_AND_A_HALF: &[&str] = &["IQ2_S", "IQ2_M"];

/// (mixes, tensor, condition, type), as [`MORE_BITS`].
#[rustfmt::skip]
const LATTICES: &[(&[&str], &str, When, DType)] = &[
    (TWO_BITS,             "output",      When::Always,       DType::Q5K),
    (TWO_BITS,             "token_embd",  When::Always,       DType::Q2K),
    (TWO_BITS,             "attn_v",      When::Grouped,      DType::Q4K),
    (TWO_BITS,             "attn_v",      When::Always,       DType::Q2K),
    (TWO_BITS,             "ffn_down",    When::FirstPart(8), DType::Q2K),
    (&["IQ1_S", "IQ1_M"],  "attn_output", When::Always,       DType::IQ2XXS),
    (TWO_AND_A_HALF,       "output",      When::Always,       DType::Q5K),
    (TWO_AND_A_HALF,       "token_embd",  When::Always,       DType::IQ3S),
    (TWO_AND_A_HALF,       "attn_v",      When::Grouped,      DType::Q4K),
    (TWO_AND_A_HALF,       "attn_v",      When::Always,       DType::IQ3S),
    (TWO_AND_A_HALF,       "ffn_down",    When::FirstPart(8), DType::IQ3S),
    (TWO_AND_A_HALF,       "attn_output", When::Always,       DType::IQ3S),
    (&["IQ3_XXS"],         "output",      When::Always,       DType::Q5K),
    (&["IQ3_XXS"],         "token_embd",  When::Always,       DType::IQ3S),
    (&["IQ3_XXS"],         "attn_q",      When::Always,       DType::IQ2S),
    (&["IQ3_XXS"],         "attn_k",      When::Always,       DType::IQ2S),
    (&["IQ3_XXS"],         "attn_v",      When::Grouped,      DType::Q4K),
    (&["IQ3_XXS"],         "attn_v",      When::Always,       DType::IQ3S),
    (&["IQ3_XXS"],         "ffn_down",    When::FirstPart(8), DType::Q4K),
    (&["IQ3_XXS"],         "ffn_down",    When::Always,       DType::Q3K),
    (&["IQ3_XXS"],         "attn_output", When::Always,       DType::IQ3S),
    (&["IQ3_XS"],          "attn_q",      When::Always,       DType::IQ3XXS),
    (&["IQ3_XS"],          "attn_k",      When::Always,       DType::IQ3XXS),
    (&["IQ3_XS"],          "ffn_gate",    When::Middle,       DType::IQ3XXS),
    (&["IQ3_XS"],          "ffn_up",      When::Middle,       DType::IQ3XXS),
    (&["IQ3_XS", "IQ3_S"], "attn_v",      When::Grouped,      DType::Q4K),
    (&["IQ3_M"],           "attn_v",      When::Always,       DType::Q4K),
    (&["IQ3_M"],           "attn_output", When::Always,       DType::Q4K),
    (&["IQ3_M"],           "attn_qkv",    When::Always,       DType::Q4K),
];

/// The properties of a model that determine its mix.
#[derive(Clone, Copy, Debug)]
pub struct Proportions {
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// The embedding is also the output matrix.
    pub tied: bool,
}

impl Proportions {
    /// Query heads per key-value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }
}

impl Mix {
    /// Finds a mix by name, ignoring case.
    pub fn find(name: &str) -> Option<Mix> {
        MIXES.iter().find(|m| m.name.eq_ignore_ascii_case(name)).copied()
    }

    /// The type of a tensor, by its canonical name. `pure`: the base type wherever the row size allows it.
    pub fn dtype(&self, tensor: &str, shape: &[usize], model: &Proportions, pure: bool) -> DType {
        let Some(part) = tensor.strip_suffix(".weight") else { return DType::F32 };
        let is_small = [".ffn_gate_inp", ".ssm_conv1d"].iter().any(|end| part.ends_with(end));
        if shape.len() < 2 || part.ends_with("_norm") || is_small || ALWAYS_F32.contains(&part) {
            return DType::F32;
        }
        let cols = shape.last().copied().unwrap_or(1);
        let wanted =
            if pure || !self.base.is_quantised() { self.base } else { self.wanted(part, cols, model) };
        fallback(wanted, cols)
    }

    fn wanted(&self, part: &str, cols: usize, model: &Proportions) -> DType {
        if self.name == EXPERTS_ALONE && !part.ends_with("_exps") {
            return DType::Q8_0;
        }
        let in_layer = part.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let (layer, part) = match in_layer.map(|(layer, part)| (layer.parse::<usize>(), part)) {
            // Experts as the dense matrices that they replace.
            Some((Ok(layer), part)) => (layer, part.strip_suffix("_exps").unwrap_or(part)),
            _ if part == "token_embd" && model.tied => (0, "output"),
            _ => (0, part),
        };
        // The matrix that produces the logits has the largest effect.
        let base = match part {
            "output" if self.base == DType::Q8_0 || !cols.is_multiple_of(DType::Q6K.block_len()) => {
                return DType::Q8_0;
            }
            "output" => DType::Q6K,
            _ => self.base,
        };
        let more = MORE_BITS.iter().find(|(base, size, name, when, _)| {
            *base == self.base && *size == self.size && *name == part && when.holds(layer, model)
        });
        let lattice = LATTICES.iter().find(|(mixes, name, when, _)| {
            mixes.contains(&self.name) && *name == part && when.holds(layer, model)
        });
        let wanted = more.map(|rule| rule.4).or(lattice.map(|rule| rule.3)).unwrap_or(base);
        // In the largest models eight query heads share a value head: these matrices are small and worth the bits.
        let small = TWO_BITS.contains(&self.name) || TWO_AND_A_HALF.contains(&self.name);
        let large = part == "attn_v" && model.layers >= 80 && model.group() == 8 && !small;
        if large && matches!(wanted, DType::Q3K | DType::Q4K) { DType::Q5K } else { wanted }
    }
}

fn fallback(wanted: DType, cols: usize) -> DType {
    if cols.is_multiple_of(wanted.block_len()) {
        return wanted;
    }
    let smaller = match wanted {
        DType::Q2K | DType::Q3K => DType::Q4_0,
        DType::Q4K => DType::Q5_0,
        DType::Q5K => DType::Q5_1,
        DType::Q6K => DType::Q8_0,
        DType::IQ4XS
        | DType::IQ1S
        | DType::IQ1M
        | DType::IQ2XXS
        | DType::IQ2XS
        | DType::IQ2S
        | DType::IQ3XXS
        | DType::IQ3S => DType::IQ4NL,
        other => other,
    };
    if cols.is_multiple_of(smaller.block_len()) { smaller } else { DType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Proportions = Proportions { layers: 32, heads: 32, kv_heads: 8, tied: false };

    fn of(mix: &str, tensor: &str, cols: usize) -> DType {
        Mix::find(mix).unwrap().dtype(tensor, &[64, cols], &MODEL, false)
    }

    #[test]
    fn important_tensors_get_more_bits() {
        assert_eq!(of("q4_k_m", "blk.0.attn_v.weight", 256), DType::Q6K);
        assert_eq!(of("q4_k_m", "blk.4.attn_v.weight", 256), DType::Q4K);
        assert_eq!(of("q4_k_m", "blk.6.ffn_down.weight", 256), DType::Q6K);
        assert_eq!(of("Q3_K_M", "blk.9.attn_output.weight", 256), DType::Q4K);
        assert_eq!(of("Q2_K", "blk.9.attn_v.weight", 256), DType::Q4K);
        assert_eq!(of("Q2_K", "output.weight", 256), DType::Q6K);
        assert_eq!(of("Q2_K", "token_embd.weight", 256), DType::Q2K);
        assert_eq!(of("IQ2_XXS", "output.weight", 256), DType::Q5K);
        assert_eq!(of("IQ2_XXS", "token_embd.weight", 256), DType::Q2K);
        assert_eq!(of("IQ1_S", "blk.9.attn_output.weight", 256), DType::IQ2XXS);
        assert_eq!(of("IQ2_M", "blk.3.ffn_down.weight", 256), DType::IQ3S);
        assert_eq!(of("IQ2_M", "blk.4.ffn_down.weight", 256), DType::IQ2S);
        assert_eq!(of("IQ2_S", "blk.4.ffn_up.weight", 256), DType::IQ2XS);
        assert_eq!(of("IQ3_XS", "blk.3.ffn_up.weight", 256), DType::IQ3S);
        assert_eq!(of("IQ3_XS", "blk.4.ffn_up.weight", 256), DType::IQ3XXS);
        assert_eq!(of("IQ3_M", "blk.4.ffn_up.weight", 96), DType::IQ4NL);
        let tied = Proportions { tied: true, ..MODEL };
        let mix = Mix::find("Q2_K").unwrap();
        assert_eq!(mix.dtype("token_embd.weight", &[64, 256], &tied, false), DType::Q6K);
        assert_eq!(mix.dtype("token_embd.weight", &[64, 256], &tied, true), DType::Q2K);
    }

    #[test]
    fn vectors_and_added_tables_stay_f32() {
        for mix in MIXES {
            for name in ["output_norm.weight", "blk.0.attn_q.bias", "rope_freqs.weight"] {
                assert_eq!(mix.dtype(name, &[256], &MODEL, true), DType::F32, "{}", mix.name);
            }
            for name in [
                "position_embd.weight",
                "enc.position_embd.weight",
                "token_types.weight",
                "cls.output.weight",
            ] {
                assert_eq!(mix.dtype(name, &[2, 256], &MODEL, true), DType::F32, "{}", mix.name);
            }
        }
    }

    #[test]
    fn every_type_has_a_fallback_for_every_row() {
        for mix in MIXES {
            for cols in [1, 31, 32, 96, 255, 256, 576] {
                let dtype = of(mix.name, "blk.1.ffn_up.weight", cols);
                assert!(cols.is_multiple_of(dtype.block_len()), "{}: {cols} in {dtype}", mix.name);
            }
        }
        assert_eq!(of("Q4_K", "blk.4.ffn_up.weight", 576), DType::Q5_0);
        assert_eq!(of("Q4_0", "blk.4.ffn_up.weight", 31), DType::F16);
    }
}

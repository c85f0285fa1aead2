//! Which type each tensor gets: the mixes of llama-quantize, as files in the wild have them.

use akunu_format::DType;

use super::presets::{Preset, Role, Tensor};

/// What `-q` takes. `S`, `M` and `L`: how many tensors get more bits than the name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mix {
    pub(super) name: &'static str,
    pub(super) base: DType,
    /// `general.file_type`
    pub(super) file_type: u32,
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

/// `Q3_K`, `Q4_K` and `Q5_K` are short for the M mixes, as in llama-quantize.
pub(super) const MIXES: &[Mix] = &[
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
];

impl Mix {
    pub(super) fn find(name: &str) -> Option<Mix> {
        MIXES.iter().find(|m| m.name.eq_ignore_ascii_case(name)).copied()
    }

    /// `pure`: the base type wherever rows allow it.
    pub(super) fn dtype(&self, tensor: &Tensor, preset: &Preset, pure: bool) -> DType {
        if matches!(tensor.role, Role::Norm | Role::RopeFactors) {
            return DType::F32;
        }
        let wanted = if pure || !self.base.is_quantised() { self.base } else { self.wanted(tensor, preset) };
        fitting(wanted, tensor.cols())
    }

    fn wanted(&self, tensor: &Tensor, preset: &Preset) -> DType {
        let (base, size) = (self.base, self.size);
        let group = preset.heads / preset.kv_heads;
        match tensor.role {
            // What gives the logits matters most.
            Role::Output => self.output(tensor.cols()),
            Role::Embedding if preset.tied => self.output(tensor.cols()),
            Role::AttnV { layer } => {
                let wanted = match (base, size) {
                    (DType::Q2K, Size::S) if group >= 4 => DType::Q4K,
                    (DType::Q2K, Size::M) => {
                        if group >= 4 {
                            DType::Q4K
                        } else {
                            DType::Q3K
                        }
                    }
                    (DType::Q3K, Size::M) => {
                        if layer < 2 {
                            DType::Q5K
                        } else {
                            DType::Q4K
                        }
                    }
                    (DType::Q3K, Size::L) => DType::Q5K,
                    (DType::Q4K | DType::Q5K, Size::M) if more_bits(layer, preset.layers) => DType::Q6K,
                    (DType::Q4K, Size::S) if layer < 4 => DType::Q5K,
                    _ => base,
                };
                // Eight heads share these in the largest models: they are small, and worth it.
                let large = preset.layers >= 80 && group == 8;
                if large && matches!(wanted, DType::Q3K | DType::Q4K) { DType::Q5K } else { wanted }
            }
            Role::FfnDown { layer } => match (base, size) {
                (DType::Q2K, Size::M) => DType::Q3K,
                (DType::Q2K, Size::S) if layer < preset.layers / 8 => DType::Q4K,
                (DType::Q3K, Size::M) => {
                    if layer < preset.layers / 16 {
                        DType::Q5K
                    } else {
                        DType::Q4K
                    }
                }
                (DType::Q3K, Size::L) => DType::Q5K,
                (DType::Q4K | DType::Q5K, Size::M) if more_bits(layer, preset.layers) => DType::Q6K,
                (DType::Q4K, Size::S) if layer < preset.layers / 8 => DType::Q5K,
                _ => base,
            },
            Role::AttnOutput => match (base, size) {
                (DType::Q2K, Size::M) => DType::Q3K,
                (DType::Q3K, Size::M) => DType::Q4K,
                (DType::Q3K, Size::L) => DType::Q5K,
                _ => base,
            },
            _ => base,
        }
    }

    fn output(&self, cols: usize) -> DType {
        if self.base == DType::Q8_0 || !cols.is_multiple_of(DType::Q6K.block_len()) {
            DType::Q8_0
        } else {
            DType::Q6K
        }
    }
}

/// The first and last eighth of the layers, and every third between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// Blocks of 256 do not fit every row: the next larger type in blocks of 32 then, or F16. (llama-quantize takes IQ4_NL in
/// place of Q2_K and Q3_K; Q4_0 has its size.)
fn fitting(wanted: DType, cols: usize) -> DType {
    if cols.is_multiple_of(wanted.block_len()) {
        return wanted;
    }
    let smaller = match wanted {
        DType::Q2K | DType::Q3K => DType::Q4_0,
        DType::Q4K => DType::Q5_0,
        DType::Q5K => DType::Q5_1,
        DType::Q6K => DType::Q8_0,
        other => other,
    };
    if cols.is_multiple_of(smaller.block_len()) { smaller } else { DType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(preset: &str, mix: &str, pure: bool, dtype: DType) -> usize {
        let (preset, mix) = (Preset::find(preset).unwrap(), Mix::find(mix).unwrap());
        preset.tensors().iter().filter(|t| mix.dtype(t, &preset, pure) == dtype).count()
    }

    #[test]
    fn a_llama_8b_in_q4_k_m_has_the_published_mix() {
        // The file on every hub: 193 Q4_K, 33 Q6_K (output, and half of attn_v and ffn_down).
        assert_eq!(count("llama-8b", "Q4_K_M", false, DType::Q6K), 33);
        assert_eq!(count("llama-8b", "Q4_K_M", false, DType::Q4K), 193);
        assert_eq!(count("llama-8b", "q4_0", false, DType::Q6K), 1);
    }

    #[test]
    fn rows_that_are_not_whole_blocks_fall_back() {
        // 576 is not a multiple of 256: only ffn_down (1536) keeps its k-quant.
        assert_eq!(count("smollm2-135m", "Q4_K_S", true, DType::Q4K), 30);
        assert_eq!(count("smollm2-135m", "Q4_K_S", true, DType::Q5_0), 6 * 30 + 1);
        assert_eq!(count("smollm2-135m", "Q4_0", false, DType::Q8_0), 1);
    }

    #[test]
    fn pure_is_one_type_throughout() {
        assert_eq!(count("llama-8b", "Q4_0", true, DType::Q4_0), 7 * 32 + 2);
    }
}

//! All element types that GGUF files have used, so that errors can name them.

use crate::DType;

/// Name of a GGUF tensor type id, whether supported here or not.
pub fn tensor_type_name(id: u32) -> Option<&'static str> {
    if let Some(dtype) = DType::from_gguf_id(id) {
        return Some(dtype.name());
    }
    Some(match id {
        4 => "Q4_2 (removed from GGUF)",
        5 => "Q4_3 (removed from GGUF)",
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        31 => "Q4_0_4_4 (removed from GGUF)",
        32 => "Q4_0_4_8 (removed from GGUF)",
        33 => "Q4_0_8_8 (removed from GGUF)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4 (removed from GGUF)",
        37 => "IQ4_NL_4_8 (removed from GGUF)",
        38 => "IQ4_NL_8_8 (removed from GGUF)",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}

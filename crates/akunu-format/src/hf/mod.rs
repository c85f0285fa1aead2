//! Hugging Face and MLX checkpoints: `config.json` and SafeTensors, one file or several.

mod checkpoint;
mod compressed;
mod fp8;
mod groups;
mod integers;
mod json;
mod mlx;
mod mxfp4;
mod packed;
mod quantisation;
mod tensors;

pub use checkpoint::{Checkpoint, Weights};
pub(crate) use checkpoint::{ONLY_PYTORCH, config_beside, holds_pytorch};
pub use groups::in_parts;
pub use json::{Document, Json, check_values, most_values, wrong};
pub use mxfp4::mxfp4_row;
pub use quantisation::Quantisation;

pub const CONFIG: &str = "config.json";
/// The settings of GPTQ in folders of its first tools, which do not repeat them in `config.json`.
const GPTQ_CONFIG: &str = "quantize_config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The types recommended when another type is rejected.
pub(crate) const SUPPORTED: &str = "F32, F16 or BF16";

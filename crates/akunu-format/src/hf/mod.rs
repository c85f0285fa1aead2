//! Hugging Face and MLX checkpoints: `config.json` and SafeTensors, one file or several.

mod checkpoint;
mod json;
mod mlx;
mod tensors;

pub use checkpoint::{Checkpoint, Weights};
pub(crate) use checkpoint::{ONLY_PYTORCH, config_beside, holds_pytorch};
pub use json::{Document, Json, check_values, most_values, wrong};
pub use mlx::Quantisation;

pub const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The types recommended when another type is rejected.
pub(crate) const SUPPORTED: &str = "F32, F16 or BF16";
